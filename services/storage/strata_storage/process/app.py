"""The object graph of a storage node: log, rows, raft groups, service.

    CommitLog (storage/log) --- MultiRaft --- one GroupEngine per raft group
                                                    |
    RocksdbStore (storage/state) --- Flusher --- StorageNode --- StorageServicer, at an Angelia
                                                                  server

Threads: the log's writer; a few readers; one for flushes and other long work; one that looks after
the disk's room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import Server
from strata_angelia.serving import serve
from strata_mq.commands import OwnCommand
from strata_multiraft import LogThreads, MultiRaft, MultiRaftOptions, WriterThread
from strata_multiraft.peering import RAFT_SERVICE, Peering
from strata_runtime.blocking import run_to_end
from strata_runtime.closing import close_all
from strata_runtime.logs import get_logger
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import Tasks
from strata_seglog.ballast import Ballast
from strata_seglog.log import CommitLog
from strata_seglog.metrics import METRICS as LOG_METRICS
from strata_seglog.ports import Disk
from strata_seglog.real_disk import RealDisk
from strata_state.flush import Flusher
from strata_state.ports import StateStore
from strata_state.rocksdb_store import RocksdbStore, SharedBlockCache
from strata_storage.base.config import StorageConfig, StorageOptions
from strata_storage.base.disk_quota import QuotaDisk
from strata_storage.base.errors import Refused
from strata_storage.base.hosted import HostedGroup
from strata_storage.base.jobs import NodeThreads
from strata_storage.base.node_data import NodeData
from strata_storage.base.node_runtime import NodeRuntime
from strata_storage.base.removed_replicas import RemovedReplicas
from strata_storage.base.replaying import until_led
from strata_storage.cluster.node_health import NodeHealth
from strata_storage.group.node_plugins import StoragePlugin
from strata_storage.group.refusals import Refusals
from strata_storage.leading.pending.forwarding import QueueForwarder
from strata_storage.lite.options import LifetimeOf, LiteOptions
from strata_storage.lite.plugin import LiteStoragePlugin
from strata_storage.process.metrics import METRICS
from strata_storage.process.node import StorageNode
from strata_storage.rows.machine import GroupMachine
from strata_storage.servicers.storage import CallWatch, StorageServicer
from strata_storage.servicers.tiering import SERVICE as TIER_SERVICE
from strata_storage.servicers.tiering import TierServicer
from strata_storage.servicers.window_meter import WindowMeter, WindowMeterOptions
from strata_storage.tiering.opening import OpenTier, TierSetup, open_tier
from strata_storage.upkeep.node_cluster import NodeCluster
from strata_storage.upkeep.retention import FixedRetention, RetentionSource

Result = TypeVar("Result")

SERVICE = pb.DESCRIPTOR.services_by_name["StorageService"]

_READY_TIMEOUT_S = 30.0


class ReadThreads:
    """A bounded pool of reading threads.

    Args:
        threads: how many.
        max_waiting: reads running and waiting; more are refused.
        name: of the threads.
    """

    def __init__(self, threads: int, max_waiting: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._max_waiting = max_waiting
        self._waiting = 0

    async def __call__(self, work: Callable[[], Result], /) -> Result:
        """Run `work` in a thread.

        Raises:
            Refused: OUTCOME_OVERLOADED, too many reads wait.
        """
        if self._waiting >= self._max_waiting:
            raise Refused(pb.OUTCOME_OVERLOADED, f"{self._max_waiting} reads wait for the disk")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Wait for running reads and end the threads."""
        self._executor.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Peers:
    """A storage node's knowledge of the cluster.

    Attributes:
        peering: the traffic between nodes; started and stopped with the node.
        node_of: tells which node hosts a replica.
        grants_of: tells what the metadata gives a raft group and it does not own yet.
        cluster_id: tells the cluster that the node belongs to; empty: none.
    """

    peering: Peering
    node_of: Callable[[int], str | None]
    grants_of: Callable[[GroupMachine], OwnCommand | None]
    cluster_id: Callable[[], str] = str


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Identity of a storage node, and the place of its data.

    Attributes:
        node_id: who it is among all nodes.
        folder: `storage` of the data folder.
        hosted: replicas to host from the start, as the nameserver said.
    """

    node_id: str
    folder: Path
    hosted: Sequence[HostedGroup] = ()


@dataclass(frozen=True, slots=True)
class StorageSetup:
    """Parts of a storage node beside its core.

    Attributes:
        retention: how long topics keep messages; None: the configured default for all.
        tier: where old messages go; None: there is no tier.
        plugins: their commands and rows.
        forwarder: brings messages that waited to the raft group that has their queue now.
        block_cache: shared with other storage nodes of the process; None: the node has its own.
        lifetime_of: how long lite topics of a parent topic live without traffic.
    """

    retention: RetentionSource | None = None
    tier: TierSetup | None = None
    plugins: Sequence[StoragePlugin] = ()
    forwarder: QueueForwarder | None = None
    block_cache: SharedBlockCache | None = None
    lifetime_of: LifetimeOf = lambda topic_id: None


@dataclass(frozen=True, slots=True)
class NodeStores:
    """Stores in place of a node's files.

    Attributes:
        disk: the log's folder; None: the real one.
        rows: the row store; None: RocksDB.
    """

    disk: Disk | None = None
    rows: StateStore | None = None


class _Threads:
    """The threads of a node: for the log, reads, long work, the disk's room, other nodes.

    Args:
        writer: of the log; it has opened the log already.
        options: how many threads read, and how many reads may wait.
    """

    def __init__(self, writer: WriterThread, options: StorageOptions) -> None:
        self.writer = writer
        self.readers = ReadThreads(options.reader_threads, options.reads_max, "storage-read")
        self.flushes = ReadThreads(1, options.reads_max, "storage-flush")
        self.disk = ReadThreads(1, options.reads_max, "storage-disk")
        # One thread: what followers and snapshots need is read in order, beside the writer.
        self.catch_up = WriterThread("storage-catch-up")

    def close(self) -> None:
        """Wait for what runs and end the threads. Blocks: not for the event loop."""
        self.end_all_but_writer()
        self.writer.close()

    def end_all_but_writer(self) -> None:
        """Likewise; the writer goes on."""
        for each in (self.readers, self.catch_up, self.flushes, self.disk):
            each.close()


@dataclass(slots=True)
class _Running:
    """The parts that exist between start and stop."""

    log: CommitLog
    store: StateStore
    raft: MultiRaft
    node: StorageNode
    tasks: Tasks
    threads: _Threads
    tier: OpenTier | None
    health: NodeHealth


class StorageApp:
    """One storage node; a `strata_runtime.lifecycle.Service`.

    Attributes:
        endpoint: where it serves, once it is started.

    Args:
        config: the section `[storage]`.
        place: who it is and where its data lies.
        server: where its service is registered; started and stopped here.
        runtime: what the process gives it; it must end when a log sync fails (rule 7).
        peers: what it knows of the cluster.
        setup: what the node has beside its core.
        stores: in place of files; None: real ones in the folder.
    """

    name = "storage"

    def __init__(
        self,
        config: StorageConfig,
        place: NodePlace,
        server: Server,
        *,
        runtime: Runtime,
        peers: Peers,
        setup: StorageSetup | None = None,
        stores: NodeStores | None = None,
    ) -> None:
        setup, stores = setup or StorageSetup(), stores or NodeStores()
        metrics = runtime.metrics
        metrics.declare((*METRICS, *LOG_METRICS))
        self._config = config
        self._node_id = place.node_id
        self._folder = place.folder
        self._hosted = tuple(place.hosted)
        self._server = server
        self._clock = runtime.clock
        self._metrics = metrics
        self._on_fatal = runtime.on_fatal
        self._retention = setup.retention
        self._disk = stores.disk
        self._store = stores.rows
        self._peers = peers
        lite = LiteStoragePlugin(LiteOptions.of(config), setup.lifetime_of)
        self._plugins: tuple[StoragePlugin, ...] = (lite, *setup.plugins)
        self._tier = setup.tier
        self._random_ticks = runtime.random_between
        self._tracer = runtime.tracer
        self._forwarder = setup.forwarder
        self._block_cache = setup.block_cache
        self._running: _Running | None = None
        self.endpoint = ""
        self._logger = get_logger("storage")

    @property
    def node(self) -> StorageNode:
        """The node; only between start and stop."""
        assert self._running is not None, "the storage node does not run"
        return self._running.node

    @property
    def health(self) -> NodeHealth:
        """The node's report of itself; only between start and stop."""
        assert self._running is not None, "the storage node does not run"
        return self._running.health

    async def start(self) -> None:
        """Open log and rows, recover, lead what has no other voter, serve.

        A failed start leaves nothing open.

        Raises:
            TimeoutError: a raft group with one voter has no ready leader, and nothing was applied
                for 30 s. As long as the log is replayed there is no limit.
            LogError, StateError: data that cannot be opened.
        """
        self._running = await self._open()
        try:
            await self._serve(self._running)
        except BaseException:
            await self.stop(0)
            raise

    async def _serve(self, running: _Running) -> None:
        await running.raft.start()
        # The ballast is there before anything can fill the disk.
        await running.node.check_disk()
        running.node.start()
        windows = WindowMeter(
            running.node,
            self._metrics,
            running.node.instruments.append_ms,
            clock=self._clock,
            options=WindowMeterOptions(self._config.window_ms),
        )
        running.tasks.spawn("windows", windows.run())
        running.tasks.spawn("health", running.health.run())
        node = running.node
        refusals = Refusals(node, node.instruments.refused)
        servicer = StorageServicer(
            node,
            node.brokers,
            node.disk_guard,
            filters=node.filters,
            clock=self._clock,
            options=self._config.options().engine,
            watch=CallWatch(node.instruments, refusals, self._tracer, windows),
        )
        await self.until_ready()
        serve(self._server, SERVICE, servicer, refusals)
        tier_servicer = TierServicer(running.node, running.node.tiering)
        serve(self._server, TIER_SERVICE, tier_servicer, Refusals(running.node))
        for plugin in self._plugins:
            plugin.start(running.node, self._server, running.tasks, self._clock, self._metrics)
        self._server.register(RAFT_SERVICE, self._peers.peering.servicer)
        await self._peers.peering.start()
        self.endpoint = await self._server.start()

    async def until_ready(self) -> None:
        """Wait for the leaders of hosted raft groups that have no other member.

        Raises:
            TimeoutError: nothing was applied for 30 s.
        """
        for raft_group, replica in list(self.node.replicas().items()):
            if replica.is_sole():
                await until_led(self.node, raft_group, _READY_TIMEOUT_S)

    async def stop(self, grace_s: float) -> None:
        """Answer what is under way, flush, close; what cannot be flushed is closed all the same.

        Raises:
            StateError, LogFailed: rows or log entries could not be written at the end.
        """
        running, self._running = self._running, None
        if running is None:
            return
        node, tier, threads = running.node, running.tier, running.threads
        await close_all(
            "storage",
            lambda: self._server.stop(grace_s),
            running.tasks.stop,
            self._peers.peering.stop,
            running.raft.stop,
            node.close,
            *(() if tier is None else (tier.close,)),
            # Log and rows are closed when no other thread is at work in them.
            lambda: asyncio.to_thread(threads.end_all_but_writer),
            # The log first: no flushed row may be ahead of it.
            lambda: threads.writer(running.log.close),
            lambda: threads.writer(running.store.close),
            lambda: asyncio.to_thread(threads.close),
        )

    async def _open(self) -> _Running:
        """Open log and rows; nothing runs yet."""
        options = self._config.options()
        threads = _Threads(WriterThread("storage-log"), options)
        async with AsyncExitStack() as opened:
            opened.push_async_callback(asyncio.to_thread, threads.close)
            running = await self._opened(options, threads, opened)
            opened.pop_all()
        return running

    async def _opened(
        self, options: StorageOptions, threads: _Threads, opened: AsyncExitStack
    ) -> _Running:
        state = self._folder / "state"
        disk = self._disk or QuotaDisk(self._folder / "log", [state], options.quota)
        writer = threads.writer
        log = await run_to_end(partial(self._open_log, disk), run=writer, undo=CommitLog.close)
        opened.push_async_callback(writer, log.close)
        store = self._store
        if store is None:
            store = await run_to_end(
                partial(RocksdbStore, state, options.rocksdb, self._block_cache),
                run=writer,
                undo=lambda opened: opened.close(),
            )
        opened.push_async_callback(writer, store.close)
        tier = None
        if self._tier is not None:
            tier = await open_tier(
                self._tier,
                self._folder,
                log,
                rows=store,
                clock=self._clock,
                metrics=self._metrics,
            )
        if tier is not None:
            opened.push_async_callback(tier.close)
        raft = self._raft(log, writer, threads.catch_up)
        tasks = Tasks("storage", self._on_fatal)
        opened.push_async_callback(tasks.stop)
        node = StorageNode(
            NodeData(
                log=log,
                disk=disk,
                store=store,
                flusher=Flusher(store, threads.flushes),
                ballast=self._ballast(),
                aside=self._aside(options),
            ),
            raft,
            NodeThreads(writer, threads.readers, threads.flushes, threads.disk),
            cluster=NodeCluster(
                self._node_id,
                self._peers,
                self._retention or FixedRetention(options.retention.default_ms),
                self._forwarder,
            ),
            runtime=NodeRuntime(options, self._peers.peering.group_clock, self._metrics, tasks),
            tier=tier,
            plugins=self._plugins,
        )
        self._peers.peering.attach(raft)
        for group in self._hosted:
            # Before anything is served; blocks only when rows must be rebuilt.
            await node.host_beside(group)
        health = NodeHealth(
            node,
            self._peers.peering.heard_nodes,
            self._clock,
            tell=node.brokers.watchers.health_changed,
        )
        return _Running(log, store, raft, node, tasks, threads, tier, health)

    def _raft(self, log: CommitLog, writer: WriterThread, catch_up: WriterThread) -> MultiRaft:
        return MultiRaft(
            log,
            self._clock,
            MultiRaftOptions.for_log(self._config.log_segment_bytes),
            metrics=self._metrics,
            threads=LogThreads(writer, catch_up),
            on_fatal=self._on_fatal,
            peers=self._peers.peering.links,
            random_ticks=self._random_ticks,
        )

    def _aside(self, options: StorageOptions) -> RemovedReplicas | None:
        if self._disk is not None:
            return None
        return RemovedReplicas(self._folder / "removed", self._folder / "log", options.aside)

    def _ballast(self) -> Ballast | None:
        size_bytes = self._config.ballast_bytes
        disk = self._disk or RealDisk(self._folder)
        return Ballast(disk, size_bytes) if size_bytes else None

    def _open_log(self, disk: Disk) -> CommitLog:
        return CommitLog.open(
            disk,
            self._config.log_options(),
            report=lambda corruption: self._logger.error("log corrupted", what=str(corruption)),
            metrics=self._metrics,
            clock=self._clock,
        )
