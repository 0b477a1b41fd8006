"""Rows again from the log, when the row store was deleted or is too old (rule 6).

Newest checkpoint -> small rows, and pins of messages that wait; frames up to it -> cq, id and key
rows of what is retained, of relocated entries too, and other pins; what lies behind it the driver
replays. Runs before the replica is opened; blocks.

A damaged frame does not stop it: what is readable is readable afterwards, what is not is named.
Such rows stay marked as unfinished, so that every start rebuilds them until the log is whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

import google_crc32c

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import (
    CommandKind,
    ResolveAction,
    ResolveItem,
    command_kind,
    decode_resolve,
    decode_retract,
)
from strata_mq.layout import (
    ORDINAL_OF_ALL,
    BatchView,
    LocalRow,
    PendingKey,
    PendingRef,
    PinRow,
    day_of,
)
from strata_raft import Entry, EntryKind
from strata_seglog.errors import LogError, ReadFailed
from strata_seglog.frames import StoredFrame
from strata_seglog.log import CommitLog
from strata_state.ports import StateStore
from strata_state.rows import GroupRows
from strata_storage.rows.append_rows import AppendRows, find_append, kept_part_runs, kept_runs
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.pending_apply import StoredEntry, write_pending_ids
from strata_storage.rows.placed_rows import pin_of_placed, write_placed
from strata_storage.rows.trace_apply import TraceApply
from strata_storage.tiering.refill import holes, read_log_tail
from strata_storage.upkeep.checkpoint import decode_checkpoint

_READ_BYTES = 8 * 1024 * 1024
_ROWS_PER_BATCH = 1_000


class RebuildError(Exception):
    """There is nothing to rebuild the rows from."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Entries that a rebuild could not read.

    Attributes:
        unreadable: raft index -> why, of entries whose rows are missing; empty: none are.
        lacks_tiered: rows of messages that the tier alone has are still to be read from there.
    """

    unreadable: dict[int, str] = field(default_factory=dict)
    lacks_tiered: bool = False

    @property
    def problem(self) -> str:
        """Return one line about the loss; empty: nothing is missing."""
        if not self.unreadable:
            return ""
        index, reason = next(iter(self.unreadable.items()))
        more = f", and {len(self.unreadable) - 1} more" if len(self.unreadable) > 1 else ""
        return f"entry {index} cannot be read while rows are rebuilt{more}: {reason}"


def rebuild_if_needed(
    store: StateStore, log: CommitLog, raft_group: int, replica_id: int
) -> Rebuilt | None:
    """Rebuild the rows of a replica if its log does not reach back to them.

    Returns:
        None: it was not needed.

    Raises:
        RebuildError: the log begins after the rows and holds no checkpoint.
        CorruptFrame: the checkpoint cannot be read; the rows are as they were.
        ReadFailed: the disk could not read; it can be called again.
    """
    found = log.replica(replica_id)
    rows = GroupRows(store, raft_group)
    applied = rows.applied.get()
    if found is None:
        return None
    reaches = applied.raft_index + 1 >= (found.first_index or 1) and not rows.unfinished.is_set()
    if reaches and applied.raft_index:
        return None
    try:
        positions = log.checkpoints(replica_id)
        for position in positions:
            # Before the old rows go: it must be whole. It may be more than memory.
            index = log.read_at(position).index
    except LogError:
        if reaches:
            # The log has all there ever was.
            return None
        raise
    if reaches and (not positions or index > found.last_index):
        return None
    if not positions:
        raise RebuildError(
            f"raft group {raft_group}: rows end at {applied.raft_index}, the log begins at "
            f"{found.first_index} and holds no checkpoint"
        )
    batch = store.new_batch()
    rows.drop(batch)
    # Rows without an owner would be taken for those of whoever is hosted next (`claim_rows`).
    rows.local.put(batch, LocalRow(replica_id))
    rows.unfinished.set(batch)
    store.write(batch)
    for position in positions:
        batch = store.new_batch()
        for key, value in decode_checkpoint(log.read_at(position).payload):
            batch.put(key, value)
        store.write(batch)
    applied = rows.applied.get()
    if applied.raft_index + 1 < found.first_index:
        # It is of before a snapshot that replaced the rows.
        raise RebuildError(
            f"raft group {raft_group}: the checkpoint ends at {applied.raft_index}, the log "
            f"begins at {found.first_index}"
        )
    _write_pins(store, rows)
    replay = _Replay(store, rows)
    unreadable = replay.entries(log, replica_id)
    replay.take_back()
    known = read_log_tail(store, log, raft_group, replica_id)
    tiered = next(holes(rows, known.metadata), None)
    if not unreadable and not known.damage and tiered is None:
        batch = store.new_batch()
        rows.unfinished.clear(batch)
        store.write(batch)
    return Rebuilt(unreadable, tiered is not None)


def _write_pins(store: StateStore, rows: GroupRows) -> None:
    """Write the pins of messages that wait, which a checkpoint does not repeat."""
    waiting = rows.pending.scan()
    more = True
    while more:
        batch = store.new_batch()
        more = False
        for key, row in islice(waiting, _ROWS_PER_BATCH):
            rows.pins.put(batch, key.ref, PinRow.pending(row.kind, row.topic_id, key.due_ms))
            more = True
        store.write(batch)


class _Replay:
    """Writes the index rows of retained entries that the checkpoint covers."""

    def __init__(self, store: StateStore, rows: GroupRows) -> None:
        self._store = store
        self._rows = rows
        self._batch = store.new_batch()
        self._applied_index = rows.applied.get().raft_index
        self._queues = {(topic_id, queue): row for topic_id, queue, row in rows.queues.all()}
        self._traces = TraceApply(rows)
        # Where messages lie in entries that were repaired.
        self._moved: dict[PendingRef, int] = {}

    def entries(self, log: CommitLog, replica_id: int) -> dict[int, str]:
        """Read what the log holds, as far as the checkpoint goes; return what it could not."""
        unreadable: dict[int, str] = {}
        for first, last in log.runs(replica_id):
            index, last = first, min(last, self._applied_index)
            while index <= last:
                try:
                    index = self._step(log, replica_id, index, last)
                except _Unreadable as error:
                    unreadable[error.index] = error.reason
                    index = error.index + 1
                self._write()
        return unreadable

    def _step(self, log: CommitLog, replica_id: int, first: int, last: int) -> int:
        """Take in some entries; return the index after them."""
        index = first
        try:
            for frame in log.entries(replica_id, first, last, _READ_BYTES):
                if frame.entry_kind == EntryKind.NORMAL:
                    self._entry(frame)
                index = frame.index + 1
        except ReadFailed:
            raise  # not damage: all is done again (rule 40)
        except LogError as error:
            raise _Unreadable(index, str(error)) from error
        if index == first:
            raise _Unreadable(index, "it is missing from the log")
        return index

    def _write(self) -> None:
        self._store.write(self._batch)
        self._batch = self._store.new_batch()

    def _entry(self, frame: StoredFrame) -> None:
        self._traces.entry(self._batch, frame.index, frame.payload)
        kind = command_kind(frame.payload)
        if kind == CommandKind.RESOLVE:
            self._resolve(frame)
        elif kind == CommandKind.RETRACT:
            self._retract(frame)
        else:
            self._append(frame)
            if kind == CommandKind.LOST:
                self._lost(frame)

    def _append(self, frame: StoredFrame) -> None:
        found = find_append(frame.payload)
        if found is None:
            return
        command, lost = found
        view = BatchView(frame.payload[command.batch_at :], google_crc32c.value, verify=False)
        entry = StoredEntry(frame.index, command, view, lost)
        append_rows = AppendRows(
            self._rows, self._batch, view, command=command, index=frame.index, lost=lost
        )
        for part, resolution in zip(view.parts, command.parts, strict=True):
            if resolution.outcome != pb.OUTCOME_OK:
                continue
            if part.key.kind:
                for first, count in kept_part_runs(part, resolution, lost):
                    topic_id = part.key.topic_id
                    write_pending_ids(self._rows, self._batch, entry, topic_id, first, count)
                continue
            end = resolution.base_offset + part.count - len(resolution.duplicates)
            if not self._is_trimmed(part.key.topic_id, resolution.queue, end - 1):
                append_rows.write_part(part.first, part.count, part.key.topic_id, resolution)

    def _is_trimmed(self, topic_id: int, queue: int, offset: int) -> bool:
        row = self._queues.get((topic_id, queue))
        # No row: the topic was dropped since.
        return row is None or offset < row.min_offset

    def _resolve(self, frame: StoredFrame) -> None:
        """Write the rows of what is retained of a RESOLVE's messages, and their pins.

        The entries that hold the messages may be gone: then the tier has those.
        """
        command = decode_resolve(frame.payload)
        placed = [
            self._corrected(item)
            for item in command.items
            if item.action is ResolveAction.DELIVER
            and not self._rows.pins.is_lost(item.key.ref)
            and not self._is_trimmed(item.topic_id, item.queue, item.offset_or_due)
        ]
        write_placed(self._rows, self._batch, placed, command.group_time_ms, frame.index)

    def _corrected(self, item: ResolveItem) -> ResolveItem:
        """Return a PLACE item with the place that its message has in an entry that was repaired."""
        at = self._moved.get(item.key.ref)
        if at is None or item.row is None:
            return item
        return item._replace(row=item.row._replace(message_at=at))

    def _retract(self, frame: StoredFrame) -> None:
        """Note what was taken back: older checkpoints do not say it."""
        # Its pin may be in the batch.
        self._write()
        rows = self._rows
        command = decode_retract(frame.payload)
        day = day_of(command.group_time_ms)
        for topic_id, queue, offset in command.positions:
            row = self._queues.get((topic_id, queue))
            if (
                row is None
                or offset < row.min_offset
                or rows.retracted.has(topic_id, queue, offset)
            ):
                continue
            pinned = pin_of_placed(rows, topic_id, queue, offset)
            rows.retracted.put(self._batch, topic_id, queue, offset, day=day, pinned=pinned)

    def take_back(self) -> None:
        """Take out of the rows what was taken back after it was stored; its pins stay."""
        cq = self._rows.cq
        for ref, pin in self._rows.retracted.pins():
            queue_row = self._queues.get((pin.topic_id, pin.queue))
            if queue_row is not None and pin.offset >= queue_row.min_offset:
                self._rows.pins.put(self._batch, ref, pin)
        self._write()
        for topic_id, queue, offset in self._rows.retracted.all():
            found = cq.covering(topic_id, queue, offset)
            if found is None:
                continue
            base, row = found
            cq.delete(self._batch, topic_id, queue, base)
            for first, count in kept_runs(0, row.count, frozenset((offset - base,))):
                cq.put(self._batch, topic_id, queue, base + first, row.part(first, count))
            # The next one may be of the same run.
            self._write()

    def _lost(self, frame: StoredFrame) -> None:
        """Take in what a repair did to messages that were stored to wait.

        The checkpoint may say that those which it gave up still wait, and where the others lay
        before it.
        """
        rows, batch = self._rows, self._batch
        found = find_append(frame.payload)
        lost = frozenset((ORDINAL_OF_ALL,)) if found is None else found.lost
        if found is not None:
            command, _ = found
            view = BatchView(frame.payload[command.batch_at :], google_crc32c.value, verify=False)
            for ordinal in range(view.message_count):
                at = command.batch_at + view.message_at(ordinal)
                self._moved[PendingRef(frame.index, ordinal)] = at
        for ref, pin in rows.pins.scan(PendingRef(frame.index, 0), frame.index):
            key = PendingKey(pin.due_ms, *ref)
            row = rows.pending.get(key)
            if found is None or ref.ordinal in lost or row is None:
                rows.pending.delete(batch, key)
                rows.pins.delete(batch, ref)
            else:
                rows.pending.put(batch, key, row._replace(message_at=self._moved[ref]))
                rows.pins.put(batch, ref, pin._replace(moved=True))
        for ordinal in lost:
            rows.pins.put(batch, PendingRef(frame.index, ordinal), PinRow.lost())
        # Entries behind it look for these pins.
        self._write()


def redo(machine: GroupMachine, log: CommitLog, replica_id: int) -> None:
    """Apply again, in memory, what plugins had not settled when the node stopped. Blocks.

    Raises:
        LogError: an entry cannot be read.
        RebuildError: an entry is gone from the log.
    """
    index, last = machine.plugins.settled_index(machine.applied_index()), machine.applied_index()
    while index < last:
        first = index + 1
        for frame in log.entries(replica_id, first, last, _READ_BYTES):
            if frame.entry_kind == EntryKind.NORMAL:
                machine.plugins.redo(command_kind(frame.payload), frame.payload)
            index = frame.index
        if index < first:
            raise RebuildError(f"entry {first} is missing from the log")


def apply_readable(machine: GroupMachine, log: CommitLog, replica_id: int) -> None:
    """Apply what a read-only replica without other voters still can read, up to the damage.

    Durable entries of such a replica's log are committed, so they may be shown; nobody applies
    them otherwise, because a read-only replica is never elected. Blocks.

    Raises:
        ApplyError, StateError, CommandError, BatchError: an entry cannot be applied; those before
            it are.
    """
    found = log.replica(replica_id)
    last = 0 if found is None else found.last_index
    readable = True
    while readable and machine.applied_index() < last:
        entries: list[Entry] = []
        try:
            for frame in log.entries(replica_id, machine.applied_index() + 1, last, _READ_BYTES):
                kind = EntryKind(frame.entry_kind)
                entries.append(Entry(frame.term, frame.index, kind, (frame.payload,)))
        except LogError:
            # Reported by the log; the replica is read-only for it.
            readable = False
        machine.apply(entries)
        readable = readable and bool(entries)


class _Unreadable(Exception):
    """An entry cannot be read."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason
