"""Lag of consumer groups as metrics: added up once for each window, finished points at a scrape."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

from strata_broker.base.metrics import METRICS
from strata_broker.operators.consumer_lags import ConsumerLags, Row
from strata_runtime.metrics import Metrics
from strata_runtime.windows import Value

# Rows that one turn of the event loop may take in.
MOST_PER_TURN = 500


def row(group: str, lag: int, leases: int, ages_ms: tuple[int, int] = (0, 0)) -> dict[str, Value]:
    """Return what a window says of a consumer group on one queue."""
    return {
        "namespace": "ns",
        "topic": "orders",
        "consumer_group": group,
        "lag_messages": lag,
        "leases": leases,
        "lag_ms": ages_ms[0],
        "queueing_ms": ages_ms[1],
    }


def shown(metrics: Metrics, what: str) -> dict[str, float]:
    """Return what a scrape shows of a gauge, by consumer group."""
    metrics.read_gauges()
    return {
        line.split('"')[1]: float(line.split()[-1])
        for line in metrics.render().decode().splitlines()
        if line.startswith(f"rocketmq_consumer_{what}{{")
    }


class CountedRows:
    """Rows that count how many of them were read."""

    def __init__(self, rows: list[dict[str, Value]]) -> None:
        self.rows = rows
        self.read = 0

    def __iter__(self) -> Iterator[Row]:
        for one in self.rows:
            self.read += 1
            yield one


def read_in_turns(work: Coroutine[Any, Any, None], rows: CountedRows) -> list[int]:
    """Return how many rows each turn of the event loop read."""
    turns: list[int] = []
    while True:
        before = rows.read
        try:
            work.send(None)
        except StopIteration:
            return [*turns, rows.read - before]
        turns.append(rows.read - before)


async def test_numbers_are_sums_and_ages_are_maxima() -> None:
    """All queues at all storage nodes count; a node that is not asked any more does not."""
    metrics = Metrics(METRICS)
    lags = ConsumerLags(metrics)
    await lags.take("one", [row("g", 5, 2, (300, 100)), row("g", 7, 1, (200, 150))])
    await lags.take("two", [row("g", 20, 4, (250, 20)), row("h", 1, 1)])
    await lags.show()
    assert shown(metrics, "lag_messages") == {"g": 32, "h": 1}
    assert shown(metrics, "inflight_messages") == {"g": 7, "h": 1}
    assert shown(metrics, "ready_messages") == {"g": 25, "h": 0}
    assert shown(metrics, "lag_latency") == {"g": 300, "h": 0}
    assert shown(metrics, "queueing_latency") == {"g": 150, "h": 0}
    lags.keep_only({"two"})
    await lags.show()
    assert shown(metrics, "lag_messages") == {"g": 20, "h": 1}
    lags.forget("two")
    await lags.show()
    assert shown(metrics, "lag_messages") == {}


async def test_a_scrape_reads_no_rows_and_makes_no_labels() -> None:
    """The five gauges have finished points, which share their labels."""
    metrics = Metrics(METRICS)
    lags, rows = ConsumerLags(metrics), CountedRows([row(f"g{n}", n, 1) for n in range(10)])
    await lags.take("one", rows)
    await lags.show()
    points = lags._points_of("rocketmq_consumer_lag_messages")
    for _ in range(3):
        assert len(shown(metrics, "ready_messages")) == 10
    assert rows.read == 10
    assert lags._points_of("rocketmq_consumer_lag_messages") is points
    labels = {
        id(one)
        for name in ("lag_messages", "inflight_messages", "ready_messages", "lag_latency")
        for _, one in lags._points_of(f"rocketmq_consumer_{name}")
    }
    assert len(labels) == 10


async def test_only_as_many_points_are_kept_as_a_metric_shows() -> None:
    """The first ones, with what later rows add to them."""
    metrics = Metrics(METRICS, max_label_sets=2)
    lags = ConsumerLags(metrics)
    await lags.take("one", [row("g", 1, 0), row("h", 2, 0), row("i", 4, 0)])
    await lags.take("two", [row("i", 8, 0), row("h", 16, 0)])
    await lags.show()
    points = lags._points_of("rocketmq_consumer_lag_messages")
    assert [(value, one["consumer_group"]) for value, one in points] == [(1, "g"), (18, "h")]
    assert shown(metrics, "lag_messages") == {"g": 1, "h": 18}


def test_rows_are_taken_in_by_pieces() -> None:
    """A window has up to 10,000 of them; other work goes on in between."""
    lags, rows = ConsumerLags(Metrics(METRICS)), CountedRows([row("g", 1, 1)] * 1_200)
    assert read_in_turns(lags.take("one", rows), rows) == [MOST_PER_TURN, MOST_PER_TURN, 200]


def test_what_was_known_is_shown_until_all_is_added_up() -> None:
    """A scrape may come between two pieces."""
    metrics = Metrics(METRICS)
    lags = ConsumerLags(metrics)
    many: list[Mapping[str, Value]] = [row(f"g{number}", 1, 1) for number in range(1_200)]
    for rows in ([row("old", 3, 1)], many):
        for _ in lags.take("one", rows).__await__():
            pass
        turns = 0
        for _ in lags.show().__await__():
            turns += 1
            assert shown(metrics, "lag_messages") == {"old": 3}
    assert turns == 2
    assert len(shown(metrics, "lag_messages")) == 1_200
