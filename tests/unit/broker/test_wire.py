"""Bytes made by hand equal the generated classes' bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.base import wire
from strata_mq.traces.delivery import delivery_fragment, store_fragment
from strata_testing.broker.client import message, resource


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints(value: int) -> None:
    """As an int64 field encodes them."""
    entry = service_pb2.SendResultEntry.FromString(b"\x20" + wire.varint(value))
    assert entry.offset == value


@given(st.lists(st.tuples(st.text(max_size=200), st.integers(0, 2**63 - 1)), max_size=5))
def test_send_responses(results: list[tuple[str, int]]) -> None:
    """For any ids and offsets."""
    expected = service_pb2.SendMessageResponse(
        status=definition_pb2.Status(code=definition_pb2.OK, message="OK")
    )
    for message_id, offset in results:
        expected.entries.add(
            status=expected.status,
            message_id=message_id,
            transaction_id=message_id,
            offset=offset,
        )
    built = wire.send_response(
        [wire.send_result_entry(message_id.encode(), offset) for message_id, offset in results]
    )
    if any(not message_id for message_id, _ in results):
        # Explicit empty strings parse to the same message.
        assert service_pb2.SendMessageResponse.FromString(built) == expected
    else:
        assert built == expected.SerializeToString()


@given(st.text(min_size=1, max_size=200), st.integers(0, 2**63 - 1))
def test_the_response_of_one_message_is_a_response_with_one_entry(
    message_id: str, offset: int
) -> None:
    """For any id and offset."""
    entry = wire.send_result_entry(message_id.encode(), offset)
    assert wire.sent([message_id], [offset]) == wire.send_response([entry])


@given(st.lists(st.tuples(*[st.text(min_size=1, max_size=200)] * 2), min_size=1, max_size=5))
def test_acks(entries: list[tuple[str, str]]) -> None:
    """As a status of OK for each entry and for all."""
    ok = definition_pb2.Status(code=definition_pb2.OK, message="OK")
    expected = service_pb2.AckMessageResponse(status=ok)
    for message_id, handle in entries:
        expected.entries.add(message_id=message_id, receipt_handle=handle, status=ok)
    assert wire.acked(entries) == expected.SerializeToString()


ascii_texts = st.text(st.characters(max_codepoint=0x7F), max_size=140)
any_texts = st.one_of(ascii_texts, st.text(max_size=20))


@given(
    st.lists(st.tuples(any_texts, any_texts), max_size=4),
    st.tuples(*[any_texts] * 4),
    st.booleans(),
    st.integers(0, 4),
    st.binary(max_size=3),
)
def test_a_plain_ack_is_read_as_the_generated_classes_read_it(
    entries: list[tuple[str, str]],
    names: tuple[str, str, str, str],
    has_more: bool,
    cut: int,
    added: bytes,
) -> None:
    """Requests of another form, damaged ones too, are left to these classes."""
    request = service_pb2.AckMessageRequest()
    request.group.resource_namespace, request.group.name = names[:2]
    request.topic.resource_namespace, request.topic.name = names[2:]
    for message_id, handle in entries:
        request.entries.add(message_id=message_id, receipt_handle=handle)
    if has_more and entries:
        request.entries[-1].lite_topic = "lite"
    data = request.SerializeToString()
    plain = wire.plain_ack(data[: len(data) - cut] + added)
    if plain is None:
        short = all(0 < len(text) < 50 and text.isascii() for pair in entries for text in pair)
        is_plain = short and bool(entries) and all(map(str.isascii, names))
        assert cut or added or has_more or not is_plain or max(map(len, names)) > 50
        return
    request = service_pb2.AckMessageRequest.FromString(data[: len(data) - cut] + added)
    head, handles, answer = plain
    read = service_pb2.AckMessageRequest.FromString(head)
    assert (read.group, read.topic, len(read.entries)) == (request.group, request.topic, 0)
    assert handles == [entry.receipt_handle for entry in request.entries]
    named = [(entry.message_id, entry.receipt_handle) for entry in request.entries]
    assert answer == wire.acked(named)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_ack_are_not_read_as_one(data: bytes) -> None:
    """The generated classes read each plain ack, too, and find the same handles."""
    plain = wire.plain_ack(data)
    if plain is not None:
        request = service_pb2.AckMessageRequest.FromString(data)
        assert [entry.receipt_handle for entry in request.entries] == plain[1]


@given(*[st.text(min_size=1, max_size=200)] * 2, st.text(max_size=200))
def test_send_results_of_messages_that_wait(
    message_id: str, transaction_id: str, recall_handle: str
) -> None:
    """For any ids, with a recall handle and without."""
    expected = service_pb2.SendMessageResponse(
        status=definition_pb2.Status(code=definition_pb2.OK, message="OK")
    )
    expected.entries.add(
        status=expected.status,
        message_id=message_id,
        transaction_id=transaction_id,
        recall_handle=recall_handle,
    )
    entry = wire.pending_result_entry(
        message_id.encode(), transaction_id.encode(), recall_handle.encode()
    )
    assert wire.send_response([entry]) == expected.SerializeToString()


@given(st.binary(min_size=1, max_size=40_000), st.text(max_size=300), st.booleans())
def test_stored_and_delivered_messages_have_one_field_of_system_properties(
    body: bytes, tag: str, dead: bool
) -> None:
    """Some runtimes keep only the last of two; parsers that merge must see the same."""
    whole = message("t", 1, body=body, tag=tag)
    rest = definition_pb2.Message()
    rest.CopyFrom(whole)
    rest.ClearField("system_properties")
    stored = wire.stored_message(
        whole.system_properties.SerializeToString(),
        store_fragment("A" * 32),
        rest.SerializeToString(),
    )
    more = definition_pb2.Message(topic=resource("other")).SerializeToString() if dead else b""
    response = wire.received_message(
        stored, delivery_fragment(1_500, "host", "handle", 3, 7, 2), more
    )
    got = service_pb2.ReceiveMessageResponse.FromString(response).message
    assert count_fields(got_bytes(response), 3) == count_fields(stored, 3) == 1
    properties = got.system_properties
    assert (got.body, properties.tag) == (body, tag)
    assert properties.message_id == whole.system_properties.message_id
    assert properties.body_digest.checksum == "A" * 32
    assert (properties.receipt_handle, properties.queue_offset) == ("handle", 7)
    assert got.topic.name == ("other" if dead else "t")


def got_bytes(response: bytes) -> bytes:
    """The message of a ReceiveMessageResponse, as it stands there."""
    return response[first_payload(response) :]


def first_payload(data: bytes) -> int:
    """Where the first field's payload begins."""
    at = 1
    while data[at] & 0x80:
        at += 1
    return at + 1


def count_fields(data: bytes, number: int) -> int:
    """How often a field stands in a message of length-delimited fields."""
    found = at = 0
    while at < len(data):
        found += data[at] >> 3 == number
        length = shift = 0
        at += 1
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        at += length
    return found


def test_the_ends_of_a_receive() -> None:
    """Status OK first, the delivery timestamp last."""
    last = service_pb2.ReceiveMessageResponse.FromString(wire.delivery_timestamp(1_500))
    assert last.delivery_timestamp.ToMilliseconds() == 1_500
    first = service_pb2.ReceiveMessageResponse.FromString(wire.RECEIVE_OK)
    assert first.status.code == definition_pb2.OK
