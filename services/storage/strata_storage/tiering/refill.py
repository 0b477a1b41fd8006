"""Rebuilds index rows from the tier: for messages that the log freed before the rows were lost.

A rebuild from the log leaves the rows marked as unfinished when the tier holds more; the mark is
removed when everything is there. A replica is never opened for writing with holes: a pop would pass
over an offset without a row.

Rebuilt rows are as old as a checkpoint. Messages that the log freed since then are in the tier by
an entry that comes after it, so the tier is asked for its state after the whole log was applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple, Protocol

from strata_mq.commands import (
    CommandKind,
    DropKind,
    command_kind,
    decode_drop,
    decode_tier_change,
    decode_trim,
)
from strata_mq.layout import MESSAGE_ID_BYTES, day_of, encode_cq_row, pack_longs, pack_words
from strata_raft import EntryKind
from strata_seglog.errors import LogError, ReadFailed
from strata_seglog.frames import StoredFrame
from strata_seglog.reader import CommitLogReader
from strata_state.overlay import Overlay
from strata_state.ports import StateStore
from strata_state.rows import GroupRows
from strata_storage.reads.reader import NOT_IN_LOG
from strata_tier.base import TierError
from strata_tier.objects import BlockColumns, decode_change
from strata_tier.ranges import ChangeError, RowTierMetadata, TierMetadata
from strata_tier.store import ObjectNotFoundError, StoreError

# A consume queue row counts its messages in 16 bits.
_RUN_MAX = 0xFFFF
_READ_BYTES = 8 * 1024 * 1024


class TierColumns(Protocol):
    """Reads the columns of blocks (`strata_tier.reads.reader.TierReader`)."""

    async def columns(
        self, metadata: TierMetadata, topic_id: int, queue: int, offset: int
    ) -> BlockColumns:
        """Return the columns of the block that holds an offset."""


class Hole(NamedTuple):
    """Offsets `first` .. `end` - 1 of a queue that the tier has and no row covers."""

    topic_id: int
    queue: int
    first: int
    end: int


def holes(rows: GroupRows, metadata: TierMetadata) -> Iterator[Hole]:
    """Find what the log did not give back. Reads rows; may be many.

    A queue may have several: an entry that the log kept for another queue's messages gave rows in
    the midst of what it gave up. Offsets that never held a message are found, too.
    """
    for (topic_id, queue), tiered in metadata.queues():
        row = rows.queues.get(topic_id, queue)
        if row is None:
            continue
        at = max(row.min_offset, tiered.first_offset)
        end = min(row.next_offset, tiered.commit_offset)
        covering = rows.cq.covering(topic_id, queue, at)
        if covering is not None:
            at = covering[0] + covering[1].count
        for base, run in rows.cq.from_base(topic_id, queue, at):
            if base >= end:
                break
            yield from _not_retracted(rows, Hole(topic_id, queue, at, base))
            at = base + run.count
        yield from _not_retracted(rows, Hole(topic_id, queue, at, end))


def _not_retracted(rows: GroupRows, hole: Hole) -> Iterator[Hole]:
    """Cut out of a hole what was taken back: an object may hold it still."""
    at = hole.first
    if at >= hole.end:
        return
    for offset in rows.retracted.offsets(hole.topic_id, hole.queue, hole.first, hole.end):
        if at < offset:
            yield hole._replace(first=at, end=offset)
        at = offset + 1
    if at < hole.end:
        yield hole._replace(first=at)


class LogTail(NamedTuple):
    """Facts of the log that the rows do not have yet: the rows are as old as a checkpoint.

    Attributes:
        min_offsets, dropped_topics: trims and drops.
        metadata: what is in the tier when all of the log is applied.
        damage: why the log could not be read to its end; empty: it could.
    """

    min_offsets: dict[tuple[int, int], int]
    dropped_topics: set[int]
    metadata: TierMetadata
    damage: str = ""

    def ends(self, hole: Hole, offset: int) -> int:
        """Return up to where a hole is trimmed; `offset`: not from there on."""
        if hole.topic_id in self.dropped_topics:
            return hole.end
        return max(offset, self.min_offsets.get((hole.topic_id, hole.queue), 0))


def read_log_tail(
    store: StateStore, log: CommitLogReader, raft_group: int, replica_id: int
) -> LogTail:
    """Read what came after the rows. Blocks.

    The last entries may never be committed. They are right about the tier all the same: an
    object is uploaded before it is committed, and rows are missing only where the log gave up
    messages.
    """
    overlay = Overlay(store)
    found = LogTail({}, set(), RowTierMetadata(overlay, raft_group))
    known = log.replica(replica_id)
    first = GroupRows(store, raft_group).applied.get().raft_index + 1
    last = 0 if known is None else known.last_index
    while first <= last:
        begin = first
        try:
            for frame in log.entries(replica_id, begin, last, _READ_BYTES):
                first = frame.index + 1
                if frame.entry_kind == EntryKind.NORMAL:
                    _take_in(found, overlay, frame)
        except ReadFailed:
            raise  # not damage: it is read again (rule 40)
        except LogError as error:
            return found._replace(damage=f"entry {first} cannot be read: {error}")
        if first == begin:
            break
    return found


def _take_in(found: LogTail, overlay: Overlay, frame: StoredFrame) -> None:
    kind = command_kind(frame.payload)
    if kind == CommandKind.TRIM:
        for topic_id, queue, min_offset in decode_trim(frame.payload).queues:
            found.min_offsets[topic_id, queue] = min_offset
    elif kind == CommandKind.DROP:
        dropped = decode_drop(frame.payload)
        if dropped.what == DropKind.TOPIC:
            found.dropped_topics.add(dropped.dropped_id)
    elif kind == CommandKind.TIER_CHANGE:
        command = decode_tier_change(frame.payload)
        batch = overlay.new_batch()
        # One that is stale changes nothing, here as there.
        with suppress(ChangeError):
            if command.change:
                found.metadata.apply(batch, decode_change(command.change), frame.index)
                overlay.write(batch)


async def refill(
    store: StateStore,
    raft_group: int,
    columns: TierColumns | None,
    read_tail: Callable[[], Awaitable[LogTail]],
) -> str:
    """Write the rows that only the tier can give.

    Args:
        store: all rows.
        raft_group: whose.
        columns: reads the tier; None: there is none here.
        read_tail: reads what the rows do not know yet. An object of which a later trim left nothing
            may be deleted by now; any other one that is not there is damage.

    Returns:
        A line about the loss; empty: nothing is missing.
    """
    rows = GroupRows(store, raft_group)
    known = await read_tail()
    metadata = known.metadata
    for hole in list(holes(rows, metadata)):
        if columns is None:
            return f"rows of {_name(hole)} are in the tier, and this node has none (--tier)"
        try:
            await _fill(store, rows, metadata, columns, hole)
        except ObjectNotFoundError as error:
            first = known.ends(hole, hole.first)
            if first == hole.first:
                return f"rows of {_name(hole)} are not in the tier: {error}"
            problem = await _fill_rest(store, rows, metadata, columns, hole._replace(first=first))
            if problem:
                return problem
        except (StoreError, TierError) as error:
            return f"rows of {_name(hole)} cannot be read from the tier: {error}"
    if known.damage:
        return known.damage
    batch = store.new_batch()
    rows.unfinished.clear(batch)
    store.write(batch)
    return ""


async def _fill_rest(
    store: StateStore,
    rows: GroupRows,
    metadata: TierMetadata,
    columns: TierColumns,
    hole: Hole,
) -> str:
    try:
        await _fill(store, rows, metadata, columns, hole)
    except (StoreError, TierError) as error:
        return f"rows of {_name(hole)} cannot be read from the tier: {error}"
    return ""


async def _fill(
    store: StateStore,
    rows: GroupRows,
    metadata: TierMetadata,
    columns: TierColumns,
    hole: Hole,
) -> None:
    """Write the rows of a hole, a block at a time.

    Raises:
        StoreError, TierError: a block cannot be read.
    """
    topic_id, queue, offset, end = hole
    while offset < end:
        block = await columns.columns(metadata, topic_id, queue, offset)
        batch = store.new_batch()
        for first, count in _runs(block, offset, end):
            base, time_ms = block.offsets[first], block.times_ms[first]
            value = encode_cq_row(NOT_IN_LOG, 0, time_ms, _packed(block, first, count), count)
            rows.cq.put(batch, topic_id, queue, base, value)
            terms = block.terms.part(first, first + count)
            day = day_of(time_ms)
            rows.ids.put_run(batch, day, topic_id, _cut(terms.ids), queue, base)
            hashes = iter(terms.key_hashes)
            for ordinal, key_count in enumerate(terms.key_counts):
                for _ in range(key_count):
                    rows.keys.put(batch, day, topic_id, next(hashes), queue, base + ordinal)
        store.write(batch)
        offset = block.entry.end_offset
        await asyncio.sleep(0)
    if end > rows.tier.local.get(topic_id, queue):
        # The log has nothing of it: it gave it up by a TIER_LOCAL or a TRIM that is yet to be
        # applied, and then says the same. A RETRACT before it may find no row.
        batch = store.new_batch()
        rows.tier.local.put(batch, topic_id, queue, end)
        store.write(batch)


def _runs(block: BlockColumns, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut the messages of some offsets into (ordinal, count) that one row can hold each.

    Those of a row have offsets side by side and one store time.
    """
    ordinals = range(block.ordinal_at(first), block.ordinal_at(end))
    offsets, times = block.offsets, block.times_ms
    for _, alike in groupby(ordinals, key=lambda at: (offsets[at] - at, times[at])):
        run = list(alike)
        for start in range(0, len(run), _RUN_MAX):
            yield run[start], min(_RUN_MAX, len(run) - start)


def _packed(block: BlockColumns, first: int, count: int) -> bytes:
    end = first + count
    return b"".join(
        (
            pack_words(block.lengths[first:end]),
            pack_words(block.checksums[first:end]),
            pack_longs(block.tag_hashes[first:end]),
            pack_longs(block.group_hashes[first:end]),
        )
    )


def _cut(ids: bytes) -> Sequence[bytes]:
    return [ids[at : at + MESSAGE_ID_BYTES] for at in range(0, len(ids), MESSAGE_ID_BYTES)]


def _name(hole: Hole) -> str:
    return f"offsets {hole.first} to {hole.end} of topic {hole.topic_id} queue {hole.queue}"
