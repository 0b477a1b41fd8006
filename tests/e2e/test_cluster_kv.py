"""Tables on a cluster, on disk and in memory: what the commands and clients see, and kill -9.

Under kills of storage nodes and brokers they stay available and linearizable. STRATA_TEST_ROUNDS
sets the number of kills (3 here by default), STRATA_TEST_SEED replays a run.
"""

import asyncio
import os
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from strata_kv.aio import AsyncKvClient
from strata_kv.client import KvClient
from strata_kv.model import Consistency, Engine, Operation
from strata_testing import until
from tests.e2e.cluster import Cluster
from tests.e2e.kv_load import Historians, Promises, Witnesses, running

TABLES = {"on-disk": Engine.ROCKSDB, "in-memory": Engine.MEMORY}
STEADY_S = 1.5
DOWN_S = 4.0
LEAST_WHILE_DOWN = 20
EVERY_WAY = (Consistency.LEADER, Consistency.FOLLOWER, Consistency.STALE)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Three storage nodes and two brokers, with the plugin."""
    monkeypatch.setenv("STRATA_PLUGINS", "kv")
    up = Cluster(tmp_path / "c", nameservers=1)
    up.up()
    try:
        up.settle()
        for table, engine in TABLES.items():
            up.strata("kv", "create", table, "--engine", engine.name.lower())
        yield up
    finally:
        up.down()


@pytest.mark.timeout(300)
def test_both_engines_on_three_replicas(cluster: Cluster, tmp_path: Path) -> None:
    """Reads of all kinds, conditions, batches, lists, watches; export here, import elsewhere."""
    places = [cluster.address(broker) for broker in cluster.names("broker")]
    for table in TABLES:
        with KvClient(places[0]) as one, KvClient(places[1]) as other:
            check_reads(one, other, table)
            check_writes_and_watch(one, other, table)
    check_minority_down(cluster, places[0])
    elsewhere = Cluster(tmp_path / "elsewhere", nameservers=1, storage=1, brokers=1)
    elsewhere.up()
    try:
        for table in TABLES:
            check_export(cluster, elsewhere, table, f"posix://{tmp_path}/store/{table}.kv")
    finally:
        elsewhere.down()


def check_reads(one: KvClient, other: KvClient, table: str) -> None:
    """Linearizable reads at one broker show at once what another one acknowledged."""
    for number in range(50):
        value = b"%d" % number
        one.table(table).put(b"read", value)
        for consistency in (Consistency.FOLLOWER, Consistency.LEADER):
            item = other.table(table).get(b"read", consistency)
            assert item is not None
            assert (item.value, item.version) == (value, number + 1)
    # Replicas that nobody waits for may lag, but not forever.
    assert one.table(table).get(b"read", Consistency.STALE) is not None


def check_writes_and_watch(one: KvClient, other: KvClient, table: str) -> None:
    """A condition lets one of two win, a batch happens as a whole, the watch tells it all."""
    first, second = one.table(table), other.table(table)
    begins = first.info().revision + 1
    assert first.compare_and_set(b"swap", b"1", version=0).done
    lost = second.compare_and_set(b"swap", b"2", version=0)
    assert not lost.done
    assert lost.current is not None
    assert lost.current.value == b"1"
    refused = second.batch(
        [Operation(b"batch-1", b"1"), Operation(b"swap", b"3", expected=b"other")]
    )
    assert (refused.done, refused.failed_operation) == (False, 1)
    done = second.batch([Operation(b"batch-%d" % n, b"%d" % n) for n in range(5)])
    assert done.done
    # A page ends where the next one begins.
    page = first.page(b"batch-", page_size=3)
    rest = first.page(b"batch-", page_size=3, continuation=page.continuation)
    keys = [item.key for item in (*page.items, *rest.items)]
    assert (keys, rest.continuation) == ([b"batch-%d" % n for n in range(5)], b"")
    told = (news for news in first.watch(from_revision=begins) if news.changes)
    swapped, batched = islice(told, 2)
    assert (swapped.revision, batched.revision) == (begins, done.revision)
    assert [change.item.key for change in batched.changes] == keys


def check_minority_down(cluster: Cluster, place: str) -> None:
    """With one storage node of three killed, writes and every kind of read go on."""
    cluster.local("kill", cluster.by_leaderships()[0])
    with KvClient(place, timeout_s=30) as client:
        for table in TABLES:
            client.table(table).put(b"down", b"1")
            for consistency in EVERY_WAY:
                item = client.table(table).get(b"swap", consistency)
                assert item is not None
                assert item.value == b"1"
    cluster.up()
    cluster.settle()


def check_export(cluster: Cluster, elsewhere: Cluster, table: str, url: str) -> None:
    """An imported table is exported with the same bytes and checksum."""
    exported = cluster.strata("kv", "export", "--table", table, "--to", url)
    assert exported["items"] == 8
    imported = elsewhere.strata("kv", "import", "--table", "copy-" + table, "--from", url)
    again = url.replace(".kv", "-again.kv")
    copied = elsewhere.strata("kv", "export", "--table", "copy-" + table, "--to", again)
    assert exported["crc32c"] == imported["crc32c"] == copied["crc32c"]
    first, second = (Path(each.removeprefix("posix://")) for each in (url, again))
    assert first.read_bytes() == second.read_bytes()
    shown = [
        each.strata("kv", "list", "--table", name)["items"]
        for each, name in ((cluster, table), (elsewhere, "copy-" + table))
    ]
    here, there = (
        [(item["key"], item["value"], item["version"]) for item in items] for items in shown
    )
    assert here == there


@pytest.mark.kill
@pytest.mark.timeout(3_600)
async def test_kills_of_nodes_that_lead(cluster: Cluster) -> None:
    """Writes go on; nothing acknowledged is lost, no read is old, no watch leaves a change out."""
    seed = int(os.environ.get("STRATA_TEST_SEED", random.randrange(2**32)))
    print(f"STRATA_TEST_SEED={seed}")
    chance = random.Random(seed)
    promises, historians, witnesses = Promises(), Historians(chance), Witnesses()
    for number in range(int(os.environ.get("STRATA_TEST_ROUNDS", "3"))):
        work = [one for table in TABLES for one in promises.work(table)]
        work += [one for table in TABLES for one in historians.work(table, number)]
        work += [witnesses.work(table) for table in TABLES]
        async with running(cluster.endpoint, work):
            await asyncio.sleep(STEADY_S)
            victims = await asyncio.to_thread(cluster.by_leaderships)
            victim = chance.choice((victims[0], victims[-1], "broker-1"))
            await asyncio.to_thread(cluster.local, "kill", victim)
            await asyncio.sleep(DOWN_S / 2)
            before = historians.count()
            await asyncio.sleep(DOWN_S)
            wanted = before + LEAST_WHILE_DOWN
            await until(lambda wanted=wanted: historians.count() > wanted)  # type: ignore[misc]
            print(f"{victim} down: {historians.count() - before} answered")
            await asyncio.to_thread(cluster.up)
        await asyncio.to_thread(cluster.settle)
        async with AsyncKvClient(cluster.endpoint) as client:
            assert await promises.broken(client) == []
            assert await witnesses.broken(client) == []
    assert historians.judge() == []
