"""The commands that run a server; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from strata_cli.errors import UsageError
from strata_cli.options import COMMON, Unused, process_count_of

if TYPE_CHECKING:
    from strata_cli.processes.cluster_config import ClusterConfig
    from strata_cli.processes.standalone_config import StandaloneConfig

MAX_PORT = 65_535

EdgeAdapter = Literal["auto", "grpcio", "native"]
AccessControl = Literal["on", "off"]
ClusterTls = Literal["off", "optional", "required"]
Insecure = Annotated[bool, Parameter(negative="")]
TlsOnly = Annotated[bool, Parameter(negative="")]
LogLevel = Literal["debug", "info", "warning", "error"]
ConfigT = TypeVar("ConfigT", bound="StandaloneConfig")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The callers that a process of a cluster accepts."""

    cluster_certificates: Path | None = None
    """Folder with tls.crt, tls.key and ca.crt (strata cert issue) for mutual TLS between
    processes."""
    cluster_tls: ClusterTls | None = None
    """required: TLS only; optional: plaintext too, while a cluster changes over; off; default:
    required with --cluster-certificates, else off."""
    access_control: AccessControl | None = None
    """Check who calls and what for; default: off where the address is a loopback address, else
    on."""
    insecure: Insecure = False
    """Allow --access-control off, and plaintext between processes, on other addresses: anybody
    may do anything, and with access control off operators are served on the client port, too."""

    def sections(self, first_admin_file: str | None = None) -> dict[str, dict[str, Any]]:
        """Return the keys of the configuration that the flags stand for."""
        folder = self.cluster_certificates
        return {
            "angelia": {
                "certificate_folder": str(folder.resolve()) if folder is not None else None,
                "tls": self.cluster_tls,
            },
            "access_control": _access_control(
                self.access_control, first_admin_file, insecure=self.insecure
            ),
        }


SECURITY = Security()


def standalone(
    *,
    data_dir: Path,
    host: str | None = None,
    grpc_port: int | None = None,
    edge: EdgeAdapter | None = None,
    tls_only: TlsOnly = False,
    admin_port: int | None = None,
    virtual_address: str | None = None,
    tier: str | None = None,
    plugins: str | None = None,
    access_control: AccessControl | None = None,
    insecure: Insecure = False,
    first_admin_file: str | None = None,
    console_port: int | None = None,
    remoting_port: int | None = None,
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
        tls_only: Refuse clients that speak plaintext.
        admin_port: Port for operators, on the loopback interface; default: any free port.
        virtual_address: HOST:PORT of a load balancer; routes name it instead of the node.
        tier: URL of an object store for old messages, as for `strata storage`.
        plugins: Names of plugins, separated by commas: kv.
        access_control: Check who calls and what for; default: off where the address is a loopback
            address, else on.
        insecure: Allow --access-control off elsewhere, with operators on the client port, too.
        first_admin_file: JSON file with access_key and secret_key of the first admin; default: keys
            are made and written to first-admin.json in the data folder.
        console_port: Port for the web console; default: any free port on the loopback interface.
        remoting_port: Port for clients of the remoting protocol, 0 for any free one; default: none.
        metrics_port: Port for Prometheus and health.
        log_level: Lowest level that is logged.
        config: TOML file; the variable STRATA_<SECTION>_<KEY> overrides a key of the file.
    """
    from strata_cli.processes.cluster_config import ClusterConfig
    from strata_cli.processes.standalone import run
    from strata_cli.processes.standalone_config import standalone_part
    from strata_runtime.config import load

    # One file may serve every process: what is for those of a cluster is passed over here.
    node = {"host": host, "grpc_port": grpc_port, "admin_port": admin_port}
    settings = with_flags(
        standalone_part(load(ClusterConfig, config, os.environ)),
        node={**node, "metrics_port": metrics_port, "log_level": log_level},
        access_control=_access_control(access_control, first_admin_file, insecure=insecure),
        edge={"adapter": edge, "tls_only": tls_only or None},
        route={"advertised_endpoint": virtual_address},
        tier={"url": tier},
        console={"port": console_port},
        remoting={"port": remoting_port},
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
    security: Security = SECURITY,
    first_admin_file: str | None = None,
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
        first_admin_file: JSON file with access_key and secret_key of the first admin; default: keys
            are made and written to first-admin.json in the data folder.
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
        **security.sections(first_admin_file),
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
    shards: str | None = None,
    machine: str | None = None,
    tier: str | None = None,
    security: Security = SECURITY,
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
        shards: Number of storage nodes, each a process with a log of its own below the folder, or
            auto: one per core; default 1. They are one machine.
        machine: Name of the machine: two replicas of a raft group are never on one; default: the
            node is a machine of its own, or the folder's id if there are shards.
        tier: URL of an object store for old messages, the same for all storage nodes:
            posix:///DIR, s3://BUCKET/PREFIX?endpoint=URL, hdfs://HOST:PORT/PATH.
        metrics_port: Port for Prometheus and health.
        log_level: Lowest level that is logged.
        config: TOML file; the variable STRATA_<SECTION>_<KEY> overrides a key of the file.
    """
    from strata_cli.machine.run import run
    from strata_cli.processes.data_folder import FolderRole

    node = {
        "host": host,
        "storage_port": port,
        "storage_http2_port": http2_port,
        "advertised_host": advertise,
    }
    cluster = {"nameservers": nameservers, "rack": rack, "machine": machine}
    settings = _cluster_config(
        config,
        node=node,
        cluster=cluster,
        storage={"shards": process_count_of("--shards", shards)},
        tier={"url": tier},
        **security.sections(),
        metrics_port=metrics_port,
        log_level=log_level,
    )
    run(FolderRole.STORAGE, settings, data_dir)


def broker(
    *,
    data_dir: Path,
    nameservers: str | None = None,
    storage_seeds: str | None = None,
    host: str | None = None,
    grpc_port: int | None = None,
    edge: EdgeAdapter | None = None,
    tls_only: TlsOnly = False,
    admin_port: int | None = None,
    advertise: str | None = None,
    virtual_address: str | None = None,
    storage_transport: Literal["tcp", "http2"] | None = None,
    storage_codec: Literal["protobuf", "json", "avro"] | None = None,
    rack: str | None = None,
    workers: str | None = None,
    remoting_port: int | None = None,
    security: Security = SECURITY,
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
        storage_seeds: HOST:PORT of some storage nodes, which replace nameservers that fail.
        host: Address to listen on.
        grpc_port: Port for clients, 0 for any free port; default 8081.
        edge: Serves clients: native code (`make edge`) or grpcio; auto: native if installed.
        tls_only: Refuse clients that speak plaintext.
        admin_port: Port for operators, on the loopback interface; default: any free port.
        advertise: Host that routes name; default: the address, or the machine's name when it
            listens on all addresses.
        virtual_address: HOST:PORT of a load balancer; routes name it instead of the broker.
        storage_transport: Transport of calls to storage nodes; default tcp.
        storage_codec: Encoding of calls to storage nodes; default protobuf.
        rack: Failure domain.
        workers: Processes that share the port for clients, or auto: one per core; default 1.
        remoting_port: Port for clients of the remoting protocol, 0 for any free one; default: none.
        metrics_port: Port for Prometheus and health.
        log_level: Lowest level that is logged.
        config: TOML file; the variable STRATA_<SECTION>_<KEY> overrides a key of the file.
    """
    from strata_cli.machine.run import run
    from strata_cli.processes.data_folder import FolderRole

    node = {"host": host, "grpc_port": grpc_port, "admin_port": admin_port}
    settings = _cluster_config(
        config,
        node={**node, "advertised_host": advertise},
        cluster={"nameservers": nameservers, "storage_seeds": storage_seeds, "rack": rack},
        edge={"adapter": edge, "tls_only": tls_only or None},
        route={"advertised_endpoint": virtual_address},
        storage_client={"storage_transport": storage_transport, "storage_codec": storage_codec},
        broker={"workers": process_count_of("--workers", workers)},
        remoting={"port": remoting_port},
        **security.sections(),
        metrics_port=metrics_port,
        log_level=log_level,
    )
    run(FolderRole.BROKER, settings, data_dir)


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


def _access_control(
    mode: AccessControl | None, first_admin_file: str | None = None, *, insecure: bool
) -> dict[str, Any]:
    """Return what the command line says about access control."""
    return {"mode": mode, "insecure": insecure or None, "first_admin_file": first_admin_file}


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
    return with_flags(settings, node=node | more, **sections)


def with_flags(settings: ConfigT, **sections: Any) -> ConfigT:
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
