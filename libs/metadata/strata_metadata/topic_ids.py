"""Topics of the durable copy, found by id, so that storage keeps few of them in memory.

Storage asks for topics by id, while the rows are by name. The copy therefore has a row (id -> name)
for each topic, written in one batch with the topic's row. A storage node keeps in memory only the
topics that it was asked for last, however many there are, and its start does not read them all.

The mark (the row without an id) holds the revision of the batch that wrote it last. An older
version, which knows no such rows, leaves the mark behind: then all rows are written anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata_metadata.metrics import METRICS
from strata_mq.lite_policy import stored_lifetime_ms
from strata_mq.tier_policy import DISABLED, TierPolicy, stored_policy
from strata_runtime.metrics import Metrics
from strata_state.metadata import MetadataStore, Row
from strata_state.metadata_keys import (
    TOPIC_IDS_KEY,
    MetadataRowKind,
    kind_range,
    names_of,
    topic_id_key,
    topic_key,
)

_ROWS_PER_BATCH = 10_000

MAX_KEPT_TOPICS = 10_000
"""Topics that storage keeps in memory by default."""


class TopicFacts(NamedTuple):
    """The fields of a topic that storage needs beside its id.

    Attributes:
        is_dead_letter: its queues have no slots.
        tier: how it uses the tier.
        lite_lifetime_ms: how long its lite topics live without traffic; None: as long as it does.
    """

    retention_ms: int
    slot_base: int
    is_dead_letter: bool
    queue_count: int
    tier: TierPolicy
    lite_lifetime_ms: int | None = None


def facts_of(topic: meta_pb2.Topic) -> TopicFacts:
    """Return the facts of a topic's row."""
    is_lite = topic.type == meta_pb2.TOPIC_TYPE_LITE
    # One object would have a range for each lite topic: they stay in the log.
    tier = DISABLED if is_lite else stored_policy(topic.attributes)
    return TopicFacts(
        topic.retention_ms,
        topic.slot_base,
        topic.type == meta_pb2.TOPIC_TYPE_DEAD_LETTER,
        topic.queue_count,
        tier._replace(namespace=topic.namespace),
        stored_lifetime_ms(topic.attributes) if is_lite else None,
    )


def id_rows(
    store: MetadataStore, changes: Iterable[meta_pb2.Change]
) -> tuple[list[Row], list[bytes]]:
    """Return rows by id to write, and keys to delete, in the batch that writes these changes."""
    topics = {
        topic_key(change.topic.namespace, change.topic.name): (
            0 if change.deleted else change.topic.topic_id
        )
        for change in changes
        if change.HasField("topic")
    }
    puts: list[Row] = []
    deletes: list[bytes] = []
    for key, topic_id in topics.items():
        old = store.get(key)
        old_id = 0 if old is None else meta_pb2.Topic.FromString(old).topic_id
        if topic_id:
            puts.append((topic_id_key(topic_id), key[1:]))
        if old_id not in (0, topic_id):
            deletes.append(topic_id_key(old_id))
    written = {key for key, _ in puts}
    return puts, [key for key in dict.fromkeys(deletes) if key not in written]


def ids_mark(revision: int) -> Row:
    """Return the row that says that the rows by id are those of the topics at a revision."""
    return TOPIC_IDS_KEY, revision.to_bytes(8, "big")


def ensure_id_rows(store: MetadataStore, revision: int) -> None:
    """Write the rows by id anew unless they are those of this revision."""
    mark = ids_mark(revision)
    if store.get(TOPIC_IDS_KEY) == mark[1]:
        return
    old = (key for key, _ in store.scan(*kind_range(MetadataRowKind.TOPIC_ID)))
    while keys := list(islice(old, _ROWS_PER_BATCH)):
        store.write([], keys)
    topics = store.scan(*kind_range(MetadataRowKind.TOPIC))
    while rows := list(islice(topics, _ROWS_PER_BATCH)):
        store.write(
            [
                (topic_id_key(meta_pb2.Topic.FromString(value).topic_id), key[1:])
                for key, value in rows
            ]
        )
    store.write([mark])


class StoredTopics:
    """Finds topics by id in the durable copy; keeps those that were asked for last.

    Args:
        store: of the copy.
        max_kept: topics kept in memory.
        metrics: how many are kept.
    """

    def __init__(self, store: MetadataStore, max_kept: int, metrics: Metrics) -> None:
        self._store = store
        self._max_kept = max_kept
        # Topic id -> (facts, name in keys), and the ids by these names.
        self._kept: OrderedDict[int, tuple[TopicFacts, bytes]] = OrderedDict()
        self._ids: dict[bytes, int] = {}
        metrics.declare(METRICS)
        metrics.gauge("strata_metadata_kept_topics", lambda: len(self._kept))
        metrics.gauge("strata_metadata_kept_topics_maximum", lambda: max_kept)
        self._reads_total = metrics.counter("strata_metadata_topic_reads_total")

    def facts(self, topic_id: int) -> TopicFacts | None:
        """Return the facts of a topic; None: there is no such topic."""
        found = self._kept.get(topic_id)
        if found is not None:
            self._kept.move_to_end(topic_id)
            return found[0]
        self._reads_total.add()
        name = self._store.get(topic_id_key(topic_id))
        row = None if name is None else self._store.get(bytes([MetadataRowKind.TOPIC]) + name)
        topic = meta_pb2.Topic.FromString(row or b"")
        if name is None or topic.topic_id != topic_id:
            return None
        return self._keep(name, topic)

    def changed(self, topic: meta_pb2.Topic) -> None:
        """Forget a topic whose row was written or deleted."""
        topic_id = self._ids.pop(topic_key(topic.namespace, topic.name)[1:], None)
        if topic_id is not None:
            del self._kept[topic_id]

    def forget_all(self) -> None:
        """Forget all topics: the rows were replaced."""
        self._kept.clear()
        self._ids.clear()

    def name(self, topic_id: int) -> str:
        """Return NAMESPACE%NAME of a topic; empty: there is no such topic."""
        found = self._kept.get(topic_id)
        name = self._store.get(topic_id_key(topic_id)) if found is None else found[1]
        return "" if name is None else _text_of(name)

    def names(self) -> Iterator[tuple[int, str]]:
        """Return (id, NAMESPACE%NAME) of all topics; reads them all."""
        for key, name in self._store.scan(*kind_range(MetadataRowKind.TOPIC_ID)):
            if key != TOPIC_IDS_KEY:
                yield int.from_bytes(key[1:], "big"), _text_of(name)

    def _keep(self, name: bytes, topic: meta_pb2.Topic) -> TopicFacts:
        facts = facts_of(topic)
        self._kept[topic.topic_id] = facts, name
        self._ids[name] = topic.topic_id
        if len(self._kept) > self._max_kept:
            _, (_, oldest) = self._kept.popitem(last=False)
            del self._ids[oldest]
        return facts


def _text_of(name: bytes) -> str:
    return "%".join(names_of(b"\x00" + name))
