"""`strata broker` and `strata storage`: one process alone, or the supervisor of several."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from strata.meta.v1 import meta_pb2
from strata_cli.machine.child import Orders, runner_of
from strata_cli.machine.folder import MachineFolder, check_role, has_machine
from strata_cli.machine.plan import (
    Removed,
    check_ports,
    check_removed,
    config_of,
    process_count,
    ready_fields,
    wanted,
)
from strata_cli.machine.supervisor import Supervisor
from strata_cli.processes.cluster import host_of, open_peer_channel
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.processes.data_folder import FolderRole, identity_of
from strata_cli.processes.edge_options import edge_options
from strata_cli.processes.joining import ask_all
from strata_cli.processes.place import MachinePlace
from strata_cli.processes.ready_line import ReadyLine
from strata_runtime import logs, loop
from strata_runtime.clock import SystemClock
from strata_runtime.cores import usable_cores
from strata_runtime.health import ProcessHealth
from strata_runtime.lifecycle import Lifecycle, Service
from strata_runtime.listening import endpoint_of, hold_shared
from strata_runtime.metrics_server import MetricsServer, MetricsServerOptions
from strata_runtime.observability import observe
from strata_runtime.roles import PeerRole
from strata_runtime.runtime import Runtime

# A process drains within `node.drain_ms` and then closes its log; only then it is killed.
_CLOSING_S = 10.0
_PRIVATE_FIELDS = ("pid", "data", "metrics_port")


def run(role: FolderRole, config: ClusterConfig, data_dir: Path) -> None:
    """Run the processes of a role until they are told to stop.

    Raises:
        StrataError: they cannot start, or failed.
    """
    count = process_count(wanted(config, role), usable_cores())
    if count == 1 and not has_machine(data_dir):
        runner_of(role)(config, data_dir, MachinePlace(config.cluster.machine))
        return
    logs.configure(
        level=config.node.log_level,
        log_format=config.node.log_format,
        audits=config.node.audit_log,
    )
    check_role(data_dir, role)
    check_ports(config, role, count)
    folder = MachineFolder.open(data_dir, role)
    try:
        if role is FolderRole.STORAGE:
            asyncio.run(_check_removed(folder, config, count))
        machine = config.cluster.machine or folder.machine
        if count == 1:
            runner_of(role)(config, folder.process_folder(0), MachinePlace(machine))
        else:
            _supervise(folder, config, MachinePlace(machine, count))
    finally:
        folder.close()


def _supervise(folder: MachineFolder, config: ClusterConfig, place: MachinePlace) -> None:
    """Run all processes of a machine."""
    node, holder, port = config.node, None, config.node.grpc_port
    if folder.role is FolderRole.BROKER:
        # The certificate is made once, for all workers, before the first of them looks for it.
        edge_options(config, folder.path / "tls", host_of(config))
        holder = hold_shared(node.host, node.grpc_port, "for clients")
        port = holder.getsockname()[1]
    orders = [
        Orders(
            folder.role,
            config_of(config, folder.role, number, port),
            folder.process_folder(number),
            replace(place, number=number, shared_folder=folder.path, is_supervised=True),
        )
        for number in range(place.count)
    ]
    try:
        loop.run(_serve(folder, config, orders, holder))
    finally:
        if holder is not None:
            holder.close()


async def _serve(
    folder: MachineFolder,
    config: ClusterConfig,
    orders: list[Orders],
    holder: socket.socket | None,
) -> None:
    clock, role = SystemClock(), folder.role
    lifecycle: Lifecycle
    observed = observe(
        config.observability,
        f"strata-{role}-supervisor",
        role,
        orders[0].place.machine,
        clock,
        lambda name, failure: lifecycle.on_fatal(name, failure),
    )
    metrics = observed.metrics
    supervisor = Supervisor(
        orders,
        Runtime(
            clock,
            random.random,
            metrics,
            lambda name, failure: lifecycle.on_fatal(name, failure),
        ),
        max_pause_ms=config.node.max_restart_pause_ms,
        is_stopping=lambda: lifecycle.is_stopping,
    )
    health = ProcessHealth(metrics)
    health.follow(supervisor.health)
    services: list[Service] = [*observed.services]
    if config.node.metrics_port is not None:
        options = MetricsServerOptions(host=config.node.host, port=config.node.metrics_port)
        services.append(MetricsServer(metrics, options, health=health, others=supervisor.pages))
    ready = ReadyLine(partial(_fields, folder, config, supervisor, holder), health)
    lifecycle = Lifecycle(
        [*services, supervisor, ready],
        grace_s=config.node.drain_ms / 1_000 + _CLOSING_S,
        clock=clock,
        at_once=supervisor.kill,
    )
    await lifecycle.run()
    metrics.close()
    sys.stdout.flush()


def _fields(
    folder: MachineFolder,
    config: ClusterConfig,
    supervisor: Supervisor,
    holder: socket.socket | None,
) -> Mapping[str, object]:
    told = [
        {key: value for key, value in each.items() if key not in _PRIVATE_FIELDS}
        for each in supervisor.ready
    ]
    shared: dict[str, object] = {"data": folder.path}
    if holder is not None:
        shared = {"grpc": endpoint_of(host_of(config), holder.getsockname()[1]), **shared}
    return ready_fields(folder.role, told, shared)


async def _check_removed(folder: MachineFolder, config: ClusterConfig, count: int) -> None:
    """Ask the cluster about the shards that are not to be started.

    Raises:
        ConfigError: one still has replicas, no nameserver answers, or certificates cannot be used.
    """
    removed = [
        Removed(number, identity_of(path).storage_node_id) for number, path in folder.beyond(count)
    ]
    tls = config.angelia.peer_tls(PeerRole(folder.role)) if removed else None
    if tls is not None:
        await asyncio.to_thread(tls.load)
    open_channel = partial(open_peer_channel, tls=tls)
    answers: dict[str, meta_pb2.GetIdentityResponse | None] = {}
    for each in removed:
        found = await ask_all(each.node_id, config.cluster.nameservers, open_channel)
        answers[each.node_id] = max(
            found.values(), key=lambda answer: (answer.replicas, answer.knows_node), default=None
        )
    check_removed(folder.role, removed, answers)
