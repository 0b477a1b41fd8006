"""Gives the log's oldest segments back to the disk (rules 6 and 10), on every replica.

A segment goes when nothing in it is needed. One in which little is needed is *relocated*: its
live entries are copied to the end of the log, with the same term and index, and the file is
deleted; nothing is proposed again. So a topic with long retention and few messages pins what it
has, not the segments of the busy topics around it.

An entry is needed while a message in it, or one that it gave its offset, is within its retention
and not in the tier instead (beyond its queue's local offset),
while it has a pin (a message in it waits), or while rows and a checkpoint do not both cover it; the
newest one of a replica always is. Invariant: everything that is not in the log any more is in a
checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from strata_runtime.logs import get_logger
from strata_seglog.errors import (
    CorruptFrame,
    DiskFull,
    MissingEntry,
    ReadFailed,
    WriteFailed,
    WriteTooLarge,
)
from strata_seglog.index import VOID_INDEX
from strata_seglog.log import CommitLog, SegmentInfo
from strata_state.ports import StateError
from strata_storage.base.config import RetentionOptions
from strata_storage.base.errors import Refused
from strata_storage.base.jobs import RunJob
from strata_storage.group.engine import GroupEngine
from strata_storage.leading.pin_sweep import holds_entry
from strata_storage.rows.machine import GroupMachine
from strata_storage.upkeep.checkpointer import Checkpointer, CheckpointReplica
from strata_storage.upkeep.instruments import Instruments
from strata_storage.upkeep.retention import low_indexes, queues_in_turns

# Rows looked at before the event loop gets a turn.
_ROWS_PER_TURN = 500
# Copied in one visit to the writer's thread: what a group commit may have to wait for.
_STEP_BYTES = 4 * 1024 * 1024

# Errors that a turn may meet; the next turn tries again.
_NOT_NOW = (
    DiskFull,
    WriteFailed,
    CorruptFrame,
    ReadFailed,
    MissingEntry,
    WriteTooLarge,
    Refused,
    StateError,
)
# No later turn can copy them either: room comes from trims alone.
_CANNOT_BE_COPIED = (CorruptFrame, WriteTooLarge)

IsNeeded = Callable[[int, int], bool]
"""Says of (replica id, index) whether the entry must stay in the log."""


class Reclaimer:
    """Frees segments of one node's log.

    Args:
        log: the node's CommitLog.
        options: how much may be copied, and when it is worth it.
        checkpointer: writes the checkpoints that stand in for what goes.
        run_write: runs calls that belong to the log's writer thread.
        run_read: runs reads.
        instruments: counters.

    Attributes:
        at_limit: the last turn left nothing that could be freed without giving up messages.
    """

    def __init__(
        self,
        log: CommitLog,
        options: RetentionOptions,
        checkpointer: Checkpointer,
        *,
        run_write: RunJob,
        run_read: RunJob,
        instruments: Instruments,
    ) -> None:
        self._log = log
        self._options = options
        self._checkpointer = checkpointer
        self._run_write = run_write
        self._run_read = run_read
        self._instruments = instruments
        self._logger = get_logger("storage")
        self.at_limit = False

    async def reclaim(
        self,
        engines: Sequence[GroupEngine],
        replicas: Mapping[int, CheckpointReplica],
        *,
        disk_is_low: bool,
    ) -> None:
        """Free what nobody needs, then relocate; the rows were flushed just before.

        Args:
            engines: of all raft groups hosted here.
            replicas: raft group -> replica.
            disk_is_low: copy also where much of a segment is live.

        Raises:
            LogFailed: final (rule 7). Other errors are logged, and the next turn tries again.
        """
        is_short = disk_is_low or self._excess_bytes() > 0
        await self._checkpointer.write_behind(engines, replicas, room_is_short=is_short)
        try:
            low = low_indexes(engines, self._checkpointer.indexes)
            freed = await self._run_write(lambda: self._log.free_before(low))
            self._instruments.freed_segments.add(len(freed))
            self.at_limit = await self._relocate(
                engines, replicas, disk_is_low=disk_is_low, room_is_short=is_short
            )
        except _NOT_NOW as error:
            self._logger.warning("the oldest segment stays", reason=str(error))
            if isinstance(error, _CANNOT_BE_COPIED):
                self.at_limit = True

    def floor_indexes(self, excess_bytes: int = 0) -> dict[int, int]:
        """Return per replica id the first index to keep so that the log keeps to its size.

        Messages go early only when relocation cannot make room; empty: none has to.

        Args:
            excess_bytes: that the node's quota of the disk demands back.
        """
        excess = max(excess_bytes, self._excess_bytes())
        floors: dict[int, int] = {}
        if not self.at_limit:
            return floors
        for segment in self._log.segments():
            if not segment.sealed or excess <= 0:
                break
            excess -= segment.end_position - segment.first_position
            for replica_id, (_, last) in segment.replicas.items():
                floors[replica_id] = max(floors.get(replica_id, 0), last + 1)
        return floors

    def oldest_lasts(self) -> dict[int, int]:
        """Return per replica id its last entry in the oldest segment, if that is sealed."""
        oldest = self._log.segments()[0]
        if not oldest.sealed:
            return {}
        return {replica_id: last for replica_id, (_, last) in oldest.replicas.items()}

    def _excess_bytes(self) -> int:
        """Return by how much the log is longer than it may be; none if it is not."""
        limit = self._options.max_log_bytes
        held = self._log.end_position - self._log.first_position
        return max(0, held - limit) if limit else 0

    async def _relocate(
        self,
        engines: Sequence[GroupEngine],
        replicas: Mapping[int, CheckpointReplica],
        *,
        disk_is_low: bool,
        room_is_short: bool,
    ) -> bool:
        """Empty sealed segments while it pays and the budget lasts; False: there is more to do."""
        options = self._options
        ratio = options.relocate_live_ratio_full if disk_is_low else options.relocate_live_ratio
        budget = options.relocate_bytes_per_turn
        if not budget:
            return True
        # Never more than once around: what this turn wrote is not looked at.
        for _ in range(len(self._log.segments()) - 1):
            await self._checkpointer.write_behind(engines, replicas, room_is_short=room_is_short)
            oldest = self._log.segments()[0]
            is_needed = await self._needed(engines, oldest)
            if self._is_truncation_needed(oldest, is_needed):
                # That ends as soon as the replica has caught up: no message goes for it.
                return False
            limit = int(oldest.file_bytes * ratio)
            live = await self._run_read(partial(self._log.oldest_live_bytes, is_needed, limit))
            if live > limit:
                return True
            while self._log.first_position == oldest.first_position:
                if budget <= 0:
                    return False
                copied = await self._step(is_needed, min(budget, _STEP_BYTES))
                if copied is None:
                    return False
                budget -= copied
        return True

    def _is_truncation_needed(self, oldest: SegmentInfo, is_needed: IsNeeded) -> bool:
        """Tell whether the oldest segment holds a truncation that must still be remembered.

        Superseded entries are in the same segment, or gone: they go with it. A moved copy would
        supersede nothing (rule 9), so there is none. Until the log is as long again, the
        truncation tells up to where others count on the replica (rule 8).
        """
        for replica_id, (first, _) in oldest.replicas.items():
            if first == VOID_INDEX:
                held = self._log.replica(replica_id)
                is_short = held is not None and held.last_index < held.void_until
                if is_short or is_needed(replica_id, VOID_INDEX):
                    return True
        return False

    async def _step(self, is_needed: IsNeeded, max_bytes: int) -> int | None:
        """Copy a little; return the bytes; None: a checkpoint must be written first."""
        step = await self._run_write(lambda: self._log.relocate_step(is_needed, max_bytes))
        if step.waiting_for:
            return None
        self._instruments.relocated_bytes.add(step.copied_bytes)
        self._instruments.freed_segments.add(1 if step.freed else 0)
        return step.copied_bytes

    async def _needed(self, engines: Sequence[GroupEngine], segment: SegmentInfo) -> IsNeeded:
        """Decide which entries of a segment must be kept; those of strangers must."""
        covered: dict[int, int] = {}
        retained: dict[int, set[int]] = {}
        for engine in engines:
            held = segment.replicas.get(engine.replica_id)
            generation = engine.whole_rows()
            if held is None or engine.replica.read_only or generation is None:
                # Rows of a damaged replica may lack what its log has, and rows that a snapshot is
                # written over say nothing.
                continue
            until = min(
                engine.machine.persisted_index(),
                self._checkpointer.indexes.get(engine.replica_id, 0),
                # The newest entry stays: it tells recovery where the replica's log ends.
                engine.machine.applied_index() - 1,
            )
            found = await _retained_indexes(engine.machine, held[1])
            if engine.whole_rows() == generation:
                # A snapshot that begins later brings nothing into a segment that is sealed.
                covered[engine.replica_id], retained[engine.replica_id] = until, found

        def is_needed(replica_id: int, index: int) -> bool:
            return index > covered.get(replica_id, -1) or index in retained[replica_id]

        return is_needed


async def _retained_indexes(machine: GroupMachine, last_index: int) -> set[int]:
    """Return the raft indexes up to `last_index` of entries that rows cannot do without."""
    indexes: set[int] = set()
    seen = 0
    # A queue that comes meanwhile has newer entries, and pins for what waited.
    async for topic_id, queue, row in queues_in_turns(machine):
        if row.min_offset == row.next_offset:
            continue
        begin = max(row.min_offset, machine.tier.local_offset(topic_id, queue))
        if begin >= row.next_offset:
            continue
        first = machine.rows.cq.covering(topic_id, queue, begin)
        base = begin if first is None else first[0]
        for _, run in machine.rows.cq.from_base(topic_id, queue, base):
            seen += 1
            if seen % _ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
            if run.offset_index > last_index:
                break
            # A message delivered from an earlier entry than this queue's others has a pin there.
            indexes.add(run.raft_index)
            indexes.add(run.offset_index)
    for ref, pin in machine.rows.pins.scan(last_index=last_index):
        seen += 1
        if seen % _ROWS_PER_TURN == 0:
            await asyncio.sleep(0)
        if holds_entry(machine, pin):
            indexes.add(ref.raft_index)
    return indexes
