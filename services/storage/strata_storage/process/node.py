"""A storage node: the engines of its raft groups and the work that goes on beside calls.

Tasks, and what each looks after:
- `expiry`: leases that ran out, holders that died (rules 24, 25);
- `dead-letters-N`: moves messages whose attempts are used up (rule 26);
- `flush`: durability of rows (rule 5); `checkpoint`, `retention`: what the log keeps (6, 10);
- `disk`: the disk's mark (rule 11); `scrub`: reads the log for damage;
- `lead-N`: makes a new leader of raft group N ready;
- `timers-N`: while raft group N is led here: delayed messages, transaction checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.filters import FilterCache
from strata_multiraft import MultiRaft, NotLeader, Replica, ReplicaSpec
from strata_multiraft.base import TransferFailed
from strata_raft import Configuration
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_state.ports import StateError
from strata_storage.base.disk_guard import DiskGuard, DiskMark
from strata_storage.base.disk_quota import use_of
from strata_storage.base.errors import Refused
from strata_storage.base.hosted import HostedGroup
from strata_storage.base.jobs import NodeThreads
from strata_storage.base.node_data import NodeData
from strata_storage.base.node_runtime import NodeRuntime
from strata_storage.cluster.removals import Removals
from strata_storage.group.engine import EngineRows, GroupEngine, LeaderMeans
from strata_storage.group.node_plugins import StoragePlugin
from strata_storage.group.status import replica_status
from strata_storage.leading.known_brokers import KnownBrokers
from strata_storage.leading.leader import GroupLeader
from strata_storage.leading.pending.instruments import PendingInstruments
from strata_storage.leading.pending.pending import PendingPorts
from strata_storage.leading.proposer import refusal_of
from strata_storage.process.new_leaders import NewLeaders
from strata_storage.reads.reader import LogReaders
from strata_storage.rows.lease_entries import is_lease_entry
from strata_storage.rows.payloads import PayloadReader
from strata_storage.tiering.node import tiering_of
from strata_storage.tiering.opening import OpenTier
from strata_storage.upkeep.damage import DamageWatch
from strata_storage.upkeep.expiry import Expiry
from strata_storage.upkeep.group_snapshots import GroupSnapshots
from strata_storage.upkeep.instruments import (
    Instruments,
    observe_as_rocketmq,
    pending_by_kind,
    used_by,
)
from strata_storage.upkeep.log_keeping import LogKeeping
from strata_storage.upkeep.node_cluster import NodeCluster
from strata_storage.upkeep.reserve import Reserve
from strata_storage.upkeep.retention import TrimTerms, plan_trims
from strata_storage.upkeep.row_preparer import Prepared, RowPreparer

_CHECK_INTERVAL_S = 1.0


class StorageNode:
    """See the module docstring. Implements `servicer.Engines`.

    Args:
        data: where log and rows are.
        raft: drives the replicas.
        threads: run what blocks.
        cluster: what the node knows of the cluster.
        runtime: limits, time, counters and background tasks.
        tier: where old messages go; None: there is none.
        plugins: their commands and rows.

    Attributes:
        brokers: what is known of the brokers and their clients.
        disk_guard: how full the disk is.
        filters: parsed filters of all calls.
        instruments: counters.
        damage: looks for damage in the log.
        tiering: what the tier is told and asked.
    """

    def __init__(
        self,
        data: NodeData,
        raft: MultiRaft,
        threads: NodeThreads,
        *,
        cluster: NodeCluster,
        runtime: NodeRuntime,
        tier: OpenTier | None = None,
        plugins: Sequence[StoragePlugin] = (),
    ) -> None:
        self._data = data
        self._raft = raft
        self._threads = threads
        self._cluster = cluster
        self._tasks = runtime.tasks
        options = self._options = runtime.options
        self._plugins = plugins
        self._engines: dict[int, GroupEngine] = {}
        self._replicas: dict[int, Replica] = {}
        self._hosted: dict[int, HostedGroup] = {}
        # Set once a raft group was led here and ready, or cannot be.
        self._ready: dict[int, asyncio.Event] = {}
        self.brokers = KnownBrokers.of(options)
        self.disk_guard = DiskGuard(options.disk)
        self.disk_guard.observe(data.disk.space())
        limits = options.engine
        self.filters = FilterCache(limits.filters_max, limits.filter_characters_max)
        self.instruments = Instruments(runtime.metrics)
        self._expiry = Expiry(
            self.engines,
            self.brokers,
            self._tasks,
            instruments=self.instruments,
            passed_write_ms=limits.passed_write_ms,
        )
        self._leaders = self._leader_means(runtime)
        self.damage = DamageWatch(data.log, self._replicas, threads.flush)
        self._new_leaders = NewLeaders(
            data.log, threads.read, runtime, grants_of=cluster.peers.grants_of
        )
        self._preparer = RowPreparer(data.store, data.log, self.instruments)
        self.tiering = tiering_of(tier, data, threads.flush, runtime=runtime)
        self._rows = EngineRows(data.store, data.flusher, self.tiering.metadata)
        self._reserve = Reserve(data.ballast, options.disk)
        self._keeping = LogKeeping(
            data, threads, runtime, instruments=self.instruments, engines=self.engines
        )
        self._removals = Removals(
            data, raft, threads, runtime=runtime, cluster_id=cluster.peers.cluster_id
        )
        self._logger = get_logger("storage")
        self._observe(runtime.metrics)

    def _leader_means(self, runtime: NodeRuntime) -> LeaderMeans:
        pending = PendingPorts(
            self.brokers.check_routes,
            self._cluster.forwarder,
            self._threads.read,
            PendingInstruments(runtime.metrics),
        )
        turns = self.instruments.turns(self._options.filter_steps_per_turn)
        return LeaderMeans(runtime.clock, pending, turns)

    # Raft groups --------------------------------------------------------------------------------

    def hosted(self) -> Mapping[int, HostedGroup]:
        """Return what is hosted, by raft group."""
        return self._hosted

    def replicas(self) -> Mapping[int, Replica]:
        """Return the replicas by raft group."""
        return self._replicas

    async def host_beside(self, group: HostedGroup) -> None:
        """Host a replica; what rows and memory lack is read again, in a thread, and from the tier.

        One whose log or rows are damaged is read-only: it shows what is readable (rule 8).

        Raises:
            LogError: the log cannot be read; ReadFailed, StateError: not now.
            ValueError: hosted already, or removed (ReplicaEnded).
        """
        self._removals.check(group.raft_group, group.replica_id)
        prepared = await self._threads.flush(lambda: self._preparer.prepare(group))
        if prepared.lacks_tiered and not prepared.damage:
            damage = await self.tiering.refill(group)
            prepared = Prepared(damage=damage)
        engine = self._engine(group)
        damage = prepared.damage or await self._threads.flush(lambda: self._preparer.redo(engine))
        self._open(group, engine, damage, is_installing=prepared.is_installing)

    def _engine(self, group: HostedGroup) -> GroupEngine:
        raft_group, replica_id = group.raft_group, group.replica_id
        log, run_read = self._data.log, self._threads.read
        on_corrupt = partial(self._corrupt, raft_group)
        on_failed = partial(self._read_failed, raft_group)
        reader = self.tiering.reader(log, replica_id, run_read, on_corrupt, on_failed)
        engine = GroupEngine(
            raft_group,
            replica_id,
            self._rows,
            readers=LogReaders(reader, PayloadReader(log, replica_id, run_read)),
            leaders=self._leaders,
            options=self._options.engine,
            on_role=self._role_changed,
            plugins=self._plugins,
        )
        reader.bind(engine.machine.tier)
        return engine

    def _open(
        self, group: HostedGroup, engine: GroupEngine, damage: str, *, is_installing: bool
    ) -> None:
        raft_group, replica_id = group.raft_group, group.replica_id
        snapshots = GroupSnapshots(
            self._data.store,
            engine.machine,
            replica_id,
            is_installing=is_installing,
            on_installed=partial(self._keeping.checkpointer.want, replica_id),
        )
        spec = ReplicaSpec(raft_group, replica_id, group.voters())
        if damage and len(spec.voters) == 1:
            self._preparer.apply_readable(engine)
        replica = self._raft.add_replica(spec, engine.machine, snapshots, damage=damage)
        engine.attach(replica)
        self._hosted[raft_group] = group
        self._engines[raft_group] = engine
        self._replicas[raft_group] = replica
        self._ready[raft_group] = asyncio.Event()
        replica.on_failed = partial(self._failed, raft_group)
        replica.is_urgent = is_lease_entry
        if replica.read_only:
            self._failed(raft_group, replica.read_only)
        self._keeping.checkpointer.opened(replica_id)

    async def remove(self, raft_group: int, revision: int = 0) -> None:
        """Put a replica aside; its id and its rows end (rules 8, 9, 32).

        Args:
            raft_group: which one.
            revision: of the metadata row that wants it no more.

        Raises:
            DiskFull: it could not be written down; to be called again.
        """
        replica_id = self._engines[raft_group].replica_id
        await self._removals.remove(raft_group, replica_id, revision)
        engine = self._engines.pop(raft_group)
        del self._replicas[raft_group], self._hosted[raft_group], self._ready[raft_group]
        engine.close()
        for plugin in self._plugins:
            plugin.removed(raft_group)
        self._keeping.checkpointer.removed(replica_id)
        self._removals.drop_rows(raft_group, replica_id)

    def leftovers(self) -> dict[int, int]:
        """Return raft groups by replica id of what the log has and nobody hosts."""
        hosted = {replica.replica_id for replica in self._replicas.values()}
        return {
            replica_id: found.raft_group
            for replica_id, found in self._data.log.replicas().items()
            if not found.removed and replica_id not in hosted
        }

    async def forget(self, raft_group: int, replica_id: int, revision: int = 0) -> None:
        """Put aside what is left of a replica that is not hosted (see `Removals.forget`)."""
        await self._removals.forget(raft_group, replica_id, revision)

    def taken_back(self) -> Mapping[int, int]:
        """Return replicas that an operator took back, with the revision that let them go."""
        return self._removals.taken_back()

    def _failed(self, raft_group: int, reason: str) -> None:
        """A raft group is read-only: nobody needs to wait for its leader."""
        self._logger.error("raft group is read-only", raft_group=raft_group, reason=reason)
        self._ready[raft_group].set()

    def start(self) -> None:
        """Start the background work; the driver runs already or will soon."""
        for name, work in (
            ("expiry", self._expiry.run(self._options.expiry_interval_s)),
            ("flush", self._flush_loop()),
            ("checkpoint", self._checkpoint_loop()),
            ("retention", self._retention_loop()),
            ("disk", self._disk_loop()),
            ("scrub", self._scrub_loop()),
        ):
            self._tasks.spawn(name, work)

    def close(self) -> None:
        """Refuse everything from now on; the driver has stopped."""
        with suppress(StateError):
            # Else the log has it.
            self._keeping.flushes.settle()
        for engine in self.engines():
            engine.close()

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
        return self._cluster.peers.node_of(replica_id) or ""

    async def transfer(self, raft_group: int, target_replica_id: int) -> None:
        """Hand the leadership of a raft group over; 0: to the most advanced voter.

        Raises:
            Refused: OUTCOME_UNKNOWN_GROUP, OUTCOME_NOT_LEADER, or OUTCOME_INVALID: nobody can
                take over.
        """
        self.engine(raft_group).leading()
        try:
            await self._replicas[raft_group].transfer_leadership(target_replica_id or None)
        except NotLeader as error:
            raise refusal_of(error) from error
        except TransferFailed as error:
            raise Refused(pb.OUTCOME_INVALID, str(error)) from error

    def synced_position(self) -> int:
        """Return the log position up to which everything is durable."""
        return self._data.log.synced_position

    def membership(self, raft_group: int) -> tuple[int, Configuration]:
        """Return (index, configuration) of a hosted raft group as committed and applied."""
        applied = self._engines[raft_group].machine.configuration()
        return applied or (0, Configuration(self._hosted[raft_group].voters()))

    def log_bytes(self) -> tuple[int, int]:
        """Return (bytes on disk, bytes ever appended) of the log."""
        log = self._data.log
        return log.end_position - log.first_position, log.end_position

    def unsynced_bytes(self) -> int:
        """Return the payload bytes that wait for the log's sync."""
        return self._raft.unsynced_bytes()

    def unapplied_bytes(self) -> int:
        """Return the committed payload bytes in memory that are not applied."""
        return sum([replica.unapplied.lag_bytes() for replica in self._replicas.values()])

    def disk_bytes(self) -> tuple[int, int]:
        """Return (free, total) bytes of the log's disk, as of the last look."""
        return self.disk_guard.space.free_bytes, self.disk_guard.space.total_bytes

    def status(self) -> pb.GetStatusResponse:
        """Return how far load and recovery are."""
        space, log = self.disk_guard.space, self._data.log
        response = pb.GetStatusResponse(
            node_id=self._cluster.node_id,
            log_first_position=log.first_position,
            log_end_position=log.end_position,
            disk_free_bytes=space.free_bytes,
            disk_total_bytes=space.total_bytes,
        )
        response.replicas.extend(
            replica_status(
                self._engines[raft_group],
                replica,
                self.node_of,
                self._preparer.damage(replica.replica_id),
            )
            for raft_group, replica in self._replicas.items()
        )
        return response

    # Leading ------------------------------------------------------------------------------------

    def _role_changed(self, raft_group: int, leads: bool) -> None:
        self.brokers.watchers.changed(raft_group, leads)
        if leads:
            self._tasks.spawn(f"lead-{raft_group}", self._prepare_leader(raft_group))

    async def _prepare_leader(self, raft_group: int) -> None:
        engine, ready = self._engines.get(raft_group), self._ready.get(raft_group)
        if engine is not None and ready is not None:
            self.tiering.lead(engine)
            await self._new_leaders.prepare(engine, ready)

    # Background work ----------------------------------------------------------------------------

    async def expire_once(
        self, engine: GroupEngine, leader: GroupLeader, *, releases: bool = True
    ) -> None:
        """Do what time, and with `releases` the death of clients, demands of leases."""
        await self._expiry.once(engine, leader, releases=releases)

    async def _flush_loop(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            if self._keeping.flushes.is_due():
                await self.flush_once()

    async def _checkpoint_loop(self) -> None:
        # Apart from flushes, which must not wait until the rows of a large table are written.
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            await self._keeping.checkpointer.write_due(self.engines(), self._replicas)

    async def flush_once(self) -> bool:
        """Flush the rows; False: the store could not, the log keeps all."""
        return await self._keeping.flushes.flush()

    async def _retention_loop(self) -> None:
        while True:
            await asyncio.sleep(self._options.retention.interval_s)
            await self.retain_once()

    async def retain_once(self) -> None:
        """Trim what is too old or too much, then give segments back to the disk."""
        excess_bytes = self.disk_guard.use.excess_bytes
        floors = self.tiering.floors = self._keeping.reclaimer.floor_indexes(excess_bytes)
        lasts = self._keeping.reclaimer.oldest_lasts()
        # Side by side: one that waits for its quorum, or has many queues, holds up no other.
        async with asyncio.TaskGroup() as trims:
            for engine in self.engines():
                leader = engine.active_leader()
                if leader is not None:
                    floor, last = floors.get(engine.replica_id, 0), lasts.get(engine.replica_id, 0)
                    trims.create_task(self._trim(engine, leader, floor, last))
        await self._removals.clean(disk_is_low=False)
        if len(self._data.log.segments()) < 2:
            return
        if not await self.flush_once():
            return
        await self._keeping.reclaimer.reclaim(
            self.engines(),
            self._replicas,
            disk_is_low=self.disk_guard.is_low,
        )
        self._raft.log_trimmed()

    async def _trim(self, engine: GroupEngine, leader: GroupLeader, floor: int, last: int) -> None:
        trims, now_ms = leader.trims, leader.proposer.now_ms
        default_ms = self._options.retention.default_ms
        try:
            async with trims.turn():
                async for trim in plan_trims(
                    engine.machine,
                    self._cluster.retention,
                    leader.pin_sweep,
                    terms=TrimTerms(now_ms(), default_ms, trims.queues_max, floor, last),
                    goes_to_tier=self.tiering.is_tiered,
                    oldest=leader.oldest,
                ):
                    await trims.apply(trim)
        except (Refused, StateError) as error:
            self._logger.info("trim waits", raft_group=engine.raft_group, reason=str(error))

    async def _disk_loop(self) -> None:
        while True:
            await asyncio.sleep(self._options.disk.interval_s)
            await self.check_disk()

    async def check_disk(self) -> None:
        """Note how full the disk is; give the ballast back or take it again."""
        before = self.disk_guard.mark
        try:
            space = await self._threads.disk(self._data.disk.space)
            mark = self.disk_guard.observe(space, use_of(self._data.disk))
            if mark != before:
                self._logger.warning("disk mark", mark=mark.name, before=before.name)
                # At once: who leads here and is refused now may be led where there is room.
                self._raft.set_disk_mark(self.raft_mark())
            await self._threads.disk(lambda: self._reserve.follow(mark))
            if mark > DiskMark.NORMAL:
                await self._removals.clean(disk_is_low=True)
        except OSError as error:
            self._logger.warning("ballast stays as it is", reason=str(error))
        self._raft.set_disk_mark(self.raft_mark())

    def raft_mark(self) -> int:
        """Return the disk mark that proposals obey (rule 11)."""
        return int(self._reserve.obeyed(self.disk_guard.mark))

    async def _scrub_loop(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            await self.scrub_once(self._options.scrub_bytes_per_s)

    async def scrub_once(self, max_bytes: int) -> None:
        """Check the next bytes of the log, and what reads complained about."""
        await self.damage.scan(max_bytes)

    def _corrupt(self, raft_group: int, raft_index: int) -> None:
        self.instruments.corrupt.add(1)
        self._logger.error("damaged message", raft_group=raft_group, raft_index=raft_index)
        self.damage.suspect(raft_group, raft_index)

    def _read_failed(self, raft_group: int, raft_index: int, reason: str) -> None:
        self.instruments.reads_failed.add(1)
        self._logger.warning(
            "message not read", raft_group=raft_group, raft_index=raft_index, reason=reason
        )

    # Metrics ------------------------------------------------------------------------------------

    def _observe(self, metrics: Metrics) -> None:
        observe_as_rocketmq(metrics, self)
        metrics.gauge("strata_storage_used", self._used)
        metrics.gauge("strata_storage_pending", lambda: pending_by_kind(self.engines()))
        metrics.gauge("strata_storage_state_memory", self._data.store.memory_bytes)
        metrics.gauge("strata_storage_unflushed_log", self._keeping.flushes.unflushed_bytes)
        metrics.gauge("strata_storage_disk_mark", lambda: int(self.disk_guard.mark))
        metrics.gauge("strata_storage_quota_bytes", lambda: self.disk_guard.use.quota_bytes)
        metrics.gauge("strata_storage_quota_used_bytes", lambda: self.disk_guard.use.used_bytes)
        metrics.gauge("strata_storage_disk_free", lambda: self.disk_guard.space.free_bytes)

    def _used(self) -> list[tuple[float, dict[str, str]]]:
        filters = {"filters_max": len(self.filters)}
        filters["filter_characters_max"] = self.filters.characters
        used = used_by(self.engines()) | self.brokers.used() | filters
        return [(float(value), {"limit": limit}) for limit, value in used.items()]
