"""State of one leader in one term beyond the rows (rule 1): dropped as a whole when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import DropKind, encode_leases
from strata_mq.layout import PartKind, PendingKey
from strata_mq.leases import Lease
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
from strata_storage.leading.pops.lease_sets import LeaseSets
from strata_storage.leading.pops.pop import GroupPopper
from strata_storage.leading.pops.releases import Releases
from strata_storage.leading.pops.term_leases import TermLeases
from strata_storage.leading.pops.waiters import Waiters
from strata_storage.leading.proposer import LeaderReplica, Proposer
from strata_storage.leading.rehash import Rehashes
from strata_storage.leading.takeovers import Takeover
from strata_storage.leading.trims import Trims
from strata_storage.reads.offsets import Offsets
from strata_storage.reads.reader import LogReaders
from strata_storage.rows.arrivals import Arrivals
from strata_storage.rows.machine import GroupMachine

# Leases that expire in one turn of the timer, or are read for it, and those of one set more.
_EXPIRED_PER_TURN = 4_096


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
        takeover: takes around the end of a leader.
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
        self._options = options
        self.proposer = Proposer(replica, clock, machine.state.group_time_ms)
        self.waiters = Waiters(
            options.max_waiters, options.max_waiter_bytes, GroupInterests(machine.raft_group)
        )
        self.arrivals = Arrivals(options.max_waiters, options.max_waiter_bytes)
        self.sets = LeaseSets(machine, self.proposer, options.lease_sets_max, wake=self._wake)
        self.takeover = takeover = Takeover(machine.state.group_time_ms, clock.monotonic_s())
        self._releases = Releases(
            self.sets, self.proposer, clock, takeover=takeover, grace_s=options.holder_grace_s
        )
        self.pin_sweep = PinSweep(options.dedupe.window_ms)
        self.trims = Trims(machine, self.proposer, options.trim_queues_max, sweep=self.pin_sweep)
        self.oldest = OldestKept()
        self.on_new_messages: Callable[[int, int], None] = lambda topic_id, queue: None
        names = machine.rows.client_names
        self.client_names = ClientNames(names, self.proposer, options.client_names_max)
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
                self.takeover.seen(lease)
                if count == limit:
                    return False
        except StateError:
            self._unseen = self._machine.rows.leases.all()
            raise
        self._unseen = None
        self.takeover.seen_all()
        return True

    def expire(self) -> list[Exhausted]:
        """Make leases visible whose time is up; return messages due for the dead-letter topic.

        The rest of many leases is left for the next turn.

        Raises:
            Refused: not now; it is tried again.
        """
        self.sets.check_open()
        now_ms = self.proposer.now_ms()
        exhausted: list[Exhausted] = []
        rows = 0
        for lease_set in self.sets.due(now_ms, self._options.expire_batch, _EXPIRED_PER_TURN):
            if rows >= _EXPIRED_PER_TURN:
                self.sets.revisit(lease_set, now_ms)
                continue
            change, used_up = lease_set.leases.expire(now_ms)
            if change is not None:
                self.sets.keep(lease_set, change)
                rows += len(change.puts)
            exhausted.extend((lease_set, offset, lease) for offset, lease in used_up)
            self.sets.note(lease_set)
        try:
            self.sets.flush_kept()
        except Refused:
            # Nobody waits for it, it is kept; used-up messages are to be listed again.
            for lease_set, _, _ in exhausted:
                self.sets.revisit(lease_set, now_ms)
            raise
        return exhausted

    def release(self, holders: Holders) -> int:
        """Release the auto-renewed leases of clients that are gone (rule 25); see `Releases`.

        Raises:
            Refused: not now; it is tried again.
        """
        released = self._releases.release(holders)
        now_ms, stamp_ms = self.proposer.now_ms(), self._machine.state.group_time_ms
        if self.takeover.wants_stamp(holders.brokers, now_ms, stamp_ms):
            if self.sets.holders():
                self.proposer.propose((encode_leases(now_ms, []),))
            self.takeover.stamped()
        return released

    def release_lost(self, limit: int) -> int:
        """Go on with `release`, then see to leases of lost brokers (rule 36); see `Releases`.

        Raises:
            Refused: not now; it is tried again.
        """
        return self._releases.release_lost(limit)

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
