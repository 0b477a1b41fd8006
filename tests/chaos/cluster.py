"""A cluster whose every process is a host of its own, and whose storage nodes have small disks.

Works inside a network and a mount namespace of its own (`unshare --net --mount`): nothing of the
machine is touched, and all of it goes when the run ends.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from strata_cli.local.plan import ClusterPlan, Member, load, save
from tests.e2e.cluster import STRATA, Cluster, ClusterError
from tests.e2e.networks import HUB, Host, make_bridge

NAMESERVERS, STORAGE, BROKERS = 3, 3, 2
DISK_BYTES = 1_500_000_000
REMOTING_PORT = 10_911
START_LIMIT_S = 120.0
CONFIG = f"""\
plugins = ["kv"]

[access_control]
mode = "off"
insecure = true

[receive]
min_invisible_ms = 1000

[remoting]
port = {REMOTING_PORT}

[storage]
log_segment_bytes = 16777216
retention_interval_ms = 5000
transaction_check_interval_ms = 5000
scrub_bytes_per_s = 33554432
"""


class ChaosCluster(Cluster):
    """Three nameservers, three storage nodes, two brokers, and a forwarder that clients call.

    Args:
        data_dir: its folder.
    """

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        make_bridge()
        data_dir.mkdir(parents=True)
        config = data_dir / "strata.toml"
        config.write_text(CONFIG)
        self.hosts: dict[str, Host] = {}
        members = [self._new_member("nameserver", n) for n in range(1, NAMESERVERS + 1)]
        members += [self._new_member("storage", n) for n in range(1, STORAGE + 1)]
        members += [self._new_member("broker", n) for n in range(1, BROKERS + 1)]
        members.append(Member("forwarder", "forwarder", 8_000, host=HUB))
        plan = ClusterPlan(
            tuple(members), f"{HUB}:8000", str(config), initial_storage_nodes=STORAGE
        )
        save(data_dir, plan)

    def up(self) -> float:
        """Start what does not run, each on its host; return the seconds it took."""
        started = time.monotonic()
        for role in ("forwarder", "nameserver", "storage", "broker"):
            names = [
                each["name"]
                for each in self.local("status")
                if each["role"] == role and each["state"] != "running"
            ]
            processes = [self._starting(name) for name in names]
            for name, process in zip(names, processes, strict=True):
                _, said = process.communicate(timeout=START_LIMIT_S)
                if process.returncode:
                    raise ClusterError(f"{name}: {said}")
        self.endpoint = self.address("forwarder")
        return time.monotonic() - started

    def start(self, name: str) -> None:
        """Start one process on its host.

        Raises:
            ClusterError: it did not come up.
        """
        process = self._starting(name)
        _, said = process.communicate(timeout=START_LIMIT_S)
        if process.returncode:
            raise ClusterError(f"{name}: {said}")

    def add_storage(self) -> str:
        """Add a storage node and start it; return its name."""
        plan = load(self.data_dir)
        assert plan is not None
        number = 1 + max(int(name.partition("-")[2]) for name in self.hosts if "storage" in name)
        member = self._new_member("storage", number)
        save(self.data_dir, replace(plan, members=(*plan.members, member)))
        self.start(member.name)
        return member.name

    def remove(self, name: str) -> None:
        """Forget a process that was stopped, and its host."""
        self.local("remove", name)
        self.hosts.pop(name).close()

    def remoting_ports(self) -> list[str]:
        """Return the address of each broker's port for remoting clients."""
        return [f"{self.hosts[name].address}:{REMOTING_PORT}" for name in self.names("broker")]

    def state(self, name: str) -> str:
        """Return the state of a process as `local status` says it."""
        [state] = [each["state"] for each in self.local("status") if each["name"] == name]
        assert isinstance(state, str)
        return state

    def node_id(self, name: str) -> str:
        """Return the node id of a storage process."""
        [found] = [node for node, each in self.names_of_nodes().items() if each == name]
        return found

    def healed(self) -> None:
        """Let everything run, and wait until the cluster is whole.

        Raises:
            NeverHeld: it does not become whole.
        """
        for name, host in self.hosts.items():
            host.mend()
            if self.state(name) == "paused":
                self.local("resume", name)
        self.reaches(self._all_up, START_LIMIT_S)
        self.settle()

    def close(self) -> None:
        """Stop everything, for good."""
        self.down()
        for host in self.hosts.values():
            host.close()

    def _all_up(self) -> bool:
        self.up()
        return True

    def _new_member(self, role: str, number: int) -> Member:
        name = f"{role}-{number}"
        host = self.hosts[name] = Host(len(self.hosts) + 1 + 10 * (number > STORAGE))
        if role == "storage":
            folder = self.data_dir / name
            folder.mkdir(parents=True, exist_ok=True)
            _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder))
            return Member(name, "storage", 10_920, 0, host.address)
        if role == "nameserver":
            return Member(name, "nameserver", 9_877, 0, host.address)
        return Member(name, "broker", 8_081, 0, host.address)

    def _starting(self, name: str) -> subprocess.Popen[str]:
        command = [str(STRATA), "local", "start", name, "--data-dir", str(self.data_dir)]
        if name in self.hosts:
            command = self.hosts[name].enter(*command)
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )


def missing() -> str:
    """Return which tool a run lacks; empty when none."""
    for tool in ("mount", "nsenter", "ip"):
        if shutil.which(tool) is None:
            return tool
    return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
