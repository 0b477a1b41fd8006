"""`MultiRaft`: drives the raft groups of one node over one log, one transport and few threads.

Tasks and what they own (all on one event loop, so steps need no locks):

- `write` (`write_loop.py`): group commits; then it steps `Persisted`, which resolves the futures of
  all committed entries at once. While a sync runs, steps continue and the next write accumulates.
- `apply`, `read-back` (`apply_loop.py`): gives committed entries to state machines.
- `catch-up` (`catch_up.py`): reads old entries for followers that lag.
- `tick` (`ticker.py`): time for raft groups that need it.
- `install-N`, `snapshot-*` (`installs.py`, `snapshot_source.py`): snapshots, few at once.

Order of effects: messages that may leave early -> frames, one sync -> messages that had to wait ->
futures -> apply -> readers. The driver reads no payload and makes no raft decision.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress

from strata_multiraft.base.errors import Overloaded
from strata_multiraft.base.in_flight import InFlightLimits
from strata_multiraft.base.metrics import METRICS
from strata_multiraft.base.options import MultiRaftOptions
from strata_multiraft.base.ports import (
    Envelope,
    Log,
    SnapshotStore,
    StateMachine,
)
from strata_multiraft.base.snapshots import SnapshotFetch, SnapshotPart
from strata_multiraft.driver.apply_loop import Applier
from strata_multiraft.driver.catch_up import CatchUp
from strata_multiraft.driver.links import LogThreads, PeerLinks
from strata_multiraft.driver.liveness_port import Liveness, NoLiveness
from strata_multiraft.driver.opening import Opener
from strata_multiraft.driver.outbox import Outbox
from strata_multiraft.driver.replica_gauges import observe_replicas
from strata_multiraft.driver.roomier_leaders import better_led_elsewhere
from strata_multiraft.driver.ticker import Ticker
from strata_multiraft.driver.write_loop import Writer
from strata_multiraft.replica.disk_marks import DiskMarks
from strata_multiraft.replica.replica import Replica, ReplicaSpec
from strata_multiraft.replica.writes import BeforeEnd, Write, as_write, nothing, removed_frame
from strata_multiraft.snapshots.installs import Installs
from strata_multiraft.snapshots.snapshot_source import SnapshotSource
from strata_raft import (
    Campaign,
    Effects,
    EntriesFetched,
    EventRefused,
    LogWriteFailed,
    PeerUnreachable,
    Persisted,
    Propose,
    Receive,
    Role,
    SnapshotSent,
    StepDown,
    TransferLeadership,
)
from strata_raft.messages import AppendRequest, TimeoutNow
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import OnFatal, Tasks
from strata_seglog.frames import Frame

# Tasks that always run; the others are as many as limits of `MultiRaftOptions` allow.
_LOOPS = 7


class MultiRaft:
    """All raft groups of one node.

    Args:
        log: the node's CommitLog; nobody else writes to it while this runs.
        clock: monotonic time.
        options: limits and times.
        metrics: where they show.
        threads: run the log's calls off the event loop.
        on_fatal: called when the process must end: a task failed, above all the writer because
            the log did (rule 7). Nothing is answered after that.
        peers: the other nodes; None: there are none.
        random_ticks: gives a number between two, both included, for election timeouts.

    Attributes:
        liveness: answers for raft groups that rest (rule 13); set before `start`.
        ticker: which raft groups are ticked.
        marks: how full the disks are (rule 11).
        unsynced_bytes: returns the payload bytes that wait for the log's sync.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        options: MultiRaftOptions,
        *,
        metrics: Metrics,
        threads: LogThreads,
        on_fatal: OnFatal,
        peers: PeerLinks | None = None,
        random_ticks: Callable[[int, int], int] = random.randint,
    ) -> None:
        metrics.declare(METRICS)
        run_blocking, run_reads = threads.writes, threads.reads or threads.writes
        transport, node_of, fetcher = peers or PeerLinks()
        self.options = options
        self.clock = clock
        self.in_flight = InFlightLimits(options, metrics)
        self.marks = DiskMarks(node_of)
        self._log = log
        least, most = options.election_ticks_min, options.election_ticks_max
        self._opener = Opener(log, options, lambda: random_ticks(least, most))
        self.liveness: Liveness = NoLiveness()
        self._node_of = node_of
        self._outbox = Outbox(
            transport, node_of, lambda: self.liveness.may_campaign(), metrics=metrics
        )
        tasks = _LOOPS + 2 * options.max_snapshots_open + options.max_snapshot_installs
        self._tasks = Tasks("multiraft", on_fatal, max_tasks=tasks + options.max_raft_groups)
        self._replicas: dict[int, Replica] = {}
        self._queued: list[Replica] = []
        self._synced_sequences: dict[int, int] = {}
        self._write_task: asyncio.Task[None] | None = None
        self._turn_scheduled = self._is_stopping = False
        self._writer = Writer(
            log, run_blocking, clock, options=options, metrics=metrics, owner=self
        )
        self.unsynced_bytes = self._writer.unsynced_bytes
        self._applier = Applier(log, run_reads, options, clock=clock, metrics=metrics)
        self._catch_up = CatchUp(
            log, run_reads, clock, options=options, metrics=metrics, fetched=self._entries_fetched
        )
        self.ticker = Ticker(
            clock,
            options.tick_ms / 1000,
            self.tick,
            woken=lambda replica: self.liveness.woken(replica),
        )
        self._installs = Installs(
            self,
            fetcher,
            node_of,
            run_reads=run_reads,
            options=options,
            metrics=metrics,
            tasks=self._tasks,
        )
        self._source = SnapshotSource(
            log,
            self._replicas,
            run_reads,
            clock=clock,
            options=options,
            metrics=metrics,
            tasks=self._tasks,
            sent=self._snapshot_sent,
        )
        self._elections_total = metrics.counter("strata_raft_elections_total")
        self._refused_total = metrics.counter("strata_raft_refused_total")
        observe_replicas(metrics, self._replicas)

    # -- for the owner ---------------------------------------------------------------------------

    def add_replica(
        self,
        spec: ReplicaSpec,
        machine: StateMachine,
        snapshots: SnapshotStore | None = None,
        *,
        damage: str = "",
    ) -> Replica:
        """Host a replica, before or after `start`.

        A replica whose log is damaged, or shorter than what its machine has applied, is read-only
        and takes no part in elections (rule 8).

        Args:
            spec: what the nameserver said.
            machine: its rows.
            snapshots: gives and takes these rows as a whole; None: the replica does neither.
            damage: what the owner found damaged, if anything.

        Raises:
            ValueError: the raft group is hosted already, or its replica was removed.
            Overloaded: `max_raft_groups` are hosted.
        """
        if spec.raft_group in self._replicas:
            raise ValueError(f"raft group {spec.raft_group} is hosted already")
        if len(self._replicas) >= self.options.max_raft_groups:
            raise Overloaded(f"max_raft_groups ({self.options.max_raft_groups}) is reached")
        opened = self._opener.open(
            spec, machine, snapshots, lambda: self._source.offer(replica), known_damage=damage
        )
        replica = Replica(
            spec,
            machine,
            opened.node,
            stored=opened.stored,
            driver=self,
            damage=opened.damage,
            snapshots=snapshots,
        )
        replica.installing = replica.is_resetting = opened.is_interrupted
        replica.floor = opened.floor
        self._replicas[spec.raft_group] = replica
        self._synced_sequences[spec.replica_id] = 0
        if self._write_task is not None:
            self._start_replica(replica)
        return replica

    async def remove_replica(self, raft_group: int, before_end: BeforeEnd = nothing) -> None:
        """End a replica for good (rules 8, 9); its rows are the caller's to delete, afterwards.

        If that, or `before_end`, fails, the replica stays silent: to be called again.

        Raises:
            KeyError: the raft group is not hosted.
            LogFull: the log had no room.
        """
        replica = self._replicas[raft_group]
        if replica.role is Role.LEADER and not replica.is_sole():
            self.give_up_leadership(replica)
        replica.installing = replica.is_resetting = True
        await self._installs.cancel(replica)
        self.ticker.leave(replica)
        self.liveness.removed(raft_group)
        replica.stopped()
        await self._writer.control([])  # frames that will be acknowledged: `before_end` sees them
        await before_end()
        await self._writer.control([removed_frame(replica.replica_id, raft_group)])
        del self._replicas[raft_group]
        del self._synced_sequences[replica.replica_id]
        self._outbox.write_failed(replica)

    async def start(self) -> None:
        """Start the tasks; sole voters elect themselves at once."""
        self._write_task = self._tasks.spawn("write", self._writer.run())
        self._tasks.spawn("apply", self._applier.run())
        self._tasks.spawn("read-back", self._applier.run_read_backs())
        self._tasks.spawn("catch-up", self._catch_up.run())
        self._tasks.spawn("tick", self.ticker.run())
        self._tasks.spawn("mark", self._writer.idle_mark.run())
        for replica in self._replicas.values():
            self._start_replica(replica)

    async def stop(self) -> None:
        """Write what was proposed, then stop; what is undecided then fails with NotLeader."""
        self._is_stopping = True
        self._source.stop()
        self._writer.stop()
        if self._write_task is not None:
            await asyncio.wait({self._write_task})
        await self._tasks.stop()
        await self._source.close()
        for replica in self._replicas.values():
            replica.stopped()

    def replicas(self) -> Mapping[int, Replica]:
        """Return the hosted replicas by raft group."""
        return self._replicas

    def receive(self, envelopes: Sequence[Envelope]) -> None:
        """Take messages from another node; called by the transport's receiving side."""
        if self._is_stopping:
            return
        for envelope in envelopes:
            replica = self._replicas.get(envelope.raft_group)
            if replica is None or replica.read_only or replica.is_resetting:
                continue
            message = envelope.message
            if replica.installing and isinstance(message, (AppendRequest, TimeoutNow)):
                continue  # not before the rows hold again: it would acknowledge entries
            if isinstance(message, TimeoutNow) and not self.liveness.may_campaign():
                continue  # a clock that is off must not lead (rule 4): the leader stays
            if self.ticker.sleeps_through(replica, message):
                continue
            self.perform(replica, replica.node.step(Receive(message)))
        self.end_turn()

    def unreachable(self, envelopes: Sequence[Envelope]) -> None:
        """Take note of messages that the transport lost after it had taken them."""
        lost = {
            (envelope.raft_group, envelope.message.source, envelope.message.target)
            for envelope in envelopes
            if isinstance(envelope.message, AppendRequest)
        }
        for raft_group, source, target in sorted(lost):
            replica = self._replicas.get(raft_group)
            if replica is not None and replica.replica_id == source and not replica.is_resetting:
                self.perform(replica, replica.node.step(PeerUnreachable(target)))
        self.end_turn()

    def log_trimmed(self) -> None:
        """Note where the logs begin now; to be called after segments were freed (rule 10)."""
        found = self._log.replicas()
        for replica in self._replicas.values():
            held = found.get(replica.replica_id)
            if held is not None and not replica.installing:
                first = held.first_index or replica.stored.last_index() + 1
                replica.trimmed_to(first)

    def snapshot_parts(self, fetch: SnapshotFetch) -> AsyncGenerator[SnapshotPart, None]:
        """Yield a snapshot for another node, within this node's budget; close it when cut.

        Raises:
            SnapshotRefused: it is not to be had here, or not any more.
        """
        return self._source.parts(fetch)

    def set_disk_mark(self, mark: int) -> None:
        """Note how full this node's disk is, 0 to 3 (rule 11); to be called after every look."""
        if mark != self.marks.own:
            self.marks.set_own(mark)
            self.liveness.tell_disk_mark()
        self._leave_full_disk()

    def set_peer_disk_marks(self, marks: Mapping[str, int]) -> None:
        """Note how full the disks of other nodes are, by node id; see `set_disk_mark`."""
        self.marks.set_peers(marks)
        self._leave_full_disk()

    def _leave_full_disk(self) -> None:
        """Hand over what is led from here and could be led with more room."""
        if not self._is_stopping:
            for replica, successor in better_led_elsewhere(self._replicas.values(), self.marks):
                self.perform(replica, replica.node.step(TransferLeadership(successor)))
            self.end_turn()

    # -- for replicas (the Driver protocol) ------------------------------------------------------

    def work_queued(self, replica: Replica) -> None:
        """Step proposals and reads when the writer is free, or now if followers wait for them."""
        self._queued.append(replica)
        if self._writer.is_idle:
            self._writer.wake()
        elif not self._turn_scheduled and not replica.is_sole():
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self.before_write)

    def entries_ready(self, replica: Replica) -> None:
        """Apply soon: after the callbacks of futures that were just resolved."""
        self._applier.ready(replica)

    def write_control(self, frames: Sequence[Frame]) -> asyncio.Future[int]:
        """Write frames with the next group commit, after all that was produced before."""
        return self._writer.control(frames)

    def refused(self, reason: str) -> None:
        """Count a refused proposal."""
        self._refused_total.add(1, {"reason": reason})

    def is_disk_full(self) -> bool:
        """Tell whether the log had no room within the last `disk_full_retry_ms`."""
        return self._writer.is_disk_full

    def may_lead(self, replica_id: int) -> bool:
        """Tell whether a replica's node may be given a leadership: its clock is right (rule 4)."""
        node_id = self._node_of(replica_id)
        return node_id is None or self.liveness.may_lead(node_id)

    def is_silent(self, replica_id: int) -> bool:
        """Tell whether a replica's node is known and not heard."""
        node_id = self._node_of(replica_id)
        return node_id is not None and self.liveness.is_silent(node_id)

    def give_up_leadership(self, replica: Replica) -> None:
        """Follow, and let the best other voter campaign at once."""
        self.perform(replica, replica.node.step(StepDown(replica.successor())))
        self.end_turn()

    def perform(self, replica: Replica, effects: Effects) -> None:
        """Do the effects of a step, in their order; whatever is stepped rests no more."""
        self.ticker.wake(replica)
        if effects.messages:
            self._outbox.add(replica, effects.messages)
        if effects.entries or effects.hard_state is not None:
            self._writer.add(as_write(replica, effects))
        if effects.messages_after_sync:
            if effects.sequence <= self._synced_sequences[replica.replica_id]:
                self._outbox.add(replica, effects.messages_after_sync)
            else:
                self._outbox.add_after_sync(replica, effects.sequence, effects.messages_after_sync)
        replica.observe(effects)
        if replica.stored.wants_entries():
            self._catch_up.wanted(replica)
        if effects.role_change is not None:
            if effects.role_change.role is Role.LEADER:
                self._elections_total.add(1)
                # The replicas that elected it may not know how full this disk is.
                asyncio.get_running_loop().call_soon(self._leave_full_disk)
            self.ticker.decide(replica)
        elif effects.entries and self.ticker.is_undecided(replica):
            self.ticker.decide(replica)
        if effects.install is not None and not self._is_stopping:
            self._installs.begin(replica, effects.install)

    # -- for installs (the InstallOwner protocol) ------------------------------------------------

    def reopen_empty(self, replica: Replica) -> None:
        """Replace the raft core by that of an empty replica; what is durable of it binds it."""
        opened = self._opener.open_truncated(replica.spec, lambda: self._source.offer(replica))
        self._outbox.write_failed(replica)
        self._synced_sequences[replica.replica_id] = 0
        replica.replaced(opened.node, opened.stored)
        self._start_replica(replica)

    # -- starting --------------------------------------------------------------------------------

    def _start_replica(self, replica: Replica) -> None:
        if replica.read_only:
            return
        if replica.is_resetting:
            self._installs.reset(replica)
            return
        if replica.has_ready():
            self.entries_ready(replica)
        configuration = replica.node.configuration
        if configuration.replicas() == {replica.replica_id} == configuration.voters:
            with suppress(EventRefused):  # it may have lost its log, and have to wait for others
                self.perform(replica, replica.node.step(Campaign()))
        self.ticker.decide(replica)
        self.end_turn()

    # -- turns -----------------------------------------------------------------------------------

    def before_write(self) -> None:
        """Step what was proposed since the last turn, one step per raft group."""
        self._turn_scheduled = False
        queued, self._queued = self._queued, []
        for replica in queued:
            reads = replica.ask_reads()
            if reads is not None:
                self.perform(replica, reads)
            payloads = replica.take_queued()
            if not payloads:
                continue
            try:
                effects = replica.node.step(Propose(payloads))
            except EventRefused:
                replica.propose_refused(len(payloads))
            else:
                self.perform(replica, effects)
        self.end_turn()

    def end_turn(self) -> None:
        """Send what was collected; followers that could not be reached are probed later."""
        for replica, target in self._outbox.flush():
            self.perform(replica, replica.node.step(PeerUnreachable(target)))

    def _entries_fetched(self, replica: Replica) -> None:
        self.perform(replica, replica.node.step(EntriesFetched()))
        self.end_turn()

    def _snapshot_sent(self, replica: Replica, sent: SnapshotSent) -> None:
        if not replica.is_resetting and not replica.read_only:
            self.perform(replica, replica.node.step(sent))
            self.end_turn()

    # -- for the writer (the WriterOwner protocol) -----------------------------------------------

    def written(self, writes: Sequence[Write]) -> None:
        """Report what is durable: one `Persisted` per replica; futures resolve inside."""
        last_of: dict[int, Write] = {}
        for write in writes:
            if write.replica is None:
                continue
            if write.entries:
                write.replica.stored.wrote(write.entries)
                write.replica.wrote(write.entries)
            last_of[write.replica.replica_id] = write
        for replica_id, write in last_of.items():
            replica = write.replica
            if replica is None or replica_id not in self._synced_sequences:
                continue
            self._synced_sequences[replica_id] = write.sequence
            self._outbox.synced(replica, write.sequence)
            self.perform(replica, replica.node.step(Persisted(write.sequence)))
        self.end_turn()

    def write_failed(self, lost: Sequence[Write], reason: str) -> None:
        """Nothing of these was stored; replicas that lead with others hand over (rule 11)."""
        replicas = {
            write.replica.replica_id: write.replica for write in lost if write.replica is not None
        }
        for replica_id, replica in replicas.items():
            if replica_id not in self._synced_sequences:
                continue
            if replica.role is Role.LEADER and not replica.is_sole():
                self.perform(replica, replica.node.step(StepDown(replica.successor())))
            self._outbox.write_failed(replica)
            effects = replica.node.step(LogWriteFailed())
            # The step may have produced something to write again: a lost hard state.
            self._synced_sequences[replica_id] = effects.sequence - effects.must_sync()
            replica.write_failed(reason)
            self.perform(replica, effects)
            self.ticker.decide(replica)
        self.end_turn()

    # -- time ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let one tick pass for the raft groups that need time."""
        for replica in list(self.ticker.ticked.values()):
            if replica.read_only or replica.is_resetting:
                self.ticker.leave(replica)
                continue
            if self._writer.is_disk_full and replica.role is not Role.LEADER:
                continue  # a replica that cannot store its own vote must not campaign (rule 11)
            # Asked before the tick: the answers to its heartbeats would wake the leader again.
            if replica.is_ready_leader() and self.liveness.may_rest(replica):
                self.ticker.quiesce(replica)
                continue
            self.perform(replica, replica.node.tick())
            may_lead = self.liveness.may_campaign() and not self._writer.is_disk_full
            replica.ticked(may_lead=may_lead)
        self.end_turn()
