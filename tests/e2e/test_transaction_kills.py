"""kill -9 of every tier at every step of a transaction: no half is seen, no commit is lost.

One round of each, or as many as STRATA_TEST_TRANSACTION_ROUNDS says.
"""

import asyncio
import os
import random
from collections.abc import Iterator

import pytest

from tests.e2e.client import Client
from tests.e2e.cluster import Cluster
from tests.e2e.transactions import Fate, Transactions

CONFIG = """
[transaction]
first_check_ms = 3000

[storage]
transaction_check_interval_ms = 2000
max_transaction_checks = 100
"""
EACH_FATE = 6
SETTLE_LIMIT_S = 90.0
TIERS = ("broker", "storage", "nameserver")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for all tests of this module that checks transactions soon."""
    folder = tmp_path_factory.mktemp("cluster")
    config = folder / "strata.toml"
    config.write_text(CONFIG)
    made = Cluster(folder / "c", config=config)
    print(f"up in {made.up():.1f} s at {made.data_dir}")
    yield made
    made.down()


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """The cluster with all of its processes up, whatever the test before did."""
    running.up()
    running.settle()
    return running


@pytest.fixture(params=range(int(os.environ.get("STRATA_TEST_TRANSACTION_ROUNDS", "1"))))
def transactions(
    cluster: Cluster, request: pytest.FixtureRequest, seed: random.Random
) -> Transactions:
    """A topic of its own for each test and round."""
    name = f"deals-{seed.randrange(1 << 48):012x}"
    cluster.create_topic(name, "--type", "TRANSACTION", "--queues", "8")
    cluster.create_group(f"{name}-group")
    return Transactions(cluster.endpoint, name, f"{name}-group")


@pytest.fixture
def seed() -> random.Random:
    """The order of the fates; the seed is printed."""
    number = int(os.environ.get("SEED", "0")) or random.randrange(1 << 32)
    print(f"SEED={number}")
    return random.Random(number)


@pytest.fixture
def fates(seed: random.Random) -> list[Fate]:
    """As many of each fate, mixed."""
    mixed = list(Fate) * EACH_FATE
    seed.shuffle(mixed)
    return mixed


def kill(cluster: Cluster, tier: str) -> None:
    """Kill one process of a tier: of the storage nodes the one that leads most raft groups."""
    candidates = cluster.by_leaderships()[:1] if tier == "storage" else cluster.names(tier)
    name = random.choice(candidates)
    cluster.local("kill", name)
    print(f"killed {name}")


async def judge(cluster: Cluster, transactions: Transactions) -> None:
    """Mend the cluster, wait until all is over, and look for what must not be."""
    await asyncio.to_thread(cluster.up)
    try:
        await transactions.settle(SETTLE_LIMIT_S)
    finally:
        violations = transactions.violations()
        checks = sum(one.checks for one in transactions.all.values())
        print(
            f"{len(transactions.all)} transactions, {checks} checks, "
            f"{len(transactions.errors)} calls repeated: {sorted(set(transactions.errors))[:4]}"
        )
        print(*violations[:10], sep="\n")
    assert violations == []
    listed = await asyncio.to_thread(
        cluster.strata, "transaction", "list", "--topic", transactions.topic
    )
    assert listed["transactions"] == []


async def end_all(client: Client, transactions: Transactions) -> None:
    """End those whose producers do it by themselves."""
    async with asyncio.TaskGroup() as tasks:
        for one in list(transactions.all.values()):
            if not one.fate.when_asked:
                tasks.create_task(transactions.end(client, one))


@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tier", TIERS)
async def test_kill_while_halves_are_sent(
    cluster: Cluster, transactions: Transactions, fates: list[Fate], tier: str
) -> None:
    """A half whose answer was lost is sent again and is still one."""
    async with transactions.running() as client:
        async with asyncio.TaskGroup() as tasks:
            for number, fate in enumerate(fates):
                tasks.create_task(transactions.begin(client, fate))
                await asyncio.sleep(0.02)
                if number == len(fates) // 2:
                    tasks.create_task(asyncio.to_thread(kill, cluster, tier))
        await end_all(client, transactions)
        await judge(cluster, transactions)


@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tier", TIERS)
async def test_kill_before_the_commit(
    cluster: Cluster, transactions: Transactions, fates: list[Fate], tier: str
) -> None:
    """Halves are where they were; their transaction ids serve on any broker."""
    async with transactions.running() as client:
        for fate in fates:
            await transactions.begin(client, fate)
        await asyncio.to_thread(kill, cluster, tier)
        await end_all(client, transactions)
        await judge(cluster, transactions)


@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tier", TIERS)
async def test_kill_while_they_are_ended(
    cluster: Cluster, transactions: Transactions, fates: list[Fate], tier: str
) -> None:
    """An end whose answer was lost is asked for again; what was answered stands."""
    async with transactions.running() as client:
        for fate in fates:
            await transactions.begin(client, fate)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.to_thread(kill, cluster, tier))
            for one in list(transactions.all.values()):
                if not one.fate.when_asked:
                    tasks.create_task(transactions.end(client, one))
                    await asyncio.sleep(0.05)
        await judge(cluster, transactions)


@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tier", TIERS)
async def test_kill_after_the_commit(
    cluster: Cluster, transactions: Transactions, fates: list[Fate], tier: str
) -> None:
    """Committed messages are delivered, nothing else."""
    async with transactions.running() as client:
        for fate in fates:
            await transactions.begin(client, fate)
        await end_all(client, transactions)
        await asyncio.to_thread(kill, cluster, tier)
        await judge(cluster, transactions)


@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tier", TIERS)
async def test_kill_during_a_check(
    cluster: Cluster, transactions: Transactions, fates: list[Fate], tier: str
) -> None:
    """A check or its answer that was lost comes again; its producer may be on another broker."""
    async with transactions.running() as client:
        for fate in fates:
            await transactions.begin(client, fate)
        await end_all(client, transactions)
        async with asyncio.timeout(90):
            await transactions.first_check.wait()
        await asyncio.to_thread(kill, cluster, tier)
        await judge(cluster, transactions)
