"""Faults of HDFS: the driver gives the data or a clear error."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from strata_tier.store.drivers.hdfs_clients import kept_client
from strata_tier.store.opening import OpenWith, open_store
from strata_tier.store.ports import (
    Buffer,
    ObjectNotFoundError,
    ObjectStore,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from strata_tier.store.url import parse
from tests.parts.hdfs_cluster import HdfsCluster
from tests.parts.stores import Place

PART = 1024 * 1024
BODY = os.urandom(3 * PART + 5)

pytestmark = pytest.mark.timeout(480)


@pytest.fixture
def place(hdfs_cluster: HdfsCluster) -> Place:
    """A new folder."""
    return hdfs_cluster.place()


@pytest.fixture
async def store(place: Place) -> AsyncIterator[ObjectStore]:
    """Three tries, short pauses and times."""
    options = place.options(attempts=3, part_bytes=PART, request_timeout_ms=3000)
    opened = await open_store(place.url, OpenWith(options=options))
    yield opened
    await opened.close()


def in_parts(body: bytes) -> AsyncIterator[Buffer]:
    """A body as a source gives it."""

    async def parts() -> AsyncIterator[Buffer]:
        for position in range(0, len(body), PART):
            yield body[position : position + PART]

    return parts()


async def test_safe_mode(hdfs_cluster: HdfsCluster, store: ObjectStore) -> None:
    """In safe mode reads go on, writes and deletes are unavailable; afterwards all is well."""
    await store.put("a.bin", BODY)
    hdfs_cluster.safe_mode("enter")
    try:
        assert await store.get("a.bin") == BODY
        for call in (store.put("b.bin", b"x"), store.delete(["a.bin"])):
            with pytest.raises(StoreUnavailableError, match=r"safe mode|SafeMode"):
                await call
    finally:
        hdfs_cluster.safe_mode("leave")
    await store.put("b.bin", BODY)
    await store.delete(["a.bin"])
    with pytest.raises(ObjectNotFoundError):
        await store.head("a.bin")


async def test_a_data_node_killed(hdfs_cluster: HdfsCluster, store: ObjectStore) -> None:
    """With one of two DataNodes dead every object is read, and a write works or says why not."""
    await store.put("a.bin", BODY)
    hdfs_cluster.data_nodes[0].kill()
    try:
        assert await store.get("a.bin") == BODY
        assert await store.get("a.bin", PART - 3, 10) == BODY[PART - 3 : PART + 7]
        try:
            await store.put("b.bin", BODY)
        except StoreError:
            with pytest.raises(ObjectNotFoundError):
                await store.head("b.bin")
        else:
            assert await store.get("b.bin") == BODY
    finally:
        hdfs_cluster.data_nodes[0].start()
        hdfs_cluster.wait_until_it_writes()
    await store.put("b.bin", BODY)
    assert await store.get("b.bin") == BODY


async def test_a_data_node_killed_in_the_middle_of_a_put(
    hdfs_cluster: HdfsCluster, store: ObjectStore
) -> None:
    """A put that loses a DataNode half way stores the whole object or nothing."""
    killed = False

    async def parts() -> AsyncIterator[Buffer]:
        nonlocal killed
        async for part in in_parts(BODY):
            yield part
            if not killed:
                killed = True
                hdfs_cluster.data_nodes[1].kill()

    try:
        try:
            await store.put("a.bin", parts)
        except StoreError:
            with pytest.raises(ObjectNotFoundError):
                await store.head("a.bin")
        else:
            assert await store.get("a.bin") == BODY
    finally:
        hdfs_cluster.data_nodes[1].start()
        hdfs_cluster.wait_until_it_writes()
    await store.put("a.bin", BODY)
    assert await store.get("a.bin") == BODY


async def test_a_name_node_that_answers_nothing(
    hdfs_cluster: HdfsCluster, store: ObjectStore
) -> None:
    """Calls to a NameNode that hangs end as timeouts; afterwards all is well."""
    await store.put("a.bin", BODY)
    hdfs_cluster.name_node.pause()
    try:
        with pytest.raises(StoreTimeoutError):
            await store.get("a.bin")
    finally:
        hdfs_cluster.name_node.resume()
    assert await store.get("a.bin") == BODY


async def test_everything_killed(hdfs_cluster: HdfsCluster, store: ObjectStore) -> None:
    """While HDFS is dead calls are unavailable; what a put reported is there after kill -9."""
    await store.put("a.bin", BODY)
    hdfs_cluster.stop()
    try:
        for call in (store.get("a.bin"), store.put("b.bin", BODY), store.list()):
            with pytest.raises((StoreUnavailableError, StoreTimeoutError)):
                await call
    finally:
        await asyncio.to_thread(hdfs_cluster.start)
    assert await store.get("a.bin") == BODY
    await store.put("b.bin", BODY)


async def test_a_folder_that_is_gone(
    hdfs_cluster: HdfsCluster, place: Place, store: ObjectStore
) -> None:
    """A deleted folder is "the store is missing" on every way, never "no such object"."""
    await store.put("a.bin", BODY)
    url = parse(place.url)
    await kept_client(url.host).delete(f"/{url.path}", recursive=True)
    for call in (
        store.get("a.bin"),
        store.head("a.bin"),
        store.list(),
        store.delete(["a.bin"]),
        store.put("b.bin", BODY),
    ):
        with pytest.raises(StoreMissingError):
            await call


async def test_leftovers_of_a_dead_node(place: Place, store: ObjectStore) -> None:
    """A temporary file that nobody renamed is found by its age, removed, and never listed."""
    info = await store.put("a.bin", BODY)
    url = parse(place.url)
    client = kept_client(url.host)
    writer = await client.create(f"/{url.path}/.uploads/dead")
    await writer.write(b"half")
    await writer.close()
    assert [found.key for found in (await store.list()).objects] == ["a.bin"]
    assert await store.remove_leftovers(info.modified_ms - 60_000) == 0
    assert await store.remove_leftovers(info.modified_ms + 60_000) == 1


async def test_the_second_name_node_is_asked(place: Place) -> None:
    """When the first NameNode of the URL does not answer, the other one is found and kept."""
    url = place.url.replace("hdfs://", "hdfs://127.0.0.1:1,")
    store = await open_store(url, OpenWith(options=place.options(attempts=3)))
    await store.put("a.bin", BODY)
    assert await store.get("a.bin") == BODY
    await store.close()


async def test_the_event_loop_goes_on_while_a_data_node_hangs(
    hdfs_cluster: HdfsCluster, store: ObjectStore
) -> None:
    """A put into an HDFS that takes nothing fails and holds up nothing else."""
    await store.put("a.bin", BODY)
    turns = 0

    async def watch() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    for node in hdfs_cluster.data_nodes:
        node.pause()
    watching = asyncio.ensure_future(watch())
    try:
        with pytest.raises((StoreTimeoutError, StoreUnavailableError)):
            await store.put("b.bin", os.urandom(20 * PART))
    finally:
        watching.cancel()
        for node in hdfs_cluster.data_nodes:
            node.resume()
    # Some hundreds fit into the seconds that it took; a loop that was held up made a few.
    assert turns > 50
    hdfs_cluster.wait_until_it_writes()
    assert await store.get("a.bin") == BODY
