"""The standalone node: one nameserver, one storage node and one broker in one process.

    data folder -- nameserver <-- storage node (registers, learns its replicas) <-- broker -- edge

The members are those of a cluster and use the same services, over Angelia's in-process transport;
this module only composes them. Each member needs those that start before it. They stop in reverse
order, so that promised writes are still stored while clients leave.
"""

from __future__ import annotations

import random
import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from strata_angelia.inproc import InprocNetwork
from strata_angelia.ports import AngeliaError
from strata_broker.app import BrokerApp, BrokerStartError
from strata_broker.base.identity import BrokerIdentity
from strata_broker.metadata.metadata import MetadataView
from strata_broker.storage_client.channels import BrokerNetwork
from strata_cli.processes.container import Container
from strata_cli.processes.data_folder import DataFolder, FolderRole
from strata_cli.processes.edge_options import edge_options
from strata_cli.processes.plugins import broker_plugins, storage_plugins
from strata_cli.processes.ready_line import ReadyLine
from strata_cli.processes.standalone_config import StandaloneConfig, window_options
from strata_edge.choice import choose_edge, shown_choice
from strata_mq.tier_policy import TierPolicy, stored_policy
from strata_nameserver.process.app import NameserverApp, NameserverIdentity
from strata_runtime import logs, loop
from strata_runtime.clock import Clock, SystemClock
from strata_runtime.errors import StrataError, one_line
from strata_runtime.health import Health, ProcessHealth
from strata_runtime.lifecycle import Lifecycle, Service
from strata_runtime.loop import LoopLag
from strata_runtime.memory_return import MemoryReturn
from strata_runtime.metrics import Metrics
from strata_runtime.metrics_server import MetricsServer, MetricsServerOptions
from strata_runtime.observability import observe
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import OnFatal, Tasks
from strata_runtime.tracing import Tracer, current_trace_parent
from strata_seglog.errors import LogError
from strata_state.metadata import MetadataStoreError
from strata_state.ports import StateError
from strata_storage.base.config import StorageConfig
from strata_storage.base.errors import ReplicaEnded
from strata_storage.cluster.heartbeats import Heartbeats
from strata_storage.cluster.local_moves import LocalMoves
from strata_storage.cluster.registration import Registration, RegistrationError
from strata_storage.process.app import NodePlace, StorageApp, StorageSetup
from strata_storage.tiering.opening import TierSetup
from strata_tier.store import StoreError

NAMESERVER = "nameserver"
STORAGE = "storage"

_REGISTER_S = 10.0
_START_ERRORS = (
    OSError,
    TimeoutError,
    LogError,
    MetadataStoreError,
    StateError,
    AngeliaError,
    RegistrationError,
    BrokerStartError,
    StoreError,
    ReplicaEnded,
)


class NodeStartError(StrataError):
    """The node cannot start; the message says which member and why."""


def run(config: StandaloneConfig, data_dir: Path) -> None:
    """Run a node until it is told to stop.

    Raises:
        StrataError: it cannot start, or a member failed.
    """
    logs.configure(level=config.node.log_level, audits=config.node.audit_log)
    folder = DataFolder.open(data_dir, FolderRole.STANDALONE)
    try:
        folder.claim()
        loop.run(_serve(config, folder))
    finally:
        folder.close()


class TopicRetention:
    """Gives the storage node the metadata of its topics.

    Attributes:
        view: of the metadata; None until the broker has it.
    """

    def __init__(self) -> None:
        self.view: MetadataView | None = None

    def retention_ms(self, topic_id: int) -> int | None:
        """Return how long a topic keeps messages; None: it is not known."""
        topic = self.view.topic_by_id(topic_id) if self.view is not None else None
        return topic.parsed().retention_ms if topic is not None else None

    def tier_policy(self, topic_id: int) -> TierPolicy | None:
        """Return how a topic uses the tier; None: it is not known."""
        topic = self.view.topic_by_id(topic_id) if self.view is not None else None
        if topic is None:
            return None
        row = topic.parsed()
        return stored_policy(row.attributes)._replace(namespace=row.namespace)

    def topic_names(self) -> dict[str, str]:
        """Return topic id, as text -> NAMESPACE%NAME of the topics that are known."""
        rows = [row.parsed() for row in self.view.topics()] if self.view is not None else []
        return {str(row.topic_id): f"{row.namespace}%{row.name}" for row in rows}


def _nobody_else() -> tuple[Sequence[str], Sequence[str]]:
    """Return the storage nodes that are heard, and that are not: there are no others."""
    return (), ()


class StandaloneStorage:
    """A storage node that registers at the container's nameserver and stays known there.

    Args:
        config: the section `[storage]`.
        folder: the locked data folder.
        network: where the nameserver is found and the storage service is served.
        boot_id: of the process.
        heartbeat_period_s: how often it tells the nameserver that it is alive.
        setup: what the node has beside its core.
        runtime: what the process gives it.
    """

    name = STORAGE

    def __init__(
        self,
        config: StorageConfig,
        folder: DataFolder,
        network: InprocNetwork,
        *,
        boot_id: int,
        heartbeat_period_s: float,
        setup: StorageSetup,
        runtime: Runtime,
    ) -> None:
        clock, metrics, on_fatal = runtime.clock, runtime.metrics, runtime.on_fatal
        self._config = config
        self._folder = folder
        self._network = network
        self._boot_id = boot_id
        self._heartbeat_period_s = heartbeat_period_s
        self._setup = setup
        self._runtime = runtime
        self._clock = clock
        self._metrics = metrics
        self._nameserver = network.channel(f"inproc:{NAMESERVER}")
        self._registration = Registration(
            self._nameserver,
            folder.identity.storage_node_id,
            [f"inproc:{STORAGE}"],
            boot_id=boot_id,
            timeout_s=_REGISTER_S,
        )
        self._tasks = Tasks("storage member", on_fatal, max_tasks=1)
        self._moves = LocalMoves(
            f"inproc:{NAMESERVER}",
            network.channel,
            clock=clock,
            metrics=metrics,
            on_fatal=on_fatal,
        )
        self._app: StorageApp | None = None

    async def start(self) -> None:
        """Register, then serve the replicas that the nameserver names.

        Raises:
            RegistrationError: the nameserver refused the node.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop(0)
            raise

    async def _start(self) -> None:
        hosted = await self._registration.register()
        app = StorageApp(
            self._config,
            NodePlace(self._folder.identity.storage_node_id, self._folder.storage, hosted),
            self._network.server(STORAGE, metrics=self._metrics),
            runtime=self._runtime,
            setup=replace(self._setup, forwarder=self._moves.forwarder),
        )
        await app.start()
        self._app = app
        self._moves.start(app.node)
        heartbeats = Heartbeats(
            self._folder.identity.storage_node_id,
            self._boot_id,
            app.node,
            heard_nodes=_nobody_else,
            clock=self._clock,
        )
        keep = self._registration.keep(self._heartbeat_period_s, heartbeats.make)
        self._tasks.spawn("heartbeat", keep)

    async def stop(self, grace_s: float) -> None:
        """Stop the storage node."""
        await self._tasks.stop()
        await self._moves.stop()
        app, self._app = self._app, None
        if app is not None:
            await app.stop(grace_s)
        await self._nameserver.close()


class Standalone:
    """The members in their container; a `strata_runtime.lifecycle.Service`.

    Args:
        config: of all members.
        folder: the locked data folder.
        clock: time of all members.
        metrics: of all members.
        tracer: of all members; None: nothing is traced.
        on_fatal: told when the process must end.
    """

    name = "standalone"

    def __init__(
        self,
        config: StandaloneConfig,
        folder: DataFolder,
        *,
        clock: Clock,
        metrics: Metrics,
        on_fatal: OnFatal,
        tracer: Tracer | None = None,
    ) -> None:
        self._config = config
        self._folder = folder
        self._clock = clock
        self._metrics = metrics
        self._tracer = tracer or Tracer.disabled()
        self._on_fatal = on_fatal
        self._network = InprocNetwork(config.angelia.options())
        # One per process: it identifies this boot of the process.
        self._boot_id = secrets.randbits(64)
        self._retention = TopicRetention()
        self.container = Container(clock)
        self.endpoint = ""
        self._edge_kind = ""
        self._served: BrokerApp | None = None

    async def start(self) -> None:
        """Add the members, in the order in which they need each other.

        Raises:
            StartError: a member cannot start; those before it are stopped.
        """
        try:
            nameserver = self._nameserver()
            await self.container.add("nameserver", nameserver)
            await self.container.add("storage", self._storage(nameserver))
            broker = self._broker()
            await self.container.add("broker", broker)
            self._retention.view = broker.view
            self._served = broker
        except _START_ERRORS as error:
            await self.container.close(1.0)
            raise NodeStartError(f"cannot start: {one_line(error)}") from error
        except BaseException:
            await self.container.close(1.0)
            raise
        self.endpoint = broker.endpoint

    def shown(self) -> dict[str, object]:
        """Return what the line of a node that serves says."""
        return {"grpc": self.endpoint, "data": self._folder.path, **shown_choice(self._edge_kind)}

    def health(self) -> Health:
        """Return the node's health: its broker sees the storage node and the nameserver."""
        return Health(serves=False) if self._served is None else self._served.health()

    async def stop(self, grace_s: float) -> None:
        """Drain and remove the members, the broker first."""
        await self.container.close(grace_s)

    def _runtime(self) -> Runtime:
        return Runtime(self._clock, random.random, self._metrics, self._on_fatal, self._tracer)

    def _nameserver(self) -> NameserverApp:
        identity = self._folder.identity
        replica_id = identity.metadata_replica_id
        return NameserverApp(
            self._config.nameserver.alone(),
            NameserverIdentity(
                identity.nameserver_node_id,
                replica_id,
                frozenset({replica_id}),
                self._boot_id,
                identity.cluster_id,
            ),
            self._folder.nameserver,
            server=self._network.server(NAMESERVER, metrics=self._metrics),
            runtime=self._runtime(),
        )

    def _storage(self, nameserver: NameserverApp) -> StandaloneStorage:
        return StandaloneStorage(
            self._config.storage,
            self._folder,
            self._network,
            boot_id=self._boot_id,
            heartbeat_period_s=self._config.metadata.heartbeat_ms / 1_000,
            setup=StorageSetup(
                self._retention,
                TierSetup(
                    self._config.tier,
                    self._retention,
                    self._folder.identity.cluster_id,
                    topic_names=self._retention.topic_names,
                    metadata=nameserver.snapshot,
                ),
                storage_plugins(self._config.plugins, self._config.storage),
            ),
            runtime=self._runtime(),
        )

    def _broker(self) -> BrokerApp:
        node = self._config.node
        options = edge_options(self._config, self._folder.tls, node.host)
        edge = choose_edge(self._config.edge.adapter, options, self._metrics)
        self._edge_kind = edge.kind
        return BrokerApp(
            BrokerIdentity(self._folder.identity.broker_node_id, self._boot_id, node.host),
            self._config,
            edge,
            network=BrokerNetwork(
                [f"inproc:{NAMESERVER}"],
                self._network.channel,
                lambda endpoints: self._network.channel(
                    endpoints[0], trace_parent=current_trace_parent
                ),
            ),
            runtime=self._runtime(),
            shown_config=self._config,
            windows=window_options(self._config),
            plugins=broker_plugins(self._config.plugins),
        )


async def _serve(config: StandaloneConfig, folder: DataFolder) -> None:
    clock = SystemClock()
    lifecycle: Lifecycle
    observed = observe(
        config.observability,
        "strata-standalone",
        "standalone",
        folder.identity.storage_node_id,
        clock,
        lambda name, failure: lifecycle.on_fatal(name, failure),
    )
    metrics = observed.metrics
    health = ProcessHealth(metrics)
    services: list[Service] = [
        *observed.services,
        LoopLag(metrics),
        MemoryReturn(metrics, lambda name, failure: lifecycle.on_fatal(name, failure)),
    ]
    if config.node.metrics_port is not None:
        options = MetricsServerOptions(host=config.node.host, port=config.node.metrics_port)
        services.append(MetricsServer(metrics, options, health=health))
    node = Standalone(
        config,
        folder,
        clock=clock,
        metrics=metrics,
        on_fatal=lambda name, failure: lifecycle.on_fatal(name, failure),
        tracer=observed.tracer,
    )
    health.follow(node.health)
    services += [node, ReadyLine(node.shown, health)]
    lifecycle = Lifecycle(services, grace_s=config.node.drain_ms / 1_000, clock=clock)
    await lifecycle.run()
    metrics.close()
    sys.stdout.flush()
