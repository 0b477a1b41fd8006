"""Key-value tables of one raft group on this node: what is applied, who leads, who listens."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from strata.kv.v1 import kv_storage_pb2 as kv
from strata.storage.v1 import storage_pb2 as pb
from strata_kv.machine import KvApplyError, TableMachine
from strata_kv.names import QUEUE
from strata_mq.commands import DropKind
from strata_mq.layout import QueueRow
from strata_state.ports import RowBatch
from strata_storage.base.errors import ApplyError, Refused
from strata_storage.kv.leader import KvLeader
from strata_storage.kv.options import KvOptions
from strata_storage.kv.shares import StreamShares
from strata_storage.leading.leader import GroupLeader
from strata_storage.rows.machine import GroupMachine

_NO_MESSAGES = QueueRow(0, 0, 0, 0)


class KvGroup:
    """`strata_storage.group.plugins.GroupPlugin` for tables.

    Attributes:
        tables: what is applied.
        leader: None while this replica follows.
        dumps: shares of exports under way.
    """

    def __init__(self, machine: GroupMachine, options: KvOptions) -> None:
        self._machine = machine
        self._options = options
        self.tables = TableMachine(
            machine.rows.store,
            machine.raft_group,
            options.tables,
            is_dropped=lambda table_id: (DropKind.TOPIC, table_id) in machine.dropped,
            on_new_table=self._place,
        )
        self.tables.listener = self._wake
        self.leader: KvLeader | None = None
        self.dumps = StreamShares("exports", options.dumps, pb.OUTCOME_OVERLOADED)
        self._follows = StreamShares("watches", options.followers, pb.OUTCOME_TOO_MANY_WAITERS)
        # Table -> who waits for its next change.
        self._followers: defaultdict[int, set[asyncio.Event]] = defaultdict(set)

    # State machine (MachinePlugin) --------------------------------------------------------------

    def apply(self, batch: RowBatch, raft_index: int, payload: bytes) -> int:
        """Stage an entry's rows."""
        try:
            return self.tables.apply(batch, raft_index, payload)
        except KvApplyError as error:
            raise ApplyError(str(error)) from error

    def _place(self, batch: RowBatch, table_id: int) -> None:
        """Give a new table the row by which it stays when its slot leaves (rule 17)."""
        if self._machine.queues.get(table_id, QUEUE) is None:
            self._machine.queues.put(batch, table_id, QUEUE, _NO_MESSAGES)

    def written(self) -> None:
        """The staged rows are in the store."""
        self.tables.written()

    def forget(self) -> None:
        """The staged rows are not in the store."""
        self.tables.forget()

    def reload(self) -> None:
        """The rows were replaced."""
        self.tables.reload()

    def drop_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Stage the removal of a table."""
        self.tables.drop_table(batch, topic_id)

    def trim(self, batch: RowBatch, oldest_ms: int) -> None:
        """Stage the removal of old answers."""
        self.tables.trim(batch, oldest_ms)

    def holds(self, topic_id: int) -> bool:
        """Whether the topic stands for a table that has a row here, or gets its first."""
        if self.leader is not None and self.leader.is_making(topic_id):
            return True
        return self.tables.table(topic_id) is not None

    def settle(self, applied_index: int) -> None:
        """Write what only memory has."""
        self.tables.settle(applied_index)

    def settled_index(self, applied_index: int) -> int:
        """Return the index up to which the store has all rows."""
        settled_index = self.tables.settled_index()
        return applied_index if settled_index is None else min(settled_index, applied_index)

    def redo(self, payload: bytes) -> None:
        """Apply an entry to the tables in memory again."""
        self.tables.redo(payload)

    # Roles --------------------------------------------------------------------------------------

    def lead(self, leader: GroupLeader) -> None:
        """Decide from now on."""
        self.leader = KvLeader(self._machine, self.tables, leader, options=self._options)

    def follow(self, refusal: Refused) -> None:
        """Decide no more."""
        leader, self.leader = self.leader, None
        if leader is not None:
            leader.end(refusal)
        self._wake(list(self._followers))

    def leading(self) -> KvLeader:
        """Return who decides.

        Raises:
            Refused: OUTCOME_NOT_LEADER.
        """
        if self.leader is None:
            raise Refused(pb.OUTCOME_NOT_LEADER, "this node is not the leader of the raft group")
        return self.leader

    def check_leads(self, leader: KvLeader) -> None:
        """Let the caller pass as long as this one decides.

        Raises:
            Refused: OUTCOME_NOT_LEADER.
        """
        if self.leader is not leader:
            raise Refused(pb.OUTCOME_NOT_LEADER, "leadership was lost")

    # Followers of changes -----------------------------------------------------------------------

    @property
    def follower_count(self) -> int:
        """Streams that tell changes."""
        return self._follows.used

    @contextmanager
    def following(self, table_id: int, owner: kv.StreamOwner) -> Iterator[asyncio.Event]:
        """Yield an event that is set after every change of a table, and when the leader goes.

        Raises:
            Refused: OUTCOME_TOO_MANY_WAITERS.
        """
        changed = asyncio.Event()
        with self._follows.holding(owner):
            self._followers[table_id].add(changed)
            try:
                yield changed
            finally:
                self._followers[table_id].discard(changed)
                if not self._followers[table_id]:
                    del self._followers[table_id]

    def _wake(self, table_ids: Iterable[int]) -> None:
        for table_id in table_ids:
            for changed in self._followers.get(table_id, ()):
                changed.set()
