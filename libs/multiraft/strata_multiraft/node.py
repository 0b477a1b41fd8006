"""`MultiRaft`: drives the raft groups of one node over one log, one transport and one thread.

Tasks and what they own (all on one event loop, so steps need no locks):

- `write`: the log's writer. It takes all frames that raft groups produced, writes and syncs them in
  one hop to the writer's thread, then steps `Persisted`, which resolves the futures of everything
  that committed, in one go. While a sync runs, steps go on and the next write accumulates; there
  is no timer. It sleeps on `_writer_idle`.
- `apply`: gives committed entries to state machines, after the replies of that turn are on their
  way, and reads back from the log what is no longer in memory. It sleeps on `_apply_work`.
- `tick`: time for raft groups that need it. A sole voter that leads needs none, so a node of idle
  one-voter raft groups does not wake at all. It sleeps on `_tick_work`.

Order of effects: messages that may leave early -> frames, one sync -> messages that had to wait ->
futures -> apply -> readers. The driver looks into no payload and makes no raft decision.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from strata_multiraft.errors import DiskFull, NotLeader, Overloaded, ReadOnly
from strata_multiraft.idle_mark import IdleMark
from strata_multiraft.in_flight import InFlight
from strata_multiraft.metrics import METRICS
from strata_multiraft.options import MultiRaftOptions
from strata_multiraft.outbox import Outbox
from strata_multiraft.ports import Envelope, Log, RunBlocking, StateMachine, Transport
from strata_multiraft.replica import Replica, ReplicaSpec
from strata_multiraft.stored_log import StoredLog
from strata_multiraft.writes import Write, as_entry, as_write
from strata_raft import (
    Campaign,
    Configuration,
    Effects,
    EntriesFetched,
    Entry,
    HardState,
    PeerUnreachable,
    Persisted,
    Propose,
    RaftOptions,
    RawNode,
    Receive,
    Refused,
    Role,
    WriteFailed,
)
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import OnFatal, Tasks
from strata_seglog.errors import DiskFull as LogDiskFull
from strata_seglog.errors import LogError
from strata_seglog.errors import WriteFailed as LogWriteFailed
from strata_seglog.frames import Frame

__all__ = [
    "DiskFull",
    "MultiRaft",
    "MultiRaftOptions",
    "NotLeader",
    "Overloaded",
    "ReadOnly",
    "Replica",
    "ReplicaSpec",
]


class MultiRaft:
    """All raft groups of one node.

    Args:
        log: the node's CommitLog; nobody else writes to it while this runs.
        clock: monotonic time.
        options: limits and times.
        metrics: where they show.
        run_blocking: runs log writes and reads off the event loop, one at a time, in order
            (`writer.WriterThread`).
        on_fatal: called when the process must end: a task failed, above all the writer because
            the log did (rule 7). Nothing is answered after that.
        transport: the way to other nodes; None: there are none.
        random_ticks: gives a number between two, both included, for election timeouts.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        options: MultiRaftOptions,
        metrics: Metrics,
        run_blocking: RunBlocking,
        *,
        on_fatal: OnFatal,
        transport: Transport | None = None,
        random_ticks: Callable[[int, int], int] = random.randint,
    ) -> None:
        metrics.declare(METRICS)
        self.options = options
        self.in_flight = InFlight(options, metrics)
        self._log = log
        self._clock = clock
        self._run_blocking = run_blocking
        self._random_ticks = random_ticks
        self._idle_mark = IdleMark(log, run_blocking, options.idle_mark_ms)
        self._outbox = Outbox(transport, metrics)
        self._tasks = Tasks("multiraft", on_fatal, max_tasks=8)
        self._replicas: dict[int, Replica] = {}
        self._writes: deque[Write] = deque()
        self._queued: list[Replica] = []
        self._ready: dict[int, Replica] = {}
        self._ticked: dict[int, Replica] = {}
        self._synced_sequences: dict[int, int] = {}
        self._writer_idle: asyncio.Future[None] | None = None
        self._write_task: asyncio.Task[None] | None = None
        self._turn_scheduled = False
        self._stopping = False
        self._apply_work = asyncio.Event()
        self._tick_work = asyncio.Event()
        self._is_disk_full = False
        self._declare(metrics)

    # -- for the owner ---------------------------------------------------------------------------

    def add_replica(self, spec: ReplicaSpec, machine: StateMachine, *, damage: str = "") -> Replica:
        """Host a replica, before or after `start`.

        A replica whose log is damaged, or shorter than what its machine has applied, is read-only
        and takes no part in elections (rule 8).

        Args:
            spec: what the nameserver said about it.
            machine: its state machine.
            damage: what the owner found damaged, if anything.

        Raises:
            ValueError: the raft group is hosted already, or its replica was removed.
            Overloaded: `max_raft_groups` are hosted.
        """
        if spec.raft_group in self._replicas:
            raise ValueError(f"raft group {spec.raft_group} is hosted already")
        if len(self._replicas) >= self.options.max_raft_groups:
            raise Overloaded(f"max_raft_groups ({self.options.max_raft_groups}) is reached")
        replica = self._open_replica(spec, machine, damage)
        self._replicas[spec.raft_group] = replica
        self._synced_sequences[spec.replica_id] = 0
        if self._write_task is not None:
            self._start_replica(replica)
        return replica

    async def start(self) -> None:
        """Start the tasks; sole voters elect themselves at once."""
        self._write_task = self._tasks.spawn("write", self._write_loop())
        self._tasks.spawn("apply", self._apply_loop())
        self._tasks.spawn("tick", self._tick_loop())
        self._tasks.spawn("mark", self._idle_mark.run())
        for replica in self._replicas.values():
            self._start_replica(replica)

    async def stop(self) -> None:
        """Write what was proposed, then stop; what is undecided then fails with NotLeader."""
        self._stopping = True
        self._wake_writer()
        if self._write_task is not None:
            await asyncio.wait({self._write_task})
        await self._tasks.stop()
        for replica in self._replicas.values():
            replica.stopped()

    def replicas(self) -> Mapping[int, Replica]:
        """Return the hosted replicas by raft group."""
        return self._replicas

    def receive(self, envelopes: Sequence[Envelope]) -> None:
        """Take messages from another node; called by the transport's receiving side."""
        for envelope in envelopes:
            replica = self._replicas.get(envelope.raft_group)
            if replica is not None and not replica.read_only:
                self.perform(replica, replica.node.step(Receive(envelope.message)))
        self._end_turn()

    # -- for replicas (the Driver protocol) ------------------------------------------------------

    def proposals_queued(self, replica: Replica) -> None:
        """Step the proposals when the writer is free, or now if followers wait for them too."""
        self._queued.append(replica)
        if self._writer_idle is not None:
            self._wake_writer()
        elif not self._turn_scheduled and not replica.is_sole():
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def entries_ready(self, replica: Replica) -> None:
        """Apply soon: after the callbacks of futures that were just resolved."""
        self._ready[replica.raft_group] = replica
        self._apply_work.set()

    def write_control(self, frames: Sequence[Frame]) -> asyncio.Future[int]:
        """Write frames with the next group commit."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        size_bytes = sum(len(part) for frame in frames for part in frame.payload)
        self._writes.append(Write(tuple(frames), size_bytes, future=future))
        self._wake_writer()
        return future

    def refused(self, reason: str) -> None:
        """Count a refused proposal."""
        self._refused_total.add(1, {"reason": reason})

    def is_disk_full(self) -> bool:
        """Tell whether the log had no room within the last `disk_full_retry_ms`."""
        return self._is_disk_full

    def perform(self, replica: Replica, effects: Effects) -> None:
        """Do the effects of a step, in their order."""
        if effects.messages:
            self._outbox.add(replica, effects.messages)
        if effects.entries or effects.hard_state is not None:
            self._writes.append(as_write(replica, effects))
            self._wake_writer()
        if effects.messages_after_sync:
            if effects.sequence <= self._synced_sequences[replica.replica_id]:
                self._outbox.add(replica, effects.messages_after_sync)
            else:
                self._outbox.add_after_sync(replica, effects.sequence, effects.messages_after_sync)
        replica.observe(effects)
        if replica.stored.wants_entries():
            self._apply_work.set()
        if effects.role_change is not None:
            if effects.role_change.role is Role.LEADER:
                self._elections_total.add(1)
            self._follow_activity(replica)

    # -- starting --------------------------------------------------------------------------------

    def _open_replica(self, spec: ReplicaSpec, machine: StateMachine, damage: str) -> Replica:
        found = self._log.replicas().get(spec.replica_id)
        hard_state, first_index, last_index, last_term = HardState(), 1, 0, 0
        if found is not None:
            if found.removed:
                raise ValueError(f"replica {spec.replica_id} was removed from this node (rule 9)")
            hard_state = HardState(found.term, found.vote, found.commit)
            last_index, last_term = found.last_index, found.last_term
            first_index = found.first_index or last_index + 1
            damage = damage or found.damaged
        if machine.applied_index() > last_index:
            damage = damage or (
                f"applied index {machine.applied_index()} is beyond the log's end {last_index}"
            )
        stored = StoredLog(
            self._log,
            spec.replica_id,
            first_index=first_index,
            last_index=last_index,
            last_term=last_term,
        )
        node = RawNode(
            spec.replica_id,
            stored,
            Configuration(spec.voters, spec.learners),
            election_timeout_ticks=self._election_timeout_ticks,
            hard_state=hard_state,
            configurations=spec.configurations,
            options=RaftOptions(
                election_ticks=self.options.election_ticks_min,
                max_append_bytes=self.options.max_append_bytes,
            ),
        )
        return Replica(spec, machine, node, stored, self, damage=damage)

    def _start_replica(self, replica: Replica) -> None:
        if replica.read_only:
            return
        if replica.has_ready():
            self.entries_ready(replica)
        configuration = replica.node.configuration
        if configuration.replicas() == {replica.replica_id} == configuration.voters:
            self.perform(replica, replica.node.step(Campaign()))
        self._follow_activity(replica)
        self._end_turn()

    def _election_timeout_ticks(self) -> int:
        return self._random_ticks(self.options.election_ticks_min, self.options.election_ticks_max)

    # -- turns -----------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Step what was proposed since the last turn, one step per raft group."""
        self._turn_scheduled = False
        queued, self._queued = self._queued, []
        for replica in queued:
            payloads = replica.take_queued()
            if not payloads:
                continue
            try:
                effects = replica.node.step(Propose(payloads))
            except Refused:
                replica.propose_refused(len(payloads))
            else:
                self.perform(replica, effects)
        self._end_turn()

    def _end_turn(self) -> None:
        """Send what was collected; followers that could not be reached are probed later."""
        for replica, target in self._outbox.flush():
            self.perform(replica, replica.node.step(PeerUnreachable(target)))

    # -- the writer ------------------------------------------------------------------------------

    def _wake_writer(self) -> None:
        if self._writer_idle is not None and not self._writer_idle.done():
            self._writer_idle.set_result(None)

    async def _write_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._turn()
            if self._writes:
                if not await self._write(self._take_writes()):
                    if self._stopping:
                        return
                    await self._wait_for_room()
            elif self._stopping:
                return
            else:
                self._writer_idle = loop.create_future()
                await self._writer_idle
                self._writer_idle = None

    def _take_writes(self) -> list[Write]:
        taken: list[Write] = []
        size_bytes = 0
        while self._writes:
            size_bytes += self._writes[0].size_bytes
            if taken and size_bytes > self.options.max_write_bytes:
                break
            taken.append(self._writes.popleft())
        return taken

    async def _write(self, writes: Sequence[Write]) -> bool:
        """Write, sync, report; False: the log could not take it and everybody knows."""
        frames = [frame for write in writes for frame in write.frames]
        started_s = self._clock.monotonic_s()

        def work() -> tuple[int, float]:
            before_s = self._clock.monotonic_s()
            position = self._log.write_and_sync(frames)
            return position, self._clock.monotonic_s() - before_s

        try:
            position, thread_s = await self._run_blocking(work)
        except (LogDiskFull, LogWriteFailed) as error:
            self._write_failed(writes, str(error))
            return False
        self._frames_total.add(len(frames))
        self._syncs_total.add(1)
        self._idle_mark.wrote()
        self._sync_ms.record((self._clock.monotonic_s() - started_s) * 1000)
        self._sync_thread_ms.record(thread_s * 1000)
        self._written(writes, position)
        return True

    async def _wait_for_room(self) -> None:
        self._is_disk_full = True
        await asyncio.sleep(self.options.disk_full_retry_ms / 1000)
        self._is_disk_full = False

    def _written(self, writes: Sequence[Write], position: int) -> None:
        """Report what is durable: one `Persisted` per replica; futures resolve inside."""
        last_of: dict[int, Write] = {}
        for write in writes:
            if write.future is not None and not write.future.done():
                write.future.set_result(position)
            if write.replica is None:
                continue
            if write.entries:
                write.replica.stored.wrote(write.entries)
                write.replica.wrote(write.entries)
            last_of[write.replica.replica_id] = write
        for replica_id, write in last_of.items():
            assert write.replica is not None
            self._synced_sequences[replica_id] = write.sequence
            self._outbox.synced(write.replica, write.sequence)
            self.perform(write.replica, write.replica.node.step(Persisted(write.sequence)))
        self._end_turn()

    def _write_failed(self, writes: Sequence[Write], reason: str) -> None:
        """Nothing was stored, and what was stepped meanwhile builds on it: drop both (rule 11)."""
        self._disk_full_total.add(1)
        lost = [*writes, *self._writes]
        self._writes.clear()
        replicas: dict[int, Replica] = {}
        for write in lost:
            if write.future is not None and not write.future.done():
                write.future.set_exception(DiskFull(reason))
            if write.replica is not None:
                replicas[write.replica.replica_id] = write.replica
        for replica in replicas.values():
            self._outbox.write_failed(replica)
            effects = replica.node.step(WriteFailed())
            # The step may have produced something to write again: a lost hard state.
            self._synced_sequences[replica.replica_id] = effects.sequence - effects.must_sync()
            replica.write_failed(reason)
            self.perform(replica, effects)
            self._follow_activity(replica)
        self._end_turn()

    # -- apply -----------------------------------------------------------------------------------

    async def _apply_loop(self) -> None:
        while True:
            await self._apply_work.wait()
            self._apply_work.clear()
            ready, self._ready = self._ready, {}
            for replica in ready.values():
                await self._apply(replica)
            await self._fetch_for_followers()

    async def _apply(self, replica: Replica) -> None:
        replica.announce_leadership()
        while replica.has_ready():
            missing = replica.missing_range()
            if missing is None:
                entries = replica.take_ready(self.options.max_apply_bytes)
            else:
                entries = await self._read_back(replica, *missing, self.options.max_apply_bytes)
            if replica.read_only:
                return
            replica.apply(entries)
            if replica.has_ready():
                await asyncio.sleep(0)

    async def _read_back(
        self, replica: Replica, first: int, last: int, max_bytes: int
    ) -> list[Entry]:
        """Read entries from the log; a frame that cannot be served stops apply (rule 11)."""
        replica_id = replica.replica_id
        try:
            frames = await self._run_blocking(
                lambda: list(self._log.entries(replica_id, first, last, max_bytes))
            )
        except LogError as error:
            replica.fail(f"entry {first} cannot be read: {error}")
            return []
        if not frames or frames[0].index != first:
            replica.fail(f"entry {first} is missing from the log")
            return []
        return [as_entry(frame) for frame in frames]

    async def _fetch_for_followers(self) -> None:
        for replica in list(self._ticked.values()):
            wanted = replica.stored.take_wanted()
            if wanted is None or replica.read_only:
                continue
            entries = await self._read_back(replica, wanted.first, wanted.last, wanted.max_bytes)
            replica.stored.fetched(entries)
            self.perform(replica, replica.node.step(EntriesFetched()))
            self._end_turn()

    # -- time ------------------------------------------------------------------------------------

    def _follow_activity(self, replica: Replica) -> None:
        """Tick a replica unless time means nothing to it: it leads and is alone."""
        if replica.is_sole() and replica.role is Role.LEADER:
            self._ticked.pop(replica.raft_group, None)
            return
        self._ticked[replica.raft_group] = replica
        self._tick_work.set()

    async def _tick_loop(self) -> None:
        interval_s = self.options.tick_ms / 1000
        while True:
            await self._tick_work.wait()
            if not self._ticked:
                self._tick_work.clear()
                continue
            due_s = self._clock.monotonic_s() + interval_s
            await asyncio.sleep(interval_s)
            if self._clock.monotonic_s() - due_s > 2 * interval_s:
                # The loop stood still: what lies in the sockets comes first (rule 14).
                await asyncio.sleep(interval_s)
            self.tick()

    def tick(self) -> None:
        """Let one tick pass for the raft groups that need time."""
        for replica in list(self._ticked.values()):
            if replica.read_only:
                del self._ticked[replica.raft_group]
                continue
            self.perform(replica, replica.node.tick())
        self._end_turn()

    # -- metrics ---------------------------------------------------------------------------------

    def _declare(self, metrics: Metrics) -> None:
        self._frames_total = metrics.counter("strata_raft_frames_total")
        self._syncs_total = metrics.counter("strata_raft_syncs_total")
        self._sync_ms = metrics.histogram("strata_raft_sync_ms")
        self._sync_thread_ms = metrics.histogram("strata_raft_sync_thread_ms")
        self._disk_full_total = metrics.counter("strata_raft_disk_full_total")
        self._elections_total = metrics.counter("strata_raft_elections_total")
        self._refused_total = metrics.counter("strata_raft_refused_total")
        metrics.gauge("strata_raft_groups", self._count_by_role)
        metrics.gauge(
            "strata_raft_read_only", lambda: sum(bool(r.read_only) for r in self._replicas.values())
        )
        metrics.gauge(
            "strata_raft_apply_lag", lambda: sum(r.apply_lag() for r in self._replicas.values())
        )

    def _count_by_role(self) -> list[tuple[float, Mapping[str, str]]]:
        roles = [replica.role for replica in self._replicas.values()]
        return [(roles.count(role), {"role": role.name.lower()}) for role in Role]
