"""Rows of messages that a RESOLVE entry gave their offsets: cq, id and key rows, and pins.

Used by apply and, with the same result, when rows are rebuilt from the log. The entry says all of
it: the entries that hold the messages are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from strata_mq.commands import ResolveItem
from strata_mq.layout import (
    PendingRef,
    PendingRow,
    PinRow,
    PinState,
    day_of,
    encode_cq_row,
    pack_longs,
    pack_words,
)
from strata_state.ports import RowBatch
from strata_state.rows import GroupRows


class PlacedRun(NamedTuple):
    """A consume queue row of placed messages."""

    topic_id: int
    queue: int
    base_offset: int
    value: bytes


class _Placed(NamedTuple):
    """A message with its place; sorts as messages lie in their entries."""

    raft_index: int
    ordinal: int
    topic_id: int
    queue: int
    offset: int
    row: PendingRow


def write_placed(
    rows: GroupRows, batch: RowBatch, items: Sequence[ResolveItem], group_time_ms: int, index: int
) -> list[PlacedRun]:
    """Write all rows of placed messages but queue and pending rows.

    Args:
        rows: of the raft group.
        batch: where to.
        items: PLACE items.
        group_time_ms: of the RESOLVE entry: the store time from now on (rule 26).
        index: raft index of that entry.

    Returns:
        The consume queue rows, by queue, their offsets rising.
    """
    placed = [_placed(item) for item in items]
    day = day_of(group_time_ms)
    for item, message in zip(items, placed, strict=True):
        ref, row = item.key.ref, message.row
        rows.pins.put(batch, ref, PinRow.placed(row.kind, *message[2:5]))
        if day != day_of(row.store_time_ms) or message.topic_id != row.topic_id:
            # Its first id row is found under another day or topic.
            rows.ids.put_pending_run(batch, day, message.topic_id, (row.message_id,), ref)
        for key_hash in row.key_hashes:
            rows.keys.put(batch, day, message.topic_id, key_hash, message.queue, message.offset)
    runs = []
    for run in _runs(sorted(placed, key=lambda message: message[:2])):
        first = run[0]
        value = encode_cq_row(
            first.row.message_at,
            first.raft_index,
            group_time_ms,
            _columns([message.row for message in run]),
            len(run),
            index,
        )
        runs.append(PlacedRun(first.topic_id, first.queue, first.offset, value))
    runs.sort()
    for topic_id, queue, base_offset, value in runs:
        rows.cq.put(batch, topic_id, queue, base_offset, value)
    return runs


def pin_of_placed(
    rows: GroupRows, topic_id: int, queue: int, offset: int
) -> tuple[PendingRef, PinRow] | None:
    """Return the pin of the message at an offset; None: it never waited, or there is none."""
    found = rows.cq.covering(topic_id, queue, offset)
    if found is None or found[1].offset_index == found[1].raft_index:
        return None
    place, index = (topic_id, queue, offset), found[1].raft_index
    for ref, pin in rows.pins.scan(PendingRef(index, 0), index):
        if pin.state is PinState.PLACED and (pin.topic_id, pin.queue, pin.offset) == place:
            return ref, pin
    return None


def _placed(item: ResolveItem) -> _Placed:
    assert item.row is not None, "a PLACE item carries its pending row"
    key = item.key
    return _Placed(
        key.raft_index, key.ordinal, item.topic_id, item.queue, item.offset_or_due, item.row
    )


def _runs(placed: Sequence[_Placed]) -> Iterator[list[_Placed]]:
    """Yield what lies side by side in an entry and took offsets side by side."""
    run: list[_Placed] = []
    for message in placed:
        if run and not _follows(run[-1], message):
            yield run
            run = []
        run.append(message)
    if run:
        yield run


def _follows(last: _Placed, message: _Placed) -> bool:
    return (
        message.raft_index == last.raft_index
        and message.row.message_at == last.row.message_at + last.row.length
        and message.offset == last.offset + 1
        and message.queue == last.queue
        and message.topic_id == last.topic_id
    )


def _columns(rows: Sequence[PendingRow]) -> bytes:
    """Return the columns of a consume queue row, as `BatchView.row_columns` does."""
    return b"".join(
        (
            pack_words([row.length for row in rows]),
            pack_words([row.checksum for row in rows]),
            pack_longs([row.tag_hash for row in rows]),
            pack_longs([row.group_hash for row in rows]),
        )
    )
