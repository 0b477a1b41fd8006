"""Messages of the remoting protocol: properties, batches, the stored form, ids of places."""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from zlib import crc32

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strata_remoting import (
    BatchedMessage,
    OffsetPlace,
    PulledMessage,
    RecallHandle,
    RemotingError,
    Store,
    decode_batch,
    decode_messages,
    decode_properties,
    decode_recall_handle,
    encode_batch,
    encode_message,
    encode_properties,
    encode_recall_handle,
    offset_message_id,
    physical_offset,
    place_at,
)

hosts = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))
stores = st.builds(Store, host=hosts, port=st.integers(0, 65_535))
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int63 = st.integers(0, (1 << 63) - 1)
pulled = st.builds(
    PulledMessage,
    queue_id=st.integers(0, 1_000),
    queue_offset=int63,
    physical_offset=int63,
    born_ms=int63,
    born=stores,
    stored_ms=int63,
    store=stores,
    topic=st.text(max_size=60),
    body=st.binary(max_size=100),
    properties=st.text(max_size=60),
    flag=int32,
    reconsume_times=st.integers(0, 100),
)
batched = st.builds(
    BatchedMessage, body=st.binary(max_size=50), properties=st.text(max_size=30), flag=int32
)


def test_properties_have_the_documented_form() -> None:
    """Name, 0x01, value, 0x02; a piece without a name or a separator is passed over."""
    text = encode_properties({"TAGS": "a", "KEYS": "b c"})
    assert text == "TAGS\x01a\x02KEYS\x01b c\x02"
    assert decode_properties(text) == {"TAGS": "a", "KEYS": "b c"}
    assert decode_properties("TAGS\x01a") == {"TAGS": "a"}
    assert decode_properties("\x01a\x02x\x02\x02k\x01v\x01w") == {"k": "v\x01w"}


@given(st.dictionaries(st.text(min_size=1, max_size=9), st.text(max_size=9), max_size=6))
def test_properties_come_back(properties: dict[str, str]) -> None:
    """All texts without the two separators are kept."""
    texts = [*properties, *properties.values()]
    assume(not any("\x01" in text or "\x02" in text for text in texts))
    assert decode_properties(encode_properties(properties)) == properties


def test_a_batch_has_the_documented_bytes() -> None:
    """Total, magic 0, checksum 0, flag, body with its length, properties with their length."""
    data = encode_batch([BatchedMessage(b"xyz", "a\x01b\x02", 5)])
    assert data == bytes.fromhex(
        "0000001d 00000000 00000000 00000005 00000003 78797a 0004 61016202"
    )
    assert decode_batch(data, 1) == [BatchedMessage(b"xyz", "a\x01b\x02", 5)]


@given(st.lists(batched, max_size=5))
def test_a_batch_comes_back(messages: list[BatchedMessage]) -> None:
    """Every message in its order."""
    assert decode_batch(encode_batch(messages), 5) == messages


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_the_one_error(data: bytes) -> None:
    """Hostile bytes raise RemotingError and nothing else."""
    try:
        decode_batch(data, 3)
    except RemotingError:
        return


def test_a_batch_beyond_its_limit_is_refused() -> None:
    """The number of messages is bounded before they are kept."""
    with pytest.raises(RemotingError, match="more than 2 messages"):
        decode_batch(encode_batch([BatchedMessage(b"", "")] * 3), 2)


def test_a_stored_message_has_the_documented_bytes() -> None:
    """The CommitLog format of RocketMQ 4, field by field."""
    message = PulledMessage(
        queue_id=3,
        queue_offset=17,
        physical_offset=258,
        born_ms=1_700_000_000_000,
        born=Store.of("10.0.0.1", 5_000),
        stored_ms=1_700_000_000_001,
        store=Store.of("127.0.0.1", 10_911),
        topic="orders",
        body=b"hello",
        properties="TAGS\x01a\x02",
        flag=9,
        reconsume_times=2,
    )
    data = encode_message(message)
    head = struct.pack(">IIIiiqqi", 109, 0xDAA320A7, crc32(b"hello") & 0x7FFFFFFF, 3, 9, 17, 258, 0)
    born = struct.pack(">q4siq4si", 1_700_000_000_000, bytes((10, 0, 0, 1)), 5_000,
                       1_700_000_000_001, bytes((127, 0, 0, 1)), 10_911)  # fmt: skip
    tail = struct.pack(">iqi5sB6sH7s", 2, 0, 5, b"hello", 6, b"orders", 7, b"TAGS\x01a\x02")
    assert data == head + born + tail
    assert len(data) == 109
    assert decode_messages(data) == [message]


@given(st.lists(pulled, max_size=4))
def test_stored_messages_come_back(messages: list[PulledMessage]) -> None:
    """IPv4 and IPv6, short and long topics, back to back."""
    assert decode_messages(b"".join(map(encode_message, messages))) == messages


@given(st.binary(max_size=200), pulled)
def test_any_bytes_are_messages_or_the_one_error(junk: bytes, message: PulledMessage) -> None:
    """Cut or damaged messages raise RemotingError and nothing else."""
    data = encode_message(message)
    for damaged in (junk, data[: len(junk)], data + junk):
        try:
            decode_messages(damaged)
        except RemotingError:
            continue


def test_a_damaged_body_is_found() -> None:
    """The checksum of the body is compared."""
    message = PulledMessage(
        queue_id=0, queue_offset=0, physical_offset=0, born_ms=0, born=Store.of("::1", 1),
        stored_ms=0, store=Store.of("127.0.0.1", 1), topic="t", body=b"body", properties="",
    )  # fmt: skip
    data = encode_message(message)
    with pytest.raises(RemotingError, match="does not match its checksum"):
        decode_messages(data.replace(b"body", b"bodY"))


@given(st.integers(0, (1 << 20) - 1), st.integers(0, 255), st.integers(0, (1 << 33) - 1))
def test_a_physical_offset_names_its_place(topic_id: int, queue: int, offset: int) -> None:
    """Topics, queues and offsets of usual sizes are found again; the number is a positive long."""
    place = OffsetPlace(topic_id, queue, offset)
    physical = physical_offset(place)
    assert 0 <= physical < 1 << 63
    assert place_at(physical) == place


@pytest.mark.parametrize(
    "place",
    [
        OffsetPlace((1 << 20) - 1, 8_191, (1 << 28) - 1),
        OffsetPlace(1_023, 63, (1 << 45) - 1),
        OffsetPlace(0, 0, 1 << 33),
    ],
)
def test_other_divisions_hold_larger_numbers(place: OffsetPlace) -> None:
    """Many queues, or a very large offset of a small topic id."""
    assert place_at(physical_offset(place)) == place


@pytest.mark.parametrize(
    "place",
    [OffsetPlace(1 << 20, 0, 0), OffsetPlace(-1, -1, -1), OffsetPlace(1_024, 0, 1 << 33)],
)
def test_a_place_that_does_not_fit_is_never_another_one(place: OffsetPlace) -> None:
    """Its number names no place."""
    assert place_at(physical_offset(place)) is None


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_number_names_the_place_that_it_comes_from(physical: int) -> None:
    """Numbers from clients never name a place that has another number."""
    place = place_at(physical)
    if place is not None and physical_offset(place) != physical:
        # A larger division holds what a smaller one would: read only, never written.
        assert place_at(physical_offset(place)) == place


def test_an_offset_message_id_is_address_and_offset() -> None:
    """As RocketMQ writes it: 4 bytes of host, 4 of port, 8 of offset, in upper-case hex."""
    store = Store.of("127.0.0.1", 10_911)
    assert offset_message_id(store, 258) == "7F00000100002A9F0000000000000102"
    assert len(offset_message_id(Store.of("::1", 1), 0)) == 56
    assert Store.of("broker.example", 1).host == bytes(4)


def test_a_recall_handle_begins_as_those_of_rocketmq() -> None:
    """Java's clients read five words and pass over the sixth."""
    handle = RecallHandle("later", "strata-r03", 1_700_000_000_000, "AB12", "own.handle")
    text = encode_recall_handle(handle)
    assert urlsafe_b64decode(text) == b"v1 later strata-r03 1700000000000 AB12 own.handle"
    assert decode_recall_handle(text) == handle


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"v1 later b 1 id",
        b"v2 later b 1 id own",
        b"v1 later b x id own",
        b"v1 later b 1 id own more",
        b"v1 later b " + b"1" * 5_000 + b" id own",
        b"v1 later b 1 id \xff",
    ],
)
def test_other_handles_are_invalid(words: bytes) -> None:
    """With RocketMQ's text; so is a text that is no base64."""
    for text in (urlsafe_b64encode(words).decode(), words.decode(errors="replace"), "\ud800"):
        with pytest.raises(RemotingError, match="recall handle is invalid"):
            decode_recall_handle(text)
