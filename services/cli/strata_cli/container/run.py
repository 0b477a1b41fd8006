"""`strata container`: the process, from its file to the last member that stops."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TextIO, cast

from strata_angelia.cluster_id import ClusterId
from strata_angelia.ports import Channel
from strata_cli.container.broker_container import BrokerContainer
from strata_cli.container.config import ContainerConfig
from strata_cli.container.control import ContainerControl
from strata_cli.container.files import read_container
from strata_cli.container.member_run import print_line
from strata_cli.container.port import ContainerPort
from strata_cli.processes.access_control import with_access_control
from strata_cli.processes.audit_file import audit_files
from strata_cli.processes.cluster import open_peer_channel, peer_certificate
from strata_cli.processes.data_folder import FolderRole
from strata_runtime import logs, loop
from strata_runtime.audit import NoAuditSink
from strata_runtime.clock import SystemClock
from strata_runtime.garbage import freeze_after_start
from strata_runtime.health import ProcessHealth
from strata_runtime.lifecycle import Lifecycle, Service
from strata_runtime.loop import LoopLag
from strata_runtime.member_logs import MemberStream
from strata_runtime.memory_return import MemoryReturn
from strata_runtime.metrics_server import MetricsServer, MetricsServerOptions
from strata_runtime.observability import observe
from strata_runtime.runtime import Runtime

# A member drains within `node.drain_ms` and then closes its log.
_CLOSING_S = 15.0


def run(path: Path, overrides: Mapping[str, dict[str, object]]) -> None:
    """Run a container until it is told to stop.

    Args:
        path: of its file.
        overrides: section -> keys of the command line; None leaves a key as it is.

    Raises:
        StrataError: it cannot start; a member that cannot start is no reason.
    """
    config, unknown = read_container(path, os.environ)
    config = with_access_control(config.with_flags(**overrides))
    node = config.node
    logs.configure(
        level=node.log_level,
        log_format=node.log_format,
        audits=node.audit_log,
        stream=cast("TextIO", MemberStream(sys.stderr)),
    )
    if unknown:
        logs.get_logger("container").warning(
            "settings that mean nothing to a container", file=str(path), settings=", ".join(unknown)
        )
    loop.run(_serve(path.resolve(), config))


async def _serve(path: Path, config: ContainerConfig) -> None:
    clock = SystemClock()
    lifecycle: Lifecycle

    def on_fatal(name: str, failure: BaseException) -> None:
        lifecycle.on_fatal(name, failure)

    observed = observe(
        *(config.observability, "strata-container", "container", config.cluster.machine),
        *(clock, on_fatal),
    )
    metrics = observed.metrics
    files = audit_files(config.node, metrics)
    audit = files[0] if files else NoAuditSink()
    runtime, cluster = Runtime(clock, random.random, metrics, on_fatal, audit=audit), ClusterId()
    container = BrokerContainer(path, config, cluster, runtime=runtime)
    # To the nameservers the container is a broker: it reads users and policies.
    certificate = await asyncio.to_thread(
        peer_certificate, FolderRole.BROKER, config, metrics, audit
    )
    open_channel: Callable[[str], Channel] = container.open_channel
    if certificate is not None:
        open_channel = partial(open_peer_channel, cluster=cluster, tls=certificate.tls)
    port = ContainerPort(
        config,
        ContainerControl(container, path, metrics),
        path.parent / "tls",
        open_channel=open_channel,
        cluster=cluster,
        runtime=runtime,
    )
    health = ProcessHealth(metrics)
    health.follow(container.health)
    services: list[Service] = [
        *observed.services,
        LoopLag(metrics),
        MemoryReturn(metrics, on_fatal),
    ]
    if config.node.metrics_port is not None:
        options = MetricsServerOptions(host=config.node.host, port=config.node.metrics_port)
        services.append(MetricsServer(metrics, options, health=health, others=container.pages))
    if certificate is not None:
        health.follow(certificate.health)
        services.append(certificate)
    services += [*files, container, port, _ContainerReady(container, port, health)]
    lifecycle = Lifecycle(services, grace_s=config.node.drain_ms / 1_000 + _CLOSING_S, clock=clock)
    await lifecycle.run()
    metrics.close()
    sys.stdout.flush()


class _ContainerReady:
    """Says that the container serves; its last service."""

    name = "container ready"

    def __init__(
        self, container: BrokerContainer, port: ContainerPort, health: ProcessHealth
    ) -> None:
        self._container = container
        self._port = port
        self._health = health

    async def start(self) -> None:
        """Print `ready container=PATH members=N serving=M ... pid=PID`."""
        freeze_after_start()
        self._health.running()
        print_line("ready", {**self._container.shown(), "admin": self._port.endpoint})

    async def stop(self, grace_s: float) -> None:
        """Tell probes that the process stops."""
        self._health.stopping()
