"""A storage node of a cluster: a `StorageApp` that follows the metadata and works with others.

    nameservers --watch--> MetadataFollower --> MetadataCache --> ClusterView
                                                    |                 |
                                 read-only MetaService     Hosting, Reconciler,
                                                    |      QueueMoves, SlotMoves
    nameservers <--registration, heartbeats-- NodePresence            |
    other nodes <--RaftService-- Peering ----------------------- StorageApp

Everything it does follows from the rows it has: with no nameserver reachable it starts from its
own copy, finds its peers, elects and serves (rule 16).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from strata.meta.v1 import meta_pb2 as meta
from strata_angelia.ports import Server
from strata_metadata import (
    META_SERVICE,
    CachedMetaServicer,
    ClusterView,
    MetadataCache,
    MetadataClient,
    MetadataFollower,
    NodePresence,
    StoredTopics,
)
from strata_metadata.channels import Channels
from strata_metadata.follower import MetadataSources
from strata_metadata.stored_copy import open_copy
from strata_mq.commands import OwnCommand
from strata_multiraft import LogFull
from strata_multiraft.peering import PeerIdentity, Peering
from strata_runtime.blocking import run_to_end
from strata_runtime.closing import close_all
from strata_runtime.health import Health
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import Tasks
from strata_runtime.timeouts import Timeout
from strata_state.metadata import MetadataStore, MetadataStoreError
from strata_state.metadata_keys import MetadataRowKind
from strata_storage.base.config import StorageConfig
from strata_storage.base.directory import Directory
from strata_storage.base.disk_quota import DiskUse
from strata_storage.cluster.heartbeats import Heartbeats, HeartbeatSources
from strata_storage.cluster.hosting import Hosting
from strata_storage.cluster.leave import hand_over_all
from strata_storage.cluster.member_health import MemberHealth, OtherNodes
from strata_storage.cluster.queue_moves import QueueMoves
from strata_storage.cluster.reconciler import Reconciler
from strata_storage.cluster.slot_moves import SlotMoves
from strata_storage.cluster.slot_plan import grants_of
from strata_storage.leading.pending.forwarding import Forwarding
from strata_storage.process.app import NodePlace, Peers, StorageApp, StorageSetup
from strata_storage.process.member_setup import (
    MemberIdentity,
    MemberNetwork,
    MemberOptions,
    MemberSetup,
    MemberStores,
)
from strata_storage.process.servers import Servers
from strata_storage.rows.machine import GroupMachine
from strata_storage.tiering.opening import TierSetup

_MAX_CHANNELS = 512
# Rows of the copy that the view is told at the start; topics are read when they are asked for.
_SINK_KINDS = frozenset(
    {
        MetadataRowKind.NODE,
        MetadataRowKind.RAFT_GROUP,
        MetadataRowKind.SLOTS,
        MetadataRowKind.SLOT_MOVE,
        MetadataRowKind.QUEUE_OVERRIDE,
    }
)
_HEALTH_AFTER_S = 1.0


@dataclass(slots=True)
class _Running:
    """The parts that exist between start and stop."""

    app: StorageApp
    store: MetadataStore
    cache: MetadataCache
    client: MetadataClient
    channels: Channels
    tasks: Tasks
    peering: Peering
    endpoints: Sequence[str]
    hosting: Hosting
    reconciler: Reconciler
    presence: NodePresence | None = None
    health: MemberHealth | None = None


class StorageMember:
    """See the module docstring; a `strata_runtime.lifecycle.Service`.

    Args:
        config: the section `[storage]`.
        identity: who it is.
        folder: `storage` of the data folder.
        network: how it is reached.
        runtime: what the process gives it.
        options: times and limits.
        stores: in place of files; None: real ones under `folder`.
        setup: what it has beside its core.

    Attributes:
        view: of the metadata.
    """

    name = "storage"

    def __init__(
        self,
        config: StorageConfig,
        identity: MemberIdentity,
        folder: Path,
        *,
        network: MemberNetwork,
        runtime: Runtime,
        options: MemberOptions | None = None,
        stores: MemberStores | None = None,
        setup: MemberSetup | None = None,
    ) -> None:
        setup, stores = setup or MemberSetup(), stores or MemberStores()
        self._config = config
        self._identity = identity
        self._folder = folder
        self._network = network
        self._runtime = runtime
        self._clock = runtime.clock
        self._metrics = runtime.metrics
        self._cluster_metrics = Metrics.disabled() if setup.shown_elsewhere else runtime.metrics
        self._on_fatal = runtime.on_fatal
        self._options = options or MemberOptions()
        self._stores = stores.node
        self._metadata_store = stores.metadata
        self._cluster = identity.cluster
        self._setup = setup
        self.view = ClusterView()
        self._directory = Directory(self.view)
        self._running: _Running | None = None
        self._logger = get_logger("storage")

    @property
    def app(self) -> StorageApp:
        """The storage node; only between start and stop."""
        assert self._running is not None, "the storage node does not run"
        return self._running.app

    def health(self) -> Health:
        """Return how the node does."""
        running = self._running
        if running is None or running.health is None:
            return Health(serves=False)
        return running.health.health()

    def disk_use(self) -> DiskUse:
        """Return the use of the node's share of its disk; nothing where it does not run."""
        return DiskUse() if self._running is None else self._running.app.node.disk_guard.use

    async def start(self) -> None:
        """Open the data, host what the copy of the metadata says, serve, register.

        Without a copy it waits for a nameserver, for a while; then it goes on trying. A failed
        start leaves nothing open.

        Raises:
            LogError, StateError, MetadataSyncFailed: data that cannot be opened.
        """
        running = self._running = await self._opened()
        try:
            # From the copy of the metadata; one replica that cannot be opened does not stop others.
            with suppress(LogFull):
                await running.hosting.settle()
            running.presence = self._presence(running)
            self._spawn_all(running, running.presence)
            if not running.cache.known.revision:
                await self._wait_for_nameserver(running.presence)
        except BaseException:
            await self.stop(0)
            raise

    async def _opened(self) -> _Running:
        """Open the metadata and start the node."""
        async with AsyncExitStack() as opened:
            store = await run_to_end(self._open_metadata, undo=lambda opened: opened.close())
            opened.push_async_callback(asyncio.to_thread, store.close)
            channels = Channels(self._network.open_channel, _MAX_CHANNELS)
            opened.push_async_callback(channels.close)
            running = await self._started(store, channels)
            opened.pop_all()
        return running

    async def _started(self, store: MetadataStore, channels: Channels) -> _Running:
        self.view.read_topics_from(
            StoredTopics(store, self._config.max_kept_topics, self._cluster_metrics)
        )
        cache = MetadataCache(
            store,
            self._options.watch,
            self._cluster_metrics,
            sinks=[self.view],
            sink_kinds=_SINK_KINDS,
            cluster=self._cluster,
        )
        servers = Servers(self._network.servers)
        servers.register(META_SERVICE, CachedMetaServicer(cache, self._cluster))
        peering = self._peering()
        app = self._app(servers, peering, channels, cache=cache)
        await app.start()
        client = MetadataClient(
            self._network.nameservers,
            self._network.open_channel,
            self._options.client,
            random=self._runtime.random,
            metrics=self._cluster_metrics,
        )
        tasks = Tasks("storage-member", self._on_fatal)
        hosting = Hosting(
            app.node,
            self.view,
            self._identity.node_id,
            keep_rows=lambda: run_to_end(cache.sync),
            cluster=self._cluster,
            ends_the_start=self._options.needs_all_replicas,
        )
        app.health.missing = hosting.missing
        endpoints = list(self._network.advertised) or servers.endpoints
        reconciler = self._reconciler(app, tasks)
        return _Running(
            app, store, cache, client, channels, tasks, peering, endpoints, hosting, reconciler
        )

    async def until_ready(self) -> None:
        """Wait until the replicas that a nameserver named are here, and lead where they are alone.

        Raises:
            ReplicaRefused: one cannot be hosted.
            TimeoutError: no nameserver registers the node, or no metadata come for long.
        """
        running = self._running
        assert running is not None, "the storage node does not run"
        assert running.presence is not None, "it runs"
        wait_s = self._options.register_wait_ms / 1_000
        while True:
            taken = running.cache.changes_taken
            try:
                async with Timeout(wait_s):
                    wanted = await self._named_replicas(running.presence)
                break
            except TimeoutError:
                # A million topics take their time.
                if running.cache.changes_taken == taken:
                    raise TimeoutError(
                        f"for {wait_s:g} s no nameserver has told which replicas are here"
                    ) from None
        # However long it takes: rows may be rebuilt.
        await running.hosting.until_hosted(wanted)
        await running.app.until_ready()

    async def _named_replicas(self, presence: NodePresence) -> set[int]:
        """Return the replicas that a nameserver named, once their nodes are known."""
        await presence.registered.wait()
        wanted = {each.replica_id for each in presence.response.replicas}
        while not all(map(self._directory.node_of, wanted)):
            await self.view.changed_since(self.view.version)
        return wanted

    async def stop(self, grace_s: float) -> None:
        """Hand leaderships over, then stop serving and close."""
        running, self._running = self._running, None
        if running is None:
            return
        await close_all(
            "storage member",
            # First what would take leaderships back, or tell that they are here.
            running.tasks.stop,
            lambda: hand_over_all(
                list(running.app.node.replicas().values()),
                min(self._options.hand_over_ms / 1_000, grace_s),
            ),
            running.cache.close,
            lambda: running.app.stop(grace_s),
            running.client.close,
            running.channels.close,
            lambda: asyncio.to_thread(running.store.close),
        )

    def _open_metadata(self) -> MetadataStore:
        return self._metadata_store or open_copy(self._folder / "metadata", _SINK_KINDS)

    # Parts --------------------------------------------------------------------------------------

    def _peering(self) -> Peering:
        identity = PeerIdentity(self._identity.node_id, self._identity.boot_id)
        peering = Peering(
            identity,
            directory=self._directory,
            clock=self._clock,
            metrics=self._metrics,
            on_fatal=self._on_fatal,
            random=self._runtime.random,
            connect=self._network.open_channel,
        )
        peering.machine_of = self._directory.machine_of
        return peering

    def _app(
        self, servers: Server, peering: Peering, channels: Channels, *, cache: MetadataCache
    ) -> StorageApp:
        node_id = self._identity.node_id
        forwarder = Forwarding(self.view, self._directory, channels)
        tier = None
        if self._setup.tier is not None:
            tier = TierSetup(
                self._setup.tier,
                self.view,
                self._setup.tier_home,
                memory=self._setup.buckets,
                random=self._runtime.random,
                topic_names=self.view.topic_names,
                topic_name=self.view.topic_name,
                metadata=cache,
            )
        return StorageApp(
            self._config,
            NodePlace(node_id, self._folder),
            servers,
            runtime=self._runtime,
            setup=StorageSetup(
                self.view,
                tier,
                self._setup.plugins,
                forwarder,
                self._setup.block_cache,
                lifetime_of=self.view.lite_lifetime_ms,
            ),
            stores=self._stores,
            peers=Peers(peering, self._directory.node_of, self._grants_of, self._cluster_id),
        )

    def _cluster_id(self) -> str:
        return "" if self._cluster is None else self._cluster.value

    def _grants_of(self, machine: GroupMachine) -> OwnCommand | None:
        return grants_of(self.view, machine)

    def _reconciler(self, app: StorageApp, tasks: Tasks) -> Reconciler:
        return Reconciler(
            app.node.replicas(),
            self.view,
            self._directory,
            tasks=tasks,
            clock=self._clock,
            options=self._options.reconciler,
            metrics=self._metrics,
        )

    def _presence(self, running: _Running) -> NodePresence:
        identity, peering = self._identity, running.peering
        heartbeats = Heartbeats(
            identity.node_id,
            identity.boot_id,
            running.app.node,
            heard_nodes=peering.heard_nodes,
            clock=self._clock,
            sources=HeartbeatSources(
                refused=running.hosting.refused,
                settled=running.reconciler.settled_revision,
                clock_is_off=peering.clock_is_off,
                answer_latencies=peering.take_answer_latencies_ms,
                health=lambda: running.app.health.said,
            ),
        )
        node = meta.Node(
            node_id=identity.node_id,
            kind=meta.NODE_KIND_STORAGE,
            endpoints=running.endpoints,
            boot_id=identity.boot_id,
            rack=identity.rack,
            machine=identity.machine,
            machine_nodes=identity.machine_nodes if identity.machine else 0,
        )
        return NodePresence(
            running.client,
            node,
            self._options.presence,
            metrics=self._cluster_metrics,
            make_heartbeat=heartbeats.make,
            cluster=self._cluster,
            clock=self._clock,
        )

    def _spawn_all(self, running: _Running, presence: NodePresence) -> None:
        options, node, tasks = self._options, running.app.node, running.tasks
        follower = MetadataFollower(
            MetadataSources(
                self._network.nameservers,
                self._network.open_channel,
                lambda: self._directory.storage_endpoints(self._identity.node_id),
            ),
            running.cache,
            options=options.follower,
            clock=self._clock,
            random=self._runtime.random,
            metrics=self._cluster_metrics,
            cluster=self._cluster,
            known=running.cache.known,
        )
        moves = QueueMoves(
            node,
            self.view,
            self._directory,
            channels=running.channels,
            client=running.client,
            tasks=tasks,
            options=options.moves,
            metrics=self._metrics,
        )
        slot_moves = SlotMoves(
            node,
            self.view,
            running.client,
            tasks=tasks,
            options=options.slot_moves,
            metrics=self._metrics,
        )
        health = running.health = MemberHealth(
            self._identity.node_id,
            node,
            running.app.health,
            view=self.view,
            others=OtherNodes(self._directory, running.channels, running.peering.heard_nodes),
            metadata=follower,
            clock=self._clock,
            metrics=self._cluster_metrics,
        )
        for name, work in (
            ("follow", follower.run()),
            ("health", health.watch.run(_HEALTH_AFTER_S)),
            ("catch-up", health.catch_up()),
            ("presence", presence.run()),
            ("host", running.hosting.run()),
            ("reconcile", running.reconciler.run()),
            ("moves", moves.run()),
            ("slot-moves", slot_moves.run()),
            ("metadata-sync", self._sync_loop(running.cache)),
        ):
            tasks.spawn(name, work)

    async def _sync_loop(self, cache: MetadataCache) -> None:
        told = ""
        while True:
            await asyncio.sleep(self._options.metadata_sync_ms / 1_000)
            try:
                await run_to_end(cache.sync)
            except MetadataStoreError as error:
                # A write failed before. Nameservers have it all, and hosting makes sure of what it
                # relies on.
                if str(error) != told:
                    self._logger.warning("metadata not synced", reason=str(error))
                told = str(error)
            else:
                told = ""

    async def _wait_for_nameserver(self, presence: NodePresence) -> None:
        try:
            async with Timeout(self._options.register_wait_ms / 1_000):
                await presence.registered.wait()
        except TimeoutError:
            self._logger.warning("no nameserver answers yet; trying on")
