"""Part of `test_cluster_network` inside a network namespace of its own.

Each storage node is a host with a cable. Not collected by itself: it would change the network of
whoever runs it.
"""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_cli.local.plan import ClusterPlan, Member, save
from tests.e2e.cluster import STRATA, Cluster, ClusterError
from tests.e2e.history import check, skipped
from tests.e2e.load import Load, percentile
from tests.e2e.networks import HUB, Host, make_bridge
from tests.e2e.test_cluster_faults import AFTER_S, BEFORE_S, GAP_MAX_S, GAP_P50_S, rounds
from tests.limits import within

STORAGE = 3
LIMIT_S = 3_000.0
CONFIG = """\
[access_control]
mode = "off"
insecure = true
"""
"""Hosts of their own are no loopback; their network ends in this machine."""


class NetworkedCluster(Cluster):
    """A cluster whose storage nodes are hosts of their own.

    Args:
        data_dir: its folder.
        hosts: of the storage nodes.
    """

    def __init__(self, data_dir: Path, hosts: dict[str, Host]) -> None:
        super().__init__(data_dir)
        self._hosts = hosts
        data_dir.mkdir()
        members = [Member(f"nameserver-{n}", "nameserver", 9_000 + n, 0, HUB) for n in (1, 2, 3)]
        members += [
            Member(name, "storage", 10_920, 0, host.address) for name, host in hosts.items()
        ]
        members += [Member(f"broker-{n}", "broker", 8_000 + n, 0, HUB) for n in (1, 2)]
        members.append(Member("forwarder", "forwarder", 8_000, host=HUB))
        config = data_dir / "strata.toml"
        config.write_text(CONFIG)
        plan = ClusterPlan(
            tuple(members), f"{HUB}:8000", str(config), initial_storage_nodes=len(hosts)
        )
        save(data_dir, plan)

    def up(self) -> float:
        """Start everything, storage nodes on their hosts; return the seconds it took."""
        started = time.monotonic()
        self.local("start", "forwarder", *self.names("nameserver"))
        for name, host in self._hosts.items():
            command = [STRATA, "local", "start", name, "--data-dir", self.data_dir]
            done = subprocess.run(
                host.enter(*map(str, command)), capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise ClusterError(done.stderr)
        self.local("start", *self.names("broker"))
        self.endpoint = self.address("forwarder")
        return time.monotonic() - started


@pytest.fixture
def hosts() -> Iterator[dict[str, Host]]:
    """One host for each storage node."""
    make_bridge()
    made = {f"storage-{number}": Host(number) for number in range(1, STORAGE + 1)}
    yield made
    for host in made.values():
        host.close()


@pytest.fixture
def cluster(tmp_path: Path, hosts: dict[str, Host]) -> Iterator[NetworkedCluster]:
    """A running cluster on the hosts."""
    made = NetworkedCluster(tmp_path / "c", hosts)
    made.up()
    made.settle()
    yield made
    made.down()


@pytest.mark.timeout(LIMIT_S)
async def test_inside(cluster: NetworkedCluster, hosts: dict[str, Host]) -> None:
    """The node that leads most raft groups is cut off for a while: others lead, none is lost."""
    load = Load(cluster.endpoint, "cut-normal", "cut-fifo", "cut-consumers")
    load.create_topics(cluster)
    spans = []
    async with load.running():
        for _ in range(rounds()):
            await asyncio.sleep(BEFORE_S)
            name = (await asyncio.to_thread(cluster.by_leaderships))[0]
            since_s = time.monotonic()
            hosts[name].cut()
            await asyncio.sleep(AFTER_S)
            spans.append((name, since_s, time.monotonic()))
            hosts[name].mend()
            await asyncio.to_thread(cluster.settle)
        await asyncio.sleep(BEFORE_S)
    gaps = [load.gap_s(since_s, until_s) for _, since_s, until_s in spans]
    for (name, _, _), gap_s in zip(spans, gaps, strict=True):
        print(f"cut of {name}: longest wait for an answer {gap_s:.2f} s")
    await load.drain()
    print(
        f"cut: {load.count()} answered, {len(load.errors)} calls repeated, "
        f"errors {sorted(set(load.errors))[:4]}"
    )
    assert check(load.history) == []
    assert skipped(load.history, load.group, load.normal) == []
    within("median gap", percentile(gaps, 0.5), GAP_P50_S)
    within("longest gap", max(gaps), GAP_MAX_S)
