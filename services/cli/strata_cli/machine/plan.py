"""Number, ports and configuration of the processes of a machine; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from strata.meta.v1 import meta_pb2
from strata_cli.machine.folder import NAMES
from strata_cli.processes.cluster_config import MAX_PROCESSES, ClusterConfig
from strata_cli.processes.data_folder import FolderRole
from strata_runtime.errors import ConfigError

_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Removed:
    """A process of the machine that is not to be started any more.

    Attributes:
        number: which one it was.
        node_id: of its data folder.
    """

    number: int
    node_id: str


def wanted(config: ClusterConfig, role: FolderRole) -> int | Literal["auto"]:
    """Return what the configuration says of the number of processes."""
    return {
        FolderRole.BROKER: config.broker.workers,
        FolderRole.STORAGE: config.storage.shards,
    }.get(role, 1)


def process_count(asked: int | Literal["auto"], cores: int) -> int:
    """Return how many processes are started."""
    return min(cores, MAX_PROCESSES) if asked == "auto" else asked


def check_ports(config: ClusterConfig, role: FolderRole, count: int) -> None:
    """Refuse ports that the processes of a machine cannot have together.

    Raises:
        ConfigError: a port would be above the highest, or would be that of two processes.
    """
    node = config.node
    first: dict[str, int | None] = {"node.metrics_port": node.metrics_port}
    if role is FolderRole.STORAGE:
        first |= {
            "node.storage_port": node.storage_port,
            "node.storage_http2_port": node.storage_http2_port,
        }
    else:
        first |= {"node.grpc_port": node.grpc_port}
        first |= {f"{section}.{key}": port for section, key, port in _worker_ports(config)}
    shared = ("node.metrics_port", "node.grpc_port")
    owners: dict[int, str] = {}
    for key, port in first.items():
        for used in range(port, port + (1 if key in shared else count)) if port else ():
            if used > _MAX_PORT:
                raise ConfigError(
                    f"{key} is {port}: {count} {NAMES[role]}s need ports up to {used}, the highest "
                    f"is {_MAX_PORT}"
                )
            if used in owners:
                raise ConfigError(
                    f"{key} is {port} and {owners[used]} overlaps: {count} {NAMES[role]}s have "
                    f"{count} ports each, and both need {used}"
                )
            owners[used] = f"{key if key in shared else f'{key} and the next ports'}"


def config_of(config: ClusterConfig, role: FolderRole, number: int, port: int) -> ClusterConfig:
    """Return the configuration of one process.

    Args:
        config: of the command.
        role: of the process.
        number: of it.
        port: for clients, of all workers.
    """
    node: dict[str, object] = {
        "metrics_port": None if config.node.metrics_port is None else 0,
        "grpc_port": port,
    }
    if config.node.audit_file:
        # A file that is rotated has one writer.
        node["audit_file"] = f"{config.node.audit_file}.{NAMES[role]}-{number}"
    for key in ("storage_port", "storage_http2_port") if role is FolderRole.STORAGE else ():
        if first := getattr(config.node, key):
            node[key] = first + number
    sections: dict[str, dict[str, object]] = {"node": node, "broker": {}, "remoting": {}}
    for section, key, first in _worker_ports(config) if role is FolderRole.BROKER else ():
        sections[section][key] = first + number if first else 0
    return config.with_flags(**sections)


def _worker_ports(config: ClusterConfig) -> tuple[tuple[str, str, int], ...]:
    """Return section, key and port of what the first worker listens on, the others on the next."""
    remoting = config.remoting.port
    return (
        ("node", "admin_port", config.node.admin_port),
        ("broker", "peer_port", config.broker.peer_port),
        ("broker", "peer_tls_port", config.broker.peer_tls_port),
        *([] if remoting is None else [("remoting", "port", remoting)]),
    )


def check_removed(
    role: FolderRole,
    removed: Sequence[Removed],
    answers: Mapping[str, meta_pb2.GetIdentityResponse | None],
) -> None:
    """Refuse to start fewer shards while one of the others has replicas.

    Args:
        role: of the processes.
        removed: those that would not be started.
        answers: of the cluster, by node id; None: nobody answers.

    Raises:
        ConfigError: a shard still has replicas, or nobody knows.
    """
    for each in removed:
        name = f"{NAMES[role]} {each.number} (node {each.node_id})"
        answer = answers.get(each.node_id)
        if answer is None:
            raise ConfigError(
                f"{name} would not be started, and no nameserver answers whether it still has "
                f"replicas: start all {NAMES[role]}s, or wait for a nameserver"
            )
        has_replicas = answer.replicas if answer.HasField("replicas") else answer.knows_node
        if has_replicas:
            count = f"{answer.replicas} replicas" if answer.replicas else "replicas"
            raise ConfigError(
                f"{name} would not be started and still has {count}: start all {NAMES[role]}s, "
                f"run `strata node drain {each.node_id}`, and wait until `strata node show` lists "
                "no replica of it"
            )


def ready_fields(
    role: FolderRole, ready: Sequence[Mapping[str, object]], shared: Mapping[str, object]
) -> dict[str, object]:
    """Return the fields of the machine's ready line.

    Args:
        role: of the processes.
        ready: fields that each process told.
        shared: fields of all of them, which replace those of a process.
    """
    fields: dict[str, object] = {}
    for key in ready[0] if ready else ():
        values = dict.fromkeys(str(each.get(key, "")) for each in ready)
        # Operators need one port; it serves the whole cluster.
        fields[key] = next(iter(values)) if key == "admin" else ",".join(values)
    return {**fields, f"{NAMES[role]}s": len(ready), **shared}
