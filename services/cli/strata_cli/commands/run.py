"""The commands that run a server; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from strata_cli.options import COMMON, Unused, UsageError

if TYPE_CHECKING:
    from strata_cli.processes.cluster_config import ClusterConfig
    from strata_cli.processes.standalone_config import StandaloneConfig

MAX_PORT = 65_535

EdgeAdapter = Literal["auto", "grpcio", "native"]
LogLevel = Literal["debug", "info", "warning", "error"]
ConfigT = TypeVar("ConfigT", bound="StandaloneConfig")


def standalone(
    *,
    data_dir: Path,
    host: str | None = None,
    grpc_port: int | None = None,
    edge: EdgeAdapter | None = None,
    virtual_address: str | None = None,
    tier: str | None = None,
    plugins: str | None = None,
    metrics_port: int | None = None,
    log_level: LogLevel | None = None,
    config: Path | None = None,
    common: Unused = COMMON,
) -> None:
    """Run a whole node in one process: nameserver, storage node and broker, one data folder.

    It prints one line that starts with "ready" when it serves; SIGTERM drains and ends it.

    For instance: strata standalone --data-dir /var/lib/strata --grpc-port 8081

    Args:
        data_dir: Folder for all data; created if missing.
        host: Address to listen on; default 127.0.0.1, or the configured address.
        grpc_port: Port for clients, 0 for any free port; default 8081, or the configured port.
        edge: Serves clients: native code (`make edge`) or grpcio; auto: native if installed.
        virtual_address: HOST:PORT of a load balancer; routes name it instead of the node.
        tier: URL of an object store for old messages: posix:///DIR, s3://BUCKET/PREFIX?endpoint=URL,
            hdfs://HOST:PORT/PATH.
        plugins: Names of plugins, separated by commas: kv.
        metrics_port: Port for Prometheus and health.
        log_level: Lowest level that is logged.
        config: TOML file; the variable STRATA_<SECTION>_<KEY> overrides a key of the file.
    """
    from strata_cli.processes.cluster_config import ClusterConfig
    from strata_cli.processes.standalone import run
    from strata_cli.processes.standalone_config import standalone_part
    from strata_runtime.config import load

    # One file may serve every process: what is for those of a cluster is passed over here.
    settings = _with_flags(
        standalone_part(load(ClusterConfig, config, os.environ)),
        node={
            "host": host,
            "grpc_port": grpc_port,
            "metrics_port": metrics_port,
            "log_level": log_level,
        },
        edge={"adapter": edge},
        route={"advertised_endpoint": virtual_address},
        tier={"url": tier},
        plugins=tuple(filter(None, plugins.split(","))) if plugins is not None else None,
    )
    run(settings, data_dir)


def nameserver(
    *,
    data_dir: Path,
    nameservers: str | None = None,
    host: str | None = None,
    port: int | None = None,
    advertise: str | None = None,
    replication_factor: int | None = None,
    initial_storage_nodes: int | None = None,
    metrics_port: int | None = None,
    log_level: LogLevel | None = None,
    config: Path | None = None,
    common: Unused = COMMON,
) -> None:
    """Run a nameserver: one of 1, 3 or 5 that replicate the metadata.

    It prints one line that starts with "ready" when it serves; SIGTERM ends it.

    For instance: strata nameserver --data-dir /var/lib/strata --nameservers a:9877,b:9877,c:9877

    Args:
        data_dir: Folder for all data; created if missing.
        nameservers: HOST:PORT of all nameservers, including this one, separated by commas.
        host: Address to listen on.
        port: Port to listen on; default 9877.
        advertise: Host under which other processes reach this one; default: the address, or the
            machine's name when it listens on all addresses.
        replication_factor: Replicas of each raft group; default 3.
        initial_storage_nodes: Number of storage nodes to wait for before raft groups are created;
            default: the number of replicas of a raft group.
        metrics_port: Port for Prometheus and health.
        log_level: Lowest level that is logged.
        config: TOML file; the variable STRATA_<SECTION>_<KEY> overrides a key of the file.
    """
    from strata_cli.processes.nameserver import run

    settings = _cluster_config(
        config,
        node={"host": host, "nameserver_port": port, "advertised_host": advertise},
        cluster={"nameservers": nameservers},
        nameserver={
            "replication_factor": replication_factor,
            "initial_storage_nodes": initial_storage_nodes,
        },
        metrics_port=metrics_port,
        log_level=log_level,
    )
    run(settings, data_dir)


def storage(
    *,
    data_dir: Path,
    nameservers: str | None = None,
    host: str | None = None,
    port: int | None = None,
    http2_port: int | None = None,
    advertise: str | None = None,
    rack: str | None = None,
    tier: str | None = None,
    metrics_port: int | None = None,
    log_level: LogLevel | None = None,
    config: Path | None = None,
    common: Unused = COMMON,
) -> None:
    """Run a storage node: it holds replicas of many raft groups.

    It prints one line that starts with "ready" when it serves; SIGTERM drains and ends it.

    For instance: strata storage --data-dir /var/lib/strata --nameservers a:9877,b:9877,c:9877

    Args:
        data_dir: Folder for all data; created if missing.
        nameservers: HOST:PORT of all nameservers, separated by commas.
        host: Address to listen on.
        port: Port to listen on; default 10920.
        http2_port: Port for gRPC between brokers and storage nodes; default: none.
        advertise: Host under which other processes reach this one; default: the address, or the
            machine's name when it listens on all addresses.
        rack: Failure domain; the replicas of a raft group are spread over failure domains.
        tier: URL of an object store for old messages, the same for all storage nodes:
            posix:///DIR, s3://BUCKET/PREFIX?endpoint=URL, hdfs://HOST:PORT/PATH.
        metrics_port: Port for Prometheus and health.
        log_level: Lowest level that is logged.
        config: TOML file; the variable STRATA_<SECTION>_<KEY> overrides a key of the file.
    """
    from strata_cli.processes.storage import run

    node = {
        "host": host,
        "storage_port": port,
        "storage_http2_port": http2_port,
        "advertised_host": advertise,
    }
    cluster = {"nameservers": nameservers, "rack": rack}
    settings = _cluster_config(
        config,
        node=node,
        cluster=cluster,
        tier={"url": tier},
        metrics_port=metrics_port,
        log_level=log_level,
    )
    run(settings, data_dir)


def broker(
    *,
    data_dir: Path,
    nameservers: str | None = None,
    storage_seeds: str | None = None,
    host: str | None = None,
    grpc_port: int | None = None,
    edge: EdgeAdapter | None = None,
    advertise: str | None = None,
    virtual_address: str | None = None,
    storage_transport: Literal["tcp", "http2"] | None = None,
    storage_codec: Literal["protobuf", "json", "avro"] | None = None,
    rack: str | None = None,
    metrics_port: int | None = None,
    log_level: LogLevel | None = None,
    config: Path | None = None,
    common: Unused = COMMON,
) -> None:
    """Run a broker: clients connect to it; it keeps no state that matters.

    It prints one line that starts with "ready" when it serves; SIGTERM drains and ends it.

    For instance: strata broker --data-dir /var/lib/strata --nameservers a:9877,b:9877,c:9877

    Args:
        data_dir: Folder for its id and its self-signed certificate; created if missing.
        nameservers: HOST:PORT of all nameservers, separated by commas.
        storage_seeds: HOST:PORT of some storage nodes, separated by commas; they give the metadata
            when no nameserver answers.
        host: Address to listen on.
        grpc_port: Port for clients, 0 for any free port; default 8081.
        edge: Serves clients: native code (`make edge`) or grpcio; auto: native if installed.
        advertise: Host that routes name; default: the address, or the machine's name when it
            listens on all addresses.
        virtual_address: HOST:PORT of a load balancer; routes name it instead of the broker.
        storage_transport: Transport of calls to storage nodes; default tcp.
        storage_codec: Encoding of calls to storage nodes; default protobuf.
        rack: Failure domain.
        metrics_port: Port for Prometheus and health.
        log_level: Lowest level that is logged.
        config: TOML file; the variable STRATA_<SECTION>_<KEY> overrides a key of the file.
    """
    from strata_cli.processes.broker import run

    node = {"host": host, "grpc_port": grpc_port, "advertised_host": advertise}
    cluster = {"nameservers": nameservers, "storage_seeds": storage_seeds, "rack": rack}
    settings = _cluster_config(
        config,
        node=node,
        cluster=cluster,
        edge={"adapter": edge},
        route={"advertised_endpoint": virtual_address},
        storage_client={"storage_transport": storage_transport, "storage_codec": storage_codec},
        metrics_port=metrics_port,
        log_level=log_level,
    )
    run(settings, data_dir)


def forwarder(
    *,
    listen: str,
    broker: Annotated[list[str] | None, Parameter(negative="")] = None,
    brokers_file: Path | None = None,
    metrics_port: int | None = None,
    common: Unused = COMMON,
) -> None:
    """Run a TCP forwarder that gives brokers on one machine one virtual address.

    For instance: strata forwarder --listen 127.0.0.1:8081 --broker 127.0.0.1:8082

    Args:
        listen: HOST:PORT that clients connect to.
        broker: HOST:PORT of a broker; may be repeated.
        brokers_file: File with one HOST:PORT per line, read again when it changes.
        metrics_port: Port for Prometheus and health.
    """
    from strata_cli.processes.forwarder import BrokerList, ForwarderOptions, run

    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > MAX_PORT:
        raise UsageError(f"--listen {listen}: write HOST:PORT")
    if not broker and brokers_file is None:
        raise UsageError("no broker: give --broker or --brokers-file")
    try:
        brokers = BrokerList(broker or (), brokers_file)
    except ValueError as error:
        raise UsageError(f"--broker: {error}") from None
    run(ForwarderOptions(host.strip("[]"), int(port)), brokers, metrics_port)


def demo(
    *,
    once: Annotated[bool, Parameter(negative="")] = False,
    data_dir: Path = Path("build/demo"),
    common: Unused = COMMON,
) -> None:
    """Start a standalone node, send and receive messages, and keep running until Ctrl-C.

    For instance: strata demo --once

    Args:
        once: End after the messages are received.
        data_dir: Data folder of the node.
    """
    from strata_cli.demo import run

    run(data_dir, once=once)


def _cluster_config(
    file: Path | None,
    *,
    node: dict[str, Any],
    metrics_port: int | None,
    log_level: LogLevel | None,
    **sections: dict[str, Any],
) -> ClusterConfig:
    """Return the configuration of file and environment, overridden by the command line."""
    from strata_cli.processes.cluster_config import ClusterConfig
    from strata_runtime.config import load

    settings = load(ClusterConfig, file, os.environ)
    more = {"metrics_port": metrics_port, "log_level": log_level}
    return _with_flags(settings, node=node | more, **sections)


def _with_flags(settings: ConfigT, **sections: Any) -> ConfigT:
    """Return a configuration, overridden by the command line.

    Raises:
        CliError: a value is not allowed.
    """
    from pydantic import ValidationError

    try:
        return settings.with_flags(**sections)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"command line: {where}: {first['msg']}") from None
