"""The commands that run a server; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from strata_cli.options import COMMON, Common, UsageError

if TYPE_CHECKING:
    from strata_cli.processes.cluster_config import ClusterConfig
    from strata_cli.processes.standalone_config import StandaloneConfig

MAX_PORT = 65_535

LogLevel = Literal["debug", "info", "warning", "error"]
ConfigT = TypeVar("ConfigT", bound="StandaloneConfig")


def standalone(
    *,
    data_dir: Path,
    host: str | None = None,
    grpc_port: int | None = None,
    virtual_address: str | None = None,
    tier: str | None = None,
    plugins: str | None = None,
    metrics_port: int | None = None,
    log_level: LogLevel | None = None,
    config: Path | None = None,
    common: Common = COMMON,
) -> None:
    """Run a whole node in this process: nameserver, storage node and broker, one data folder.

    Prints one line that starts with "ready" when it serves; SIGTERM drains and ends it.

    For instance: strata standalone --data-dir /var/lib/strata --grpc-port 8081

    Args:
        data_dir: Folder that holds everything; made if it is not there.
        host: Address to listen on; default 127.0.0.1, or what the configuration says.
        grpc_port: Port for clients, 0 for any free one; default 8081, or what the configuration
            says.
        virtual_address: HOST:PORT before the node, which routes name instead.
        tier: URL of an object store for old messages: posix:///DIR, s3://BUCKET/PREFIX?endpoint=URL,
            hdfs://HOST:PORT/PATH.
        plugins: Names of plugins, with commas: kv.
        metrics_port: Port for Prometheus and health.
        log_level: What is logged: this and worse.
        config: TOML file; STRATA_<SECTION>_<KEY> in the environment overrides a key of it.
    """
    from strata_cli.processes.standalone import run
    from strata_cli.processes.standalone_config import StandaloneConfig
    from strata_runtime.config import load

    settings = _with_flags(
        load(StandaloneConfig, config, os.environ),
        node={
            "host": host,
            "grpc_port": grpc_port,
            "metrics_port": metrics_port,
            "log_level": log_level,
        },
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
    common: Common = COMMON,
) -> None:
    """Run a nameserver: one of 1, 3 or 5 that hold the metadata together.

    Prints one line that starts with "ready" when it serves; SIGTERM ends it.

    For instance: strata nameserver --data-dir /var/lib/strata --nameservers a:9877,b:9877,c:9877

    Args:
        data_dir: Folder that holds everything; made if it is not there.
        nameservers: HOST:PORT of all nameservers, with commas, this one among them.
        host: Address to listen on.
        port: Port to listen on; default 9877.
        advertise: Host under which the others reach it; default: the address, or the machine's
            name when it listens on all addresses.
        replication_factor: Replicas of each raft group; default 3.
        initial_storage_nodes: Raft groups are made once so many storage nodes are there; default:
            as many as a raft group has replicas.
        metrics_port: Port for Prometheus and health.
        log_level: What is logged: this and worse.
        config: TOML file; STRATA_<SECTION>_<KEY> in the environment overrides a key of it.
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
    common: Common = COMMON,
) -> None:
    """Run a storage node: replicas of many raft groups.

    Prints one line that starts with "ready" when it serves; SIGTERM drains and ends it.

    For instance: strata storage --data-dir /var/lib/strata --nameservers a:9877,b:9877,c:9877

    Args:
        data_dir: Folder that holds everything; made if it is not there.
        nameservers: HOST:PORT of all nameservers, with commas.
        host: Address to listen on.
        port: Port to listen on; default 10920.
        http2_port: Port for gRPC between brokers and storage nodes; default: none.
        advertise: Host under which the others reach it; default: the address, or the machine's
            name when it listens on all addresses.
        rack: Failure domain; replicas are spread over them.
        tier: URL of an object store for old messages, the same for all storage nodes:
            posix:///DIR, s3://BUCKET/PREFIX?endpoint=URL, hdfs://HOST:PORT/PATH.
        metrics_port: Port for Prometheus and health.
        log_level: What is logged: this and worse.
        config: TOML file; STRATA_<SECTION>_<KEY> in the environment overrides a key of it.
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
    advertise: str | None = None,
    virtual_address: str | None = None,
    storage_transport: Literal["tcp", "http2"] | None = None,
    storage_codec: Literal["protobuf", "json", "avro"] | None = None,
    rack: str | None = None,
    metrics_port: int | None = None,
    log_level: LogLevel | None = None,
    config: Path | None = None,
    common: Common = COMMON,
) -> None:
    """Run a broker: what clients talk to; it keeps nothing that matters.

    Prints one line that starts with "ready" when it serves; SIGTERM drains and ends it.

    For instance: strata broker --data-dir /var/lib/strata --nameservers a:9877,b:9877,c:9877

    Args:
        data_dir: Folder of its name and its self-signed certificate; made if it is not there.
        nameservers: HOST:PORT of all nameservers, with commas.
        storage_seeds: HOST:PORT of some storage nodes, with commas: where the metadata is found
            when no nameserver answers.
        host: Address to listen on.
        grpc_port: Port for clients, 0 for any free one; default 8081.
        advertise: Host that routes name; default: the address, or the machine's name when it
            listens on all addresses.
        virtual_address: HOST:PORT before all brokers, which routes name instead.
        storage_transport: How storage nodes are called; default tcp.
        storage_codec: Encoding of those calls; default protobuf.
        rack: Failure domain.
        metrics_port: Port for Prometheus and health.
        log_level: What is logged: this and worse.
        config: TOML file; STRATA_<SECTION>_<KEY> in the environment overrides a key of it.
    """
    from strata_cli.processes.broker import run

    node = {"host": host, "grpc_port": grpc_port, "advertised_host": advertise}
    cluster = {"nameservers": nameservers, "storage_seeds": storage_seeds, "rack": rack}
    settings = _cluster_config(
        config,
        node=node,
        cluster=cluster,
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
    common: Common = COMMON,
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
    common: Common = COMMON,
) -> None:
    """Start a standalone node, send and receive real messages, stay up until Ctrl-C.

    For instance: strata demo --once

    Args:
        once: End after the messages.
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
    """Return file and environment with what the command line said over them."""
    from strata_cli.processes.cluster_config import ClusterConfig
    from strata_runtime.config import load

    settings = load(ClusterConfig, file, os.environ)
    more = {"metrics_port": metrics_port, "log_level": log_level}
    return _with_flags(settings, node=node | more, **sections)


def _with_flags(settings: ConfigT, **sections: Any) -> ConfigT:
    """Return a configuration with what the command line said over it.

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
