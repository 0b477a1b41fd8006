"""Many topics by one change: what is created, what existed, what fails by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import meta_pb2
from strata_metadata import MetadataCache, WatchOptions
from strata_metadata.errors import MetaRefused
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.drafts.queue_moves import keep_queue
from strata_nameserver.drafts.topic_batches import Batch, create_topics
from strata_nameserver.state.draft import Draft
from strata_runtime.metrics import Metrics
from strata_state.metadata_keys import TOPIC_IDS_KEY, MetadataRowKind, kind_range
from strata_testing.metadata_store import MemoryMetadataStore

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver

EXISTS = meta_pb2.META_OUTCOME_ALREADY_EXISTS
INVALID = meta_pb2.META_OUTCOME_INVALID


def topic(name: str, **fields: object) -> meta_pb2.Topic:
    return meta_pb2.Topic(name=name, **fields)  # type: ignore[arg-type]


def failed(batch: Batch) -> dict[int, tuple[int, str]]:
    return {each.position: (each.outcome, each.reason) for each in batch.failures}


async def test_one_entry_creates_them_all(nameserver: Nameserver) -> None:
    """There is one revision and one raft entry, and every row is as if it was created alone."""
    entries = len(nameserver.replica.entries)
    alone = await nameserver.metadata.create_topic(topic("alone", queue_count=3))
    batch, revision = await nameserver.metadata.create_topics(
        [topic(f"t{number}", queue_count=3) for number in range(50)]
    )

    assert (batch, revision) == (Batch(50, 0, []), alone.revision + 1)
    assert len(nameserver.replica.entries) == entries + 2
    assert nameserver.machine.revision == revision
    rows = map(meta_pb2.Topic.FromString, nameserver.machine.rows(*topic_range()))
    by_name = {row.name: row for row in rows}
    assert len({row.topic_id for row in by_name.values()}) == 51
    assert {row.revision for row in by_name.values()} == {alone.revision, revision}
    again = await nameserver.metadata.create_topic(topic("again", queue_count=3))
    assert again.topic_id == max(row.topic_id for row in by_name.values()) + 1
    assert [home.queues for home in by_name["t7"].homes], "queues have public names"


def topic_range() -> tuple[bytes, bytes]:
    return kind_range(MetadataRowKind.TOPIC)


async def test_a_repeated_batch_changes_nothing(nameserver: Nameserver) -> None:
    """Topics that exist as they are wanted count as existing; no entry is written.

    The revision is one that has these topics, so that a broker waits until it knows them.
    """
    wanted = [topic("a", queue_count=2), topic("b", attributes={"team": "x"})]
    await nameserver.metadata.create_topics(wanted)
    entries = len(nameserver.replica.entries)
    batch, revision = await nameserver.metadata.create_topics(wanted)

    assert (batch, revision) == (Batch(0, 2, []), nameserver.machine.revision)
    assert len(nameserver.replica.entries) == entries
    batch, revision = await nameserver.metadata.create_topics([*wanted, topic("c")])
    assert (batch.created, batch.existing, batch.failures) == (1, 2, [])
    assert revision == nameserver.machine.revision


async def test_what_cannot_be_created_fails_by_name(nameserver: Nameserver) -> None:
    """Each failure has its reason, and the other topics of the batch are created."""
    await nameserver.metadata.create_topics([topic("a", queue_count=2), topic("c")])
    batch, _ = await nameserver.metadata.create_topics(
        [
            topic("a", queue_count=3),
            topic("b"),
            topic("bad name"),
            topic("b"),
            topic("wide", queue_count=1_000_000),
            topic("c", attributes={"team": "x"}),
            topic("%DLQ%g"),
        ]
    )

    assert (batch.created, batch.existing) == (1, 0)
    found = failed(batch)
    assert found[0] == (EXISTS, "topic a exists with queue_count 2, not 3")
    assert found[2][0] == INVALID and "illegal characters" in found[2][1]
    assert found[3] == (EXISTS, "topic b is in the request twice")
    assert found[4][0] == INVALID and "max_queues_per_topic" in found[4][1]
    assert found[5] == (EXISTS, "topic c exists with other attributes")
    assert found[6][0] == INVALID
    assert set(found) == {0, 2, 3, 4, 5, 6}


async def test_a_batch_that_is_too_large_creates_nothing(make_nameserver: MakeNameserver) -> None:
    """Both limits refuse the whole call and are named."""
    config = NameserverConfig(max_batch_topics=100, max_batch_bytes=65_536).alone()
    nameserver = await make_nameserver(config).with_storage()
    for count, queues, limit in ((101, 1, "max_batch_topics"), (100, 1_000, "max_batch_bytes")):
        with pytest.raises(MetaRefused, match=limit):
            await nameserver.metadata.create_topics(
                [topic(f"t{number}", queue_count=queues) for number in range(count)]
            )
    assert not list(nameserver.machine.rows(*topic_range()))


async def test_rows_of_queues_that_are_placed_elsewhere_count(
    make_nameserver: MakeNameserver,
) -> None:
    """The entry has them, too; what is too large creates nothing."""
    config = NameserverConfig(max_batch_topics=100, max_batch_bytes=65_536).alone()
    nameserver = await make_nameserver(config).with_storage()
    wanted = [topic(f"t{number}", queue_count=64) for number in range(100)]

    def place(draft: Draft, row: meta_pb2.Topic) -> None:
        for queue in range(row.queue_count):
            keep_queue(draft, row.topic_id, queue, 1)

    with pytest.raises(MetaRefused, match="max_batch_bytes"):
        await nameserver.metadata.change(lambda draft: create_topics(draft, wanted, config, place))
    assert not list(nameserver.machine.rows(*topic_range()))
    batch, _ = await nameserver.metadata.create_topics(wanted)
    assert batch.created == 100


async def test_the_limit_on_topics_holds_within_a_batch(small_nameserver: Nameserver) -> None:
    """The first topics are created; those beyond the limit fail."""
    nameserver = await small_nameserver.with_storage()
    batch, _ = await nameserver.metadata.create_topics(
        [topic(f"t{number}", queue_count=1) for number in range(5)]
    )
    assert batch.created == 3
    limit = meta_pb2.META_OUTCOME_LIMIT_REACHED
    assert [(each.position, each.outcome) for each in batch.failures] == [(3, limit), (4, limit)]


async def test_topics_that_come_and_go_leave_nothing(make_nameserver: MakeNameserver) -> None:
    """Rows of nameserver and of a storage node's copy are as many after each round."""
    config = NameserverConfig(max_kept_revisions=64, max_tombstones=64).alone()
    nameserver = await make_nameserver(config).with_storage()
    copy = MemoryMetadataStore()
    cache = MetadataCache(copy, WatchOptions(recent_changes=16), Metrics.disabled())
    counts = []
    for _ in range(6):
        batch, _ = await nameserver.metadata.create_topics(
            [topic(f"t{number}", queue_count=1) for number in range(32)]
        )
        assert batch.created == 32
        for number in range(32):
            gone = await nameserver.metadata.delete_topic("", f"t{number}")
            await nameserver.metadata.confirm_dropped(meta_pb2.TOMBSTONE_KIND_TOPIC, gone.topic_id)
        async for response in nameserver.metadata.watch(cache.revision):
            cache.apply(response)
            if cache.revision == nameserver.machine.revision:
                break
        counts.append((_rows(nameserver.store), _rows(copy)))

    assert not list(nameserver.machine.rows(*topic_range()))
    assert list(copy.scan(*kind_range(MetadataRowKind.TOPIC_ID))) == [
        (TOPIC_IDS_KEY, cache.revision.to_bytes(8, "big"))
    ]
    # The limits on tombstones and kept revisions are reached in the second round.
    assert len(set(counts[2:])) == 1, counts


def _rows(store: MemoryMetadataStore) -> int:
    return sum(1 for _ in store.scan(b"\x00", b"\xff"))
