"""The members of a local cluster, and the command line of each process.

The plan is one JSON file in the cluster's folder, replaced as a whole. Ports are chosen once and
kept: a restarted process has its old address. A plan knows nothing of running processes.
"""

from __future__ import annotations

import atexit
import json
import random
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Literal, Self

from strata_cli.errors import CliError
from strata_runtime.errors import StrataError
from strata_runtime.files import replace_file

Role = Literal["nameserver", "storage", "broker", "forwarder"]

Transport = Literal["tcp", "http2"]

Codec = Literal["protobuf", "json", "avro"]

AccessControl = Literal["on", "off"]

ClusterTls = Literal["off", "optional", "required"]

FORMAT_VERSION = 1
HOST = "127.0.0.1"
FORWARDER = "forwarder"
AUTHORITY = "ca"
"""Folder of the cluster's authority, in the cluster's folder."""
CERTIFICATES = "tls-cluster"
"""Folder of a process's certificates, in its own folder."""
BROKERS = "brokers"
"""File in the forwarder's folder: one host:port per line."""
ROLES: tuple[Role, ...] = ("nameserver", "storage", "broker", "forwarder")
"""In the order in which the processes need each other."""

# Below the range from which the kernel takes ports for outgoing connections.
_PORTS = range(20_000, 32_000)
_FILE = "cluster.json"
# The nameservers' default; fewer storage nodes hold fewer replicas.
_REPLICATION_FACTOR = 3


class PlanError(StrataError):
    """A plan that cannot be read or made; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the cluster.

    Attributes:
        name: unique, `storage-1`.
        role: what it is.
        port: where it serves its peers or, for a broker or the forwarder, clients.
        metrics_port: where Prometheus scrapes it; 0: nowhere.
        host: address it listens on.
        http2_port: of a storage node that serves gRPC too; 0: it does not.
    """

    name: str
    role: Role
    port: int
    metrics_port: int = 0
    host: str = HOST
    http2_port: int = 0

    @property
    def address(self) -> str:
        """host:port that others connect to."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """All processes of a cluster.

    Attributes:
        members: in the order of their start.
        virtual_address: host:port of the forwarder before the brokers; empty: there is none.
        config: file that every process but the forwarder gets with `--config`; empty: none.
        initial_storage_nodes: storage nodes of the first start; raft groups are created once all
            of them are there.
        storage_transport: transport of calls from brokers to storage nodes.
        storage_codec: encoding of those calls.
        tier: URL of the object store for old messages; empty: none.
        cluster_tls: between the processes; empty: by their configuration.
        access_control: of every process but the forwarder; empty: by their configuration.
        workers: processes of each broker.
        shards: storage nodes of each storage member, on ports that follow each other.
        served: whether processes may have served; False: the first start failed, and the next `up`
            creates the cluster anew.
        format_version: of the file.
    """

    members: tuple[Member, ...]
    virtual_address: str = ""
    config: str = ""
    initial_storage_nodes: int = 1
    storage_transport: Transport = "tcp"
    storage_codec: Codec = "protobuf"
    tier: str = ""
    access_control: AccessControl | Literal[""] = ""
    cluster_tls: ClusterTls | Literal[""] = ""
    served: bool = True
    workers: int = field(default=1, kw_only=True)
    shards: int = field(default=1, kw_only=True)
    format_version: int = field(default=FORMAT_VERSION, kw_only=True)

    def of(self, role: Role) -> list[Member]:
        """Return the members of a role."""
        return [member for member in self.members if member.role == role]

    @property
    def client_endpoint(self) -> str:
        """Where clients connect: the virtual address, or the first broker; empty: there is none."""
        brokers = self.of("broker")
        return self.virtual_address or (brokers[0].address if brokers else "")

    def member(self, name: str) -> Member:
        """Return a member by its name.

        Raises:
            CliError: there is none of that name.
        """
        for member in self.members:
            if member.name == name:
                return member
        known = ", ".join(member.name for member in self.members)
        raise CliError(f"no process named {name}; there are {known}")

    def with_member(
        self, role: Role, ports: Iterator[int], used: Iterable[str] = ()
    ) -> tuple[Self, Member]:
        """Return the plan with one more member of a role, and that member.

        Args:
            role: of the new member.
            ports: free ports.
            used: names not to use again: a new member must not get a removed member's folder.
        """
        names = {*used, *(member.name for member in self.members)}
        number = next(each for each in count(1) if f"{role}-{each}" not in names)
        member = _member(role, number, ports, self.storage_transport)
        members = sorted((*self.members, member), key=lambda each: ROLES.index(each.role))
        return replace(self, members=tuple(members)), member

    def without(self, name: str) -> Self:
        """Return the plan without a member.

        Raises:
            CliError: there is none of that name.
        """
        gone = self.member(name)
        return replace(self, members=tuple(each for each in self.members if each is not gone))

    def taken_ports(self) -> set[int]:
        """Return every port of the plan."""
        return {port for member in self.members for port in self.ports_of(member)}

    def ports_of(self, member: Member) -> list[int]:
        """Return every port of a member."""
        count = self.shards if member.role == "storage" else 1
        runs = [range(first, first + count) for first in (member.port, member.http2_port) if first]
        return [*(port for run in runs for port in run), *filter(None, (member.metrics_port,))]

    def arguments(self, member: Member, folder: Path) -> list[str]:
        """Return the arguments of `strata` that run a member on its folder."""
        if member.role == "forwarder":
            return ["forwarder", f"--listen={member.address}", f"--brokers-file={folder / BROKERS}"]
        nameservers = ",".join(each.address for each in self.of("nameserver"))
        arguments = [
            member.role,
            f"--data-dir={folder}",
            f"--host={member.host}",
            f"--nameservers={nameservers}",
            f"--metrics-port={member.metrics_port}",
        ]
        if self.config:
            arguments.append(f"--config={self.config}")
        if self.cluster_tls:
            arguments.append(f"--cluster-tls={self.cluster_tls}")
            arguments.append(f"--cluster-certificates={folder / CERTIFICATES}")
        if self.access_control:
            arguments.append(f"--access-control={self.access_control}")
        if member.role == "nameserver":
            arguments.append(f"--initial-storage-nodes={self.initial_storage_nodes}")
            if self.initial_storage_nodes < _REPLICATION_FACTOR:
                arguments.append(f"--replication-factor={self.initial_storage_nodes}")
        if member.role == "storage":
            arguments += [f"--shards={self.shards}"] if self.shards > 1 else []
            arguments += [f"--tier={self.tier}"] if self.tier else []
        if member.role != "broker":
            http2 = [f"--http2-port={member.http2_port}"] if member.http2_port else []
            return [*arguments, f"--port={member.port}", *http2]
        arguments.append(f"--grpc-port={member.port}")
        arguments += [f"--workers={self.workers}"] if self.workers > 1 else []
        arguments.append(f"--storage-transport={self.storage_transport}")
        arguments.append(f"--storage-codec={self.storage_codec}")
        if seeds := ",".join(each.address for each in self.of("storage")):
            arguments.append(f"--storage-seeds={seeds}")
        if self.virtual_address:
            arguments.append(f"--virtual-address={self.virtual_address}")
        return arguments


def new_plan(
    counts: dict[Role, int],
    ports: Iterator[int],
    *,
    virtual_address: str = "",
    config: Path | None = None,
    storage_transport: Transport = "tcp",
    storage_codec: Codec = "protobuf",
    tier: str = "",
    workers: int = 1,
    shards: int = 1,
) -> ClusterPlan:
    """Return a plan with that many members of each role.

    Args:
        counts: members of each role but the forwarder.
        ports: free ports; of a storage member the first of `shards` ones.
        virtual_address: host:port the forwarder listens on; port 0: any free one; empty: none.
        config: file for every process.
        storage_transport: how brokers call storage nodes.
        storage_codec: encoding of those calls.
        tier: URL of the object store for old messages; empty: none.
        workers: processes of each broker.
        shards: storage nodes of each storage member.

    Raises:
        CliError: the virtual address is no host:port.
    """
    members = [
        _member(role, number, ports, storage_transport)
        for role in ROLES
        for number in range(1, counts.get(role, 0) + 1)
    ]
    if virtual_address:
        host, port = _split(virtual_address)
        forwarder = Member(FORWARDER, "forwarder", port or next(ports), host=host)
        members.append(forwarder)
        virtual_address = forwarder.address
    return ClusterPlan(
        tuple(members),
        virtual_address,
        str(config.resolve()) if config else "",
        counts.get("storage", 0),
        storage_transport,
        storage_codec,
        tier,
        workers=workers,
        shards=shards,
    )


def load(folder: Path) -> ClusterPlan | None:
    """Return the plan in a folder; None: there is none.

    Raises:
        PlanError: it is damaged or of another version.
    """
    file = folder / _FILE
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        values["members"] = tuple(Member(**member) for member in values["members"])
        plan = ClusterPlan(**values)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PlanError(f"{file}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise PlanError(f"{file} is damaged: {error}") from None
    if plan.format_version != FORMAT_VERSION:
        raise PlanError(
            f"{file}: format {plan.format_version}, this version reads {FORMAT_VERSION}"
        )
    return plan


def save(folder: Path, plan: ClusterPlan) -> None:
    """Write a plan into a folder; a reader sees the old one or the new one.

    Raises:
        PlanError: the folder cannot be written.
    """
    replace_text(folder / _FILE, json.dumps(asdict(plan), indent=2) + "\n")


def replace_text(file: Path, text: str) -> None:
    """Put a file in place of another as a whole.

    Raises:
        PlanError: it cannot be written.
    """
    try:
        replace_file(file, text.encode())
    except OSError as error:
        raise PlanError(f"{file}: {error.strerror}") from None


def free_ports(
    taken: Iterable[int] = (), is_free: Callable[[int], bool] | None = None, *, run: int = 1
) -> Iterator[int]:
    """Yield ports that nothing listens on, none of them twice and none that is taken.

    Args:
        taken: not to be used.
        is_free: tells whether a port can be used; None: it is held from then on, too.
        run: ports that follow each other and are free together; the first of them is yielded.

    Raises:
        PlanError: there is no free port any more.
    """
    excluded = set(taken)
    check = is_free or _hold
    firsts = range(_PORTS.start, _PORTS.stop - run + 1, run)
    for first in random.sample(firsts, len(firsts)):
        ports = range(first, first + run)
        if excluded.isdisjoint(ports) and all(map(check, ports)):
            yield first
    raise PlanError(f"no free port between {_PORTS.start} and {_PORTS.stop}")


def _member(role: Role, number: int, ports: Iterator[int], transport: Transport) -> Member:
    http2_port = next(ports) if role == "storage" and transport == "http2" else 0
    return Member(f"{role}-{number}", role, next(ports), next(ports), http2_port=http2_port)


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise CliError(f"--virtual-address {address}: write HOST:PORT")
    return host, int(port)


# Ports that were chosen, bound until this process ends: the servers are not up yet.
_held = ExitStack()
atexit.register(_held.close)


def _hold(port: int) -> bool:
    """Hold a port until this process ends; return False if it is in use or held.

    A bind without SO_REUSEADDR fails on a held port. A server binds with SO_REUSEADDR, so its bind
    works as long as no process listens.
    """
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, port))
    except OSError:
        holder.close()
        return False
    _held.enter_context(holder)
    return True
