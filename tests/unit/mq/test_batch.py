"""Append batches: layout, round trips, damage."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from itertools import accumulate

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from strata_mq.layout.batch import (
    BATCH_HEADER_BYTES,
    BatchBuilder,
    BatchError,
    BatchView,
    OutgoingMessage,
    PartKey,
    PartKind,
)
from strata_mq.layout.hashing import pack_message_id, text_hash

KEY = PartKey(7, -1, 1234, 8)
FIFO_KEY = PartKey(7, 3, 1234, 8)
DELAYED_KEY = PartKey(7, -1, 1234, 8, PartKind.DELAYED)
HALF_KEY = PartKey(7, 3, 1234, 8, PartKind.HALF)
DUE_MS = 1_795_258_000_000

longs = st.integers(0, 2**64 - 1)
messages = st.builds(
    lambda stored, tag, group, message_id, kind, born, keys, due: OutgoingMessage(
        stored, crc32c(stored), tag, group, message_id, kind, born, keys, due
    ),
    st.binary(min_size=1, max_size=50),
    longs,
    longs,
    st.binary(min_size=17, max_size=17),
    st.integers(0, 6),
    longs,
    st.lists(longs, max_size=3),
    longs,
)
parts = st.lists(
    st.tuples(
        st.sampled_from((KEY, FIFO_KEY, PartKey(8, -1, 0, 1), DELAYED_KEY, HALF_KEY)),
        st.lists(messages, min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=6,
)


def example(body: bytes, *, tag: str = "", keys: tuple[str, ...] = ()) -> OutgoingMessage:
    return OutgoingMessage(
        body,
        crc32c(body),
        text_hash(tag) if tag else 0,
        0,
        pack_message_id("0190DB80539A6F48DE88837ED15B1664A0"),
        1,
        1_795_257_925_586,
        [text_hash(key) for key in keys],
    )


def build(*additions: tuple[PartKey, list[OutgoingMessage]]) -> bytes:
    builder = BatchBuilder(crc32c)
    for key, part in additions:
        builder.add(key, part)
    return builder.build()


def test_golden_bytes(golden: Callable[[str, Mapping[str, bytes]], None]) -> None:
    """The layout of docs/data-layout.md section 3, byte for byte."""
    fifo = example(b"second")._replace(group_hash=text_hash("order-1"), message_type=2)
    golden(
        "batch.txt",
        {
            "one message, no tag, no key": build((KEY, [example(b"x")])),
            "two parts, three messages, tags and keys": build(
                (KEY, [example(b"first", tag="a", keys=("k1", "k2"))]),
                (FIFO_KEY, [fifo]),
                (KEY, [example(b"third")]),
            ),
            "a plain, a delayed and a half part": build(
                (KEY, [example(b"plain")]),
                (DELAYED_KEY, [example(b"later", keys=("k",))._replace(due_ms=DUE_MS)]),
                (HALF_KEY, [example(b"half")._replace(due_ms=DUE_MS + 6_000)]),
            ),
        },
    )


@given(parts)
def test_what_goes_in_comes_out(additions: list[tuple[PartKey, list[OutgoingMessage]]]) -> None:
    """Every column and byte of every message is read back from the place `add` announced."""
    builder = BatchBuilder(crc32c)
    places = [builder.add(key, part) for key, part in additions]
    data = builder.build()
    assert len(data) == builder.byte_count
    view = BatchView(data, crc32c)
    view.check_messages()
    assert view.message_count == builder.message_count == sum(len(part) for _, part in additions)
    for (key, part), (number, first) in zip(additions, places, strict=True):
        assert view.parts[number].key == key
        for ordinal, message in enumerate(part, view.parts[number].first + first):
            at = view.message_at(ordinal)
            assert data[at : at + len(message.stored)] == message.stored
            assert view.lengths(ordinal, 1)[0] == len(message.stored)
            assert view.message_id(ordinal) == message.message_id
            assert view.message_types(ordinal, 1)[0] == message.message_type
            assert view.born_times(ordinal, 1)[0] == message.born_ms
            assert view.tag_hashes(ordinal, 1)[0] == message.tag_hash
            assert view.group_hashes(ordinal, 1)[0] == message.group_hash
            assert view.key_hashes(ordinal, 1) == [(ordinal, key) for key in message.key_hashes]
            if key.kind:
                assert view.due_times(ordinal, 1)[0] == message.due_ms


@given(parts, st.data())
def test_columns_of_a_run_are_slices(
    additions: list[tuple[PartKey, list[OutgoingMessage]]], data: st.DataObject
) -> None:
    """Row columns, ids and keys of a run are those of its messages, in order."""
    view = BatchView(build(*additions), crc32c)
    by_part: dict[PartKey, list[OutgoingMessage]] = {}
    for key, part in additions:
        by_part.setdefault(key, []).extend(part)
    flat = [message for part in by_part.values() for message in part]
    first = data.draw(st.integers(0, len(flat) - 1))
    count = data.draw(st.integers(1, len(flat) - first))
    run = flat[first : first + count]
    assert view.row_columns(first, count) == struct.pack(
        f">{2 * count}I{2 * count}Q",
        *[len(message.stored) for message in run],
        *[message.checksum for message in run],
        *[message.tag_hash for message in run],
        *[message.group_hash for message in run],
    )
    assert view.message_ids(first, count) == [message.message_id for message in run]
    assert view.key_hashes(first, count) == [
        (ordinal, key) for ordinal, message in enumerate(run, first) for key in message.key_hashes
    ]


def test_parts_know_where_their_messages_start() -> None:
    """`messages_at` of a part is the sum of what stands before it."""
    view = BatchView(build((KEY, [example(b"abc")] * 2), (FIFO_KEY, [example(b"de")])), crc32c)
    starts = [view.message_at(0), *accumulate([6], initial=view.message_at(0))][1:]
    assert [part.messages_at for part in view.parts] == starts
    assert [(part.first, part.count) for part in view.parts] == [(0, 2), (2, 1)]


def test_only_batches_with_pending_parts_have_due_times() -> None:
    """A plain batch is as short as it ever was: 8 bytes less per message."""
    plain = build((KEY, [example(b"x")]))
    assert len(build((DELAYED_KEY, [example(b"x")]))) == len(plain) + 8
    both = build((KEY, [example(b"x")]), (HALF_KEY, [example(b"x")]))
    assert len(both) == 2 * len(plain) - BATCH_HEADER_BYTES + 2 * 8


@pytest.mark.parametrize(("at", "value"), [(3, 2), (3, 3), (3, 0), (51, 3), (51, 255)])
def test_unknown_flags_and_kinds_are_refused(at: int, value: int) -> None:
    """Bytes that a later version gave a meaning are not read as if they had none."""
    data = bytearray(build((DELAYED_KEY, [example(b"x")])))
    data[at] = value
    with pytest.raises(BatchError):
        BatchView(bytes(data), crc32c, verify=False)


def test_a_pending_part_without_due_times_is_refused() -> None:
    """The author of such a batch knew nothing of due times."""
    data = bytearray(build((KEY, [example(b"x")])))
    data[51] = PartKind.HALF
    with pytest.raises(BatchError, match="part 0 is of kind 2"):
        BatchView(bytes(data), crc32c, verify=False)


def test_an_empty_batch_cannot_be_built() -> None:
    """A batch without a message has no meaning for anybody."""
    with pytest.raises(ValueError, match="at least one message"):
        BatchBuilder(crc32c).build()


def test_every_flipped_bit_before_the_messages_is_found() -> None:
    """Header and columns are covered by their checksums, whichever byte is damaged."""
    data = build((KEY, [example(b"first", tag="a", keys=("k",)), example(b"second")]))
    messages_at = BatchView(data, crc32c).message_at(0)
    for at in range(messages_at):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(BatchError):
            BatchView(bytes(damaged), crc32c)


def test_a_damaged_message_is_named() -> None:
    """`check_messages` says which message does not match its checksum."""
    data = bytearray(build((KEY, [example(b"first"), example(b"second")])))
    data[-1] ^= 1
    view = BatchView(bytes(data), crc32c)
    with pytest.raises(BatchError, match="message 1 "):
        view.check_messages()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_a_batch_error(noise: bytes) -> None:
    """Unverified parsing of foreign bytes never fails in another way."""
    for data in (noise, b"AB\x01" + noise, build((KEY, [example(b"x")]))[:40] + noise):
        try:
            BatchView(data, crc32c, verify=False)
        except BatchError:
            continue


def test_a_cut_batch_is_refused() -> None:
    """Every proper prefix is an error, not a shorter batch."""
    data = build((KEY, [example(b"first")]))
    for length in (0, 5, BATCH_HEADER_BYTES, len(data) - 1):
        with pytest.raises(BatchError):
            BatchView(data[:length], crc32c)


@given(parts, st.integers(0, 2**62))
def test_uses_of_keys(made: list[tuple[PartKey, list[OutgoingMessage]]], base: int) -> None:
    """Each key of a run with its message's offset, however many keys a message has."""
    view = BatchView(build(*made), crc32c)
    for part in view.parts:
        assert view.key_uses(part.first, part.count, base) == [
            (base + ordinal - part.first, key_hash)
            for ordinal, key_hash in view.key_hashes(part.first, part.count)
        ]


def test_uses_of_one_key_each() -> None:
    """Beside runs with more keys and none."""
    one = [example(b"a", keys=("k",)), example(b"b", keys=("m",))]
    many = [example(b"c", keys=("x", "y")), example(b"d")]
    view = BatchView(build((FIFO_KEY, many), (KEY, one)), crc32c)
    assert view.key_uses(2, 2, 70) == [(70, text_hash("k")), (71, text_hash("m"))]
    assert view.key_uses(0, 2, 10) == [(10, text_hash("x")), (10, text_hash("y"))]
