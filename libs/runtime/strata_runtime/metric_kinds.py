"""Kinds of metrics: counters, histograms and gauges with their labels, and their specs.

Counting costs a dictionary update; a `bound` metric resolves its labels once. `metrics.Metrics`
creates these objects and exports them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import HistogramMetricFamily

from strata_runtime.metrics_export import HistogramPoint, HistogramState

Labels = Mapping[str, str]
GaugeCallback = Callable[[], "float | Iterable[tuple[float, Labels]]"]
LabelSet = tuple[tuple[str, str], ...]

_OVERFLOW: LabelSet = (("otel_metric_overflow", "true"),)

_BOUNDARIES: Mapping[str, tuple[float, ...]] = {
    "ms": (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000),
    "s": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    "bytes": tuple(4.0**power for power in range(3, 14)),
    "1": tuple(2.0**power for power in range(15)),
}


@dataclass(frozen=True)
class MetricSpec:
    """One metric as documentation, dashboards and tests know it.

    Attributes:
        name: the name on the scrape. A counter's ends with `_total` (Prometheus forces it).
        kind: how it behaves.
        unit: "1", "bytes", "ms", "s"; shown in the description.
        description: one sentence.
        labels: label names; every recording gives exactly these.
        boundaries: upper bounds of a histogram's buckets; empty: by unit.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.kind == "counter") != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: a counter's name ends with _total, no other's does")

    @property
    def help_text(self) -> str:
        """Description with the unit."""
        return self.description if self.unit == "1" else f"{self.description} Unit: {self.unit}."


class Counter:
    """A number that only grows, per label set.

    `add` may be called from any thread: the update holds no point where CPython switches threads.
    """

    __slots__ = ("_max_label_sets", "_spec", "_values")

    def __init__(self, spec: MetricSpec, max_label_sets: int) -> None:
        self._spec = spec
        self._max_label_sets = max_label_sets
        self._values: dict[LabelSet, float] = {}

    def add(self, n: float = 1, labels: Labels | None = None) -> None:
        """Add `n` (not negative).

        Raises:
            ValueError: the labels are not those of the spec.
        """
        key = tuple(labels.items()) if labels else ()
        try:
            self._values[key] += n
        except KeyError:
            key = _new_label_set(self._spec, key, len(self._values), self._max_label_sets)
            self._values[key] = self._values.get(key, 0) + n

    def bound(self, labels: Labels) -> BoundCounter:
        """Return the counter for one label set, for what is counted with every message.

        Raises:
            ValueError: the labels are not those of the spec.
        """
        key = tuple(labels.items())
        if key not in self._values:
            key = _new_label_set(self._spec, key, len(self._values), self._max_label_sets)
            self._values.setdefault(key, 0)
        return BoundCounter(self._values, key)

    def value(self, labels: Labels | None = None) -> float:
        """Return the count for these labels, in any order; 0 if nothing was counted."""
        wanted = tuple(sorted((labels or {}).items()))
        return dict(self.points()).get(wanted, 0)

    def points(self) -> list[tuple[LabelSet, float]]:
        """Return (labels, number) of every label set."""
        return sum_by_labels(list(self._values.items()))


class BoundCounter:
    """A counter whose labels were looked at once."""

    __slots__ = ("_key", "_values")

    def __init__(self, values: dict[LabelSet, float], key: LabelSet) -> None:
        self._values = values
        self._key = key

    @property
    def is_overflow(self) -> bool:
        """Whether it counts for all label sets for which there was no room."""
        return self._key is _OVERFLOW

    def add(self, n: float = 1) -> None:
        """See `Counter.add`."""
        self._values[self._key] += n


class Histogram:
    """Counts of values per bucket and their sum, per label set; `record` as `Counter.add`."""

    __slots__ = ("_boundaries", "_counts", "_max_label_sets", "_spec", "_sums")

    def __init__(self, spec: MetricSpec, max_label_sets: int) -> None:
        self._spec = spec
        self._max_label_sets = max_label_sets
        self._boundaries = spec.boundaries or _BOUNDARIES.get(spec.unit, _BOUNDARIES["1"])
        self._counts: dict[LabelSet, list[int]] = {}
        self._sums: dict[LabelSet, float] = {}

    def record(self, value: float, labels: Labels | None = None) -> None:
        """Count `value`, in the spec's unit.

        Raises:
            ValueError: the labels are not those of the spec.
        """
        key = tuple(labels.items()) if labels else ()
        if key not in self._counts:
            key = self._added(key)
        self._counts[key][bisect_left(self._boundaries, value)] += 1
        self._sums[key] += value

    def bound(self, labels: Labels | None = None) -> BoundHistogram:
        """Return the histogram for one label set, for what is recorded with every message.

        Raises:
            ValueError: the labels are not those of the spec.
        """
        key = tuple(labels.items()) if labels else ()
        if key not in self._counts:
            key = self._added(key)
        return BoundHistogram(self._boundaries, self._counts[key], self._sums, key=key)

    def _added(self, key: LabelSet) -> LabelSet:
        """Return the key under which a label set seen for the first time is recorded."""
        key = _new_label_set(self._spec, key, len(self._counts), self._max_label_sets)
        self._sums.setdefault(key, 0.0)
        self._counts.setdefault(key, [0] * (len(self._boundaries) + 1))
        return key

    def count(self, labels: Labels | None = None) -> int:
        """How many values were recorded for these labels."""
        wanted = sorted((labels or {}).items())
        return sum(
            sum(counts) for key, counts in list(self._counts.items()) if sorted(key) == wanted
        )

    @property
    def boundaries(self) -> Sequence[float]:
        """Upper bounds of all buckets but the last."""
        return self._boundaries

    def bucket_counts(self, labels: Labels | None = None) -> list[int]:
        """Values per bucket so far, for these labels; one more than there are boundaries."""
        wanted = sorted((labels or {}).items())
        total = [0] * (len(self._boundaries) + 1)
        if len(wanted) <= 1:
            # One label has one order: no look at the label sets of all peers for each of them.
            return list(self._counts.get(tuple(wanted), total))
        for key, counts in list(self._counts.items()):
            if sorted(key) == wanted:
                total[:] = map(int.__add__, total, counts)
        return total

    def state(self, common: LabelSet) -> HistogramState:
        """As exporters see it: one point per label set, in whatever order its labels came."""
        buckets: dict[LabelSet, list[int]] = {}
        for key, counts in list(self._counts.items()):
            known = buckets.setdefault(tuple(sorted(key)), [0] * len(counts))
            known[:] = map(int.__add__, known, counts)
        totals = dict(sum_by_labels(list(self._sums.items())))
        points = [
            HistogramPoint(dict(common + key), counts, totals.get(key, 0.0))
            for key, counts in buckets.items()
        ]
        return HistogramState(self._spec.name, self._spec.help_text, self._boundaries, points)

    def family(self, common: LabelSet) -> HistogramMetricFamily:
        """Return what a scrape shows; `common` labels go to every series."""
        names = [name for name, _ in common] + list(self._spec.labels)
        family = HistogramMetricFamily(self._spec.name, self._spec.help_text, labels=names)
        for key, counts in list(self._counts.items()):
            values = dict(common + key)
            running, buckets = 0, []
            for bound, count in zip((*self._boundaries, "+Inf"), counts, strict=True):
                running += count
                buckets.append((str(bound), running))
            row = [values.get(name, "overflow") for name in names]
            family.add_metric(row, buckets=buckets, sum_value=self._sums.get(key, 0.0))
        return family


class BoundHistogram:
    """A histogram whose labels were looked at once."""

    __slots__ = ("_boundaries", "_counts", "_key", "_sums")

    def __init__(
        self,
        boundaries: Sequence[float],
        counts: list[int],
        sums: dict[LabelSet, float],
        *,
        key: LabelSet,
    ) -> None:
        self._boundaries = boundaries
        self._counts = counts
        self._sums = sums
        self._key = key

    def record(self, value: float, count: int = 1) -> None:
        """See `Histogram.record`; `count` times the same value."""
        self._counts[bisect_left(self._boundaries, value)] += count
        self._sums[self._key] += value * count

    def record_all(self, values: Sequence[float]) -> None:
        """Record each of several values."""
        counts, boundaries = self._counts, self._boundaries
        for value in values:
            counts[bisect_left(boundaries, value)] += 1
        self._sums[self._key] += sum(values)


class Gauge:
    """A registered gauge callback; `close` ends it (for a component that stops)."""

    __slots__ = ("_callbacks", "_mine")

    def __init__(self, callbacks: list[GaugeCallback], mine: GaugeCallback) -> None:
        self._callbacks = callbacks
        self._mine = mine
        callbacks.append(mine)

    def close(self) -> None:
        """Report it no more. Closing twice is allowed."""
        if self._mine in self._callbacks:
            self._callbacks.remove(self._mine)


class DisabledCounter(Counter):
    """Counts nothing."""

    __slots__ = ()

    def add(self, n: float = 1, labels: Labels | None = None) -> None:
        """Count nothing."""

    def bound(self, labels: Labels) -> BoundCounter:
        """A counter that counts nothing, for all label sets."""
        return _DisabledBoundCounter({}, _OVERFLOW)


class _DisabledBoundCounter(BoundCounter):
    __slots__ = ()

    def add(self, n: float = 1) -> None:
        """Count nothing."""


class DisabledHistogram(Histogram):
    """Records nothing."""

    __slots__ = ()

    def record(self, value: float, labels: Labels | None = None) -> None:
        """Record nothing."""

    def bound(self, labels: Labels | None = None) -> BoundHistogram:
        """A histogram that records nothing."""
        return _DisabledBoundHistogram((), [], {}, key=())


class _DisabledBoundHistogram(BoundHistogram):
    __slots__ = ()

    def record(self, value: float, count: int = 1) -> None:
        """Record nothing."""

    def record_all(self, values: Sequence[float]) -> None:
        """Record nothing."""


def _new_label_set(spec: MetricSpec, key: LabelSet, used: int, limit: int) -> LabelSet:
    """The key under which a label set seen for the first time is counted."""
    names = tuple([name for name, _ in key])
    if names != spec.labels and set(names) != set(spec.labels):
        raise ValueError(f"{spec.name} has the labels {spec.labels}, got {dict(key)}")
    return key if used < limit else _OVERFLOW


def sum_by_labels(points: list[tuple[LabelSet, float]]) -> list[tuple[LabelSet, float]]:
    """Merge label sets that differ only in order."""
    sums: dict[LabelSet, float] = {}
    for key, value in points:
        ordered = tuple(sorted(key))
        sums[ordered] = sums.get(ordered, 0) + value
    return list(sums.items())
