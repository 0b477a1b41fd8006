"""One replica on this node: what its owner calls, and its waiting proposals, reads and entries.

Everything runs on the event loop. A proposal passes three places: queued (not yet in the raft
log), waiting (has an index, not committed), then its future is done. Committed entries pass from
`_unapplied` to the state machine. The replica knows nothing of frames, syncs and transports: those
are the driver's (`node.py`).

Invariants: `_waiting` is ascending by index; `_unapplied` holds entries without a hole from
`applied_index + 1` on, or fewer than there are, and what it lacks is read back from the log.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from strata_multiraft.errors import DiskFull, NotLeader, ReadOnly, damage_reason
from strata_multiraft.in_flight import InFlight
from strata_multiraft.options import MultiRaftOptions
from strata_multiraft.ports import StateMachine
from strata_multiraft.stored_log import StoredLog
from strata_raft import (
    Configuration,
    Effects,
    Entry,
    Payload,
    RawNode,
    Read,
    Refused,
    Role,
    RoleChange,
)
from strata_seglog.frames import Frame


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What the nameserver said about a replica.

    Attributes:
        raft_group: the raft group's id.
        replica_id: this replica's id, never reused (rule 8).
        voters: replica ids of the first configuration, or that of the newest checkpoint.
        learners: likewise.
        configurations: later configurations found in the log, with their indexes, ascending.
        nodes: node id of every other replica; the transport sends there.
    """

    raft_group: int
    replica_id: int
    voters: frozenset[int]
    learners: frozenset[int] = frozenset()
    configurations: tuple[tuple[int, Configuration], ...] = ()
    nodes: Mapping[int, int] = field(default_factory=dict)


class Driver(Protocol):
    """What a replica asks of the driver."""

    in_flight: InFlight
    options: MultiRaftOptions

    def proposals_queued(self, replica: Replica) -> None:
        """See to it that the replica's queued proposals are stepped soon."""

    def entries_ready(self, replica: Replica) -> None:
        """See to it that the replica's committed entries are applied soon."""

    def perform(self, replica: Replica, effects: Effects) -> None:
        """Do the effects of a step."""

    def write_control(self, frames: Sequence[Frame]) -> asyncio.Future[int]:
        """Write frames with the next group commit."""

    def refused(self, reason: str) -> None:
        """Count a refused proposal."""

    def is_disk_full(self) -> bool:
        """Tell whether the log had no room a moment ago."""


@dataclass(slots=True)
class _Proposal:
    payload: Payload
    size_bytes: int
    future: asyncio.Future[int]
    index: int = 0


def _nobody(reason: str) -> None:
    """Nobody wants to know."""


class Replica:
    """One replica of one raft group. Made by `MultiRaft.add_replica`.

    Attributes:
        on_failed: called with the reason when the replica became read-only.
    """

    def __init__(
        self,
        spec: ReplicaSpec,
        machine: StateMachine,
        node: RawNode,
        stored: StoredLog,
        driver: Driver,
        *,
        damage: str,
    ) -> None:
        self.spec = spec
        self.raft_group = spec.raft_group
        self.replica_id = spec.replica_id
        self.read_only = damage_reason(spec.replica_id, damage) if damage else ""
        self.on_failed: Callable[[str], None] = _nobody
        self.machine = machine
        self.node = node
        self.stored = stored
        self._driver = driver
        self._queued: list[_Proposal] = []
        self._waiting: deque[_Proposal] = deque()
        self._unapplied: deque[Entry] = deque()
        self._unapplied_bytes = 0
        self._applied_index = machine.applied_index()
        self._ready_index = min(node.commit_index, stored.last_index())
        self._apply_waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._reads: dict[int, asyncio.Future[int]] = {}
        self._ticket = count(1)
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
        return self._applied_index

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
            with NotLeader (outcome unknown) or DiskFull (not stored).

        Raises:
            NotLeader, Overloaded, ReadOnly, DiskFull: nothing was proposed.
            ValueError: the payload is above `max_proposal_bytes`.
        """
        self._check_writable()
        size_bytes = sum(map(len, payload))
        if size_bytes > self._driver.options.max_proposal_bytes:
            raise ValueError(f"{size_bytes} bytes are more than max_proposal_bytes")
        self._driver.in_flight.take_proposal(size_bytes)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._queued.append(_Proposal(payload, size_bytes, future))
        if len(self._queued) == 1:
            self._driver.proposals_queued(self)
        return future

    async def applied(self, index: int) -> None:
        """Wait until `applied_index >= index` (rule 3).

        Raises:
            ReadOnly: apply has stopped below `index`.
            Overloaded: too many readers wait.
        """
        if self._applied_index >= index:
            return
        if self.read_only:
            raise ReadOnly(self.read_only)
        self._driver.in_flight.take_read()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._apply_waiters, (index, next(self._ticket), future))
        try:
            await future
        finally:
            self._driver.in_flight.give_back_read()

    async def read_barrier(self) -> int:
        """Wait until everything committed at the call is applied here; return that index (rule 3).

        A read that follows sees every write that was acknowledged before the call. A read-only
        replica answers with what it has.

        Raises:
            NotLeader: this replica does not lead, or lost the leadership meanwhile.
            Overloaded: too many readers wait.
        """
        if self.read_only:
            return self._applied_index
        if self.is_sole() and self.is_ready_leader():
            index = self.node.commit_index
        else:
            index = await self._confirmed_index()
        await self.applied(index)
        return index

    def write_checkpoint(self, frames: Sequence[Frame]) -> asyncio.Future[int]:
        """Write checkpoint frames with the next group commit.

        Returns:
            A future with the log position up to which everything is durable; it fails with
            DiskFull.
        """
        return self._driver.write_control(frames)

    # -- for the driver: proposals ---------------------------------------------------------------

    def is_sole(self) -> bool:
        """Tell whether this replica is its raft group's only one."""
        return self.node.configuration.replicas() == {self.replica_id}

    def take_queued(self) -> tuple[Payload, ...]:
        """Return queued payloads for one `Propose`; they are waiting from now on."""
        queued, self._queued = self._queued, []
        if not queued:
            return ()
        if self.node.role is not Role.LEADER:
            self._fail(queued, NotLeader(self.leader_replica_id))
            return ()
        for index, proposal in enumerate(queued, self.node.last_index + 1):
            proposal.index = index
        self._waiting.extend(queued)
        return tuple(proposal.payload for proposal in queued)

    def propose_refused(self, number: int) -> None:
        """The core did not take the last `number` proposals."""
        refused = [self._waiting.pop() for _ in range(number)]
        self._fail(refused[::-1], NotLeader(self.leader_replica_id))

    def write_failed(self, reason: str) -> None:
        """Everything in flight is void: the log could not take it (rule 11)."""
        self._fail_all(DiskFull(reason))
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
        if self._waiting and self._waiting[0].index <= effects.commit_index:
            self._resolve(effects.commit_index)
        for read in effects.reads:
            future = self._reads.pop(read.context, None)
            if future is not None and not future.done():
                future.set_result(read.index)
        if effects.role_change is not None:
            self._role_changed(effects.role_change)
        if effects.ready_index > self._ready_index:
            self._ready_index = effects.ready_index
            self._driver.entries_ready(self)

    def stopped(self) -> None:
        """The driver has stopped: nothing will be decided any more."""
        self._fail_all(NotLeader(0))
        self._fail_reads(NotLeader(0))
        self._wake_apply_waiters(failure=NotLeader(0))

    # -- for the driver: apply -------------------------------------------------------------------

    def wrote(self, entries: Sequence[Entry]) -> None:
        """Keep durable entries until they are applied, as far as the limit allows."""
        while self._unapplied and self._unapplied[-1].index >= entries[0].index:
            self._unapplied_bytes -= self._unapplied.pop().size_bytes()
        expected = self._unapplied[-1].index + 1 if self._unapplied else self._applied_index + 1
        limit_bytes = self._driver.options.max_unapplied_bytes
        for entry in entries:
            if entry.index != expected or self._unapplied_bytes >= limit_bytes:
                return
            self._unapplied.append(entry)
            self._unapplied_bytes += entry.size_bytes()
            expected += 1

    def has_ready(self) -> bool:
        """Tell whether committed entries wait to be applied."""
        return self._applied_index < self._ready_index and not self.read_only

    def apply_lag(self) -> int:
        """Return how many committed entries wait to be applied."""
        return max(0, self._ready_index - self._applied_index)

    def missing_range(self) -> tuple[int, int] | None:
        """Return the range to read back before anything can be applied; None: it is in memory."""
        if self._unapplied and self._unapplied[0].index == self._applied_index + 1:
            return None
        return self._applied_index + 1, self._ready_index

    def take_ready(self, max_bytes: int) -> list[Entry]:
        """Return the next committed entries in memory: one, then up to `max_bytes`."""
        chosen: list[Entry] = []
        size_bytes = 0
        while self._unapplied and self._unapplied[0].index <= self._ready_index:
            size_bytes += self._unapplied[0].size_bytes()
            if chosen and size_bytes > max_bytes:
                break
            chosen.append(self._unapplied.popleft())
        self._unapplied_bytes -= sum(entry.size_bytes() for entry in chosen)
        return chosen

    def apply(self, entries: Sequence[Entry]) -> None:
        """Apply entries, wake who waits for them; a failure stops apply for good (rule 11)."""
        assert entries[0].index == self._applied_index + 1, "apply must neither skip nor repeat"
        try:
            self.machine.apply(entries)
        except Exception as failure:  # noqa: BLE001 - one raft group's bug must not stop the others
            self.fail(f"apply stopped at index {self._applied_index}: {failure!r}")
            return
        self._applied_index = entries[-1].index
        self._wake_apply_waiters()
        self.announce_leadership()

    def fail(self, reason: str) -> None:
        """Take no entries any more; what is applied stays readable. The owner is told."""
        self.read_only = reason
        self.on_failed(reason)
        error = ReadOnly(reason)
        self._fail_all(error)
        self._fail_reads(error)
        self._wake_apply_waiters(failure=error)

    def announce_leadership(self) -> None:
        """Tell the machine that it may lead, once the no-op and all before it are applied."""
        if not self._leads_from or self._term_announced or self.read_only:
            return
        if self._applied_index >= self._leads_from:
            self._term_announced = self.node.term
            self.machine.on_leader(self.node.term)

    # -- inside ----------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        if self.read_only:
            self._driver.refused("read_only")
            raise ReadOnly(self.read_only)
        if not self._term_announced:
            self._driver.refused("not_leader")
            raise NotLeader(self.leader_replica_id)
        if self._driver.is_disk_full():
            self._driver.refused("disk_full")
            raise DiskFull("the log has no room")

    async def _confirmed_index(self) -> int:
        self._driver.in_flight.take_read()
        context = next(self._ticket)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reads[context] = future
        try:
            self._driver.perform(self, self.node.step(Read(context)))
            return await future
        except Refused as refused:
            raise NotLeader(self.leader_replica_id) from refused
        finally:
            self._reads.pop(context, None)
            self._driver.in_flight.give_back_read()

    def _resolve(self, commit_index: int) -> None:
        number = size_bytes = 0
        while self._waiting and self._waiting[0].index <= commit_index:
            proposal = self._waiting.popleft()
            number += 1
            size_bytes += proposal.size_bytes
            if not proposal.future.done():
                proposal.future.set_result(proposal.index)
        self._driver.in_flight.give_back_proposals(number, size_bytes)

    def _role_changed(self, change: RoleChange) -> None:
        if change.role is Role.LEADER:
            self._leads_from = self.node.term_start_index
            return
        self._leads_from = 0
        self._term_announced = 0
        self._fail_all(NotLeader(change.leader_id))
        self._fail_reads(NotLeader(change.leader_id))
        self.machine.on_follower(change.term, change.leader_id)

    def _fail_all(self, error: Exception) -> None:
        queued, self._queued = self._queued, []
        waiting, self._waiting = self._waiting, deque()
        self._fail([*waiting, *queued], error)

    def _fail(self, proposals: Sequence[_Proposal], error: Exception) -> None:
        for proposal in proposals:
            if not proposal.future.done():
                proposal.future.set_exception(error)
        self._driver.in_flight.give_back_proposals(
            len(proposals), sum(proposal.size_bytes for proposal in proposals)
        )

    def _fail_reads(self, error: Exception) -> None:
        reads, self._reads = self._reads, {}
        for future in reads.values():
            if not future.done():
                future.set_exception(error)

    def _wake_apply_waiters(self, *, failure: Exception | None = None) -> None:
        waiters = self._apply_waiters
        while waiters and (failure is not None or waiters[0][0] <= self._applied_index):
            future = heapq.heappop(waiters)[2]
            if future.done():
                continue
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)
