"""A durable copy takes a snapshot in part by part, and is never without its placement."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from strata.meta.v1 import meta_pb2
from strata_metadata import ClusterView, MetadataCache, WatchOptions
from strata_metadata.watch import WatchHub
from strata_runtime.metrics import Metrics
from strata_testing.metadata_store import MemoryMetadataStore
from tests.unit.metadata.conftest import topic


def node(name: str) -> meta_pb2.Change:
    """A node's row."""
    return meta_pb2.Change(node=meta_pb2.Node(node_id=name))


def parts_of(
    revision: int, changes: Sequence[meta_pb2.Change], size: int
) -> list[meta_pb2.WatchResponse]:
    """Cut a snapshot into parts."""
    parts = [
        meta_pb2.WatchResponse(snapshot_revision=revision, changes=changes[at : at + size])
        for at in range(0, len(changes), size)
    ]
    parts[0].snapshot = True
    parts[-1].revision = revision
    return parts


def cache_over(store: MemoryMetadataStore, *sinks: ClusterView, revision: int = 0) -> MetadataCache:
    """Open a copy; it must know this revision."""
    cache = MetadataCache(store, WatchOptions(), Metrics.disabled(), sinks=sinks)
    assert cache.revision == revision
    return cache


async def names_in(cache: MetadataCache) -> set[str]:
    """Names of all topics and nodes."""
    _, rows = await cache.snapshot()
    return {row.topic.name or row.node.node_id for row in rows}


OLD = [node("n1"), node("n2"), *(topic(f"t{number}", 1 + number) for number in range(6))]
NEW = [node("n2"), node("n3"), *(topic(f"t{number}", 1 + number) for number in range(3, 9))]
OLD_NAMES = {"n1", "n2", *(f"t{number}" for number in range(6))}
NEW_NAMES = {"n2", "n3", *(f"t{number}" for number in range(3, 9))}


async def test_all_parts_together_replace_everything() -> None:
    """Before the last one the revision, the view and what tells where things are stay."""
    store, view = MemoryMetadataStore(), ClusterView()
    cache = cache_over(store, view)
    for part in parts_of(4, OLD, 3):
        cache.apply(part)
    assert (cache.revision, await names_in(cache)) == (4, OLD_NAMES)
    *first, last = parts_of(9, NEW, 3)
    for part in first:
        cache.apply(part)
    assert (cache.revision, view.revision) == (4, 4)
    assert [each.node_id for each in view.nodes()] == ["n1", "n2"]
    assert {"n1", "n2"} == (await names_in(cache)) - {f"t{number}" for number in range(9)}
    cache.apply(last)
    assert (cache.revision, view.revision) == (9, 9)
    assert await names_in(cache) == NEW_NAMES
    assert await names_in(cache_over(store, revision=9)) == NEW_NAMES


async def test_a_crash_between_two_parts_leaves_a_copy_that_can_go_on() -> None:
    """It tells the old revision; the changes since then, or a new snapshot, make it whole."""
    for again in (False, True):
        store = MemoryMetadataStore()
        cache_over(store).apply(meta_pb2.WatchResponse(revision=4, snapshot=True, changes=OLD))
        cache_over(store, revision=4).apply(parts_of(9, NEW, 5)[0])
        cache = cache_over(store, revision=4)
        assert {"n1", "n2"} <= await names_in(cache)
        if again:
            for part in parts_of(9, NEW, 2):
                cache.apply(part)
        else:
            gone = [node("n1"), *(topic(f"t{number}") for number in range(3))]
            for change in gone:
                change.deleted = True
            new = [change for change in NEW if change not in OLD]
            cache.apply(meta_pb2.WatchResponse(revision=9, changes=[*gone, *new]))
        assert await names_in(cache) == NEW_NAMES


async def test_the_order_of_the_rows_does_not_matter() -> None:
    """A source may send them as it likes: none that it sent is deleted, all others are."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chooser = random.Random(seed)
    for _ in range(30):
        store = MemoryMetadataStore()
        cache = cache_over(store)
        cache.apply(meta_pb2.WatchResponse(revision=4, snapshot=True, changes=OLD))
        rows = chooser.sample(NEW, len(NEW))
        for part in parts_of(9, rows, chooser.randint(1, 4)):
            cache.apply(part)
        assert await names_in(cache) == NEW_NAMES, f"seed {seed}"


async def test_other_work_goes_on_while_everything_is_told() -> None:
    """Neither a snapshot nor a watcher far behind holds the event loop up."""
    store = MemoryMetadataStore()
    cache = cache_over(store)
    rows = [topic(f"t{number:04d}", 1 + number) for number in range(2_000)]
    cache.apply(meta_pb2.WatchResponse(revision=4, snapshot=True, changes=rows))
    hub = WatchHub(store, 4, WatchOptions(response_changes=100), metrics=Metrics.disabled())
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_turns())
    revision, changes = await hub.snapshot()
    assert (revision, len(changes)) == (4, 2_000)
    assert turns >= 19
    turns = 0
    responses = []
    async for response in hub.watch(0):
        responses.append(response)
        if response.revision:
            break
    counting.cancel()
    assert sum(len(response.changes) for response in responses) == 2_000
    assert {response.snapshot_revision for response in responses} == {4}
    assert turns >= 19
