"""Apply of APPEND commands, also those inside DEAD_LETTER and LOST (rules 1, 23)."""

from __future__ import annotations

from collections.abc import Container

import google_crc32c

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import AppendCommand, DropKind, PartResolution
from strata_mq.layout import BatchView, BrokerRow, PartView, QueueRow
from strata_raft.types import Entry
from strata_state.ports import RowBatch
from strata_state.rows import GroupRows
from strata_storage.base.errors import ApplyError
from strata_storage.rows.append_rows import AppendRows
from strata_storage.rows.consume_queues import ConsumeQueues
from strata_storage.rows.parsed import ParsedBatches
from strata_storage.rows.pending_apply import PendingApply, StoredEntry
from strata_storage.rows.queue_states import QueueStates
from strata_storage.rows.traffic import Traffic

_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)
_NONE: frozenset[int] = frozenset()


class AppendApply:
    """Writes the rows of what one raft group stores.

    Args:
        rows: of the raft group.
        queues, consume_queues: what apply keeps in memory of them.
        pending: takes the parts whose messages wait.
        dropped: (what, id) of what was dropped.
        traffic: counts what is stored.
        parsed_max_bytes: batches that a leader parsed, kept until they are applied.

    Attributes:
        parsed: those.
        appended: queues with new messages, until the caller takes them out.
    """

    __slots__ = (
        "_consume_queues",
        "_dropped",
        "_pending",
        "_queues",
        "_rows",
        "_traffic",
        "appended",
        "parsed",
    )

    def __init__(
        self,
        rows: GroupRows,
        queues: QueueStates,
        consume_queues: ConsumeQueues,
        *,
        pending: PendingApply,
        dropped: Container[tuple[int, int]],
        traffic: Traffic,
        parsed_max_bytes: int,
    ) -> None:
        self._rows = rows
        self._queues = queues
        self._consume_queues = consume_queues
        self._pending = pending
        self._dropped = dropped
        self._traffic = traffic
        self.parsed = ParsedBatches(parsed_max_bytes)
        self.appended: dict[tuple[int, int], None] = {}

    def forget(self) -> None:
        """Take in that the batch is not written."""
        self.parsed.clear()
        self.appended = {}

    def append(
        self, batch: RowBatch, entry: Entry, command: AppendCommand, lost: frozenset[int] = _NONE
    ) -> int:
        """Write the rows of an APPEND; return its group time.

        Parts of a topic whose DROP came before them in the log store nothing.

        Args:
            batch: where to.
            entry: what carries the command.
            command: the APPEND.
            lost: ordinals of messages that a repair gave up.

        Raises:
            ApplyError: a base offset is not its queue's next offset.
        """
        view = self._view(entry, command)
        stored = StoredEntry(entry.index, command, view, lost)
        append_rows = AppendRows(
            self._rows, batch, view, command=command, index=entry.index, lost=lost
        )
        for part, resolution in zip(view.parts, command.parts, strict=True):
            if resolution.outcome != pb.OUTCOME_OK:
                continue
            if (DropKind.TOPIC, part.key.topic_id) in self._dropped:
                continue
            if part.key.kind:
                self._pending.store(batch, stored, part, resolution)
            else:
                self._store(batch, append_rows, stored, part, resolution)
        if command.broker_boot_id:
            broker = BrokerRow(
                command.sequence, entry.index, command.store_time_ms, command.resolution
            )
            self._rows.brokers.put(batch, command.broker_boot_id, broker)
        return command.store_time_ms

    def go_on_at(self, batch: RowBatch, topic_id: int, queue: int, next_offset: int) -> None:
        """Let a queue go on at an offset, or later if it is there."""
        row = self._queues.get(topic_id, queue) or _EMPTY_QUEUE
        if next_offset > row.next_offset:
            self._queues.put(batch, topic_id, queue, row._replace(next_offset=next_offset))

    def _view(self, entry: Entry, command: AppendCommand) -> BatchView:
        head = entry.payload[0]
        if len(entry.payload) == 2 and command.batch_at == len(head):
            data = entry.payload[1]
        else:
            data = b"".join(entry.payload)[command.batch_at :]
        view = self.parsed.take(entry.index, data)
        if view is None:
            # The frame's checksum covers these bytes; the leader checked the batch's own.
            view = BatchView(data, google_crc32c.value, verify=False)
        return view

    def _store(
        self,
        batch: RowBatch,
        append_rows: AppendRows,
        entry: StoredEntry,
        part: PartView,
        resolution: PartResolution,
    ) -> None:
        topic_id, queue = part.key.topic_id, resolution.queue
        state = self._queues.get(topic_id, queue) or _EMPTY_QUEUE
        if resolution.base_offset != state.next_offset:
            raise ApplyError(
                f"entry {entry.raft_index}: topic {topic_id} queue {queue} goes on at "
                f"{state.next_offset}, the entry says {resolution.base_offset}"
            )
        stored = append_rows.write_part(part.first, part.count, topic_id, resolution)
        for base_offset, value in append_rows.runs:
            self._consume_queues.added(topic_id, queue, base_offset, value)
        if stored:
            after = QueueRow(
                state.next_offset + stored,
                state.min_offset,
                entry.command.store_time_ms,
                state.epoch,
                state.sealed,
                state.queue_count,
            )
            self._queues.put(batch, topic_id, queue, after)
            self.appended[topic_id, queue] = None
            size_bytes = sum(entry.view.lengths(part.first, part.count))
            self._traffic.stored(topic_id, queue, stored, size_bytes)
