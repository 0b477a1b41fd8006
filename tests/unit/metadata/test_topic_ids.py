"""Rows of the copy that name topics by id, and the topics that storage keeps in memory."""

from __future__ import annotations

import random

from strata.meta.v1 import meta_pb2
from strata_metadata import ClusterView, MetadataCache, StoredTopics, WatchOptions
from strata_metadata.topic_ids import facts_of
from strata_runtime.metrics import Metrics
from strata_state.metadata_keys import (
    APPLIED_KEY,
    TOPIC_IDS_KEY,
    MetadataRowKind,
    kind_range,
    topic_id_key,
)
from strata_testing.metadata_store import MemoryMetadataStore
from tests.unit.metadata.conftest import topic
from tests.unit.metadata.test_install import parts_of


def opened(
    store: MemoryMetadataStore, max_kept: int = 100
) -> tuple[MetadataCache, ClusterView, StoredTopics]:
    """Open a copy as a storage node does."""
    view, stored = ClusterView(), StoredTopics(store, max_kept, Metrics.disabled())
    view.read_topics_from(stored)
    kinds = [MetadataRowKind.NODE, MetadataRowKind.SLOTS]
    cache = MetadataCache(store, WatchOptions(), Metrics.disabled(), sinks=[view], sink_kinds=kinds)
    return cache, view, stored


def by_id(store: MemoryMetadataStore) -> dict[bytes, bytes]:
    """Return the rows by id without the mark."""
    rows = store.scan(*kind_range(MetadataRowKind.TOPIC_ID))
    return {key: value for key, value in rows if key != TOPIC_IDS_KEY}


def expected(store: MemoryMetadataStore) -> dict[bytes, bytes]:
    """Return the rows by id that the topics' rows ask for."""
    rows = store.scan(*kind_range(MetadataRowKind.TOPIC))
    return {topic_id_key(meta_pb2.Topic.FromString(value).topic_id): key[1:] for key, value in rows}


def test_the_bytes_of_a_row_by_id() -> None:
    """The key is the kind and the id, the value is the topic's name as in its own key."""
    store = MemoryMetadataStore()
    cache, _, _ = opened(store)
    row = meta_pb2.Topic(namespace="shop", name="orders", topic_id=0x01020304)
    cache.apply(meta_pb2.WatchResponse(revision=7, changes=[meta_pb2.Change(topic=row)]))
    assert list(store.scan(*kind_range(MetadataRowKind.TOPIC_ID))) == [
        (b"\x0f", b"\x00\x00\x00\x00\x00\x00\x00\x07"),
        (b"\x0f\x01\x02\x03\x04", b"shop\x00orders"),
    ]


def test_rows_by_id_follow_the_topics() -> None:
    """After any changes and snapshots, each topic is found by its id, and no other id is there."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chooser = random.Random(seed)
    store = MemoryMetadataStore()
    cache, view, _ = opened(store, max_kept=5)
    rows: dict[str, meta_pb2.Change] = {}
    next_id = 1
    for revision in range(1, 120):
        changes = []
        for name in chooser.sample([f"t{number}" for number in range(30)], chooser.randint(1, 8)):
            if name in rows and chooser.random() < 0.4:
                gone = meta_pb2.Change(deleted=True, topic=meta_pb2.Topic(name=name))
                changes.append(gone)
                del rows[name]
                continue
            if name in rows and chooser.random() < 0.5:
                made = topic(name, rows[name].topic.topic_id, revision)
            else:
                made, next_id = topic(name, next_id, revision), next_id + 1
            changes.append(made)
            rows[name] = made
        if chooser.random() < 0.2 and rows:
            whole = chooser.sample(list(rows.values()), len(rows))
            for part in parts_of(revision, whole, chooser.randint(1, 10)):
                cache.apply(part)
        else:
            cache.apply(meta_pb2.WatchResponse(revision=revision, changes=changes))
        assert by_id(store) == expected(store), f"seed {seed}"
        for topic_id in range(1, next_id + 1):
            wanted = [row for row in rows.values() if row.topic.topic_id == topic_id]
            found = view.topic(topic_id)
            assert found == (facts_of(wanted[0].topic) if wanted else None), f"seed {seed}"
        if chooser.random() < 0.1:
            cache, view, _ = opened(store, max_kept=5)
    names = {str(row.topic.topic_id): f"%{name}" for name, row in rows.items()}
    assert view.topic_names() == names


def test_a_copy_of_an_older_version_gets_its_rows_by_id() -> None:
    """Rows without the mark, or with one that was left behind, are written anew at the opening."""
    store = MemoryMetadataStore()
    cache, _, _ = opened(store)
    cache.apply(meta_pb2.WatchResponse(revision=4, changes=[topic("a", 1), topic("b", 2)]))
    store.write([], list(dict(store.scan(*kind_range(MetadataRowKind.TOPIC_ID)))))
    _, view, _ = opened(store)
    found = view.topic(2)
    assert found is not None and found.retention_ms == 1_000
    assert by_id(store) == expected(store)
    # An older version changes rows: it writes no rows by id, and the mark stays.
    ids = dict(store.scan(*kind_range(MetadataRowKind.TOPIC_ID)))
    cache, _, _ = opened(store)
    gone = meta_pb2.Change(deleted=True, topic=meta_pb2.Topic(name="a"))
    cache.apply(meta_pb2.WatchResponse(revision=5, changes=[gone, topic("b", 3), topic("c", 4)]))
    new = dict(store.scan(*kind_range(MetadataRowKind.TOPIC_ID)))
    store.write(list(ids.items()), [key for key in new if key not in ids])
    _, view, _ = opened(store)
    assert [view.topic(each) is not None for each in (1, 2, 3, 4)] == [False, False, True, True]
    assert by_id(store) == expected(store)
    assert store.get(APPLIED_KEY) is not None


def test_few_topics_are_in_memory() -> None:
    """A storage node with many topics keeps those that it was asked for last."""
    store = MemoryMetadataStore()
    cache, view, stored = opened(store, max_kept=10)
    rows = [topic(f"t{number}", 1 + number) for number in range(500)]
    cache.apply(meta_pb2.WatchResponse(revision=1, snapshot=True, changes=rows))
    assert len(stored._kept) == 0
    for topic_id in range(1, 501):
        assert view.retention_ms(topic_id) == 1_000
    assert list(stored._kept) == list(range(491, 501))
    assert len(stored._ids) == 10
    changed = topic("t499", 500, retention_ms=2_000)
    cache.apply(meta_pb2.WatchResponse(revision=2, changes=[changed]))
    assert view.retention_ms(500) == 2_000
