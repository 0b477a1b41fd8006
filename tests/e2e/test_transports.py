"""The second transport and the other codecs: messages flow, and nothing is lost in a crash."""

import asyncio
from pathlib import Path

import pytest

from strata_testing import until
from tests.e2e.cluster import Cluster
from tests.e2e.history import check, skipped
from tests.e2e.load import Load

STEADY_S = 2.0
AFTER_S = 4.0
LEAST_ANSWERS = 100


@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("transport", "codec"), [("http2", "protobuf"), ("tcp", "avro")])
async def test_kill_of_a_leader_node(tmp_path: Path, transport: str, codec: str) -> None:
    """Kill -9 of the storage node that leads most: every acknowledged message is delivered."""
    cluster = Cluster(tmp_path / "c", nameservers=1, transport=transport, codec=codec)
    cluster.up()
    try:
        cluster.settle()
        load = Load(cluster.endpoint, "normal", "fifo", "consumers")
        load.create_topics(cluster)
        async with load.running():
            await asyncio.sleep(STEADY_S)
            await until(lambda: load.count() > LEAST_ANSWERS)
            before = load.count()
            victim = (await asyncio.to_thread(cluster.by_leaderships))[0]
            await asyncio.to_thread(cluster.local, "kill", victim)
            await asyncio.sleep(AFTER_S)
            await until(lambda: load.count() > before + LEAST_ANSWERS)
        print(f"{transport}, {codec}: {before} answered before, {load.count()} in all")
        await asyncio.to_thread(cluster.up)
        await asyncio.to_thread(cluster.settle)
        await load.drain()
        assert check(load.history) == []
        assert skipped(load.history, load.group, load.normal) == []
    finally:
        cluster.down()
