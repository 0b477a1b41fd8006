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
from pathlib import Path

from strata_angelia.inproc import InprocNetwork
from strata_angelia.ports import AngeliaError
from strata_broker.app import BrokerApp, BrokerStartError
from strata_broker.base.identity import BrokerIdentity
from strata_broker.storage_client.channels import BrokerNetwork
from strata_cli.processes.access_control import shown_access_control, with_access_control
from strata_cli.processes.admin_keys import admin_key_files
from strata_cli.processes.audit_file import audit_files
from strata_cli.processes.console_port import ConsolePort, ConsoleTarget, reachable
from strata_cli.processes.container import Container
from strata_cli.processes.data_folder import DataFolder, FolderRole
from strata_cli.processes.edges import BrokerEdge
from strata_cli.processes.plugins import broker_plugins, storage_plugins
from strata_cli.processes.ready_line import ReadyLine
from strata_cli.processes.standalone_config import (
    StandaloneConfig,
    window_options,
    with_remoting_defaults,
)
from strata_metadata import PresenceOptions
from strata_metadata.errors import MetaRefused
from strata_nameserver.process.app import NameserverApp, NameserverIdentity, NameserverStores
from strata_runtime import logs, loop
from strata_runtime.audit import AuditSink, NoAuditSink
from strata_runtime.clock import Clock, SystemClock
from strata_runtime.errors import StrataError, one_line
from strata_runtime.health import Health, ProcessHealth
from strata_runtime.lifecycle import Lifecycle, Service
from strata_runtime.listening import is_loopback
from strata_runtime.loop import LoopLag
from strata_runtime.memory_return import MemoryReturn
from strata_runtime.metrics import Metrics
from strata_runtime.metrics_server import MetricsServer, MetricsServerOptions
from strata_runtime.observability import observe
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import OnFatal
from strata_runtime.tracing import Tracer, current_trace_parent
from strata_seglog.errors import LogError
from strata_state.metadata import MetadataSyncFailed
from strata_state.ports import StateError
from strata_storage.cluster.hosting import ReplicaRefused
from strata_storage.process.member import StorageMember
from strata_storage.process.member_setup import (
    MemberIdentity,
    MemberNetwork,
    MemberOptions,
    MemberSetup,
)
from strata_tier.store import StoreError

NAMESERVER = "nameserver"
STORAGE = "storage"

_START_ERRORS = (
    OSError,
    TimeoutError,
    LogError,
    MetadataSyncFailed,
    StateError,
    AngeliaError,
    BrokerStartError,
    StoreError,
    ReplicaRefused,
    MetaRefused,
)


class NodeStartError(StrataError):
    """The node cannot start; the message says which member and why."""


def run(config: StandaloneConfig, data_dir: Path) -> None:
    """Run a node until it is told to stop.

    Raises:
        StrataError: it cannot start, or a member failed.
    """
    logs.configure(
        level=config.node.log_level,
        log_format=config.node.log_format,
        audits=config.node.audit_log,
    )
    config = with_access_control(config)
    folder = DataFolder.open(data_dir, FolderRole.STANDALONE)
    try:
        folder.claim()
        loop.run(_serve(config, folder))
    finally:
        folder.close()


class Standalone:
    """The members in their container; a `strata_runtime.lifecycle.Service`.

    Args:
        config: of all members.
        folder: the locked data folder.
        clock: time of all members.
        metrics: of all members.
        tracer: of all members; None: nothing is traced.
        audit: where the audit trail goes; None: nowhere but the log.
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
        audit: AuditSink | None = None,
    ) -> None:
        # Nobody runs it undecided: it would check calls that a loopback address lets through.
        self._config = config = with_access_control(config)
        self._audit = audit or NoAuditSink()
        self._folder = folder
        self._clock = clock
        self._metrics = metrics
        self._tracer = tracer or Tracer.disabled()
        self._on_fatal = on_fatal
        self._network = InprocNetwork(config.angelia.options())
        # One per process: it identifies this boot of the process.
        self._boot_id = secrets.randbits(64)
        self.container = Container(clock)
        self.endpoint = ""
        self._ports: BrokerEdge | None = None
        self._served: BrokerApp | None = None

    async def start(self) -> None:
        """Add the members, in the order in which they need each other.

        Raises:
            StartError: a member cannot start; those before it are stopped.
        """
        try:
            await self.container.add("nameserver", self._nameserver())
            storage = self._storage()
            await self.container.add("storage", storage)
            await storage.until_ready()
            broker = self._broker()
            await self.container.add("broker", broker)
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
        return {
            "grpc": self.endpoint,
            "data": self._folder.path,
            **(self._ports.shown() if self._ports is not None else {}),
            **(self._served.shown() if self._served is not None else {}),
            **shown_access_control(self._config),
        }

    def console_target(self) -> ConsoleTarget:
        """Return the ports that a console on this machine calls."""
        clients = reachable(self.endpoint)
        config = self._config
        serves_operators = is_loopback(config.node.host) or not config.access_control.is_on
        if self._ports is None or (serves_operators and not config.edge.tls_only):
            return ConsoleTarget(clients)
        return ConsoleTarget(reachable(str(self._ports.shown()["admin"])), clients)

    def health(self) -> Health:
        """Return the node's health: its broker sees the storage node and the nameserver."""
        return Health(serves=False) if self._served is None else self._served.health()

    async def stop(self, grace_s: float) -> None:
        """Drain and remove the members, the broker first."""
        await self.container.close(grace_s)

    def _runtime(self) -> Runtime:
        return Runtime(
            *(self._clock, random.random, self._metrics, self._on_fatal, self._tracer),
            audit=self._audit,
        )

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
            stores=NameserverStores(admin_keys=admin_key_files(self._config, self._folder)),
        )

    def _storage(self) -> StorageMember:
        identity, config = self._folder.identity, self._config
        return StorageMember(
            config.storage,
            MemberIdentity(identity.storage_node_id, self._boot_id),
            self._folder.storage,
            network=MemberNetwork(
                servers=[self._network.server(STORAGE, metrics=self._metrics)],
                nameservers=[f"inproc:{NAMESERVER}"],
                open_channel=self._network.channel,
            ),
            runtime=self._runtime(),
            options=MemberOptions(
                presence=PresenceOptions(interval_ms=config.metadata.heartbeat_ms),
                needs_all_replicas=True,
            ),
            setup=MemberSetup(
                config.tier,
                storage_plugins(config.plugins, config.storage),
                tier_home=identity.cluster_id,
                shown_elsewhere=True,
            ),
        )

    def _broker(self) -> BrokerApp:
        node = self._config.node
        ports = self._ports = BrokerEdge(
            self._config, self._folder.tls, node.host, metrics=self._metrics
        )
        return BrokerApp(
            BrokerIdentity(self._folder.identity.broker_node_id, self._boot_id, node.host),
            with_remoting_defaults(self._config),
            ports.edge,
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
    files = audit_files(config.node, metrics)
    node = Standalone(
        config,
        folder,
        clock=clock,
        metrics=metrics,
        on_fatal=lambda name, failure: lifecycle.on_fatal(name, failure),
        tracer=observed.tracer,
        audit=next(iter(files), None),
    )
    health.follow(node.health)
    console = ConsolePort(config.console, node.console_target)
    ready = ReadyLine(lambda: {**node.shown(), **console.shown()}, health)
    services += [*files, node, console, ready]
    lifecycle = Lifecycle(services, grace_s=config.node.drain_ms / 1_000, clock=clock)
    await lifecycle.run()
    metrics.close()
    sys.stdout.flush()
