"""Costs of topics in the object store: requests and bytes since the node started.

Topics share the requests of a common object by their bytes in it. Requests that serve no single
topic (manifests, verification, compaction, listings) are counted only in
`strata_tier_store_requests_total`, which counts every request that a cloud bills, repeats included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata_runtime.metrics import Metrics
from strata_tier.base.metrics import COST_METRICS
from strata_tier.objects.state import TieredRange

OTHER_TOPICS = "~other"
OTHER_TOPIC_ID = 0
"""Stands for all of them; topics are numbered from 1."""


@dataclass(slots=True)
class TopicCost:
    """Costs of one topic.

    Attributes:
        put_requests: requests that stored something; shared ones count in part.
        get_requests: requests that read something.
        uploaded_bytes: of objects, in proportion.
        downloaded_bytes: of reads.
    """

    put_requests: float = 0.0
    get_requests: float = 0.0
    uploaded_bytes: int = 0
    downloaded_bytes: int = 0


class TopicCosts:
    """Costs of one node.

    Args:
        metrics: where they are counted.
        name_of: gives NAMESPACE%NAME of a topic; empty: it is not known.
        topics_max: topics that are counted by name in the metrics; the rest are `~other`.
        costs_max: costs of topics that are kept, one for each raft group; those of other topics are
            kept together as `~other`.
    """

    def __init__(
        self,
        metrics: Metrics,
        name_of: Callable[[int], str],
        *,
        topics_max: int = 1_000,
        costs_max: int = 10_000,
    ) -> None:
        metrics.declare(COST_METRICS)
        self._requests = metrics.counter("strata_tier_topic_requests_total")
        self._bytes = metrics.counter("strata_tier_topic_bytes_total")
        self._messages = metrics.counter("rocketmq_tiered_store_messages_dispatch_total")
        self._name_of = name_of
        self._topics_max = topics_max
        self._costs_max = costs_max
        # Topics that have a series of their own.
        self._labels: dict[int, str] = {}
        # (raft group, topic id) -> cost.
        self._costs: dict[tuple[int, int], TopicCost] = {}

    def uploaded(
        self, raft_group: int, ranges: Sequence[TieredRange], object_bytes: int, requests: int
    ) -> None:
        """Count an object that was stored, and share it among the topics of its ranges."""
        by_topic: dict[int, int] = {}
        messages: dict[int, int] = {}
        for each in ranges:
            by_topic[each.topic_id] = by_topic.get(each.topic_id, 0) + each.bodies_bytes
            messages[each.topic_id] = messages.get(each.topic_id, 0) + each.message_count
        total = sum(by_topic.values()) or 1
        for topic_id, size in by_topic.items():
            share = size / total
            cost = self._cost(raft_group, topic_id)
            cost.put_requests += requests * share
            cost.uploaded_bytes += round(object_bytes * share)
            labels = _labels(self._name(topic_id))
            self._requests.add(requests * share, {**labels, "operation": "put"})
            self._bytes.add(round(object_bytes * share), {**labels, "direction": "up"})
            self._messages.add(messages[topic_id], labels)

    def downloaded(self, raft_group: int, topic_id: int, size_bytes: int) -> None:
        """Count one request that read something of a topic."""
        cost = self._cost(raft_group, topic_id)
        cost.get_requests += 1
        cost.downloaded_bytes += size_bytes
        labels = _labels(self._name(topic_id))
        self._requests.add(1, {**labels, "operation": "get"})
        self._bytes.add(size_bytes, {**labels, "direction": "down"})

    def of_raft_group(self, raft_group: int) -> list[tuple[int, str, TopicCost]]:
        """Return (topic id, its name as far as it is known, cost), in order."""
        found = sorted(key for key in self._costs if key[0] == raft_group)
        return [
            (
                topic_id,
                OTHER_TOPICS if topic_id == OTHER_TOPIC_ID else self._name_of(topic_id),
                self._costs[group, topic_id],
            )
            for group, topic_id in found
        ]

    def _cost(self, raft_group: int, topic_id: int) -> TopicCost:
        key = raft_group, topic_id
        cost = self._costs.get(key)
        if cost is None:
            if len(self._costs) >= self._costs_max:
                key = raft_group, OTHER_TOPIC_ID
            cost = self._costs.setdefault(key, TopicCost())
        return cost

    def _name(self, topic_id: int) -> str:
        label = self._labels.get(topic_id)
        if label is not None:
            return label
        if len(self._labels) >= self._topics_max:
            return OTHER_TOPICS
        name = self._name_of(topic_id)
        if not name:
            return OTHER_TOPICS
        self._labels[topic_id] = name
        return name


def put_requests(size_bytes: int, part_bytes: int) -> int:
    """Return how many requests storing an object takes: one, or a multipart upload's."""
    parts = -(-size_bytes // part_bytes)
    return 1 if parts <= 1 else parts + 2


def _labels(name: str) -> dict[str, str]:
    """Return the labels of NAMESPACE%NAME; `~other` is in no namespace."""
    namespace, percent, topic = name.partition("%")
    return {"namespace": namespace, "topic": topic} if percent else {"namespace": "", "topic": name}
