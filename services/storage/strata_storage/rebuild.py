"""Rows again from the log, when the row store was deleted or is too old (rule 6).

Newest checkpoint -> small rows; frames up to it -> cq, id and key rows of what is retained, of
relocated entries too; what lies behind it the driver replays. Runs before the replica is opened;
blocks.

A damaged frame does not stop it: what is readable is readable afterwards, what is not is named.
Such rows stay marked as unfinished, so that every start rebuilds them until the log is whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import google_crc32c

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.batch import BatchView
from strata_mq.rows import QueueRow
from strata_raft import Entry, EntryKind
from strata_seglog.errors import LogError
from strata_seglog.frames import StoredFrame
from strata_seglog.log import CommitLog
from strata_state.ports import RowBatch, StateStore
from strata_state.rows import GroupRows
from strata_storage.append_rows import AppendRows, find_append
from strata_storage.checkpoint import decode_checkpoint
from strata_storage.machine import GroupMachine

_READ_BYTES = 8 * 1024 * 1024


class RebuildError(Exception):
    """There is nothing to rebuild the rows from."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild could not read.

    Attributes:
        unreadable: raft index -> why, of entries whose rows are missing; empty: none are.
    """

    unreadable: dict[int, str] = field(default_factory=dict)

    @property
    def problem(self) -> str:
        """What is missing, in one line; empty: nothing."""
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
        CorruptFrame, ReadFailed: the checkpoint cannot be read; the rows are as they were.
    """
    found = log.replicas().get(replica_id)
    rows = GroupRows(store, raft_group)
    applied = rows.applied.get()
    if found is None:
        return None
    if applied.raft_index + 1 >= (found.first_index or 1) and not rows.unfinished.is_set():
        return None
    checkpoint = [log.read_at(position).payload for position in log.checkpoints(replica_id)]
    if not checkpoint:
        raise RebuildError(
            f"raft group {raft_group}: rows end at {applied.raft_index}, the log begins at "
            f"{found.first_index} and holds no checkpoint"
        )
    batch = store.new_batch()
    rows.drop(batch)
    rows.unfinished.set(batch)
    store.write(batch)
    for part in checkpoint:
        batch = store.new_batch()
        for key, value in decode_checkpoint(part):
            batch.put(key, value)
        store.write(batch)
    applied = rows.applied.get()
    if applied.raft_index + 1 < found.first_index:
        # It is of before a snapshot that replaced the rows.
        raise RebuildError(
            f"raft group {raft_group}: the checkpoint ends at {applied.raft_index}, the log "
            f"begins at {found.first_index}"
        )
    unreadable = _Replay(store, rows).entries(log, replica_id)
    if not unreadable:
        batch = store.new_batch()
        rows.unfinished.clear(batch)
        store.write(batch)
    return Rebuilt(unreadable)


class _Replay:
    """Writes the index rows of retained entries that the checkpoint covers."""

    def __init__(self, store: StateStore, rows: GroupRows) -> None:
        self._store = store
        self._rows = rows
        self._applied_index = rows.applied.get().raft_index
        self._queues = {(topic_id, queue): row for topic_id, queue, row in rows.queues.all()}

    def entries(self, log: CommitLog, replica_id: int) -> dict[int, str]:
        """Read what the log holds, as far as the checkpoint goes; return what it could not."""
        unreadable: dict[int, str] = {}
        for first, last in log.runs(replica_id):
            index, last = first, min(last, self._applied_index)
            while index <= last:
                batch = self._store.new_batch()
                try:
                    index = self._step(batch, log, replica_id, index, last)
                except _Unreadable as error:
                    unreadable[error.index] = error.reason
                    index = error.index + 1
                self._store.write(batch)
        return unreadable

    def _step(self, batch: RowBatch, log: CommitLog, replica_id: int, first: int, last: int) -> int:
        """Take in some entries; return the index after them."""
        index = first
        try:
            for frame in log.entries(replica_id, first, last, _READ_BYTES):
                if frame.entry_kind == EntryKind.NORMAL:
                    self._entry(batch, frame)
                index = frame.index + 1
        except LogError as error:
            raise _Unreadable(index, str(error)) from error
        if index == first:
            raise _Unreadable(index, "it is missing from the log")
        return index

    def _entry(self, batch: RowBatch, frame: StoredFrame) -> None:
        found = find_append(frame.payload)
        if found is None:
            return
        command, lost = found
        view = BatchView(frame.payload[command.batch_at :], google_crc32c.value, verify=False)
        append_rows = AppendRows(self._rows, batch, view, command, frame.index, lost)
        for part, resolution in zip(view.parts, command.parts, strict=True):
            if resolution.outcome != pb.OUTCOME_OK:
                continue
            queue: QueueRow | None = self._queues.get((part.key.topic_id, resolution.queue))
            # No row: the topic was dropped since. Below min: it was trimmed since.
            end = resolution.base_offset + part.count - len(resolution.duplicates)
            if queue is not None and end > queue.min_offset:
                append_rows.write_part(part.first, part.count, part.key.topic_id, resolution)


def apply_readable(machine: GroupMachine, log: CommitLog, replica_id: int) -> None:
    """Apply what a read-only replica without other voters still can read, up to the damage.

    What is durable in such a replica's log is committed, so it may be shown; nobody applies it
    otherwise, because a read-only replica is never elected. Blocks.

    Raises:
        ApplyError, StateError, CommandError, BatchError: an entry cannot be applied; those before
            it are.
    """
    found = log.replicas().get(replica_id)
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
