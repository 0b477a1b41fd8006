"""Messages that wait: their rows, the commands that end their waiting, the rows they get then."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from strata_mq.commands.common import CommandError, CommandKind, command_kind
from strata_mq.commands.pending import (
    DELIVER_BYTES_MIN,
    RESOLVE_HEAD_BYTES,
    EndedAs,
    ResolveAction,
    ResolveCommand,
    RetractCommand,
    StoredPosition,
    decode_resolve,
    decode_retract,
    deliver,
    discard,
    encode_resolve,
    encode_retract,
    reschedule,
)
from strata_mq.layout import pending_rows as layout
from strata_mq.layout.batch import BatchBuilder, BatchView, OutgoingMessage, PartKey, PartKind
from strata_mq.layout.cq_rows import CqRow, encode_cq_row
from strata_mq.layout.hashing import pack_message_id, text_hash
from strata_mq.layout.pending_rows import (
    PendingKey,
    PendingRef,
    PendingRow,
    PinRow,
    PinState,
    decode_id,
    encode_pending_id,
    encode_pending_pins,
    encode_pending_run,
)
from strata_mq.layout.rows import MessagePosition

RAFT_GROUP = 2
STORE_TIME_MS = 1_795_257_925_589
DUE_MS = STORE_TIME_MS + 60_000
MESSAGE_ID = pack_message_id("0190DB80539A6F48DE88837ED15B1664A0")
KEY = PendingKey(DUE_MS, 9, 4)
ROW = PendingRow(
    PartKind.HALF,
    2,
    7,
    -1,
    1234,
    8,
    300,
    1024,
    0xC0C0,
    text_hash("tag"),
    0,
    MESSAGE_ID,
    STORE_TIME_MS,
    (text_hash("k1"), text_hash("k2")),
)
RESOLVE = ResolveCommand(
    DUE_MS + 1,
    [
        deliver(KEY, ROW, 8, 3, 100),
        discard(KEY._replace(ordinal=5), 7),
        reschedule(KEY, 7, DUE_MS * 2, 3),
    ],
)
RETRACT = RetractCommand(DUE_MS, [StoredPosition(7, 3, 100), StoredPosition(8, 0, 2**40)])

words = st.integers(0, 2**32 - 1)
longs = st.integers(0, 2**64 - 1)
shorts = st.integers(0, 2**16 - 1)
keys = st.builds(PendingKey, longs, longs, words)
pending_rows = st.builds(
    PendingRow,
    st.sampled_from((PartKind.DELAYED, PartKind.HALF)),
    shorts,
    words,
    st.integers(-1, 2**31 - 1),
    shorts,
    shorts,
    words,
    words,
    words,
    longs,
    longs,
    st.binary(min_size=17, max_size=17),
    longs,
    st.lists(longs, max_size=4).map(tuple),
)
items = (
    st.builds(deliver, keys, pending_rows, words, words, longs)
    | st.builds(discard, keys, words, st.sampled_from(EndedAs))
    | st.builds(reschedule, keys, words, longs, shorts)
)


def test_golden_bytes(golden: Callable[[str, Mapping[str, bytes]], None]) -> None:
    """The layout of docs/data-layout.md sections 4 and 5, byte for byte."""
    golden(
        "pending.txt",
        {
            "resolve": encode_resolve(RESOLVE),
            "retract": encode_retract(RETRACT),
            "pending key": layout.pending_key(RAFT_GROUP, KEY),
            "pending": ROW.encode(),
            "pin key": layout.pin_key(RAFT_GROUP, KEY.ref),
            "pin that waits": PinRow.pending(PartKind.HALF, 7, DUE_MS).encode(),
            "pin that was placed": PinRow.placed(PartKind.DELAYED, 8, 3, 100).encode(),
            "pin that was retracted": PinRow.retracted(8, 3, 100).encode(),
            "pin that was lost": PinRow.lost().encode(),
            "ended key": layout.ended_key(RAFT_GROUP, 20_000, KEY.ref),
            "ended": layout.encode_ended(EndedAs.ROLLED_BACK, 7),
            "resolve, recalled": encode_resolve(
                ResolveCommand(DUE_MS, [discard(KEY, 7, EndedAs.RECALLED)])
            ),
            "id": encode_pending_id(KEY.ref),
            "placed cq": encode_cq_row(300, 9, DUE_MS, bytes(24), 1, 20),
        },
    )


@given(longs, st.lists(items, max_size=5))
def test_resolve_round_trip(group_time_ms: int, resolved: list[object]) -> None:
    """Decoding gives every item, with the pending row of what is placed."""
    command = ResolveCommand(group_time_ms, resolved)  # type: ignore[arg-type]
    payload = encode_resolve(command)
    assert command_kind(payload) is CommandKind.RESOLVE
    assert decode_resolve(payload) == command


@given(longs, st.lists(st.builds(StoredPosition, words, words, longs), max_size=5))
def test_retract_round_trip(group_time_ms: int, positions: list[StoredPosition]) -> None:
    """Decoding gives every position."""
    command = RetractCommand(group_time_ms, positions)
    payload = encode_retract(command)
    assert command_kind(payload) is CommandKind.RETRACT
    assert decode_retract(payload) == command


@pytest.mark.parametrize(
    ("payload", "decode"),
    [(encode_resolve(RESOLVE), decode_resolve), (encode_retract(RETRACT), decode_retract)],
)
def test_other_bytes_are_refused(payload: bytes, decode: Callable[[bytes], object]) -> None:
    """Every prefix, another kind and another version are command errors."""
    cases = [payload[:length] for length in range(len(payload))]
    cases += [b"\x63" + payload[1:], payload[:1] + b"\x02" + payload[2:]]
    for other in cases:
        with pytest.raises(CommandError):
            decode(other)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        # No such action; a drop with a row; no such kind of a pending message.
        (RESOLVE_HEAD_BYTES, 9),
        (RESOLVE_HEAD_BYTES, ResolveAction.DISCARD),
        (RESOLVE_HEAD_BYTES + 44 + 1, 9),
    ],
)
def test_a_resolve_that_contradicts_itself_is_refused(at: int, value: int) -> None:
    """Nothing is applied that nobody can have meant."""
    payload = bytearray(encode_resolve(RESOLVE))
    payload[at] = value
    with pytest.raises(CommandError):
        decode_resolve(bytes(payload))


def test_an_offset_costs_at_least_so_many_bytes() -> None:
    """`strata log repair` counts with it: how many offsets a lost entry can have given away."""
    fewest = ROW._replace(key_hashes=())
    payload = encode_resolve(ResolveCommand(0, [deliver(KEY, fewest, 7, 0, 0)] * 3))
    assert len(payload) == RESOLVE_HEAD_BYTES + 3 * DELIVER_BYTES_MIN


@given(pending_rows, st.binary(max_size=5))
def test_a_pending_row_comes_back(row: PendingRow, before: bytes) -> None:
    """It is 70 bytes and 8 for every key; it is read where it lies."""
    value = row.encode()
    assert len(value) == 70 + 8 * len(row.key_hashes)
    assert PendingRow.decode(before + value, len(before)) == row


@given(st.lists(st.tuples(pending_rows, longs), max_size=4), st.booleans())
def test_rows_of_a_part_are_written_at_once(
    messages: list[tuple[PendingRow, int]], moved: bool
) -> None:
    """The hot path gives the bytes that the values give one by one."""
    part = PartKey(7, -1, 1234, 8, PartKind.HALF)
    rows = [
        row._replace(
            kind=part.kind,
            checks=0,
            topic_id=7,
            queue=-1,
            slot_base=1234,
            queue_count=8,
            store_time_ms=STORE_TIME_MS,
        )
        for row, _ in messages
    ]
    columns = [(*row[6:12], row.key_hashes) for row in rows]
    assert encode_pending_run(part, STORE_TIME_MS, columns) == [row.encode() for row in rows]
    like = PinRow.pending(PartKind.HALF, 7, 0, moved=moved)
    pins = encode_pending_pins(like, [due_ms for _, due_ms in messages])
    assert pins == [
        PinRow.pending(PartKind.HALF, 7, due_ms, moved=moved).encode() for _, due_ms in messages
    ]


@given(st.sampled_from(PinState), st.sampled_from(PartKind), words, words, longs, st.booleans())
def test_a_pin_comes_back(
    state: PinState, kind: PartKind, topic_id: int, queue: int, number: int, moved: bool
) -> None:
    """Its one number is a due time or an offset, as its state says."""
    pin = PinRow.decode(PinRow(state, kind, topic_id, queue, number, moved).encode())
    assert pin == (state, kind, topic_id, queue, number, moved)
    if state is PinState.PENDING:
        assert pin.due_ms == number
    elif state is not PinState.LOST:
        assert pin.offset == number


@given(words, keys, keys)
def test_keys_come_back_and_sort_by_due_time_and_by_name(
    raft_group: int, one: PendingKey, other: PendingKey
) -> None:
    """A scan of pending rows is in order of due times, one of pins in order of the log."""
    rows = [layout.pending_key(raft_group, key) for key in (one, other)]
    pins = [layout.pin_key(raft_group, key.ref) for key in (one, other)]
    assert [layout.parse_pending_key(row) for row in rows] == [one, other]
    assert [layout.parse_pin_key(pin) for pin in pins] == [one.ref, other.ref]
    assert (rows[0] < rows[1]) == (one < other)
    assert (pins[0] < pins[1]) == (one.ref < other.ref)


def test_nothing_lies_between_a_key_and_the_following_one() -> None:
    """A scan that begins there goes on where another one ended."""
    assert KEY < KEY.following() < KEY._replace(ordinal=KEY.ordinal + 2)
    assert KEY.following() == PendingKey(DUE_MS, 9, 5)


@given(words, longs, words)
def test_an_id_row_says_whether_the_message_was_stored_to_wait(
    queue: int, number: int, ordinal: int
) -> None:
    """12 bytes are an offset, 16 a name."""
    assert decode_id(MessagePosition(queue, number).encode()) == MessagePosition(queue, number)
    found = decode_id(encode_pending_id(PendingRef(number, ordinal)))
    assert isinstance(found, PendingRef)
    assert found == (number, ordinal)


@given(
    st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=6),
    st.integers(0, 2**30),
    st.sampled_from((0, 77)),
    st.data(),
)
def test_a_part_of_a_cq_row_is_a_row(
    bodies: list[bytes], message_at: int, placed_index: int, data: st.DataObject
) -> None:
    """A part of a run points at the same messages and took its offsets as the run did."""
    builder = BatchBuilder(crc32c)
    messages = [
        OutgoingMessage(body, crc32c(body), number, number + 1, MESSAGE_ID, 1, 0, ())
        for number, body in enumerate(bodies)
    ]
    builder.add(PartKey(7, 0, 0, 1), messages)
    columns = BatchView(builder.build(), crc32c).row_columns(0, len(bodies))
    count = len(bodies)
    row = CqRow(encode_cq_row(message_at, 9, STORE_TIME_MS, columns, count, placed_index))
    assert (row.raft_index, row.offset_index) == (9, placed_index or 9)
    first = data.draw(st.integers(0, count - 1))
    length = data.draw(st.integers(1, count - first))
    part = CqRow(row.part(first, length))
    assert (part.count, part.raft_index, part.offset_index) == (length, 9, placed_index or 9)
    assert part.store_time_ms == STORE_TIME_MS
    for ordinal in range(length):
        assert part.location(ordinal) == row.location(first + ordinal)
    assert part.tag_hashes == row.tag_hashes[first : first + length]
    assert part.group_hashes == row.group_hashes[first : first + length]
