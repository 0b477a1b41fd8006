"""Rows again from the log, when the row store was deleted or is too old (rule 6).

Newest checkpoint -> small rows; frames up to it -> cq, id and key rows of what is retained; what
lies behind it the driver replays. Runs before the replica is opened; blocks.
"""

from __future__ import annotations

import google_crc32c

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.batch import BatchView
from strata_mq.commands import CommandKind, command_kind, decode_append
from strata_mq.rare_commands import decode_dead_letter
from strata_mq.rows import QueueRow
from strata_raft import EntryKind
from strata_seglog.frames import StoredFrame
from strata_seglog.log import CommitLog
from strata_state.ports import RowBatch, StateError, StateStore
from strata_state.rows import GroupRows
from strata_storage.append_rows import AppendRows
from strata_storage.checkpoint import decode_checkpoint

_READ_BYTES = 8 * 1024 * 1024


def rebuild_if_needed(store: StateStore, log: CommitLog, raft_group: int, replica_id: int) -> bool:
    """Rebuild the rows of a replica if its log does not reach back to them.

    Returns:
        Whether it was needed.

    Raises:
        StateError: the log begins after the rows and holds no checkpoint.
        CorruptFrame: a retained frame is damaged; the replica must be replaced (rule 8).
    """
    found = log.replicas().get(replica_id)
    rows = GroupRows(store, raft_group)
    applied = rows.applied.get()
    if found is None or applied.raft_index + 1 >= (found.first_index or 1):
        return False
    positions = log.checkpoints(replica_id)
    if not positions:
        raise StateError(
            f"raft group {raft_group}: rows end at {applied.raft_index}, the log begins at "
            f"{found.first_index} and holds no checkpoint"
        )
    batch = store.new_batch()
    rows.drop(batch)
    store.write(batch)
    for position in positions:
        batch = store.new_batch()
        for key, value in decode_checkpoint(log.read_at(position).payload):
            batch.put(key, value)
        store.write(batch)
    _Replay(store, rows).frames(log, replica_id, found.first_index, found.last_index)
    return True


class _Replay:
    """Writes the index rows of retained entries that the checkpoint covers."""

    def __init__(self, store: StateStore, rows: GroupRows) -> None:
        self._store = store
        self._rows = rows
        self._applied_index = rows.applied.get().raft_index
        self._queues = {(topic_id, queue): row for topic_id, queue, row in rows.queues.all()}

    def frames(self, log: CommitLog, replica_id: int, first: int, last: int) -> None:
        """Read entries first .. last, as far as the checkpoint goes."""
        last = min(last, self._applied_index)
        while first <= last:
            batch = self._store.new_batch()
            for frame in log.entries(replica_id, first, last, _READ_BYTES):
                if frame.entry_kind == EntryKind.NORMAL:
                    self._entry(batch, frame)
                first = frame.index + 1
            self._store.write(batch)

    def _entry(self, batch: RowBatch, frame: StoredFrame) -> None:
        payload = frame.payload
        kind = command_kind(payload)
        if kind == CommandKind.APPEND:
            command = decode_append(payload)
        elif kind == CommandKind.DEAD_LETTER:
            command = decode_append(payload, decode_dead_letter(payload).append_at)
        else:
            return
        view = BatchView(payload[command.batch_at :], google_crc32c.value, verify=False)
        append_rows = AppendRows(self._rows, batch, view, command, frame.index)
        for part, resolution in zip(view.parts, command.parts, strict=True):
            if resolution.outcome != pb.OUTCOME_OK:
                continue
            queue: QueueRow | None = self._queues.get((part.key.topic_id, resolution.queue))
            # No row: the topic was dropped since. Below min: it was trimmed since.
            end = resolution.base_offset + part.count - len(resolution.duplicates)
            if queue is not None and end > queue.min_offset:
                append_rows.write_part(part.first, part.count, part.key.topic_id, resolution)
