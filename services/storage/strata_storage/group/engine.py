"""One raft group on this node: its state machine, its reads and, while it leads, its leader.

The engine is what the servicer calls. Calls that decide go to the `GroupLeader`; reads wait until
what was committed at their arrival is applied (rule 3) and then look at rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import (
    DropCommand,
    DropKind,
    EpochCommand,
    OwnCommand,
    encode_drop,
    encode_open,
    encode_own,
    encode_seal,
)
from strata_mq.layout import QueueRow
from strata_multiraft import NotLeader, Overloaded, ReadOnly
from strata_runtime.clock import Clock
from strata_runtime.turns import Turns
from strata_state.flush import Flusher
from strata_state.ports import StateStore
from strata_storage.base.config import EngineOptions
from strata_storage.base.disk_guard import DiskGuard, DiskMark
from strata_storage.base.errors import Refused
from strata_storage.group.plugins import GroupPlugin, OpensGroups
from strata_storage.leading.appends.append import Sealing
from strata_storage.leading.leader import GroupLeader
from strata_storage.leading.pending.pending import PendingPorts
from strata_storage.leading.proposer import LeaderReplica, committed, refusal_of
from strata_storage.reads.fetches import Fetches
from strata_storage.reads.listing import PendingList
from strata_storage.reads.lookup import Lookup
from strata_storage.reads.offsets import Offsets
from strata_storage.reads.reader import LogReaders
from strata_storage.reads.traces import Traces
from strata_storage.rows.machine import GroupMachine, OpenTierMetadata
from strata_tier.ranges import RowTierMetadata

_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)
# Until more reads may wait.
_BARRIER_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class EngineRows:
    """The rows of all raft groups of a node.

    Attributes:
        store: holds them.
        flusher: makes them durable.
        tier_metadata: opens what a raft group has in the tier.
    """

    store: StateStore
    flusher: Flusher
    tier_metadata: OpenTierMetadata = RowTierMetadata


@dataclass(frozen=True, slots=True)
class LeaderMeans:
    """The means that all leaders of a node share.

    Attributes:
        clock: time of the raft groups.
        pending: ports for messages that wait.
        turns: turns of all filters of the node.
    """

    clock: Clock
    pending: PendingPorts
    turns: Turns


class GroupEngine:
    """See the module docstring.

    Args:
        raft_group: which one.
        replica_id: of the replica here.
        rows: where its rows are.
        readers: the ways into the replica's log.
        leaders: what its leaders work with.
        options: limits.
        on_role: told (raft group, leads now) after every change.
        plugins: their commands and rows.

    Attributes:
        machine: given to the driver as the replica's state machine.
        lookup: reads by offset, id and key.
        fetches: reads of a queue from an offset on.
        traces: what became of single messages.
        offsets: offsets of queues.
        pending_list: messages that wait.
        leader: None while this replica follows.
    """

    def __init__(
        self,
        raft_group: int,
        replica_id: int,
        rows: EngineRows,
        *,
        readers: LogReaders,
        leaders: LeaderMeans,
        options: EngineOptions,
        on_role: Callable[[int, bool], None],
        plugins: Sequence[OpensGroups] = (),
    ) -> None:
        self.raft_group = raft_group
        self.replica_id = replica_id
        self._flusher = rows.flusher
        self._readers = readers
        self._leaders = leaders
        self._options = options
        self._on_role = on_role
        self.machine = GroupMachine(
            rows.store,
            raft_group,
            rows.flusher,
            options=options,
            on_leader=self._lead,
            on_follower=self._follow,
            tier_metadata=rows.tier_metadata,
        )
        reader = readers.messages
        self.offsets = Offsets(self.machine)
        self.lookup = Lookup(self.machine, reader)
        self.fetches = Fetches(
            self.machine, reader, leaders.turns, max_filter_steps=options.pop_filter_steps
        )
        self.traces = Traces(self.machine, self.lookup)
        self.pending_list = PendingList(self.machine, reader, options)
        self.leader: GroupLeader | None = None
        self._replica: LeaderReplica | None = None
        self._plugins = [self._use(plugin) for plugin in plugins]

    def _use(self, plugin: OpensGroups) -> GroupPlugin:
        group, machine = plugin.group(self.machine), self.machine
        machine.plugins.add(plugin.command_kinds, group)
        applied_index = machine.applied_index()
        self._flusher.opened(self.raft_group, machine.plugins.settled_index(applied_index))
        return group

    @property
    def replica(self) -> LeaderReplica:
        """The replica the driver made for this engine."""
        assert self._replica is not None, "the engine is not attached to its replica yet"
        return self._replica

    def attach(self, replica: LeaderReplica) -> None:
        """Take the replica that the driver made with this engine's machine."""
        self._replica = replica

    def leading(self) -> GroupLeader:
        """Return the leader.

        Raises:
            Refused: OUTCOME_NOT_LEADER, OUTCOME_READ_ONLY.
        """
        if self._is_read_only():
            raise Refused(pb.OUTCOME_READ_ONLY, self.replica.read_only)
        leader = self.leader
        if leader is None or self.replica.read_only or not self.replica.is_ready_leader():
            raise Refused(
                pb.OUTCOME_NOT_LEADER,
                f"this node is not the leader of raft group {self.raft_group}",
                self.replica.leader_replica_id,
            )
        return leader

    def whole_rows(self) -> int | None:
        """Return which rows these are; None: they are not whole, a snapshot is being written.

        Work that goes on after an await compares it with what it was before: if it is another one,
        the rows were replaced meanwhile, or are about to be (rule 38).
        """
        return None if self.replica.installing else self.machine.generation

    def close(self) -> None:
        """Refuse everything: the replica is not hosted here any more."""
        self._follow(0, 0)

    def check_disk(self, own: DiskGuard, refused_from: DiskMark) -> None:
        """Let the caller pass unless this node, or a quorum, has no room for its work (rule 11).

        Args:
            own: knows how full this node's disk is.
            refused_from: mark that forbids the work.

        Raises:
            Refused: OUTCOME_DISK_FULL; OUTCOME_NOT_LEADER: a node with more room is about to lead.
        """
        quorum_mark = self.replica.disk_mark
        if max(own.mark, quorum_mark) < refused_from:
            return
        if self.replica.is_handing_over:
            raise Refused(
                pb.OUTCOME_NOT_LEADER,
                f"raft group {self.raft_group} moves to a leader with more free disk space",
                self.replica.leader_replica_id,
            )
        own.check(refused_from)
        if quorum_mark >= refused_from:
            raise Refused(
                pb.OUTCOME_DISK_FULL,
                f"the disks of nodes that hold raft group {self.raft_group} are full: free space, "
                "or shorten the retention of topics",
            )

    def _is_read_only(self) -> bool:
        """Whether the raft group takes nothing any more, not only this replica of it (rule 8).

        A damaged replica that is not the only one knows less than the others by now.
        """
        return bool(self.replica.read_only) and self.replica.is_sole()

    def active_leader(self) -> GroupLeader | None:
        """Return the leader if it can still decide something: for work that time demands."""
        return None if self.replica.read_only else self.leader

    async def barrier(self, *, proposed_too: bool = False) -> None:
        """Wait until everything committed at the call is applied (rule 3).

        A read-only raft group answers with what it has.

        Args:
            proposed_too: also what is not committed yet: whoever asks for an id wants to know
                whether it will be here.

        Raises:
            Refused: OUTCOME_NOT_LEADER, OUTCOME_OVERLOADED.
        """
        if not self._is_read_only():
            leader = self.leading()
            if proposed_too:
                await leader.proposer.settled()
        try:
            await self.replica.read_barrier()
        except (NotLeader, Overloaded, ReadOnly) as error:
            raise refusal_of(error) from error

    async def confirm(self, leader: GroupLeader) -> None:
        """Make sure that a leader knew everything that is or will be committed before its answer.

        Raises:
            Refused: OUTCOME_NOT_LEADER, it may have been no leader any more; OUTCOME_OVERLOADED.
        """
        await self.barrier(proposed_too=True)
        if self.leading() is not leader:
            raise Refused(pb.OUTCOME_NOT_LEADER, "the leader changed meanwhile")

    async def catch_up(self, index: int) -> None:
        """Wait until this replica, whoever leads, has applied an index.

        Raises:
            Refused: OUTCOME_NOT_READY, its rows are not whole; OUTCOME_OVERLOADED.
        """
        try:
            await self.replica.applied(index)
        except (NotLeader, Overloaded, ReadOnly) as error:
            raise refusal_of(error) from error
        # A snapshot may have begun meanwhile.
        if self.replica.installing:
            raise Refused(pb.OUTCOME_NOT_READY, "the rows of this replica are not complete yet")

    def consumer_topics(self, consumer_group_id: int) -> list[int]:
        """Return the topics of which a consumer group has pop state here, rising.

        Raises:
            Refused: OUTCOME_OVERLOADED, there are more than `consumer_topics_max`.
        """
        limit = self._options.consumer_topics_max
        topic_ids = self.machine.rows.heads.topics(consumer_group_id, limit + 1)
        if len(topic_ids) > limit:
            raise Refused(
                pb.OUTCOME_OVERLOADED,
                f"consumer group {consumer_group_id} has state of more than {limit} topics in "
                f"raft group {self.raft_group}: ask for one topic",
            )
        return topic_ids

    # Rare commands ------------------------------------------------------------------------------

    async def own(self, command: OwnCommand) -> None:
        """Take or give up slots (rule 17); return when it is applied.

        Raises:
            Refused: OUTCOME_NOT_READY, it was decided on older metadata than an earlier one: what
                they name may be somebody else's by now; or not the leader, or leadership was lost.
        """
        known = self.machine.ownership.revision
        if command.revision < known:
            raise Refused(
                pb.OUTCOME_NOT_READY, f"revision {command.revision} is older than {known}"
            )
        await committed(self.leading().proposer.propose((encode_own(command),)))
        while True:
            try:
                await self.barrier()
            except Refused as refused:
                # A caller that gives slots up lets appends in again after the return: not before
                # this is applied.
                if refused.outcome != pb.OUTCOME_OVERLOADED:
                    raise
                await asyncio.sleep(_BARRIER_RETRY_S)
            else:
                return

    async def seal(self, topic_id: int, queue: int, destination: int) -> int:
        """End the epoch of a queue; return its end offset. Repeating it gives the same.

        Raises:
            Refused: OUTCOME_INVALID for its own raft group as destination, for a key-value table,
                or when the queue is on its way elsewhere; or not the leader, or no room for the
                entry: the queue stays open then.
        """
        leader = self.leading()
        if destination == self.raft_group:
            raise Refused(
                pb.OUTCOME_INVALID, f"queue {queue} is in raft group {destination} already"
            )
        if self.machine.plugins.holds(topic_id):
            what = "queues of key-value tables and of topics of type LITE cannot be moved"
            raise Refused(pb.OUTCOME_INVALID, what)
        row = self.machine.queues.get(topic_id, queue) or _EMPTY_QUEUE
        move, sealing = self.machine.moves.get((topic_id, queue)), None
        if not row.sealed:
            move, sealing = None, leader.appends.sealing(topic_id, queue)
        known = move.destination if move is not None else sealing.destination if sealing else 0
        if known not in (0, destination):
            raise Refused(
                pb.OUTCOME_INVALID,
                f"queue {queue} of topic {topic_id} is on its way to raft group {known}",
            )
        if row.sealed:
            return row.next_offset
        end_offset = leader.appends.next_offset(topic_id, queue)
        if sealing is None or sealing.future is None:
            command = EpochCommand(topic_id, queue, row.epoch, end_offset, destination)
            future = leader.proposer.propose((encode_seal(command),))
            # Only now: what is refused leaves the queue open.
            leader.appends.seal(topic_id, queue, Sealing(destination, future))
        else:
            future = sealing.future
        await committed(future)
        return end_offset

    async def open(
        self, topic_id: int, queue: int, epoch: int, start_offset: int, queue_count: int = 0
    ) -> None:
        """Open an epoch of a queue. Repeating it changes nothing.

        `queue_count` is what the queue's row said in the epoch before.

        Raises:
            Refused: OUTCOME_INVALID for an epoch before the one that is open, or while messages
                of an earlier one are still here; or not the leader.
        """
        leader = self.leading()
        row = self.machine.queues.get(topic_id, queue)
        if row is not None and row.epoch >= epoch:
            if row.epoch > epoch:
                raise Refused(pb.OUTCOME_INVALID, f"epoch {row.epoch} of this queue is open")
            return
        if row is not None and row.min_offset < row.next_offset:
            raise Refused(pb.OUTCOME_INVALID, "messages of an earlier epoch are still here")
        command = EpochCommand(topic_id, queue, epoch, start_offset, 0, queue_count)
        # With the entry, not with the caller: a repeat finds the epoch open and does nothing.
        opened = partial(leader.appends.opened, topic_id, queue)
        await committed(leader.proposer.propose((encode_open(command),), opened))

    async def drop(self, what: DropKind, dropped_id: int) -> None:
        """Drop a topic or consumer group. Repeating it changes nothing.

        Raises:
            Refused: not the leader.
        """
        if (what, dropped_id) not in self.machine.dropped:
            command = DropCommand(what, dropped_id)
            await committed(self.leading().proposer.propose((encode_drop(command),)))

    # Roles --------------------------------------------------------------------------------------

    def _lead(self, term: int) -> None:
        leaders = self._leaders
        self.leader = GroupLeader(
            term,
            self.machine,
            self.replica,
            readers=self._readers,
            clock=leaders.clock,
            options=self._options,
            pending=leaders.pending,
            turns=leaders.turns,
        )
        self.machine.listener = self.leader
        for plugin in self._plugins:
            plugin.lead(self.leader)
        self._on_role(self.raft_group, True)

    def _follow(self, term: int, leader_replica_id: int) -> None:
        leader, self.leader = self.leader, None
        self.machine.listener = None
        if leader is not None:
            refusal = Refused(pb.OUTCOME_NOT_LEADER, "leadership was lost", leader_replica_id)
            leader.end(refusal)
            for plugin in self._plugins:
                plugin.follow(refusal)
        self._on_role(self.raft_group, False)
