"""Machines of several processes: a worker and a whole machine are killed under load."""

import asyncio
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_testing import NotYet, until_blocking
from tests.e2e.client import Client
from tests.e2e.cluster import Cluster
from tests.e2e.history import check, skipped
from tests.e2e.load import Load

PAUSE_S = 0.1
LIMIT_S = 90.0
SENDS = 60
"""Answers that show that senders go on."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three machines with two storage nodes each, and a broker of two workers."""
    made = Cluster(
        tmp_path_factory.mktemp("cluster") / "c",
        nameservers=1,
        brokers=1,
        workers=2,
        shards=2,
        forwarder=False,
    )
    made.up()
    made.settle()
    yield made
    made.down()


def process(cluster: Cluster, name: str) -> dict[str, str]:
    [found] = [each for each in cluster.local("status") if each["name"] == name]
    assert isinstance(found, dict)
    return found


def children(pid: int) -> list[int]:
    """Return the processes that a supervisor has started and that run."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


def metrics(shown: dict[str, str]) -> dict[str, float]:
    """Return the series of a machine's page."""
    with urllib.request.urlopen(f"http://{shown['metrics']}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {
        series: float(value)
        for series, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")
    }


def by_node(shown: dict[str, str], metric: str) -> dict[str, float]:
    """Return the values of a metric by node id."""
    found = metrics(shown).items()
    pattern = re.compile(rf'{metric}{{.*node_id="([^"]*)".*')
    return {m[1]: value for series, value in found if (m := pattern.match(series))}


def goes_on(load: Load) -> None:
    """Wait until senders have got more answers."""
    before = load.count()
    until_blocking(
        lambda: load.count() >= before + SENDS or NotYet(f"{load.count() - before} answers"),
        LIMIT_S,
        step_s=0.1,
    )


def shows_both(cluster: Cluster, group: str) -> object:
    """Whether each of three answers, of whichever worker, names both members of a group."""
    counts = [len(cluster.strata("group", "show", group)["members"]) for _ in range(3)]
    return counts == [2] * 3 or NotYet(counts)


def each_has_connections(broker: dict[str, str]) -> object:
    """Whether both workers got connections; a front of its own process tells of them later."""
    found = by_node(broker, "strata_edge_connections")
    return (len(found) == 2 and all(found.values())) or NotYet(found)


def until_led(cluster: Cluster, dead: set[str]) -> None:
    """Wait until every raft group is led by a node that lives."""

    def leaderless() -> list[int]:
        return [
            group.health.raft_group
            for group in cluster.raft_groups()
            if group.health.leader_node_id in {"", *dead}
        ]

    assert cluster.raft_groups()
    cluster.reaches(lambda: not (left := leaderless()) or NotYet(f"raft groups {left}"), LIMIT_S)


def check_places(cluster: Cluster) -> None:
    """Replicas of a raft group are on three machines, and all six storage nodes have some."""
    names, machines, used = cluster.names_of_nodes(), cluster.names("storage"), set()
    for group in cluster.raft_groups():
        nodes = [replica.node_id for replica in group.replicas]
        assert sorted(names[node] for node in nodes) == machines
        used.update(nodes)
    assert len(used) == 6


@pytest.mark.timeout(300)
def test_a_cluster_shows_its_machines(cluster: Cluster) -> None:
    """Each process is a node; those of one command are one machine, and one pid is signalled."""
    check_places(cluster)
    nodes = cluster.strata("cluster", "show")["nodes"]
    machines = {node["node"]: node["machine"] for node in nodes}
    for shown in cluster.local("status"):
        if shown["role"] == "nameserver":
            continue
        mine = {machines[node] for node in shown["node"].split(",")}
        assert len(shown["node"].split(",")) == 2
        assert len(mine) == 1
        assert sum(machine in mine for machine in machines.values()) == 2
        assert len(children(int(shown["pid"]))) == 2
        ready = by_node(shown, "strata_process_ready")
        assert ready == dict.fromkeys([*shown["node"].split(","), *mine], 1.0)

    brokers = [node for node in nodes if node["role"] == "broker"]
    assert {node["advertised_endpoint"] for node in brokers} == {cluster.endpoint}
    assert len({node["endpoints"][0] for node in brokers} | {cluster.endpoint}) == 3


async def test_routes_name_the_port_once(cluster: Cluster) -> None:
    """Each queue has exactly the address that clients connect to, whatever worker answers."""
    cluster.create_topic("routed", "--queues", "6")
    host, _, port = cluster.endpoint.rpartition(":")
    for _ in range(4):
        async with Client(cluster.endpoint) as client:
            for queue in await client.queues("routed"):
                [address] = queue.broker.endpoints.addresses
                assert (address.host, str(address.port)) == (host, port)


@pytest.mark.kill
@pytest.mark.timeout(300)
async def test_a_worker_that_dies_is_started_again(cluster: Cluster) -> None:
    """Its clients go to the other worker; nothing that was answered is lost."""
    load = Load(cluster.endpoint, "worker-n", "worker-f", "workers", PAUSE_S)
    load.create_topics(cluster)
    broker = process(cluster, "broker-1")
    supervisor = int(broker["pid"])
    async with load.running():
        await asyncio.to_thread(goes_on, load)
        await asyncio.to_thread(until_blocking, lambda: each_has_connections(broker), LIMIT_S)
        victim, other = children(supervisor)
        os.kill(victim, signal.SIGKILL)
        await asyncio.to_thread(goes_on, load)
        # A consumer of the dead worker is a member again with its next call.
        await asyncio.to_thread(until_blocking, lambda: shows_both(cluster, load.group), LIMIT_S)
        await asyncio.to_thread(
            until_blocking,
            lambda: list(by_node(broker, "strata_process_ready").values()) == [1] * 3,
            LIMIT_S,
        )
        assert other in children(supervisor)
        assert victim not in children(supervisor)
        restarts = await asyncio.to_thread(metrics, broker)
        await asyncio.to_thread(goes_on, load)

    [count] = [v for k, v in restarts.items() if k.startswith("strata_machine_restarts_total")]
    assert count == 1
    await load.drain()
    assert check(load.history) == []
    assert skipped(load.history, load.group, load.normal) == []


@pytest.mark.kill
@pytest.mark.timeout(300)
async def test_a_machine_that_dies_takes_no_quorum(cluster: Cluster) -> None:
    """Both its storage nodes end at once: every raft group goes on with two replicas."""
    load = Load(cluster.endpoint, "machine-n", "machine-f", "machines", PAUSE_S)
    load.create_topics(cluster)
    async with load.running():
        await asyncio.to_thread(goes_on, load)
        victim = (await asyncio.to_thread(cluster.by_leaderships))[0]
        shown = process(cluster, victim)
        pids, dead = children(int(shown["pid"])), set(shown["node"].split(","))
        await asyncio.to_thread(cluster.local, "kill", victim)
        assert len(pids) == len(dead) == 2
        await asyncio.to_thread(until_blocking, lambda: not any(map(exists, pids)), LIMIT_S)
        await asyncio.to_thread(goes_on, load)
        # Sends go on as soon as one raft group is led; each of them must be.
        await asyncio.to_thread(until_led, cluster, dead)
        await asyncio.to_thread(cluster.local, "start", victim, "--wait", "80s")
        await asyncio.to_thread(goes_on, load)

    await load.drain()
    assert check(load.history) == []
    assert skipped(load.history, load.group, load.normal) == []
    await asyncio.to_thread(cluster.settle)
    check_places(cluster)
