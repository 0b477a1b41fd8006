"""State of one leader in one term beyond the rows (rule 1): dropped as a whole when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import DropKind
from strata_mq.layout import PartKind, PendingKey
from strata_mq.leases import Lease, LeaseChange
from strata_runtime.clock import Clock
from strata_runtime.turns import Turns
from strata_state.ports import StateError
from strata_state.rows import ConsumerKey
from strata_storage.base.config import EngineOptions
from strata_storage.base.errors import Refused
from strata_storage.leading.appends.append import GroupAppender
from strata_storage.leading.oldest_kept import OldestKept
from strata_storage.leading.pending.pending import Pending, PendingPorts
from strata_storage.leading.pin_sweep import PinSweep
from strata_storage.leading.pops.client_names import ClientNames
from strata_storage.leading.pops.dead_letters import DeadLetterMover, Exhausted
from strata_storage.leading.pops.group_interests import GroupInterests
from strata_storage.leading.pops.holders import Holders
from strata_storage.leading.pops.lease_calls import LeaseCalls
from strata_storage.leading.pops.lease_sets import LeaseSet, LeaseSets, Section
from strata_storage.leading.pops.pop import GroupPopper
from strata_storage.leading.pops.term_leases import TermLeases
from strata_storage.leading.pops.waiters import Waiters
from strata_storage.leading.proposer import LeaderReplica, Proposer
from strata_storage.leading.rehash import Rehashes
from strata_storage.leading.trims import Trims
from strata_storage.reads.offsets import Offsets
from strata_storage.reads.reader import LogReaders
from strata_storage.rows.arrivals import Arrivals
from strata_storage.rows.machine import GroupMachine


class GroupLeader:
    """Speculative state and decisions of one leader.

    Attributes:
        term: raft term.
        ready: the raft group owns its slots; until then appends are refused.
        appends, pops, leases, dead_letters, rehashes: what it serves.
        waiters: parked pops, and brokers to be told what a pop may find.
        arrivals: fetches that wait.
        pending: messages that wait.
        client_names: who takes messages, kept for traces.
        sets: leases in memory.
        trims: what deletes messages.
        pin_sweep: where it is in looking for pins that may go.
        oldest: age of the oldest kept message at the last turn of retention.
        on_new_messages: told (topic id, queue) beside those who wait for messages.
    """

    def __init__(
        self,
        term: int,
        machine: GroupMachine,
        replica: LeaderReplica,
        *,
        readers: LogReaders,
        clock: Clock,
        options: EngineOptions,
        pending: PendingPorts,
        turns: Turns,
    ) -> None:
        reader, payloads = readers
        self.term = term
        self.ready = False
        self._machine = machine
        self._clock = clock
        self._options = options
        self._since_s = clock.monotonic_s()
        self._stalled_before_s: float | None = None  # not asked yet
        self.proposer = Proposer(replica, clock, machine.state.group_time_ms)
        self.waiters = Waiters(
            options.max_waiters, options.max_waiter_bytes, GroupInterests(machine.raft_group)
        )
        self.arrivals = Arrivals(options.max_waiters, options.max_waiter_bytes)
        self.sets = LeaseSets(machine, self.proposer, options.lease_sets_max, wake=self._wake)
        self.trims = Trims(machine, self.proposer, options.trim_queues_max)
        self.pin_sweep = PinSweep(options.dedupe.window_ms)
        self.oldest = OldestKept()
        self.on_new_messages: Callable[[int, int], None] = lambda topic_id, queue: None
        self.client_names = ClientNames(
            machine.rows.client_names, self.proposer, options.client_names_max
        )
        self.appends = GroupAppender(machine, self.proposer, options)
        self.pops = GroupPopper(
            machine,
            self.proposer,
            self.sets,
            waiters=self.waiters,
            reader=reader,
            clock=clock,
            options=options,
            turns=turns,
        )
        self.leases = LeaseCalls(
            machine, self.proposer, self.sets, waiters=self.waiters, offsets=Offsets(machine)
        )
        self.dead_letters = DeadLetterMover(
            machine,
            self.proposer,
            self.sets,
            appender=self.appends,
            reader=reader,
            payloads=payloads,
        )
        self.rehashes = Rehashes(
            machine, self.proposer, self.sets, appender=self.appends, clock=clock, options=options
        )
        self.pending = Pending(
            machine,
            self.proposer,
            self.appends,
            leases=TermLeases(self.sets, self.waiters),
            readers=readers,
            clock=clock,
            options=options.pending,
            ports=pending,
        )
        # Lease rows as they were at the start; read in steps, so that many do not block the loop.
        self._unseen: Iterator[tuple[ConsumerKey, Lease]] | None = machine.rows.leases.all()

    def end(self, refusal: Refused) -> None:
        """Refuse the parked pops; everything else is dropped with this object."""
        self.waiters.refuse_all(refusal)
        self.arrivals.refuse_all(refusal)
        self.pending.timers.end()
        self.proposer.drop()

    # Following apply (AppliedListener) ----------------------------------------------------------

    def on_applied(self, index: int) -> None:
        """Settle what was in flight."""
        self.proposer.on_applied(index)

    def on_appended(self, topic_id: int, queue: int) -> None:
        """Wake pops that wait for this queue."""
        self.waiters.wake_topic(topic_id, queue)
        self.arrivals.arrived(topic_id, queue)
        self.on_new_messages(topic_id, queue)

    def on_pending(self, became: Sequence[tuple[PendingKey, PartKind]]) -> None:
        """Let the timer know of messages that wait."""
        self.pending.timers.added(became)

    def on_trimmed(self, topic_id: int, queue: int, min_offset: int) -> None:
        """Drop leases below the new min offset."""
        self.sets.on_trimmed(topic_id, queue)

    def on_sealed(self, topic_id: int, queue: int) -> None:
        """Let every pop that waits for the queue look: it goes on elsewhere."""
        self.waiters.wake_all(topic_id, queue)

    def on_dropped(self, what: DropKind, dropped_id: int) -> None:
        """Forget what is gone."""
        self.sets.on_dropped(what, dropped_id)
        if what == DropKind.TOPIC:
            self.appends.window.forget_topic(dropped_id)
            self.pending.timers.recount()

    # Timer --------------------------------------------------------------------------------------

    def see_leases(self, limit: int) -> bool:
        """Take in at most `limit` lease rows found at the start; whether all were seen.

        Raises:
            StateError: they cannot be read; the next call begins anew.
        """
        if self._unseen is None:
            return True
        try:
            for count, (key, lease) in enumerate(self._unseen, 1):
                self.sets.note_row(key, lease)
                if count == limit:
                    return False
        except StateError:
            self._unseen = self._machine.rows.leases.all()
            raise
        self._unseen = None
        return True

    def expire(self) -> list[Exhausted]:
        """Make leases visible whose time is up; return what is due for the dead-letter topic.

        Raises:
            Refused: not now; it is tried again.
        """
        self.sets.check_open()
        now_ms = self.proposer.now_ms()
        exhausted: list[Exhausted] = []
        sections: list[Section] = []
        for lease_set in self.sets.due(now_ms, self._options.expire_batch):
            change, used_up = lease_set.leases.expire(now_ms)
            if change is not None:
                sections.append((lease_set, change))
            exhausted.extend((lease_set, offset, lease) for offset, lease in used_up)
            self.sets.note(lease_set)
        if sections:
            try:
                self.sets.propose(sections)
            except Refused:
                # Nobody waits for it, it is kept; what is used up is to be listed again.
                for lease_set, _, _ in exhausted:
                    self.sets.revisit(lease_set, now_ms)
                raise
        return exhausted

    def release(self, holders: Holders) -> int:
        """Release the auto-renewed leases of clients that are gone (rule 25); return how many.

        Also learns which brokers are lost: `release_lost` sees to what they took last.

        Raises:
            Refused: not now; it is tried again.
        """
        now_s, now_ms = self._clock.monotonic_s(), self.proposer.now_ms()
        if self._stalled_before_s is None:
            self._stalled_before_s = holders.stalled_s
        # Brokers cannot report to a node that stands still: it waits for so much longer.
        stalled_s = holders.stalled_s - self._stalled_before_s
        settled = now_s - self._since_s - stalled_s >= self._options.holder_grace_s
        self.sets.lose(
            {
                broker: now_ms - int((now_s - broker.delivered_until_s) * 1_000)
                for broker in holders.brokers.lost(now_s)
            }
        )
        lost = self.sets.lost.since_ms
        self.sets.check_open()
        released = 0
        for holder in self.sets.holders():
            if not holders.is_dead(holder, now_s, silent_too=settled):
                continue
            settled_s = holders.settled_s(holder, now_s)
            before_ms = None
            if settled_s < now_s:
                before_ms = now_ms - int((now_s - settled_s) * 1_000)
            for lease_set in self.sets.held_by(holder):
                leases = lease_set.leases
                changes = (
                    leases.release_lost(holder, lost, now_ms),
                    leases.release_holder(holder, now_ms, before_ms),
                )
                released += self._keep(lease_set, changes)
        # Nobody waits for it; what is refused is kept and goes with the next entry.
        self.sets.flush_kept()
        return released

    def release_lost(self, limit: int) -> int:
        """Release leases that lost brokers may not have delivered (rule 36); return how many.

        Their holders live and do not know of them. Searches sets until these and their leases are
        `limit`; `sets.lost` says whether more wait.

        Raises:
            Refused: not now; it is tried again.
        """
        self.sets.check_open()
        now_ms, lost = self.proposer.now_ms(), self.sets.lost
        released = seen = 0
        while seen < limit and lost:
            seen += 1
            lease_set = self.sets.next_of_lost()
            if lease_set is None:
                continue
            leases = lease_set.leases
            seen += leases.in_flight + leases.waiting
            count = self._keep(
                lease_set,
                [leases.release_lost(holder, lost.since_ms, now_ms) for holder in leases.holders()],
            )
            if count:
                # There may be more of a holder than fit into a change.
                lost.put_off(lease_set.key)
            released += count
        self.sets.flush_kept()
        return released

    def _keep(self, lease_set: LeaseSet, changes: Sequence[LeaseChange | None]) -> int:
        """Keep changes of a set to be proposed, as soon as they are made; return their leases."""
        found = [change for change in changes if change is not None]
        for change in found:
            self.sets.keep(lease_set, change)
        return sum(len(change.puts) for change in found)

    def _wake(self, key: ConsumerKey) -> None:
        consumer_group_id, topic_id, queue = key
        self.waiters.wake_group(topic_id, consumer_group_id, queue)

    def check_ready(self) -> None:
        """Let an append pass once the raft group owns its slots.

        Raises:
            Refused: OUTCOME_NOT_READY.
        """
        if not self.ready:
            leader_replica_id = self.proposer.replica.leader_replica_id
            raise Refused(pb.OUTCOME_NOT_READY, "slots are being taken over", leader_replica_id)
