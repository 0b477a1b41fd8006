"""A storage node: the engines of its raft groups and the work that goes on beside calls.

Tasks, and what each looks after:
- `expiry`: leases that ran out, holders that died, exhausted messages (rules 24 to 26);
- `flush`: durability of rows (rule 5); `checkpoint`, `retention`: what the log keeps (6, 10);
- `disk`: the disk's mark (rule 11); `scrub`: reads the log for damage;
- `lead-N`: makes a new leader of raft group N ready.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.batch import BatchError
from strata_mq.commands import CommandError
from strata_mq.rare_commands import SlotGrant, encode_trim
from strata_multiraft import MultiRaft, Replica, ReplicaSpec
from strata_multiraft.errors import damage_reason
from strata_runtime.clock import Clock
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_seglog.ballast import Ballast
from strata_seglog.errors import LogError, ReadFailed
from strata_seglog.log import CommitLog
from strata_seglog.ports import Disk
from strata_state.flush import Flusher, FlushPolicy
from strata_state.ports import StateError, StateStore
from strata_storage.checkpoint import CheckpointError
from strata_storage.checkpointer import Checkpointer
from strata_storage.config import StorageOptions
from strata_storage.disk_guard import DiskGuard, DiskMark
from strata_storage.engine import EngineParts, GroupEngine
from strata_storage.errors import Refused
from strata_storage.holders import Holders
from strata_storage.instruments import Instruments
from strata_storage.jobs import RunJob
from strata_storage.leader import Leader
from strata_storage.machine import ApplyError
from strata_storage.payloads import PayloadReader
from strata_storage.proposer import committed
from strata_storage.reader import MessageReader
from strata_storage.rebuild import RebuildError, apply_readable, rebuild_if_needed
from strata_storage.reclaim import Reclaimer
from strata_storage.retention import RetentionSource, plan_trim
from strata_storage.role_watch import RoleWatch
from strata_storage.window_loader import load_window

_SEEN_LEASES_PER_TURN = 2_000
_CHECK_INTERVAL_S = 1.0
# Dead holders are looked for in every so many turns of the expiry timer.
_TURNS_PER_RELEASE = 5


@dataclass(frozen=True, slots=True)
class HostedGroup:
    """A replica that this node hosts, as the nameserver said.

    Attributes:
        raft_group: the raft group's id.
        replica_id: of the replica here.
        nodes: replica id -> node id of all replicas of the raft group.
        slots: (first, count) runs that the raft group owns from the start.
    """

    raft_group: int
    replica_id: int
    nodes: dict[int, str]
    slots: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What a node is made of.

    Attributes:
        node_id: its id among all nodes.
        log, disk, store: where its data is.
        raft: drives the replicas.
        flusher: makes rows durable.
        run_write: runs calls that belong to the log's writer thread.
        run_read: runs reads in the small pool of reading threads.
        run_flush: runs long work that must delay neither.
    """

    node_id: str
    log: CommitLog
    disk: Disk
    store: StateStore
    raft: MultiRaft
    flusher: Flusher
    run_write: RunJob
    run_read: RunJob
    run_flush: RunJob
    clock: Clock
    metrics: Metrics
    options: StorageOptions
    retention: RetentionSource
    ballast: Ballast | None = None


class StorageNode:
    """See the module docstring. Implements `servicer.Engines`."""

    def __init__(self, parts: NodeParts, tasks: Tasks) -> None:
        self._parts = parts
        self._tasks = tasks
        self._engines: dict[int, GroupEngine] = {}
        self._replicas: dict[int, Replica] = {}
        self._hosted: dict[int, HostedGroup] = {}
        self._nodes: dict[int, str] = {}
        # Set once a raft group was led here and ready, or cannot be.
        self._ready: dict[int, asyncio.Event] = {}
        self.holders = Holders(parts.options.holder_silence_s)
        self.disk_guard = DiskGuard(parts.options.disk)
        self.disk_guard.look(parts.disk.space())
        self.roles = RoleWatch()
        self.instruments = Instruments(parts.metrics)
        self._flush_policy = FlushPolicy(parts.options.flush, parts.log.end_position)
        self._checkpointer = Checkpointer(parts.log, parts.options.retention, parts.run_read)
        self._reclaimer = Reclaimer(
            parts.log,
            parts.options.retention,
            self._checkpointer,
            parts.run_write,
            parts.run_flush,
            self.instruments,
        )
        self._logger = get_logger("storage")
        self._observe(parts.metrics)

    # Raft groups --------------------------------------------------------------------------------

    def host(self, group: HostedGroup) -> None:
        """Host a replica. Blocks while rows are rebuilt, if they must be.

        One whose log or rows are damaged is read-only: it shows what is readable (rule 8).

        Raises:
            StateError: the row store failed.
            ValueError: hosted already, or removed.
        """
        parts = self._parts
        damage = self._rebuild(group) or self._damage(group.replica_id)
        engine = GroupEngine(
            group.raft_group,
            group.replica_id,
            EngineParts(
                parts.store,
                parts.flusher,
                parts.clock,
                parts.options.engine,
                MessageReader(parts.log, group.replica_id, parts.run_read, self._corrupt),
                PayloadReader(parts.log, group.replica_id, parts.run_read),
                self._role_changed,
            ),
        )
        spec = ReplicaSpec(group.raft_group, group.replica_id, frozenset(group.nodes))
        if damage and len(group.nodes) == 1:
            self._apply_readable(engine)
        replica = parts.raft.add_replica(spec, engine.machine, damage=damage)
        engine.attach(replica)
        self._hosted[group.raft_group] = group
        self._engines[group.raft_group] = engine
        self._replicas[group.raft_group] = replica
        self._nodes.update(group.nodes)
        self._ready[group.raft_group] = asyncio.Event()
        replica.on_failed = partial(self._failed, group.raft_group)
        if replica.read_only:
            self._failed(group.raft_group, replica.read_only)
        self._checkpointer.opened(group.replica_id)

    def _failed(self, raft_group: int, reason: str) -> None:
        """A raft group is read-only: nobody needs to wait for its leader."""
        self._logger.error("raft group is read-only", raft_group=raft_group, reason=reason)
        self._ready[raft_group].set()

    def _damage(self, replica_id: int) -> str:
        """Return what the log knows to be damaged of a replica; empty: nothing."""
        found = self._parts.log.replicas().get(replica_id)
        return "" if found is None else found.damaged

    def _rebuild(self, group: HostedGroup) -> str:
        """Rebuild rows if they must be; return what is missing afterwards, empty: nothing."""
        parts = self._parts
        try:
            rebuilt = rebuild_if_needed(parts.store, parts.log, group.raft_group, group.replica_id)
        except (LogError, CheckpointError, RebuildError) as error:
            return f"rows cannot be rebuilt: {error}"
        if rebuilt is None:
            return ""
        self._logger.warning("rows were rebuilt", raft_group=group.raft_group)
        self.instruments.corrupt.add(len(rebuilt.unreadable))
        return rebuilt.problem

    def _apply_readable(self, engine: GroupEngine) -> None:
        try:
            apply_readable(engine.machine, self._parts.log, engine.replica_id)
        except (ApplyError, StateError, CommandError, BatchError) as error:
            self._logger.warning("apply stopped", raft_group=engine.raft_group, reason=str(error))

    def start(self) -> None:
        """Start the background work; the driver runs already or will soon."""
        for name, work in (
            ("expiry", self._expiry_loop()),
            ("flush", self._flush_loop()),
            ("retention", self._retention_loop()),
            ("disk", self._disk_loop()),
            ("scrub", self._scrub_loop()),
        ):
            self._tasks.spawn(name, work)

    async def until_ready(self, raft_group: int) -> None:
        """Wait until a raft group is led here, or is read-only."""
        await self._ready[raft_group].wait()

    def engine(self, raft_group: int) -> GroupEngine:
        """Return a hosted raft group's engine.

        Raises:
            Refused: OUTCOME_UNKNOWN_GROUP.
        """
        engine = self._engines.get(raft_group)
        if engine is None:
            raise Refused(pb.OUTCOME_UNKNOWN_GROUP, f"raft group {raft_group} is not hosted here")
        return engine

    def engines(self) -> Sequence[GroupEngine]:
        """Return all engines."""
        return list(self._engines.values())

    def node_of(self, replica_id: int) -> str:
        """Return the node id that hosts a replica."""
        return self._nodes.get(replica_id, "")

    def synced_position(self) -> int:
        """Return the log position up to which everything is durable."""
        return self._parts.log.synced_position

    def status(self) -> pb.GetStatusResponse:
        """Return how far load and recovery are."""
        space = self.disk_guard.space
        response = pb.GetStatusResponse(
            node_id=self._parts.node_id,
            log_first_position=self._parts.log.first_position,
            log_end_position=self._parts.log.end_position,
            disk_free_bytes=space.free_bytes,
            disk_total_bytes=space.total_bytes,
        )
        found = self._parts.log.replicas()
        for raft_group, replica in self._replicas.items():
            engine, in_log = self._engines[raft_group], found.get(replica.replica_id)
            state = pb.REPLICA_STATE_READ_ONLY if replica.read_only else pb.REPLICA_STATE_SERVING
            if not replica.read_only and replica.applied_index < replica.commit_index:
                state = pb.REPLICA_STATE_RECOVERING
            response.replicas.add(
                raft_group=raft_group,
                replica_id=replica.replica_id,
                state=state,
                term=replica.term,
                first_index=replica.first_index,
                last_index=replica.last_index,
                commit_index=replica.commit_index,
                applied_index=replica.applied_index,
                persisted_index=engine.machine.persisted_index(),
                leader=engine.leader is not None,
                # Damage found while it serves does not stop it; it must be seen all the same.
                reason=replica.read_only or (in_log.damaged if in_log is not None else ""),
            )
        return response

    # Leading ------------------------------------------------------------------------------------

    def _role_changed(self, raft_group: int, leads: bool) -> None:
        self.roles.changed(raft_group, leads)
        if leads:
            self._tasks.spawn(f"lead-{raft_group}", self._prepare_leader(raft_group))

    async def _prepare_leader(self, raft_group: int) -> None:
        """Make a new leader ready: own its slots, know recent ids and all leases."""
        engine, replica = self._engines[raft_group], self._replicas[raft_group]
        leader, parts = engine.leader, self._parts
        if leader is None:
            return
        try:
            slots = self._hosted[raft_group].slots
            if slots and not engine.machine.owned:
                await engine.own([SlotGrant(first, count, True) for first, count in slots])
                await replica.applied(replica.commit_index)
            now_ms = leader.proposer.now_ms()
            last_index, window_options = (
                engine.machine.state.raft_index,
                parts.options.engine.dedupe,
            )
            leader.appends.window = await parts.run_read(
                lambda: load_window(
                    parts.log, engine.replica_id, last_index, now_ms, window_options
                )
            )
            leader.ready = True
            self._ready[raft_group].set()
            seen = leader.see_leases(_SEEN_LEASES_PER_TURN)
            while not seen:
                await asyncio.sleep(0)
                seen = leader.see_leases(_SEEN_LEASES_PER_TURN)
        except LogError as error:
            # Without them a repeated message would be stored twice (rule 23).
            replica.fail(damage_reason(replica.replica_id, f"recent message ids: {error}"))
        except Refused as refused:
            # Leadership went elsewhere meanwhile; this leader is dropped.
            self._logger.info("leader not made", raft_group=raft_group, reason=refused.reason)

    # Background work ----------------------------------------------------------------------------

    async def _expiry_loop(self) -> None:
        for turn in itertools.count():
            await asyncio.sleep(self._parts.options.expiry_interval_s)
            releases = turn % _TURNS_PER_RELEASE == 0
            for engine in self.engines():
                leader = engine.active_leader()
                if leader is not None:
                    await self.expire_once(engine, leader, releases=releases)

    async def expire_once(
        self, engine: GroupEngine, leader: Leader, *, releases: bool = True
    ) -> None:
        """Do what time, and with `releases` the death of clients, demands of leases."""
        deadline_ms = leader.sets.next_deadline_ms()
        try:
            if releases and leader.sets.holders():
                self.instruments.released.add(leader.release(self.holders))
            if deadline_ms is None or deadline_ms > leader.proposer.now_ms():
                return
            for result in await leader.dead_letters.move_exhausted(leader.expire()):
                self.instruments.dead_letters.add(1, {"result": result})
        except Refused as refused:
            self._logger.info("expiry waits", raft_group=engine.raft_group, reason=refused.reason)
        trimmed, leader.sets.trimmed_leases = leader.sets.trimmed_leases, 0
        self.instruments.trimmed_leases.add(trimmed)

    async def _flush_loop(self) -> None:
        clock = self._parts.clock
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            if self._flush_policy.due(self._parts.log.end_position, clock.monotonic_s()):
                await self.flush_once()
            await self._checkpointer.write_due(self.engines(), self._replicas)

    async def flush_once(self) -> bool:
        """Flush the rows; note what is persisted. False: the store could not, the log keeps all."""
        clock = self._parts.clock
        position, began_s = self._parts.log.end_position, clock.monotonic_s()
        applied = {engine.raft_group: engine.machine.applied_index() for engine in self.engines()}
        try:
            await self._parts.flusher.flush(applied)
        except StateError as error:
            self._logger.warning("rows are not flushed", reason=str(error))
            return False
        self._flush_policy.flushed(position)
        self.instruments.flush_ms.record((clock.monotonic_s() - began_s) * 1_000)
        return True

    async def _retention_loop(self) -> None:
        while True:
            await asyncio.sleep(self._parts.options.retention.interval_s)
            await self.retain_once()

    async def retain_once(self) -> None:
        """Trim what is too old or too much, then give segments back to the disk."""
        floors = self._floor_indexes()
        for engine in self.engines():
            leader = engine.active_leader()
            if leader is not None:
                await self._trim(engine, leader, floors.get(engine.replica_id, 0))
        if len(self._parts.log.segments()) < 2:
            return
        if not await self.flush_once():
            return
        await self._reclaimer.reclaim(
            self.engines(), self._replicas, disk_is_low=self.disk_guard.mark > DiskMark.NORMAL
        )

    async def _trim(self, engine: GroupEngine, leader: Leader, floor_index: int) -> None:
        try:
            trim = await plan_trim(
                engine.machine,
                self._parts.retention,
                self._parts.options.retention.default_ms,
                leader.proposer.now_ms(),
                floor_index,
            )
            if trim is not None:
                index = await committed(leader.proposer.propose((encode_trim(trim),)))
                await self._replicas[engine.raft_group].applied(index)
        except Refused as refused:
            self._logger.info("trim waits", raft_group=engine.raft_group, reason=refused.reason)

    def _floor_indexes(self) -> dict[int, int]:
        """Return per replica the first index to keep so that the log keeps to its size.

        Messages go early only when relocation cannot make room.
        """
        log, limit = self._parts.log, self._parts.options.retention.max_log_bytes
        excess = log.end_position - log.first_position - limit
        floors: dict[int, int] = {}
        if not limit or excess <= 0 or not self._reclaimer.at_limit:
            return floors
        for segment in log.segments():
            if not segment.sealed or excess <= 0:
                break
            excess -= segment.end_position - segment.first_position
            for replica_id, (_, last) in segment.replicas.items():
                floors[replica_id] = max(floors.get(replica_id, 0), last + 1)
        return floors

    async def _disk_loop(self) -> None:
        while True:
            await asyncio.sleep(self._parts.options.disk.interval_s)
            await self.look_at_disk()

    async def look_at_disk(self) -> None:
        """Note how full the disk is; give the ballast back or take it again."""
        before = self.disk_guard.mark
        try:
            mark = self.disk_guard.look(await self._parts.run_flush(self._parts.disk.space))
            if mark != before:
                self._logger.warning("disk mark", mark=mark.name, before=before.name)
            await self._parts.run_flush(self._use_ballast)
        except OSError as error:
            self._logger.warning("ballast stays as it is", reason=str(error))

    def _use_ballast(self) -> None:
        """Give the ballast back for trims and hard states, take it again when there is room."""
        ballast, mark = self._parts.ballast, self.disk_guard.mark
        if ballast is None:
            return
        if mark >= DiskMark.REFUSE_ALL_BUT_ACKS:
            ballast.release()
        elif mark == DiskMark.NORMAL:
            ballast.restore(self._parts.options.disk.refuse_appends_free_bytes)

    async def _scrub_loop(self) -> None:
        per_second = self._parts.options.scrub_bytes_per_second
        while per_second:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            await self.scrub_once(per_second)

    async def scrub_once(self, max_bytes: int) -> None:
        """Check the next bytes of the log; what the disk cannot read now is tried again."""
        try:
            await self._parts.run_flush(lambda: self._parts.log.scrub_step(max_bytes))
        except ReadFailed as error:
            self._logger.warning("scrub waits", reason=str(error))

    def _corrupt(self, raft_index: int) -> None:
        self.instruments.corrupt.add(1)
        self._logger.error("damaged message", raft_index=raft_index)

    # Metrics ------------------------------------------------------------------------------------

    def _observe(self, metrics: Metrics) -> None:
        metrics.gauge("strata_storage_used", self._used)
        metrics.gauge("strata_storage_state_memory", self._parts.store.memory_bytes)
        metrics.gauge(
            "strata_storage_unflushed_log",
            lambda: self._flush_policy.unflushed_bytes(self._parts.log.end_position),
        )
        metrics.gauge("strata_storage_disk_mark", lambda: int(self.disk_guard.mark))
        metrics.gauge("strata_storage_disk_free", lambda: self.disk_guard.space.free_bytes)

    def _used(self) -> list[tuple[float, dict[str, str]]]:
        leaders = [engine.leader for engine in self.engines() if engine.leader is not None]
        machines = [engine.machine for engine in self.engines()]
        used = {
            "waiters_max": sum(len(leader.waiters) for leader in leaders),
            "lease_sets_max": sum(len(leader.sets) for leader in leaders),
            "dedupe_max_ids": sum(len(leader.appends.window) for leader in leaders),
            "proposals_in_flight": sum(len(leader.proposer) for leader in leaders),
            "cq_cache_bytes": sum(machine.consume_queues.size_bytes for machine in machines),
            "queue_rows_max": sum(len(machine.queues) for machine in machines),
            "holders": len(self.holders),
            "watchers": len(self.roles),
        }
        return [(float(value), {"limit": limit}) for limit, value in used.items()]
