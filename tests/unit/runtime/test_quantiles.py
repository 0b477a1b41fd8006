"""Quantiles of a time window from a histogram that only grows."""

from __future__ import annotations

import random

import pytest

from strata_runtime.metrics import Histogram, Metrics, MetricSpec
from strata_runtime.quantiles import HistogramWindow, quantile

SPEC = MetricSpec("took_ms", "histogram", "ms", "Time.", ("log",), (1, 2, 4, 8))


def _histogram() -> Histogram:
    return Metrics([SPEC]).histogram("took_ms")


def test_a_window_has_only_what_came_in_it() -> None:
    """Values recorded before the last look, or under other labels, do not count."""
    histogram = _histogram()
    labels = {"log": "storage"}
    histogram.record(7, labels)
    window = HistogramWindow(histogram, labels)
    for _ in range(100):
        histogram.record(1.5, labels)
    histogram.record(7, {"log": "other"})
    taken = window.take()
    assert taken.count == 100
    assert 1 < taken.p50 <= taken.p99 <= taken.maximum == 2
    assert window.take() == type(taken)(0, 0.0, 0.0, 0.0, 0.0)


def test_no_histogram_is_an_empty_window() -> None:
    """A process that does not measure something says so by zeros."""
    assert HistogramWindow(None).take().count == 0


def test_what_is_above_all_boundaries_is_the_last_one() -> None:
    """The last bucket has no end; nothing larger than its start is claimed."""
    assert quantile((1, 2), [0, 0, 5], 0.99) == 2


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_a_quantile_lies_in_the_bucket_of_the_true_one(share: float) -> None:
    """The error is never more than one bucket."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    histogram = _histogram()
    window = HistogramWindow(histogram, {"log": "x"})
    values = sorted(chance.uniform(0, 8) for _ in range(1_000))
    for value in values:
        histogram.record(value, {"log": "x"})
    taken = window.take()
    found = {0.5: taken.p50, 0.95: taken.p95, 0.99: taken.p99}[share]
    true = values[int(share * len(values)) - 1]
    bounds = (0, 1, 2, 4, 8)
    low = max(bound for bound in bounds if bound <= true)
    high = min(bound for bound in bounds if bound >= true)
    assert low <= found <= high
