"""Faults of single processes of a cluster under load: nothing acknowledged is lost, order stays.

Each fault happens once in `make test`, twice in `make test-full`, or a fifth of STRATA_TEST_ROUNDS
times; pauses do by halves, a node and a broker. Gaps are printed; with STRATA_TEST_LIMITS=1 they
are held against what is promised.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator

import pytest

from strata_testing import NotYet, until
from tests import stages
from tests.e2e.cluster import Cluster
from tests.e2e.history import check, skipped
from tests.e2e.load import Load, percentile
from tests.limits import within

BEFORE_S = 1.5
AFTER_S = 3.5
PAUSE_S = stages.seconds(test=4.0, full=10.0)
"""Longer than leases of leaders and elections take."""
GAP_P50_S = 1.5
GAP_MAX_S = 3.0
LEAST_ANSWERS_PER_ROUND = 100

Fault = Callable[[Cluster], str]
"""Does harm and returns the name of the process it was done to."""


def rounds() -> int:
    """Return how often each fault happens."""
    return max(1, stages.rounds(test=5, full=10) // 5)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for all tests of this module; each has topics of its own."""
    made = Cluster(tmp_path_factory.mktemp("cluster") / "c")
    print(f"up in {made.up():.1f} s at {made.data_dir}")
    yield made
    made.down()


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """The cluster with all of its processes up, whatever the test before did."""
    running.up()
    running.settle()
    return running


def kill_leader(cluster: Cluster) -> str:
    """Kill the storage node that leads most raft groups."""
    name = cluster.by_leaderships()[0]
    cluster.local("kill", name)
    return name


def kill_follower(cluster: Cluster) -> str:
    """Kill the storage node that leads fewest raft groups."""
    name = cluster.by_leaderships()[-1]
    cluster.local("kill", name)
    return name


def kill_broker(cluster: Cluster) -> str:
    """Kill one broker."""
    name = random.choice(cluster.names("broker"))
    cluster.local("kill", name)
    return name


def kill_nameserver(cluster: Cluster) -> str:
    """Kill one nameserver; in some rounds it is the leader."""
    name = random.choice(cluster.names("nameserver"))
    cluster.local("kill", name)
    return name


def pause_leader(cluster: Cluster) -> str:
    """Pause the storage node that leads most raft groups, as a long stall does."""
    name = cluster.by_leaderships()[0]
    cluster.local("pause", name)
    time.sleep(PAUSE_S)
    cluster.local("resume", name)
    return name


def pause_broker(cluster: Cluster) -> str:
    """Pause one broker, as a long stall does."""
    name = random.choice(cluster.names("broker"))
    cluster.local("pause", name)
    time.sleep(PAUSE_S)
    cluster.local("resume", name)
    return name


async def harm(cluster: Cluster, fault: Fault) -> tuple[str, float, float]:
    """Do harm and mend it; return to whom, and the span in which it was felt."""
    await asyncio.sleep(BEFORE_S)
    since_s = time.monotonic()
    name = await asyncio.to_thread(fault, cluster)
    await asyncio.sleep(AFTER_S)
    until_s = time.monotonic()
    await asyncio.to_thread(cluster.up)
    await asyncio.to_thread(cluster.settle)
    return name, since_s, until_s


def _few(load: Load) -> NotYet:
    return NotYet(f"{load.count()} sends were answered; {sorted(set(load.errors))[:4]}")


async def harm_and_check(cluster: Cluster, fault: Fault, times: int) -> list[float]:
    """Do harm some times, then drain and judge; return the gaps."""
    name = fault.__name__.replace("_", "-")
    load = Load(cluster.endpoint, f"{name}-normal", f"{name}-fifo", f"{name}-consumers")
    load.create_topics(cluster)
    async with load.running():
        harms = [await harm(cluster, fault) for _ in range(times)]
        await asyncio.sleep(BEFORE_S)
        await until(lambda: load.count() > LEAST_ANSWERS_PER_ROUND * times or _few(load))
    # Now that all are answered: a send may have waited beyond its span.
    gaps = [load.gap_s(since_s, until_s) for _, since_s, until_s in harms]
    for (whom, _, _), gap_s in zip(harms, gaps, strict=True):
        print(f"{name} {whom}: longest wait for an answer {gap_s:.2f} s")
    await load.drain()
    print(
        f"{name}: {load.count()} answered, {len(load.history.acknowledged)} acknowledged, "
        f"{len(load.errors)} calls repeated; gap p50 {percentile(gaps, 0.5):.2f} s, "
        f"max {max(gaps):.2f} s; errors {sorted(set(load.errors))[:4]}"
    )
    violations = check(load.history)
    print(*violations[:10], sep="\n")
    assert violations == []
    assert skipped(load.history, load.group, load.normal) == []
    return gaps


@pytest.mark.kill
@pytest.mark.timeout(3_600)
async def test_kill_of_a_leader_node(cluster: Cluster) -> None:
    """Kill -9 of the node that leads most raft groups loses nothing and stops writes shortly."""
    gaps = await harm_and_check(cluster, kill_leader, rounds())
    within("median gap", percentile(gaps, 0.5), GAP_P50_S)
    within("longest gap", max(gaps), GAP_MAX_S)


@pytest.mark.kill
@pytest.mark.timeout(3_600)
async def test_kill_of_a_follower(cluster: Cluster) -> None:
    """Kill -9 of the node that leads fewest raft groups loses nothing."""
    await harm_and_check(cluster, kill_follower, rounds())


@pytest.mark.kill
@pytest.mark.timeout(3_600)
async def test_kill_of_a_broker(cluster: Cluster) -> None:
    """Kill -9 of a broker loses nothing; its clients are served by the other one."""
    await harm_and_check(cluster, kill_broker, rounds())


@pytest.mark.kill
@pytest.mark.timeout(3_600)
async def test_kill_of_a_nameserver(cluster: Cluster) -> None:
    """Kill -9 of a nameserver is not noticed by clients."""
    await harm_and_check(cluster, kill_nameserver, rounds())


@pytest.mark.kill
@pytest.mark.timeout(3_600)
async def test_pause_of_a_leader_node(cluster: Cluster) -> None:
    """A node that stops for a while and comes back with its old beliefs breaks nothing."""
    await harm_and_check(cluster, pause_leader, max(1, rounds() // 2))


@pytest.mark.kill
@pytest.mark.timeout(3_600)
async def test_pause_of_a_broker(cluster: Cluster) -> None:
    """A broker that stops for a while and comes back breaks nothing."""
    await harm_and_check(cluster, pause_broker, max(1, rounds() // 2))


@pytest.mark.kill
@pytest.mark.timeout(3_600)
async def test_writes_go_on_without_any_nameserver(cluster: Cluster) -> None:
    """All nameservers are gone and everything else starts anew: messages still flow (rule 16)."""
    load = Load(cluster.endpoint, "alone-normal", "alone-fifo", "alone-consumers")
    load.create_topics(cluster)
    storage, brokers = cluster.names("storage"), cluster.names("broker")
    async with load.running():
        await asyncio.sleep(BEFORE_S)
        await asyncio.to_thread(cluster.local, "kill", *cluster.names("nameserver"))
        await asyncio.sleep(BEFORE_S)
        await asyncio.to_thread(cluster.local, "kill", *storage, *brokers)
        await asyncio.to_thread(cluster.local, "start", *storage)
        await asyncio.to_thread(cluster.local, "start", *brokers)
        wanted = load.count() + LEAST_ANSWERS_PER_ROUND
        await asyncio.sleep(AFTER_S)
        await until(lambda: load.count() > wanted or _few(load))
    await asyncio.to_thread(cluster.up)
    await load.drain()
    assert check(load.history) == []


def test_processes_outlive_their_command(cluster: Cluster) -> None:
    """The states of all processes are told, and a second `up` changes nothing."""
    before = cluster.local("status")
    assert {each["state"] for each in before} == {"running"}
    cluster.up()
    assert cluster.local("status") == before
