"""A cluster of real processes: `strata local` and the admin commands, seen only from outside.

STRATA_TEST_TRANSPORT=http2 lets its brokers call storage nodes by gRPC where no test says how.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from strata.admin.v1 import admin_pb2, admin_pb2_grpc
from strata_testing import NotYet, until_blocking
from tests.e2e.client import SHORT_TIMES
from tests.e2e.leftovers import free_disk
from tests.parts.commands import strata

STRATA = Path(sys.executable).with_name("strata")
UP_TIMEOUT_S = 240.0
READY_WITHIN = "200s"
"""For one tier; machines of several processes start all of them at once."""
COMMAND_TIMEOUT_S = 90.0
POLL_S = 0.1
SETTLE_LIMIT_S = 60.0
CALL_TIMEOUT_S = 10.0
MAX_BEHIND = 200
ENVIRONMENT = SHORT_TIMES | {"STRATA_ENDPOINT": ""}
"""Entries that a replica which keeps up may lack under load."""


class ClusterError(Exception):
    """A command failed; the text is what it said."""


class Cluster:
    """The cluster in one folder; it can be brought up and down again and again.

    Args:
        data_dir: the folder.
        nameservers: how many.
        storage: how many.
        brokers: how many.
        config: TOML file for every process.
        transport: how brokers call storage nodes; empty: as the environment says.
        codec: encoding of those calls.
        workers: processes of each broker.
        shards: processes of each storage node.
        forwarder: a TCP forwarder stands before the brokers; without it clients connect to the
            first broker.
        cluster_tls: between processes: off, optional or required; empty: off.
    """

    def __init__(
        self,
        data_dir: Path,
        nameservers: int = 3,
        storage: int = 3,
        brokers: int = 2,
        config: Path | None = None,
        transport: str = "",
        codec: str = "protobuf",
        *,
        workers: int = 1,
        shards: int = 1,
        forwarder: bool = True,
        cluster_tls: str = "",
    ) -> None:
        transport = transport or os.environ.get("STRATA_TEST_TRANSPORT", "tcp")
        self.data_dir = data_dir
        self.endpoint = ""
        self._entrance = "forwarder" if forwarder else "broker-1"
        self._options = [
            *("--nameservers", str(nameservers), "--storage", str(storage)),
            *("--brokers", str(brokers), "--workers", str(workers), "--shards", str(shards)),
            *(("--virtual-address", "127.0.0.1:0") if forwarder else ()),
            *("--storage-transport", transport, "--storage-codec", codec),
            *(("--config", str(config)) if config else ()),
            *(("--cluster-tls", cluster_tls) if cluster_tls else ()),
        ]

    def up(self) -> float:
        """Start what does not run; return the seconds it took until all served."""
        started = time.monotonic()
        self.local("up", *self._options, "--wait", READY_WITHIN, timeout_s=UP_TIMEOUT_S)
        took_s = time.monotonic() - started
        self.endpoint = self.address(self._entrance)
        return took_s

    def down(self) -> None:
        """Stop everything, for good."""
        self.local("down", "--wait", "10s")
        free_disk(self.data_dir)

    def local(self, verb: str, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> Any:
        """Run `strata local VERB` and return its list of processes.

        Raises:
            ClusterError: it failed.
        """
        output = _local(
            "local", verb, *arguments, "--data-dir", str(self.data_dir), timeout_s=timeout_s
        )
        return output.get("processes")

    def strata(self, *arguments: str) -> Any:
        """Run a command against the cluster and return its JSON output.

        Raises:
            ClusterError: it failed.
        """
        done = strata(
            *arguments, "--endpoint", self.endpoint, "-o", "json", environment=ENVIRONMENT
        )
        if done.code != 0:
            raise ClusterError(f"strata {' '.join(arguments)}: {(done.err or done.out).decode()}")
        return json.loads(done.out)

    def create_topic(self, name: str, *options: str) -> str:
        """Create a topic with CLI options (`"--type", "FIFO"`); return its name."""
        self.strata("topic", "create", name, *options)
        return name

    def create_group(self, name: str, *options: str) -> str:
        """Create a consumer group with CLI options; return its name."""
        self.strata("group", "create", name, *options)
        return name

    def names(self, role: str) -> list[str]:
        """Return the names of the processes of a role."""
        return [each["name"] for each in self.local("status") if each["role"] == role]

    def address(self, name: str) -> str:
        """Return the address of a process."""
        [address] = [each["address"] for each in self.local("status") if each["name"] == name]
        assert isinstance(address, str)
        return address

    def raft_groups(self) -> list[admin_pb2.GetRaftGroupResponse]:
        """Return the raft groups with all their replicas."""
        with grpc.insecure_channel(self.endpoint) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            try:
                shown = stub.GetCluster(admin_pb2.GetClusterRequest(), timeout=CALL_TIMEOUT_S)
                return [
                    stub.GetRaftGroup(
                        admin_pb2.GetRaftGroupRequest(raft_group=health.raft_group),
                        timeout=CALL_TIMEOUT_S,
                    )
                    for health in shown.raft_groups
                ]
            except grpc.RpcError as error:
                raise ClusterError(f"{error.code()}: {error.details()}") from None

    def names_of_nodes(self) -> dict[str, str]:
        """Return node id -> name of its process; a node that is no process of ours is left out."""
        names = {}
        for process in self.local("status"):
            folder = self.data_dir / process["name"]
            for identity in (folder / "identity.json", *folder.glob("*-*/identity.json")):
                if identity.is_file():
                    node_id = json.loads(identity.read_text())[f"{process['role']}_node_id"]
                    names[node_id] = process["name"]
        return names

    def by_leaderships(self) -> list[str]:
        """Return the storage processes, the one that leads most raft groups first."""
        names = self.names_of_nodes()
        led = [names.get(group.health.leader_node_id, "") for group in self.raft_groups()]
        return sorted(self.names("storage"), key=lambda name: -led.count(name))

    def settle(self, limit_s: float = SETTLE_LIMIT_S) -> float:
        """Wait until every raft group is led and all its replicas keep up; return the seconds.

        Raises:
            NeverHeld: it takes longer than the limit.
        """
        return self.reaches(lambda: not (why := self.unsettled()) or NotYet(why), limit_s)

    def spread(self, limit_s: float = SETTLE_LIMIT_S) -> float:
        """Wait until no node leads more raft groups than its share; return the seconds.

        Leaders still move for some seconds after `settle`.

        Raises:
            NeverHeld: it takes longer than the limit.
        """
        nodes = len(self.names("storage"))

        def is_even() -> object:
            led = Counter(group.health.leader_node_id for group in self.raft_groups())
            return max(led.values()) <= -(-led.total() // nodes) or NotYet(led)

        return self.reaches(is_even, limit_s)

    def reaches(self, holds: Callable[[], object], limit_s: float) -> float:
        """Wait until something holds; return the seconds it took.

        Args:
            holds: whether it holds; a command that fails means "not yet".
            limit_s: how long.

        Raises:
            NeverHeld: it did not hold in time.
        """
        return until_blocking(holds, limit_s, step_s=POLL_S, forgiven=ClusterError)

    def unsettled(self) -> str:
        """Return what is not as it should be; empty when all is well."""
        groups = self.raft_groups()
        if not groups:
            return "there is no raft group"
        for group in groups:
            number, commit = group.health.raft_group, group.health.commit_index
            if not group.health.leader_node_id:
                return f"raft group {number} has no leader"
            for replica in group.replicas:
                behind = commit - replica.last_index
                if replica.role != "voter" or replica.state != "serving" or behind > MAX_BEHIND:
                    return f"raft group {number}, commit index {commit}: {replica}"
        return ""


def _local(*arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> Any:
    done = subprocess.run(
        [str(STRATA), *arguments, "-o", "json"],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=os.environ | ENVIRONMENT,
    )
    if done.returncode != 0:
        raise ClusterError(f"strata {' '.join(arguments)}: {done.stderr or done.stdout}")
    return json.loads(done.stdout)
