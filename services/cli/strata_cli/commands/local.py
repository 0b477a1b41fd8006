"""The commands of `strata local`; `data_dir`, `names` and `common` are described by their types."""

# ruff: noqa: D417

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from strata_cli.errors import UsageError
from strata_cli.local.cluster import LocalCluster, Timeouts
from strata_cli.local.plan import (
    FORWARDER,
    AccessControl,
    ClusterPlan,
    ClusterTls,
    Codec,
    Role,
    Transport,
    free_ports,
    new_plan,
)
from strata_cli.local.readiness import NotReadyError
from strata_cli.local.serving import keys_of, wait_until_served
from strata_cli.options import COMMON, Common, milliseconds, process_count_of
from strata_cli.output import show
from strata_runtime.cores import usable_cores

DataDir = Annotated[Path, Parameter(help="Folder of the cluster.")]
Names = Annotated[str, Parameter(help="Names of processes, as in local status.")]
Wait = Annotated[str, Parameter(help="Time limit for a process to become ready, or to drain.")]

_DEFAULT_COUNTS: dict[Role, int] = {"nameserver": 3, "storage": 3, "broker": 2}

app = App(name="local", help="A cluster on this machine.")


@app.command
def up(
    *,
    data_dir: DataDir,
    nameservers: Literal[1, 3, 5] | None = None,
    storage: int | None = None,
    brokers: int | None = None,
    workers: str | None = None,
    shards: str | None = None,
    virtual_address: str = "",
    storage_transport: Transport = "tcp",
    storage_codec: Codec = "protobuf",
    tier: str = "",
    tls: Annotated[bool, Parameter(negative="")] = False,
    cluster_tls: ClusterTls | None = None,
    access_control: AccessControl | None = None,
    config: Path | None = None,
    wait: Wait = "60s",
    common: Common = COMMON,
) -> None:
    """Start a cluster of real processes and return when all of them serve.

    If the folder already holds a cluster, that cluster is started again with its data and its
    ports. It takes a new --config, --access-control and --cluster-tls; the other options of a new
    cluster are ignored. A cluster whose first start failed is created anew.

    For instance: strata local up --nameservers 3 --storage 3 --brokers 2 --data-dir build/cluster

    Args:
        nameservers: Number of nameservers; default 3.
        storage: Number of storage nodes; default 3.
        brokers: Number of brokers; default 2.
        workers: Number of processes of each broker, or auto: one per core; default 1.
        shards: Number of processes of each storage node, or auto: one per core; default 1.
        virtual_address: HOST:PORT of a TCP forwarder in front of the brokers; all brokers
            advertise it; port 0: any free port; default: no forwarder.
        storage_transport: Transport of calls from brokers to storage nodes.
        storage_codec: Encoding of calls from brokers to storage nodes.
        tier: URL of an object store for old messages; default: none.
        tls: Make an authority and certificates, and use mutual TLS between all processes.
        cluster_tls: As --tls, for processes that start now; optional while a cluster changes over.
        access_control: Check who calls and what for; default: off.
        config: TOML file for every process.
    """
    asked: dict[Role, int | None] = {"storage": storage, "broker": brokers}
    asked["nameserver"] = nameservers
    counts = _counts(asked)
    if config is not None:
        _check_config(config)
    sizes = (_processes("--workers", workers), _processes("--shards", shards))

    def make_plan() -> ClusterPlan:
        return new_plan(
            counts,
            free_ports(_chosen(virtual_address), run=sizes[1]),
            virtual_address=virtual_address,
            config=config,
            storage_transport=storage_transport,
            storage_codec=storage_codec,
            tier=tier,
            workers=sizes[0],
            shards=sizes[1],
        )

    cluster = LocalCluster.make(data_dir, make_plan, _timeouts(wait))
    cluster.use(config, access_control, cluster_tls or ("required" if tls else None))
    _tell_unused(cluster.plan, asked, virtual_address)
    _bring_up(cluster, data_dir, _seconds(wait), common)
    _show_status(cluster, common)


@app.command
def status(*, data_dir: DataDir, common: Common = COMMON) -> None:
    """Show the processes and their states: running, paused, stopped by a command, or dead.

    For instance: strata local status --data-dir build/cluster -o json
    """
    _show_status(LocalCluster.open(data_dir), common)


@app.command
def kill(*names: Names, data_dir: DataDir, common: Common = COMMON) -> None:
    """Kill processes with SIGKILL, like a crash; return when they have ended.

    For instance: strata local kill storage-1 --data-dir build/cluster
    """
    cluster = LocalCluster.open(data_dir)
    cluster.kill(_some(names))
    _show_status(cluster, common, names)


@app.command
def pause(*names: Names, data_dir: DataDir, common: Common = COMMON) -> None:
    """Suspend processes with SIGSTOP: they keep memory and connections but do nothing.

    For instance: strata local pause storage-1 --data-dir build/cluster
    """
    cluster = LocalCluster.open(data_dir)
    cluster.pause(_some(names))
    _show_status(cluster, common, names)


@app.command
def resume(*names: Names, data_dir: DataDir, common: Common = COMMON) -> None:
    """Resume paused processes.

    For instance: strata local resume storage-1 --data-dir build/cluster
    """
    cluster = LocalCluster.open(data_dir)
    cluster.resume(_some(names))
    _show_status(cluster, common, names)


@app.command
def stop(*names: Names, data_dir: DataDir, wait: Wait = "30s", common: Common = COMMON) -> None:
    """Drain and end processes; a process that exceeds the time limit is killed.

    For instance: strata local stop broker-1 --data-dir build/cluster
    """
    cluster = LocalCluster.open(data_dir, _timeouts(wait))
    cluster.stop(_some(names))
    _show_status(cluster, common, names)


@app.command
def start(*names: Names, data_dir: DataDir, wait: Wait = "60s", common: Common = COMMON) -> None:
    """Start processes with their existing data; return when they serve.

    For instance: strata local start storage-1 --data-dir build/cluster
    """
    cluster = LocalCluster.open(data_dir, _timeouts(wait))
    with _log_shown():
        cluster.start(_some(names))
    _show_status(cluster, common, names)


@app.command
def add(
    role: Literal["storage", "broker"],
    /,
    *,
    data_dir: DataDir,
    wait: Wait = "60s",
    common: Common = COMMON,
) -> None:
    """Add one more storage node or broker and start it.

    For instance: strata local add storage --data-dir build/cluster

    Args:
        role: Role of the new process.
    """
    cluster = LocalCluster.open(data_dir, _timeouts(wait))
    with _log_shown():
        member = cluster.add(role)
    _show_status(cluster, common, (member.name,))


@app.command
def remove(name: str, /, *, data_dir: DataDir, common: Common = COMMON) -> None:
    """Remove a process that does not run from the cluster; its folder stays.

    Before you remove a storage node, drain it (strata node drain), stop it, and remove it from
    the metadata (strata node remove).

    For instance: strata local remove storage-4 --data-dir build/cluster

    Args:
        name: Name of the process.
    """
    LocalCluster.open(data_dir).remove(name)
    show({"removed": name}, common)


@app.command
def down(*, data_dir: DataDir, wait: Wait = "30s", common: Common = COMMON) -> None:
    """Stop all processes, brokers first; `up` starts them again with their data and ports.

    For instance: strata local down --data-dir build/cluster
    """
    cluster = LocalCluster.open(data_dir, _timeouts(wait))
    cluster.down()
    _show_status(cluster, common)


def _counts(asked: Mapping[Role, int | None]) -> dict[Role, int]:
    """Return how many members of each role a new cluster has.

    Raises:
        UsageError: it would have no storage node or no broker.
    """
    counts = {role: _DEFAULT_COUNTS[role] if n is None else n for role, n in asked.items()}
    if counts["storage"] < 1 or counts["broker"] < 1:
        raise UsageError("a cluster needs at least one storage node and one broker")
    return counts


def _chosen(virtual_address: str) -> list[int]:
    """Return the port that the operator chose; no other process gets it."""
    port = virtual_address.rpartition(":")[2]
    return [int(port)] if port.isdigit() else []


def _bring_up(cluster: LocalCluster, folder: Path, limit_s: float, common: Common) -> None:
    """Return when every process of a cluster serves, and clients are served."""
    with _log_shown():
        cluster.up()
    if endpoint := cluster.plan.client_endpoint:
        # The first admin's keys are in the folder from the first start on.
        wait_until_served(endpoint, limit_s, keys_of(folder, common))


def _show_status(
    cluster: LocalCluster, common: Common, names: tuple[str, ...] | None = None
) -> None:
    processes = [view for view in cluster.status() if names is None or view["name"] in names]
    show({"processes": processes}, common, rows="processes")


def _check_config(file: Path) -> None:
    """Check a configuration as the processes read it, before anything is created.

    Raises:
        ConfigError: the processes would refuse it.
    """
    from strata_cli.processes.cluster_config import ClusterConfig
    from strata_runtime.config import load

    load(ClusterConfig, file, os.environ)


def _tell_unused(plan: ClusterPlan, asked: Mapping[Role, int | None], virtual_address: str) -> None:
    """Warn of options that differ from the existing cluster and are ignored."""
    options = {"nameserver": "--nameservers", "storage": "--storage", "broker": "--brokers"}
    for role, count in asked.items():
        there = len(plan.of(role))
        first = plan.initial_storage_nodes if role == "storage" else there
        if count is not None and count not in (there, first):
            what = f"{options[role]} {count} is ignored: the existing cluster has {there}"
            print(f"strata: {what}", file=sys.stderr)
    given_port = virtual_address.rpartition(":")[2]
    if virtual_address and given_port != "0" and virtual_address != plan.virtual_address:
        there_at = plan.virtual_address or "none"
        what = (
            f"--virtual-address {virtual_address} is ignored: the existing cluster has {there_at}"
        )
        print(f"strata: {what}", file=sys.stderr)


def _processes(option: str, value: str | None) -> int:
    """Return how many processes a member has.

    Raises:
        UsageError: it is neither a number that is allowed nor auto.
    """
    from strata_cli.machine.plan import process_count
    from strata_cli.processes.cluster_config import MAX_PROCESSES

    asked = process_count_of(option, value) or 1
    if asked != "auto" and not 1 <= asked <= MAX_PROCESSES:
        raise UsageError(f"{option} {value}: write 1 to {MAX_PROCESSES}, or auto")
    return process_count(asked, usable_cores())


def _some(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise UsageError(f"no process named: give a name like storage-1 or {FORWARDER}")
    return names


def _timeouts(wait: str) -> Timeouts:
    return Timeouts(start_s=_seconds(wait), stop_s=_seconds(wait))


def _seconds(wait: str) -> float:
    return milliseconds(wait) / 1_000


@contextmanager
def _log_shown() -> Iterator[None]:
    """Show the end of a process's log when it did not start and gave no reason."""
    try:
        yield
    except NotReadyError as error:
        if not error.says_why:
            sys.stderr.write(error.log_tail)
        raise
