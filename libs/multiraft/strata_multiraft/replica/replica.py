"""One replica on this node: its public calls, and its waiting proposals, reads and entries.

Everything runs on the event loop. Each kind of waiting work has its module: `proposals.py`,
`waiting_reads.py`, `membership_calls.py`, `apply_queue.py`. Syncs and transports belong to the
driver (`node.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata_multiraft.base.errors import (
    LogFull,
    NotLeader,
    ReadOnly,
    TransferFailed,
    damage_reason,
)
from strata_multiraft.base.ports import SnapshotStore, StateMachine
from strata_multiraft.replica.apply_queue import ApplyQueue
from strata_multiraft.replica.disk_marks import MARK_FULL
from strata_multiraft.replica.driver_port import Driver
from strata_multiraft.replica.fitness import Fitness
from strata_multiraft.replica.membership_calls import MembershipCalls
from strata_multiraft.replica.proposals import Proposals
from strata_multiraft.replica.stored_log import Floor, StoredLog
from strata_multiraft.replica.waiting_reads import WaitingReads
from strata_raft import (
    NO_REPLICA,
    Configuration,
    Effects,
    Entry,
    Event,
    EventRefused,
    Payload,
    RawNode,
    Read,
    ReplicaProgress,
    Role,
    RoleChange,
)
from strata_seglog.frames import Frame


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """A replica as the nameserver describes it.

    Attributes:
        raft_group: the raft group's id.
        replica_id: this replica's id, never reused (rule 8).
        voters: replica ids that the raft group began with, if this replica is one of them. Empty:
            it joins later, as a learner without a configuration until its log or a snapshot
            brings one.
    """

    raft_group: int
    replica_id: int
    voters: frozenset[int] = frozenset()


class Replica:
    """One replica of one raft group. Made by `MultiRaft.add_replica`.

    Attributes:
        on_failed: called with the reason when the replica became read-only.
        is_urgent: whether an entry goes to followers before others' entries (rule 15).
        unapplied: durable entries that wait to be applied.
        fitness: who may be given the leadership.
    """

    def __init__(
        self,
        spec: ReplicaSpec,
        machine: StateMachine,
        node: RawNode,
        *,
        stored: StoredLog,
        driver: Driver[Replica],
        damage: str,
        snapshots: SnapshotStore | None = None,
    ) -> None:
        self.spec = spec
        self.raft_group = spec.raft_group
        self.replica_id = spec.replica_id
        self.read_only = damage_reason(spec.replica_id, damage) if damage else ""
        self.on_failed: Callable[[str], None] = lambda reason: None
        self.is_urgent: Callable[[Entry], bool] = lambda entry: False
        self.machine = machine
        self.node = node
        self.stored = stored
        self.snapshots = snapshots
        # A snapshot is being written over the rows: no appends, no apply.
        self.installing = False
        # Term and index of an entry up to which other replicas count on this one, truncated or not.
        self.floor: Floor = (0, 0)
        # Log and rows are being truncated: nothing is stepped at all.
        self.is_resetting = False
        self._driver = driver
        self._calls = MembershipCalls(lambda: self.node, self.step)
        self._proposals = Proposals(driver.in_flight)
        self._reads = WaitingReads(driver.in_flight)
        self.unapplied = ApplyQueue(
            machine.applied_index(),
            min(node.commit_index, stored.last_index()),
            driver.options.max_unapplied_bytes,
        )
        self.fitness = Fitness(lambda: self.node, driver, node.commit_index)
        node.note_applied(self.applied_index)
        self._term_announced = 0
        # The machine may lead once this index is applied; 0: this replica does not lead.
        self._leads_from = 0

    # -- for the owner ---------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """The raft term now."""
        return self.node.term

    @property
    def role(self) -> Role:
        """The role in the raft group now; a leader may not be ready yet."""
        return self.node.role

    @property
    def leader_replica_id(self) -> int:
        """The leader's replica id; 0: not known."""
        return self.node.leader_id

    @property
    def commit_index(self) -> int:
        """The index up to which entries are known to be committed."""
        return self.node.commit_index

    @property
    def applied_index(self) -> int:
        """The index up to which the state machine has applied."""
        return self.unapplied.applied_index

    @property
    def last_index(self) -> int:
        """The index of the newest entry, committed or not."""
        return self.node.last_index

    @property
    def first_index(self) -> int:
        """The index of the oldest entry in the log."""
        return self.stored.first_index()

    def is_ready_leader(self) -> bool:
        """Tell whether this replica leads and the no-op of its term is applied (rule 1)."""
        return self._term_announced != 0

    def propose(self, payload: Payload) -> asyncio.Future[int]:
        """Propose one entry.

        Returns:
            A future with the entry's index once it is committed, before it is applied. It fails
            with NotLeader (outcome unknown) or LogFull (not stored).

        Raises:
            NotLeader, Overloaded, ReadOnly, LogFull: nothing was proposed.
            ValueError: the payload is above `max_proposal_bytes`.
        """
        self._check_writable()
        size_bytes = sum(map(len, payload))
        if size_bytes > self._driver.options.max_proposal_bytes:
            raise ValueError(f"the proposal has {size_bytes} bytes, more than max_proposal_bytes")
        future, is_first = self._proposals.queue(payload, size_bytes)
        if is_first:
            self._driver.work_queued(self)
        return future

    async def applied(self, index: int) -> None:
        """Wait until `applied_index >= index` (rule 3).

        Raises:
            ReadOnly: apply has stopped below `index`.
            Overloaded: too many readers wait.
        """
        if self.unapplied.applied_index >= index:
            return
        if self.read_only:
            raise ReadOnly(self.read_only)
        await self._reads.until_applied(index)

    async def read_barrier(self) -> int:
        """Wait until everything committed at the call is applied here; return that index (rule 3).

        A read that follows sees every write that was acknowledged before the call. A read-only
        replica answers with what it has.

        Raises:
            NotLeader: this replica does not lead, or lost the leadership meanwhile.
            Overloaded: too many readers wait.
        """
        if self.read_only:
            return self.unapplied.applied_index
        if self.is_sole() and self.is_ready_leader():
            index = self.node.commit_index
        else:
            index = await self._confirmed_index()
        await self.applied(index)
        return index

    # -- for the owner: membership ---------------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        """The configuration in force, committed or not (rule 12)."""
        return self.node.configuration

    @property
    def configuration_index(self) -> int:
        """The index of the entry that brought it; 0: the raft group began with it."""
        return self.node.configuration_index

    @property
    def disk_mark(self) -> int:
        """The worst disk mark among the nodes of the best quorum, 0 to 3 (rule 11)."""
        return self._driver.marks.of_quorum(self.node.configuration, self.replica_id)

    @property
    def is_handing_over(self) -> bool:
        """Whether the leadership is being handed to another replica: nothing can be proposed."""
        return self.node.transfer_target != NO_REPLICA

    def progress(self) -> Sequence[ReplicaProgress]:
        """Return how far followers and learners are; nothing unless this replica leads."""
        return self.node.progress()

    def caught_up(self, replica_id: int) -> bool:
        """Tell whether a follower could take the leadership over now. Leader only."""
        return self.fitness.caught_up(replica_id)

    def is_behind(self) -> bool:
        """Tell whether this replica has yet to apply what was committed a while ago."""
        return self.applied_index < min(self.fitness.commits.a_while_ago(), self.commit_index)

    async def change_membership(
        self, voters: frozenset[int], learners: frozenset[int] = frozenset()
    ) -> None:
        """Move to these voters and learners; return when the final configuration is committed.

        A leader that leaves itself out leads until then (rule 12).

        Raises:
            NotLeader: it does not lead, or lost the leadership: the change may still happen.
            MembershipRefused: not now, above all because another change is under way.
        """
        await self._calls.change(voters, learners)

    async def transfer_leadership(self, target: int | None = None) -> None:
        """Hand the leadership over; return when this replica does not lead any more.

        Args:
            target: a voter; None: the most advanced one that answers and has room.

        Raises:
            NotLeader: it does not lead.
            TransferFailed: there is nobody, the clock of the target's node is off (rule 4), the
                target has yet to rebuild its rows, or it took longer than an election timeout.
        """
        if target is None:
            if self.node.role is not Role.LEADER:
                raise NotLeader(self.leader_replica_id)
            target = self.successor()
            if not target:
                raise TransferFailed("no other voter that may lead answers")
        elif not self._driver.may_lead(target):
            raise TransferFailed(f"the clock of the node of replica {target} is off")
        elif self.fitness.is_known_behind(target):
            raise TransferFailed(f"replica {target} has yet to apply what it holds")
        await self._calls.transfer(target)

    def successor(self) -> int:
        """Return the replica that should lead next; 0: nobody can."""
        return self.fitness.successor()

    def write_checkpoint(self, frames: Sequence[Frame]) -> asyncio.Future[int]:
        """Write checkpoint frames with the next group commit.

        Returns:
            A future with the log position up to which all is durable; it fails with LogFull.
        """
        return self._driver.write_control(frames)

    # -- for the driver: proposals ---------------------------------------------------------------

    def is_sole(self) -> bool:
        """Tell whether this replica is its raft group's only one."""
        return self.node.configuration.replicas() == {self.replica_id}

    def is_busy(self) -> bool:
        """Tell whether anything waits to be decided or applied."""
        return bool(
            self._proposals
            or self._reads.waits_for_leader()
            or self._calls.waits
            or self.is_handing_over  # which only ticks end if nobody took it
            or self.installing
            or self.apply_lag()
        )

    def take_queued(self) -> tuple[Payload, ...]:
        """Return queued payloads for one `Propose`; they are waiting from now on."""
        if self.node.role is not Role.LEADER:
            self._proposals.fail_queued(NotLeader(self.leader_replica_id))
            return ()
        options = self._driver.options
        taken = self._proposals.take(self.node.last_index + 1, options.max_write_bytes)
        if self._proposals.has_queued:
            self._driver.work_queued(self)
        return taken

    def propose_refused(self, number: int) -> None:
        """The core did not take the last `number` proposals: leadership is being handed over."""
        self._proposals.refuse(number, NotLeader(self.leader_replica_id))
        self._decide_anew()

    def ask_reads(self) -> Effects | None:
        """Step one question for all readers that came since the last turn."""
        context = self._reads.ask()
        if not context:
            return None
        try:
            return self.node.step(Read(context))
        except EventRefused:
            self._reads.fail(NotLeader(self.leader_replica_id))
            return None

    def write_failed(self, reason: str) -> None:
        """Everything in flight is void: the log could not take it (rule 11)."""
        self._proposals.fail(LogFull(reason))
        self._decide_anew()

    def _decide_anew(self) -> None:
        """Void what the machine decided on proposals that are not in the log (rule 1).

        A replica that still leads has its machine lead again once everything in the log is applied.
        """
        if self._leads_from:
            if self._term_announced:
                self._term_announced = 0
                self.machine.on_follower(self.node.term, 0)
            if self.node.role is Role.LEADER:
                self._leads_from = max(self.node.term_start_index, self.node.last_index)
                self._driver.entries_ready(self)

    # -- for the driver: what a step led to ------------------------------------------------------

    def observe(self, effects: Effects) -> None:
        """Answer what is committed, serve confirmed reads, follow the role."""
        for read in effects.reads:
            self._reads.answer(read.context, read.index)
        if self._calls.waits or effects.role_change is not None:
            self._calls.observe(effects)
        if effects.role_change is not None:
            self._role_changed(effects.role_change)
        # Only now: one append of a new leader may end the leadership, replace what was proposed
        # here and raise the commit index above it, all in one step.
        self._proposals.committed(effects.commit_index)
        self.fitness.commits.saw(effects.commit_index)
        if effects.ready_index > self.unapplied.ready_index:
            self.unapplied.ready_index = effects.ready_index
            self._driver.entries_ready(self)

    def step(self, event: Event) -> None:
        """Step an event and do its effects.

        Raises:
            Refused: it is not possible now.
        """
        self._driver.perform(self, self.node.step(event))
        self._driver.end_turn()

    def ticked(self, *, may_lead: bool) -> None:
        """A tick has passed; `may_lead`: this node may be given leaderships."""
        self.fitness.ticked(may_lead=may_lead)
        if self._calls.waits:
            self._calls.ticked()

    def trimmed_to(self, first_index: int) -> None:
        """Note that the log begins here now."""
        applied = self.machine.applied_index(), self.machine.applied_term()
        self.stored.trimmed_to(first_index, applied)

    def quiesced(self) -> None:
        """No ticks come from now on."""
        self.node.quiesced()
        self.fitness.quiesced()

    def applied_configuration(self) -> Configuration:
        """Return the configuration as of the applied index."""
        applied = self.machine.configuration()
        return Configuration(self.spec.voters) if applied is None else applied[1]

    def replaced(self, node: RawNode, stored: StoredLog) -> None:
        """Begin again as an empty replica: log and rows were truncated."""
        self.node = node
        self.stored = stored
        self._calls.lost_leadership(0)
        self._proposals.fail(NotLeader(0))
        self._reads.fail(NotLeader(0))
        self._leads_from = self._term_announced = 0
        self.rows_replaced()

    def rows_replaced(self) -> None:
        """Go on from the machine's new applied index."""
        self.unapplied.restart(self.machine.applied_index())
        self.fitness.commits.restart(self.applied_index)
        self.node.note_applied(self.applied_index)
        self._reads.applied(self.unapplied.applied_index)

    def stopped(self) -> None:
        """Nothing will be decided here any more."""
        self._leads_from = self._term_announced = 0
        self._calls.lost_leadership(0)
        self._proposals.fail(NotLeader(0))
        self._reads.fail(NotLeader(0))
        self._reads.fail_applying(NotLeader(0))

    # -- for the driver: apply -------------------------------------------------------------------

    def wrote(self, entries: Sequence[Entry]) -> None:
        """Keep durable entries until they are applied, as far as the limit allows."""
        self.unapplied.wrote(entries)

    def has_ready(self) -> bool:
        """Tell whether committed entries wait to be applied."""
        queue = self.unapplied
        return (
            queue.applied_index < queue.ready_index and not self.read_only and not self.installing
        )

    def apply_lag(self) -> int:
        """Return how many committed entries wait to be applied."""
        return self.unapplied.lag()

    def missing_range(self) -> tuple[int, int] | None:
        """Return the range to read back before anything can be applied; None: it is in memory."""
        return self.unapplied.missing_range()

    def take_ready(self, max_bytes: int) -> list[Entry]:
        """Return the next committed entries in memory: one, then up to the limits of a slice."""
        return self.unapplied.take(max_bytes, self._driver.options.max_apply_entries)

    def apply(self, entries: Sequence[Entry]) -> None:
        """Apply entries and wake their readers; a failure stops apply for good (rule 11)."""
        assert entries[0].index == self.unapplied.applied_index + 1, (
            "apply must neither skip nor repeat"
        )
        try:
            self.machine.apply(entries)
        except Exception as failure:  # noqa: BLE001 - one raft group's bug must not stop the others
            self.fail(f"apply stopped at index {self.unapplied.applied_index}: {failure!r}")
            return
        self.unapplied.applied_index = entries[-1].index
        self.node.note_applied(self.applied_index)
        self._reads.applied(self.unapplied.applied_index)
        self.announce_leadership()

    def fail(self, reason: str) -> None:
        """Take no entries any more; what is applied stays readable. The owner is told."""
        if self.node.role is Role.LEADER and not self.is_sole():
            self._driver.give_up_leadership(self)
        self.read_only = reason
        self.on_failed(reason)
        error = ReadOnly(reason)
        self._proposals.fail(error)
        self._reads.fail(error)
        self._reads.fail_applying(error)

    def announce_leadership(self) -> None:
        """Tell the machine that it may lead, once the no-op and all before it are applied."""
        if not self._leads_from or self._term_announced or self.read_only:
            return
        if self.unapplied.applied_index >= self._leads_from:
            self._term_announced = self.node.term
            self.machine.on_leader(self.node.term)

    # -- inside ----------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        if self.read_only:
            self._driver.refused("read_only")
            raise ReadOnly(self.read_only)
        if not self._term_announced or self.is_handing_over:
            self._driver.refused("not_leader")
            raise NotLeader(self.leader_replica_id)
        if self._driver.is_disk_full():
            self._driver.refused("disk_full")
            raise LogFull("the log has no room")
        if self._driver.marks.worst >= MARK_FULL and self.disk_mark >= MARK_FULL:
            self._driver.refused("disk_full")
            raise LogFull("too many replicas of the raft group have no room")

    async def _confirmed_index(self) -> int:
        if self.node.role is not Role.LEADER:
            raise NotLeader(self.leader_replica_id)
        future, is_first = self._reads.gather()
        if is_first:
            self._driver.work_queued(self)
        try:
            return await future
        finally:
            self._reads.done()

    def _role_changed(self, change: RoleChange) -> None:
        if change.role is Role.LEADER:
            self._leads_from = self.node.term_start_index
            return
        self._leads_from = 0
        self._term_announced = 0
        self._proposals.fail(NotLeader(change.leader_id))
        self._reads.fail(NotLeader(change.leader_id))
        self.machine.on_follower(change.term, change.leader_id)
