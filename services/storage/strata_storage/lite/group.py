"""Lite topics of one raft group on this node: what is applied, and who leads."""

from __future__ import annotations

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import DropKind, LiteChange, decode_lite_topics
from strata_mq.layout import LiteParentRow, QueueRow
from strata_state.ports import RowBatch
from strata_storage.base.errors import Refused
from strata_storage.leading.leader import GroupLeader
from strata_storage.lite.leader import LiteLeader
from strata_storage.lite.options import LiteOptions
from strata_storage.rows.machine import GroupMachine

_NO_MESSAGES = QueueRow(0, 0, 0, 0)


class LiteGroup:
    """`strata_storage.group.plugins.GroupPlugin` for lite topics.

    Apply gives each new lite topic the row of a queue: this row says that the raft group has it
    (`Ownership`), and all that storage does with queues it does with lite topics. The queue of the
    parent that the names chose gets a row, too, so that it stays when its slot leaves (rule 17).

    Attributes:
        parents: (parent topic, queue) -> the row, as applied.
        leader: None while this replica follows.
    """

    def __init__(self, machine: GroupMachine, options: LiteOptions) -> None:
        self._machine = machine
        self._rows = machine.rows.lite
        self._options = options
        self.parents: dict[tuple[int, int], LiteParentRow] = dict(self._rows.parents.all())
        self.leader: LiteLeader | None = None

    @property
    def count(self) -> int:
        """Lite topics there are."""
        return sum(row.lite_count for row in self.parents.values())

    # State machine (MachinePlugin) --------------------------------------------------------------

    def apply(self, batch: RowBatch, raft_index: int, payload: bytes) -> int:
        """Stage an entry's rows."""
        group_time_ms, sections = decode_lite_topics(payload)
        for section in sections:
            if (DropKind.TOPIC, section.topic_id) not in self._machine.dropped:
                self._apply(batch, section, group_time_ms)
        return group_time_ms

    def _apply(self, batch: RowBatch, section: LiteChange, group_time_ms: int) -> None:
        machine, rows, topic_id = self._machine, self._rows, section.topic_id
        row = LiteParentRow(section.next_turn, section.lite_count, section.queue_count)
        self.parents[topic_id, section.home] = row
        rows.parents.put(batch, topic_id, section.home, row)
        if machine.queues.get(topic_id, section.home) is None:
            machine.queues.put(batch, topic_id, section.home, _NO_MESSAGES)
        for number, name in section.added:
            rows.numbers.put(batch, topic_id, name, number)
            rows.names.put(batch, topic_id, number, name)
            # Its life without traffic begins now.
            state = _NO_MESSAGES._replace(last_store_time_ms=group_time_ms)
            machine.queues.put(batch, topic_id, number, state)
        for number, name in section.dropped:
            rows.numbers.delete(batch, topic_id, name)
            rows.names.delete(batch, topic_id, number)
            machine.consume_queues.drop_queue(batch, topic_id, number)
            machine.queues.drop(batch, topic_id, number)
            for consumer_group_id in section.consumer_group_ids:
                # There are no lease rows: the leader made sure.
                machine.rows.heads.delete(batch, (consumer_group_id, topic_id, number))

    def written(self) -> None:
        """The staged rows are in the store."""

    def forget(self) -> None:
        """The staged rows are not in the store."""
        self.parents = dict(self._rows.parents.all())

    def reload(self) -> None:
        """The rows were replaced."""
        self.forget()

    def drop_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Stage the removal of a parent topic."""
        parents = [key for key in self.parents if key[0] == topic_id]
        if not parents:
            return
        for key in parents:
            del self.parents[key]
        for rows in (self._rows.parents, self._rows.numbers, self._rows.names):
            rows.delete_topic(batch, topic_id)

    def trim(self, batch: RowBatch, oldest_ms: int) -> None:
        """Remove nothing: rows of lite topics have no age of their own."""

    def holds(self, topic_id: int) -> bool:
        """Whether the topic has lite topics here, or gets its first: its queues must not move."""
        if self.leader is not None and self.leader.is_making(topic_id):
            return True
        return any(key[0] == topic_id for key in self.parents)

    def settle(self, applied_index: int) -> None:
        """Write nothing: all is in the store."""

    def settled_index(self, applied_index: int) -> int:
        """Return the index up to which the store has all rows."""
        return applied_index

    def redo(self, payload: bytes) -> None:
        """Apply nothing again: all is in the store."""

    # Roles --------------------------------------------------------------------------------------

    def lead(self, leader: GroupLeader) -> None:
        """Decide from now on."""
        self.leader = LiteLeader(self._machine, self, leader, options=self._options)

    def follow(self, refusal: Refused) -> None:
        """Decide no more; who waits for an entry is told by the driver."""
        self.leader = None

    def leading(self) -> LiteLeader:
        """Return who decides.

        Raises:
            Refused: OUTCOME_NOT_LEADER.
        """
        if self.leader is None:
            raise Refused(pb.OUTCOME_NOT_LEADER, "this node is not the leader of the raft group")
        return self.leader
