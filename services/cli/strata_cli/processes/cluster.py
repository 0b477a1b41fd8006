"""A process of a cluster: one member, its metrics, its ready line, from start to drain.

This is the common part of `strata nameserver`, `strata storage` and `strata broker`; each has its
own function that builds the member from its surroundings.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from strata_angelia.cluster_id import ClusterId, WrongCluster
from strata_angelia.factory import open_channel
from strata_angelia.options import AngeliaOptions
from strata_angelia.peer_certificate import PeerCertificate
from strata_angelia.ports import AngeliaError, Channel
from strata_angelia.tls import PeerTls
from strata_cli.processes.access_control import (
    check_plaintext,
    shown_access_control,
    with_access_control,
)
from strata_cli.processes.audit_file import audit_files
from strata_cli.processes.cluster_config import WILDCARDS, ClusterConfig
from strata_cli.processes.data_folder import DataFolder, DataFolderError, FolderRole
from strata_cli.processes.joining import ask_all, find_cluster
from strata_cli.processes.place import ALONE, MachinePlace
from strata_cli.processes.ready_line import ReadyLine
from strata_cli.processes.supervision import LOOPBACK, SupervisorWatch
from strata_runtime import logs, loop
from strata_runtime.addresses import is_host
from strata_runtime.audit import AuditSink, NoAuditSink
from strata_runtime.blocking import run_to_end
from strata_runtime.clock import Clock, SystemClock
from strata_runtime.errors import ConfigError, StrataError, one_line
from strata_runtime.health import Health, HealthSource, ProcessHealth
from strata_runtime.lifecycle import Lifecycle, Service
from strata_runtime.listening import endpoint_of
from strata_runtime.loop import LoopLag
from strata_runtime.memory_return import MemoryReturn
from strata_runtime.metrics import Metrics
from strata_runtime.metrics_server import MetricsServer, MetricsServerOptions
from strata_runtime.observability import observe
from strata_runtime.roles import PeerRole
from strata_runtime.tasks import OnFatal
from strata_runtime.tracing import Tracer, current_trace_parent

if TYPE_CHECKING:
    # It brings RocksDB, which a broker alone does not need.
    from strata_cli.processes.shared_parts import SharedParts

Fields = Callable[[], Mapping[str, object]]


class StartError(StrataError):
    """A member that cannot start; the message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The surroundings from which a member is built.

    Attributes:
        config: of the process.
        folder: the locked data folder.
        boot_id: drawn when the process starts.
        clock: time.
        metrics: of the member.
        on_fatal: called when the process must end.
        tracer: traces messages.
        cluster: that the process belongs to, known once it has joined.
        is_stopping: whether the process was told to end.
        audit: where the process writes its audit trail.
        place: alone, or beside others on a machine.
        certificate: certificates of the process, and the watch on them; None: plaintext.
        shared: parts that the members of a container share; None: the process has one member.
    """

    config: ClusterConfig
    folder: DataFolder
    boot_id: int
    clock: Clock
    metrics: Metrics
    on_fatal: OnFatal
    tracer: Tracer = field(default_factory=Tracer.disabled)
    cluster: ClusterId = field(default_factory=ClusterId)
    is_stopping: Callable[[], bool] = lambda: False
    audit: AuditSink = field(default_factory=NoAuditSink)
    place: MachinePlace = ALONE
    certificate: PeerCertificate | None = None
    shared: SharedParts | None = None

    @property
    def tls(self) -> PeerTls | None:
        """Certificates of the process; None: plaintext."""
        return self.certificate.tls if self.certificate is not None else None

    @property
    def advertised_host(self) -> str:
        """Host under which other processes reach this one."""
        return host_of(self.config)

    def advertised(self, port: int) -> str:
        """Return host:port under which other processes reach a port of this one."""
        return endpoint_of(self.advertised_host, port)

    def open_channel(self, endpoint: str) -> Channel:
        """Return a channel to a nameserver or storage node of this process's cluster."""
        shared = self.shared if endpoint in self.config.cluster.nameservers else None
        # A certificate names the role of one member, so its connections are its own.
        if shared is not None and self.certificate is None:
            return shared.connections.lease(endpoint)
        return open_peer_channel(endpoint, self.cluster, self.tls)

    async def join(self, role: FolderRole, endpoints: Sequence[str], wait_s: float | None) -> None:
        """Find out which cluster the data folder belongs to, and that it is the right one.

        Args:
            role: of the process.
            endpoints: of the processes to ask.
            wait_s: how long a folder of no cluster waits for an answer; None: as long as it takes.

        Raises:
            WrongCluster: the answers are from another cluster; the folder is unchanged.
            DataFolderError: it cannot be written.
        """
        folder = self.folder
        failures: dict[str, str] = {}
        found = await find_cluster(
            f"data folder {folder.path}",
            folder.identity.cluster_id,
            partial(
                ask_all,
                folder.identity.node_id(role),
                endpoints,
                partial(open_peer_channel, tls=self.tls),
                failures,
            ),
            self.clock,
            has_log=await asyncio.to_thread(folder.has_log),
            wait_s=wait_s,
            is_stopping=self.is_stopping,
            failures=failures,
        )
        if found:
            await run_to_end(partial(folder.join, found))
            self.cluster.learn(found)
        folder.claim()

    def nameservers(self) -> tuple[str, ...]:
        """Return the endpoints of all nameservers.

        Raises:
            ConfigError: none is configured.
        """
        nameservers = self.config.cluster.nameservers
        if not nameservers:
            raise ConfigError("cluster.nameservers is empty: give --nameservers HOST:PORT,...")
        return nameservers


@dataclass(frozen=True, slots=True)
class ProcessMember:
    """The member that a process runs.

    Attributes:
        service: the member.
        start_errors: what its start may raise when it cannot serve.
        ready: fields of the ready line, asked after the start.
        join: finds the cluster that the process belongs to, before the member starts.
        health: how the member does.
        disk_bytes: used bytes and quota of its disk; 0: it stores nothing.
    """

    service: Service
    start_errors: tuple[type[Exception], ...]
    ready: Fields
    join: Callable[[], Awaitable[None]]
    health: HealthSource = Health
    disk_bytes: Callable[[], tuple[int, int]] = lambda: (0, 0)


Build = Callable[[Surroundings], ProcessMember]


def host_of(config: ClusterConfig) -> str:
    """Return the host under which other processes reach a process.

    Raises:
        ConfigError: the machine's name, which is taken where none is given, is no host.
    """
    node = config.node
    if node.advertised_host:
        return node.advertised_host
    if node.host not in WILDCARDS:
        return node.host
    name = socket.gethostname()
    if not is_host(name):
        raise ConfigError(
            f"{name!r}, the name of this machine, is no host that others could look up: give one "
            "(--advertise, advertised_host)"
        )
    return name


def open_peer_channel(
    endpoint: str, cluster: ClusterId | None = None, tls: PeerTls | None = None
) -> Channel:
    """Return a channel to a nameserver or storage node.

    A connect that takes more than a second is tried again later, so that the caller can ask
    another process meanwhile.

    Args:
        endpoint: of the process.
        cluster: that the process belongs to; None: any cluster may answer.
        tls: certificates of the process; None: plaintext.
    """
    return open_channel(
        endpoint,
        options=AngeliaOptions(connect_timeout_s=1.0),
        trace_parent=current_trace_parent,
        cluster=cluster,
        tls=tls,
    )


def run(
    role: FolderRole,
    config: ClusterConfig,
    data_dir: Path,
    build: Build,
    place: MachinePlace = ALONE,
) -> None:
    """Run a process until it is told to stop.

    Args:
        role: of the process.
        config: of the process.
        data_dir: its data folder, made if it is not there.
        build: makes the member.
        place: alone, or beside others on a machine.

    Raises:
        StrataError: it cannot start, or it failed.
    """
    configure = partial(
        logs.configure,
        level=config.node.log_level,
        log_format=config.node.log_format,
        audits=config.node.audit_log,
    )
    if place.is_supervised:
        configure(process=f"{role}-{place.number}")
    else:
        configure()
    config = with_access_control(config)
    folder = DataFolder.open(data_dir, role)
    try:
        loop.run(_serve(role, config, folder, build, place))
    finally:
        folder.close()


class StartedMember:
    """A member whose failed start is reported in one line."""

    def __init__(self, member: ProcessMember) -> None:
        self._member = member
        self._errors: tuple[type[Exception], ...] = (
            OSError,
            TimeoutError,
            AngeliaError,
            *member.start_errors,
        )
        self.name = member.service.name

    async def start(self) -> None:
        """Join the cluster and start the member.

        Raises:
            StartError: it cannot serve.
            WrongCluster, DataFolderError: its data folder is not the right one.
        """
        try:
            await self._member.join()
            await self._member.service.start()
        except (WrongCluster, DataFolderError):
            # It says whose folder is where; which part of the process found out does not matter.
            raise
        except self._errors as error:
            raise StartError(f"{self.name} cannot start: {one_line(error)}") from error

    async def stop(self, grace_s: float) -> None:
        """Stop the member."""
        await self._member.service.stop(grace_s)


async def _serve(
    role: FolderRole, config: ClusterConfig, folder: DataFolder, build: Build, place: MachinePlace
) -> None:
    clock = SystemClock()
    lifecycle: Lifecycle
    observed = observe(
        config.observability,
        f"strata-{role}",
        role,
        folder.identity.node_id(role),
        clock,
        lambda name, failure: lifecycle.on_fatal(name, failure),
    )
    metrics = observed.metrics
    files = audit_files(config.node, metrics)
    audit = files[0] if files else NoAuditSink()
    certificate = await asyncio.to_thread(peer_certificate, role, config, metrics, audit)
    member = build(
        Surroundings(
            config=config,
            folder=folder,
            # One per process: it identifies this boot of the process.
            boot_id=secrets.randbits(64),
            clock=clock,
            metrics=metrics,
            on_fatal=lambda name, failure: lifecycle.on_fatal(name, failure),
            tracer=observed.tracer,
            cluster=ClusterId(folder.identity.cluster_id),
            is_stopping=lambda: lifecycle.is_stopping,
            audit=audit,
            place=place,
            certificate=certificate,
        )
    )
    health = ProcessHealth(metrics)
    health.follow(member.health)
    services: list[Service] = [
        *observed.services,
        LoopLag(metrics),
        MemoryReturn(metrics, lambda name, failure: lifecycle.on_fatal(name, failure)),
    ]
    if place.is_supervised:
        services.append(SupervisorWatch(lambda: lifecycle.request_stop()))
    scraped: MetricsServer | None = None
    if config.node.metrics_port is not None:
        host = LOOPBACK if place.is_supervised else config.node.host
        options = MetricsServerOptions(host=host, port=config.node.metrics_port)
        scraped = MetricsServer(metrics, options, health=health)
        services.append(scraped)
    if certificate is not None:
        health.follow(certificate.health)
        services.append(certificate)

    def told() -> Mapping[str, object]:
        fields = {
            **member.ready(),
            "data": folder.path,
            **shown_access_control(config),
            "cluster_tls": config.angelia.tls_mode,
        }
        if place.is_supervised and scraped is not None:
            fields["metrics_port"] = scraped.port
        return fields

    ready = ReadyLine(told, health, as_json=place.is_supervised)
    services += [*files, StartedMember(member), ready]
    lifecycle = Lifecycle(services, grace_s=config.node.drain_ms / 1_000, clock=clock)
    await lifecycle.run()
    metrics.close()
    sys.stdout.flush()


def peer_certificate(
    role: FolderRole, config: ClusterConfig, metrics: Metrics, audit: AuditSink
) -> PeerCertificate | None:
    """Return the certificates of the process, loaded; None: plaintext.

    Whom the process refuses for its certificate is told to `audit`.

    Raises:
        ConfigError: they cannot be used, or plaintext is not allowed here.
    """
    check_plaintext(config, role)
    tls = config.angelia.peer_tls(PeerRole(role))
    if tls is None:
        return None
    tls.load()
    tls.refusals.sink = audit
    return PeerCertificate(tls, metrics)
