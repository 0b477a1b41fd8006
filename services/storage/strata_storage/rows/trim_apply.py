"""The part of apply that writes rows of TRIM: queues begin later, and old rows go (rule 10)."""

from __future__ import annotations

from collections.abc import Container

from strata_mq.commands import DropKind, TrimCommand, TrimmedQueue
from strata_mq.layout import QueueRow, day_of
from strata_state.ports import RowBatch
from strata_state.rows import GroupRows
from strata_storage.rows.consume_queues import ConsumeQueues
from strata_storage.rows.machine_plugins import MachinePlugins
from strata_storage.rows.pending_apply import PendingApply
from strata_storage.rows.queue_states import QueueStates
from strata_storage.rows.trace_apply import TraceApply


class TrimApply:
    """Trims of one raft group.

    Args:
        rows: of the raft group.
        queues, consume_queues, pending, traces, plugins: give up what is trimmed.
        dropped: what was dropped; no row of it comes back.
        broker_row_age_ms: group time after which an idle broker's row goes.

    Attributes:
        trimmed: queues that begin later now; whoever is told of them takes them out.
        day: before which rows that expire by day are gone, as far as this process has applied
            trims; 0: it has applied none.
    """

    def __init__(
        self,
        rows: GroupRows,
        queues: QueueStates,
        consume_queues: ConsumeQueues,
        *,
        pending: PendingApply,
        traces: TraceApply,
        plugins: MachinePlugins,
        dropped: Container[tuple[int, int]],
        broker_row_age_ms: int,
    ) -> None:
        self._rows = rows
        self._queues = queues
        self._consume_queues = consume_queues
        self._pending = pending
        self._traces = traces
        self._plugins = plugins
        self._dropped = dropped
        self._broker_row_age_ms = broker_row_age_ms
        self.trimmed: list[TrimmedQueue] = []
        self.day = 0

    def forget(self) -> None:
        """Memory ran ahead of the store."""
        self.trimmed, self.day = [], 0

    def apply(self, batch: RowBatch, trim: TrimCommand, group_time_ms: int) -> None:
        """Write the rows of a TRIM command.

        Args:
            batch: where to.
            trim: the command.
            group_time_ms: of the rows before it.
        """
        kept_day = day_of(group_time_ms) - 1  # a call is repeated after minutes at most
        for trimmed in trim.queues:
            self._trim(batch, trimmed, kept_day)
        self._pending.trim(batch, trim)
        self.day = max(self.day, day_of(trim.group_time_ms))
        for days in (self._rows.ids, self._rows.keys):
            days.delete_before(batch, day_of(trim.group_time_ms))
        self._rows.ended.expire(batch, kept_day)
        self._traces.delete_before(batch, trim.group_time_ms)
        oldest_ms = group_time_ms - self._broker_row_age_ms
        self._rows.brokers.delete_older(batch, oldest_ms)
        self._plugins.trim(batch, oldest_ms)

    def _trim(self, batch: RowBatch, trimmed: TrimmedQueue, kept_day: int) -> None:
        topic_id, queue, min_offset = trimmed
        if (DropKind.TOPIC, topic_id) in self._dropped:
            return
        state = self._queues.get(topic_id, queue) or QueueRow(0, 0, 0, 0, False)
        self._queues.put(batch, topic_id, queue, state._replace(min_offset=min_offset))
        self._consume_queues.trim(batch, topic_id, queue, min_offset)
        self._rows.retracted.expire(batch, topic_id, queue, min_offset, kept_day)
        self.trimmed.append(trimmed)
