"""Messages of planned blocks, read from the log when they are sent. Blocks: runs in a thread.

A run of a plan names its consume queue row, and that the entry with the messages; their ids and
keys stand in the entry's batch. Entries are kept for the other queues that are in them, up to a
limit.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections import OrderedDict
from itertools import islice, takewhile
from typing import NamedTuple, Protocol

import google_crc32c

from strata_mq.commands import CommandError
from strata_mq.layout import BatchError, BatchView, CqRow, OffsetRange, pack_longs, pack_words
from strata_seglog.errors import CorruptFrame, MissingEntry, ReadFailed
from strata_seglog.frames import StoredFrame
from strata_storage.rows.append_rows import find_append
from strata_storage.rows.consume_queues import ConsumeQueues
from strata_tier.base import TierError
from strata_tier.objects import BlockData, MessageRun, PlannedBlock, QueueRuns, SearchTerms


class UnreadableQueueError(TierError):
    """The log does not give the messages of one queue: damaged, not there, or not readable now.

    Attributes:
        topic_id, queue: which.
    """

    def __init__(self, topic_id: int, queue: int, reason: str) -> None:
        super().__init__(f"topic {topic_id} queue {queue} cannot be read: {reason}")
        self.topic_id = topic_id
        self.queue = queue


class RunSource(NamedTuple):
    """The consume queue row of a run."""

    base_offset: int
    row: CqRow


def message_run(base: int, row: CqRow, first: int, end: int) -> MessageRun:
    """Return the messages of a consume queue row whose offsets are from `first` to `end` - 1."""
    run = MessageRun(
        array("Q", range(base, base + row.count)),
        array("Q", (row.store_time_ms,)) * row.count,
        row.lengths,
        row.checksums,
        row.tag_hashes,
        row.group_hashes,
        RunSource(base, row),
    )
    if first <= base and end >= base + row.count:
        return run
    return run.part(max(first - base, 0), min(end - base, row.count))


async def queue_runs(
    consume_queues: ConsumeQueues, wanted: OffsetRange, rows_per_turn: int
) -> QueueRuns:
    """Return what a range holds, as references; reads rows a few at a time."""
    topic_id, queue, first, end = wanted
    runs: list[MessageRun] = []
    at = first
    while at < end:
        # Never an iterator over a pause: what it stands on may be evicted meanwhile.
        found = consume_queues.from_offset(topic_id, queue, at)
        rows = list(islice(takewhile(lambda run: run[0] < end, found), rows_per_turn))
        if not rows:
            break
        runs += [message_run(base, row, first, end) for base, row in rows]
        at = rows[-1][0] + rows[-1][1].count
        await asyncio.sleep(0)
    return QueueRuns(topic_id, queue, first, end, runs)


def _columns(run: MessageRun) -> bytes:
    """Return what a run says of its messages as `BatchView.row_columns` does."""
    return b"".join(
        (
            pack_words(run.lengths),
            pack_words(run.checksums),
            pack_longs(run.tag_hashes),
            pack_longs(run.group_hashes),
        )
    )


class SourceLog(Protocol):
    """The part of the CommitLog that is needed."""

    def entry(self, replica_id: int, index: int) -> StoredFrame | None:
        """Return an entry, its checksum compared."""


class _Entry(NamedTuple):
    """An entry that stores messages."""

    payload: bytes
    batch_at: int
    view: BatchView

    def ordinal(self, message_at: int) -> int:
        """Return which message of the batch begins at a place of the payload."""
        ordinals = range(self.view.message_count)
        at = message_at - self.batch_at
        ordinal = bisect_left(ordinals, at, key=self.view.message_at)
        if ordinal == len(ordinals) or self.view.message_at(ordinal) != at:
            raise TierError(f"no message begins at byte {message_at} of its entry")
        return ordinal


class Sources:
    """Reads for one object of one replica.

    Args:
        log: the node's CommitLog.
        replica_id: whose entries.
        max_bytes: of the entries that are kept.
    """

    def __init__(self, log: SourceLog, replica_id: int, max_bytes: int) -> None:
        self._log = log
        self._replica_id = replica_id
        self._max_bytes = max_bytes
        self._kept: OrderedDict[int, _Entry] = OrderedDict()
        self._kept_bytes = 0

    def read(self, block: PlannedBlock) -> BlockData:
        """Return bodies and terms of a block's messages.

        Raises:
            UnreadableQueueError: an entry cannot be read, or does not hold what its rows say.
        """
        try:
            return self._read(block)
        except (CorruptFrame, MissingEntry, ReadFailed, TierError) as error:
            raise UnreadableQueueError(block.topic_id, block.queue, str(error)) from error

    def _read(self, block: PlannedBlock) -> BlockData:
        bodies: list[bytes] = []
        terms: list[SearchTerms] = []
        for piece in block.pieces:
            source = piece.source
            assert isinstance(source, RunSource), "a run of another maker"
            first = piece.offsets[0] - source.base_offset
            message_at, _, _ = source.row.location(first)
            entry = self._entry(source.row.raft_index)
            ordinal, count = entry.ordinal(message_at), len(piece.lengths)
            if entry.view.row_columns(ordinal, count) != _columns(piece):
                raise TierError(f"entry {source.row.raft_index} holds other messages than its rows")
            bodies.append(entry.payload[message_at : message_at + sum(piece.lengths)])
            terms.append(SearchTerms(*entry.view.search_columns(ordinal, count)))
        if not terms:
            return BlockData(b"", SearchTerms(b"", b"", array("Q")))
        # The checksum of an entry covers all messages in it, and what its batch says of them.
        return BlockData(b"".join(bodies), SearchTerms.joined(terms), is_proven=True)

    def _entry(self, raft_index: int) -> _Entry:
        kept = self._kept.get(raft_index)
        if kept is not None:
            self._kept.move_to_end(raft_index)
            return kept
        frame = self._log.entry(self._replica_id, raft_index)
        if frame is None:
            raise TierError(f"entry {raft_index} is not in the log")
        try:
            found = find_append(frame.payload)
            if found is None:
                raise TierError(f"entry {raft_index} stores no message")
            batch_at = found.command.batch_at
            view = BatchView(frame.payload[batch_at:], google_crc32c.value, verify=False)
        except (CommandError, BatchError) as error:
            raise TierError(f"entry {raft_index}: {error}") from error
        entry = self._kept[raft_index] = _Entry(frame.payload, batch_at, view)
        self._kept_bytes += len(frame.payload)
        while self._kept_bytes > self._max_bytes and len(self._kept) > 1:
            _, old = self._kept.popitem(last=False)
            self._kept_bytes -= len(old.payload)
        return entry
