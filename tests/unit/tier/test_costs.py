"""Costs of topics in the store."""

from __future__ import annotations

from strata_runtime.metrics import Metrics
from strata_tier.objects.costs import (
    OTHER_TOPIC_ID,
    OTHER_TOPICS,
    TopicCost,
    TopicCosts,
    put_requests,
)
from strata_tier.objects.state import TieredRange

NAMES = {1: "%orders", 2: "acme%clicks", 3: "%late"}


def name_of(topic_id: int) -> str:
    return NAMES.get(topic_id, "")


def _range(topic_id: int, bodies_bytes: int) -> TieredRange:
    return TieredRange(topic_id, 0, 0, 1, 0, 1, 1, bodies_bytes, 0, 0, 7)


def test_an_object_is_shared_by_its_topics() -> None:
    """Requests and bytes of an upload are split by what each topic has in the object."""
    costs = TopicCosts(Metrics.disabled(), name_of)
    costs.uploaded(5, [_range(1, 300), _range(2, 60), _range(2, 40)], 1_000, 4)
    costs.downloaded(5, 2, 123)
    costs.downloaded(6, 2, 1)
    assert costs.of_raft_group(5) == [
        (1, "%orders", TopicCost(3.0, 0.0, 750, 0)),
        (2, "acme%clicks", TopicCost(1.0, 1.0, 250, 123)),
    ]
    assert [cost.get_requests for _, _, cost in costs.of_raft_group(6)] == [1.0]


def test_costs_of_a_limited_number_of_topics_are_kept_apart() -> None:
    """Topics come and go; memory stays, and the sum too."""
    costs = TopicCosts(Metrics.disabled(), name_of, costs_max=2)
    for topic_id in (1, 2, 3, 4, 2):
        costs.downloaded(5, topic_id, 10)
    found = [(topic_id, name, cost.get_requests) for topic_id, name, cost in costs.of_raft_group(5)]
    assert found == [(OTHER_TOPIC_ID, OTHER_TOPICS, 2), (1, "%orders", 1), (2, "acme%clicks", 2)]


def test_metrics_name_a_limited_number_of_topics() -> None:
    """Beyond the limit, and before its name is known, a topic is counted with the others."""
    counted: list[tuple[float, dict[str, str]]] = []

    class Counter:
        def add(self, amount: float, labels: dict[str, str]) -> None:
            counted.append((amount, labels))

    class Recorded:
        def declare(self, _: object) -> None:
            return

        def counter(self, name: str) -> Counter:
            assert name.startswith(("strata_tier_topic_", "rocketmq_tiered_store_messages_"))
            return Counter()

    known: dict[int, str] = {}
    costs = TopicCosts(Recorded(), lambda topic_id: known.get(topic_id, ""), topics_max=2)  # type: ignore[arg-type]
    costs.downloaded(1, 1, 10)
    known |= NAMES
    for topic_id in (1, 2, 3):
        costs.downloaded(1, topic_id, 10)
    names = [
        (labels["namespace"], labels["topic"]) for _, labels in counted if "operation" in labels
    ]
    other = ("", OTHER_TOPICS)
    assert names == [other, ("", "orders"), ("acme", "clicks"), other]


def test_messages_that_were_brought_there_are_counted_by_topic() -> None:
    """All ranges of an object, each with its topic."""
    metrics = Metrics()
    costs = TopicCosts(metrics, name_of)
    ranges = [_range(1, 300), _range(2, 60), _range(2, 40)]
    costs.uploaded(5, [each._replace(message_count=7) for each in ranges], 1_000, 4)
    dispatched = metrics.counter("rocketmq_tiered_store_messages_dispatch_total")
    assert dispatched.value({"namespace": "", "topic": "orders"}) == 7
    assert dispatched.value({"namespace": "acme", "topic": "clicks"}) == 14


def test_an_upload_in_parts_is_several_requests() -> None:
    """A body of one part is one request; beyond that begin and end count, too."""
    assert [put_requests(size, 10) for size in (0, 10, 11, 25)] == [1, 1, 4, 5]
