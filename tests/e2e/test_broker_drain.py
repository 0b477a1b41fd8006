"""Brokers that are stopped and started one after the other, under load."""

import asyncio
from collections.abc import Iterator

import pytest

from strata_testing import until
from tests.e2e.client import INVISIBLE_S
from tests.e2e.cluster import Cluster
from tests.e2e.history import check, skipped
from tests.e2e.load import Load

STEADY_S = 1.0
PAUSE_S = 0.05
LEAST_ANSWERS = 200


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One storage node is enough: it is the brokers that stop."""
    made = Cluster(tmp_path_factory.mktemp("cluster") / "c", nameservers=1, storage=1)
    made.up()
    made.settle()
    yield made
    made.down()


@pytest.mark.timeout(300)
async def test_clients_of_a_broker_that_stops_see_no_error(cluster: Cluster) -> None:
    """SIGTERM: sends under way are answered, long polls end at once, the next calls go on."""
    # A lease that ends before its ack arrives, on a busy machine, would be a refusal.
    load = Load(cluster.endpoint, "normal", "fifo", "consumers", PAUSE_S, invisible_s=INVISIBLE_S)
    load.create_topics(cluster)
    async with load.running():
        await asyncio.sleep(STEADY_S)
        for name in cluster.names("broker"):
            before = load.count()
            await asyncio.to_thread(cluster.local, "stop", name)
            await asyncio.to_thread(cluster.local, "start", name)
            await asyncio.sleep(STEADY_S)
            await until(lambda before=before: load.count() > before)  # type: ignore[misc]
        await until(lambda: load.count() > LEAST_ANSWERS)
    print(f"{load.count()} answered, errors {sorted(set(load.errors))}")
    assert load.errors == []
    await load.drain()
    assert check(load.history) == []
    assert skipped(load.history, load.group, load.normal) == []
