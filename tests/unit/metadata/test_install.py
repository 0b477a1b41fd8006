"""A durable copy takes a snapshot in part by part, and counts for nothing while it does.

Sinks keep what they were told before, and are told its placement again after a restart.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId
from strata_angelia.inproc import InprocNetwork
from strata_angelia.ports import CallContext
from strata_metadata import (
    CachedMetaServicer,
    ClusterView,
    MetadataCache,
    MetadataFollower,
    MetadataFollowerOptions,
    MetaRefused,
    WatchOptions,
)
from strata_metadata.follower import MetadataSources
from strata_metadata.watch import WatchHub
from strata_runtime.metrics import Metrics
from strata_state.metadata import MetadataStoreError
from strata_state.metadata_keys import APPLIED_KEY, INSTALLING_KEY
from strata_testing import until
from strata_testing.leaping_loop import LoopClock
from strata_testing.metadata_store import MemoryMetadataStore
from tests.unit.metadata.conftest import Source, topic


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
    """Before the last one the view stays, and nobody is told what is replaced in part."""
    store, view = MemoryMetadataStore(), ClusterView()
    cache = cache_over(store, view)
    for part in parts_of(4, OLD, 3):
        cache.apply(part)
    assert (cache.revision, await names_in(cache)) == (4, OLD_NAMES)
    *first, last = parts_of(9, NEW, 3)
    for part in first:
        cache.apply(part)
    assert (cache.revision, cache.known.revision, view.revision) == (0, 4, 4)
    assert [each.node_id for each in view.nodes()] == ["n1", "n2"]
    with pytest.raises(MetaRefused, match="a snapshot is replacing the metadata") as refused:
        await cache.snapshot()
    assert refused.value.outcome == meta_pb2.META_OUTCOME_UNAVAILABLE
    assert cache.freeze_after(0) is None
    cache.apply(last)
    assert (cache.revision, view.revision) == (9, 9)
    assert await names_in(cache) == NEW_NAMES
    assert await names_in(cache_over(store, revision=9)) == NEW_NAMES


@pytest.mark.parametrize("diverged", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_snapshot_that_breaks_off_must_come_again(diverged: bool, restarted: bool) -> None:
    """Its rows may be of another history: none of them is left among those of the old one."""
    store, view = MemoryMetadataStore(), ClusterView()
    cache = cache_over(store, view)
    cache.apply(meta_pb2.WatchResponse(revision=4, stamp=1, snapshot=True, changes=OLD))
    # Another history of these names. It breaks off, and the newest folder is put back.
    other = [node("n9"), topic("t0", 70), topic("x", 71), node("n8")]
    part = parts_of(5, other, 3)[0]
    part.diverged = diverged
    cache.apply(part)
    if restarted:
        view = ClusterView()
        cache = cache_over(store, view)
    assert (cache.revision, cache.known) == (0, (4, 0))
    assert view.revision == 4
    assert [each.node_id for each in view.nodes()] == ["n1", "n2"]
    with pytest.raises(MetadataStoreError, match="revision 6 follow rows that are replaced in"):
        cache.apply(meta_pb2.WatchResponse(revision=6, stamp=2, changes=[topic("t9", 9)]))
    assert view.revision == 4

    now = [*OLD, topic("t9", 9)]
    for part in parts_of(6, now, 3):
        part.stamp = 2 if part.revision else 0
        cache.apply(part)
    assert (cache.revision, cache.stamp, view.revision) == (6, 2, 6)
    _, rows = await cache.snapshot()
    assert sorted(map(str, rows)) == sorted(map(str, now))
    assert (await cache_over(store, revision=6).snapshot())[1] == rows


async def test_a_follower_asks_for_a_snapshot_that_broke_off_from_its_start() -> None:
    """Also after a restart; and it leaves a source that knows less than was told before."""
    network = InprocNetwork()
    source = Source(network, "a")
    store = MemoryMetadataStore()
    cache_over(store).apply(meta_pb2.WatchResponse(revision=9, snapshot=True, changes=OLD))
    cache_over(store, revision=9).apply(parts_of(12, NEW, 5)[0])
    source.tell(8, *OLD)
    await source.start()
    cache = cache_over(store)
    follower = MetadataFollower(
        MetadataSources([source.endpoint], network.channel),
        cache,
        options=MetadataFollowerOptions(first_retry_ms=1, max_retry_ms=2),
        clock=LoopClock(),
        random=lambda: 0.0,
        metrics=Metrics.disabled(),
        known=cache.known,
    )
    following = asyncio.ensure_future(follower.run())
    await until(lambda: len(source.watches) >= 3)
    assert (cache.revision, set(source.watches)) == (0, {0})
    source.tell(11, topic("t9", 9))
    await until(lambda: cache.revision == 11)
    assert await names_in(cache) == {*OLD_NAMES, "t9"}
    following.cancel()
    source.cache.close()
    await source.stop()


async def test_an_earlier_version_may_go_on_where_a_snapshot_broke_off() -> None:
    """It writes the applied row and leaves the mark behind, which says nothing then."""
    store = MemoryMetadataStore()
    cache_over(store).apply(meta_pb2.WatchResponse(revision=4, snapshot=True, changes=OLD))
    mark = (INSTALLING_KEY, store.get(APPLIED_KEY) or b"")
    whole = MemoryMetadataStore()
    cache_over(whole).apply(meta_pb2.WatchResponse(revision=9, snapshot=True, changes=NEW))
    whole.write([mark])
    assert await names_in(cache_over(whole, revision=9)) == NEW_NAMES
    cache_over(whole, revision=9).apply(
        meta_pb2.WatchResponse(revision=12, snapshot=True, changes=OLD)
    )
    assert whole.get(INSTALLING_KEY) is None
    assert await names_in(cache_over(whole, revision=12)) == OLD_NAMES


async def test_a_copy_that_is_replaced_tells_its_watchers_nothing() -> None:
    """They hear of it when it is whole: also one whose revision has the number of the new one."""
    store = MemoryMetadataStore()
    cache = cache_over(store)
    cache.apply(meta_pb2.WatchResponse(revision=4, stamp=1, snapshot=True, changes=OLD))
    stream = cache.watch(4, 1)
    assert (await anext(stream)).revision == 4
    *first, last = parts_of(4, NEW, 3)
    last.stamp = 2
    for part in first:
        cache.apply(part)
    waiting = asyncio.ensure_future(anext(stream))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    cache.apply(last)
    response = await waiting
    assert (response.snapshot, response.diverged, response.stamp) == (True, True, 2)
    assert {change.topic.name or change.node.node_id for change in response.changes} == NEW_NAMES
    await stream.aclose()


async def test_nobody_knows_a_node_while_rows_are_missing() -> None:
    """Nothing may be done to replicas on the word of a copy that is replaced, or is empty."""
    store = MemoryMetadataStore()
    cache = cache_over(store)
    servicer = CachedMetaServicer(cache, ClusterId("c1"))
    request = meta_pb2.GetIdentityRequest(node_id="n1")
    context = CallContext(timeout_s=None)

    async def ask() -> tuple[int, str, bool]:
        answer = await servicer.get_identity(request, context)
        return answer.status.outcome, answer.cluster_id, answer.knows_node

    not_now = (meta_pb2.META_OUTCOME_UNAVAILABLE, "", False)
    assert await ask() == not_now
    cache.apply(meta_pb2.WatchResponse(revision=4, snapshot=True, changes=OLD))
    assert await ask() == (meta_pb2.META_OUTCOME_OK, "c1", True)
    cache.apply(parts_of(9, NEW, 3)[0])
    assert await ask() == not_now


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
