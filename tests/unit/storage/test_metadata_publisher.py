"""The metadata rows in the object store, however many there are (rule 29)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from strata.meta.v1 import meta_pb2
from strata_metadata import MetadataCache, WatchOptions
from strata_metadata.rows import key_of, value_of
from strata_runtime.metrics import Metrics
from strata_storage.tiering.metadata_publisher import MetadataPublisher
from strata_testing.clock import ManualClock
from strata_testing.metadata_store import MemoryMetadataStore
from strata_tier.objects import metadata_key, metadata_prefix
from strata_tier.store.drivers.memory import MemoryObjectStore
from strata_tier.upkeep import newest_metadata, objects_under

Result = TypeVar("Result")
HOME = "home"


def topics(first: int, count: int) -> list[meta_pb2.Change]:
    return [
        meta_pb2.Change(topic=meta_pb2.Topic(topic_id=at, name=f"t{at}", queue_count=1))
        for at in range(first, first + count)
    ]


class Published:
    """A node's copy of the metadata, and what it publishes."""

    def __init__(self) -> None:
        self.store = MemoryObjectStore()
        self.rows = MemoryMetadataStore()
        # Three rows are more than one answer to a call may have.
        self.cache = MetadataCache(self.rows, WatchOptions(snapshot_rows=2), Metrics.disabled())
        self.reads = 0
        self.publisher = MetadataPublisher(
            self.store, HOME, self.cache, clock=ManualClock(), run_read=self._read
        )

    def learn(self, revision: int, changes: list[meta_pb2.Change], **more: bool | int) -> None:
        self.cache.apply(
            meta_pb2.WatchResponse(revision=revision, changes=changes, **more)  # type: ignore[arg-type]
        )

    async def keys(self) -> list[str]:
        return [info.key async for info in objects_under(self.store, metadata_prefix(HOME))]

    def _read(self, work: Callable[[], Result], /) -> Awaitable[Result]:
        self.reads += 1

        async def read() -> Result:
            return work()

        return read()


async def test_more_rows_than_one_answer_may_have_are_published() -> None:
    """Else storage nodes of a cluster with many topics would end at their first manifest."""
    node = Published()
    expected = topics(1, 7)
    node.learn(9, expected)
    await node.publisher.publish()

    key, archive, damaged = await newest_metadata(node.store, HOME)
    assert archive is not None
    assert (key, damaged) == (metadata_key(HOME, 9), [])
    assert archive.description.raft_index == 9
    assert sorted(archive.rows) == sorted((key_of(each), value_of(each)) for each in expected)


async def test_rows_are_looked_at_only_when_they_are_newer() -> None:
    """Each raft group that a node leads publishes its metadata."""
    node = Published()
    assert not node.publisher.is_due()
    await node.publisher.publish()
    assert await node.keys() == []
    node.learn(3, topics(1, 2))
    assert node.publisher.is_due()
    for _ in range(3):
        await node.publisher.publish()
        assert not node.publisher.is_due()
    assert node.reads == 1
    node.learn(4, topics(3, 1))
    assert node.publisher.is_due()
    await node.publisher.publish()
    assert node.reads == 2
    assert await node.keys() == [metadata_key(HOME, 3), metadata_key(HOME, 4)]


async def test_nothing_is_published_while_a_snapshot_comes_in_pieces() -> None:
    """The part that has come so far is of no revision."""
    node = Published()
    node.learn(3, topics(1, 2))
    first_part = meta_pb2.WatchResponse(snapshot=True, snapshot_revision=8, changes=topics(5, 1))
    node.cache.apply(first_part)
    await node.publisher.publish()
    assert await node.keys() == []
    node.cache.apply(meta_pb2.WatchResponse(revision=8, changes=topics(6, 1), snapshot_revision=8))
    await node.publisher.publish()
    assert await node.keys() == [metadata_key(HOME, 8)]


async def test_three_archives_stay() -> None:
    """The newest one may be damaged, so it is not the only one."""
    node = Published()
    for revision in range(1, 6):
        node.learn(revision, topics(revision, 1))
        await node.publisher.publish()
    assert await node.keys() == [metadata_key(HOME, revision) for revision in (3, 4, 5)]


async def test_names_of_others_are_neither_deleted_nor_counted_nor_read() -> None:
    """Stores have marks of folders, and operators put files there."""
    node = Published()
    prefix = metadata_prefix(HOME)
    others = [prefix, f"{prefix}00-README", f"{prefix}a.txt", f"{prefix}zz.archive"]
    node.store.bucket.objects.update({key: (b"not the tier's", 0) for key in others})
    for revision in range(1, 6):
        node.learn(revision, topics(revision, 1))
        await node.publisher.publish()
    own = [metadata_key(HOME, revision) for revision in (3, 4, 5)]
    assert await node.keys() == sorted([*others, *own])
    key, _, damaged = await newest_metadata(node.store, HOME)
    assert (key, damaged) == (own[-1], [])
