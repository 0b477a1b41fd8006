"""Metrics: declared once as specs, counted cheaply, scraped through OpenTelemetry.

Invariants:
- A name on the scrape equals the name in its spec. Instruments are therefore created without a
  unit (the Prometheus exporter would append it to the name); the unit stands in the description.
- Counting costs a dictionary update. The OpenTelemetry SDK takes 5 to 7 us per `add` or `record`;
  here counters and gauges are accumulated in plain numbers that observable instruments read at
  scrape time, and histograms, for which OpenTelemetry has no observable kind, are given to the
  Prometheus registry and to exporters as finished buckets.
- At most `max_label_sets` label sets per metric; further ones are counted together under
  `otel_metric_overflow="true"`.

It does not know what is measured: each package has its own `metrics.py` with `METRICS`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from strata_runtime.metrics_export import HistogramPoint, HistogramState, WithHistograms

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

    def value(self, labels: Labels | None = None) -> float:
        """What was counted for these labels, in any order; 0 if nothing."""
        wanted = tuple(sorted((labels or {}).items()))
        return dict(self._points()).get(wanted, 0)

    def _points(self) -> list[tuple[LabelSet, float]]:
        return _sum_by_labels(list(self._values.items()))


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
        counts = self._counts.get(key)
        if counts is None:
            key = _new_label_set(self._spec, key, len(self._counts), self._max_label_sets)
            counts = self._counts.setdefault(key, [0] * (len(self._boundaries) + 1))
            self._sums.setdefault(key, 0.0)
        counts[bisect_left(self._boundaries, value)] += 1
        self._sums[key] += value

    def count(self, labels: Labels | None = None) -> int:
        """How many values were recorded for these labels."""
        wanted = sorted((labels or {}).items())
        return sum(
            sum(counts) for key, counts in list(self._counts.items()) if sorted(key) == wanted
        )

    def _state(self, common: LabelSet) -> HistogramState:
        """As exporters see it: one point per label set, in whatever order its labels came."""
        buckets: dict[LabelSet, list[int]] = {}
        for key, counts in list(self._counts.items()):
            known = buckets.setdefault(tuple(sorted(key)), [0] * len(counts))
            known[:] = map(int.__add__, known, counts)
        totals = dict(_sum_by_labels(list(self._sums.items())))
        points = [
            HistogramPoint(dict(common + key), counts, totals.get(key, 0.0))
            for key, counts in buckets.items()
        ]
        return HistogramState(self._spec.name, self._spec.help_text, self._boundaries, points)

    def _family(self, common: LabelSet) -> HistogramMetricFamily:
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


Instrument = TypeVar("Instrument", Counter, Histogram)


class Metrics:
    """The metrics of one process.

    Counters and histograms are shared by name: who asks again gets the same one. A gauge may have
    several callbacks (two storage nodes in one process); values of equal labels are added up.

    Args:
        specs: the `METRICS` of every package the process uses; more by `declare`.
        service: name of the process, OpenTelemetry's `service.name`.
        common_labels: labels of every series (cluster, node).
        max_label_sets: limit on label sets per metric.
        exporters: get everything at each `export`, for instance by OTLP; closed by `close`.
    """

    def __init__(
        self,
        specs: Iterable[MetricSpec] = (),
        *,
        service: str = "strata",
        common_labels: Labels | None = None,
        max_label_sets: int = 2_000,
        exporters: Sequence[MetricExporter] = (),
    ) -> None:
        self._common: LabelSet = tuple(sorted((common_labels or {}).items()))
        self._max_label_sets = max_label_sets
        self._specs: dict[str, MetricSpec] = {}
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges: dict[str, list[GaugeCallback]] = {}
        self._gauge_points: dict[str, list[tuple[LabelSet, float]]] = {}
        # A registry of its own: several processes' worth of metrics can live in one test.
        self._registry = CollectorRegistry()
        self._reader = PrometheusMetricReader(
            disable_target_info=True, scope_info_enabled=False, registry=self._registry
        )
        self._pushers = [
            PeriodicExportingMetricReader(
                WithHistograms(exporter, self._histogram_states), export_interval_millis=math.inf
            )
            for exporter in exporters
        ]
        self._provider = MeterProvider(
            [self._reader, *self._pushers],
            resource=Resource({"service.name": service}),
            shutdown_on_exit=False,
        )
        self._meter = self._provider.get_meter("strata")
        self._registry.register(_HistogramCollector(self._histograms, self._common))
        self.declare(specs)

    @staticmethod
    def disabled() -> Metrics:
        """Metrics that count nothing and accept every name."""
        return _DisabledMetrics()

    @property
    def specs(self) -> list[MetricSpec]:
        """Everything declared, by name."""
        return [self._specs[name] for name in sorted(self._specs)]

    def declare(self, specs: Iterable[MetricSpec]) -> None:
        """Make metrics known.

        Raises:
            ValueError: a name was declared before with another meaning.
        """
        for spec in specs:
            if self._specs.setdefault(spec.name, spec) != spec:
                raise ValueError(f"metric {spec.name} is declared twice and differs")

    def counter(self, name: str) -> Counter:
        """The counter `name`.

        Raises:
            KeyError: no spec declares it as a counter.
        """
        spec = self._spec(name, "counter")
        if name not in self._counters:
            counter = self._counters[name] = Counter(spec, self._max_label_sets)
            self._meter.create_observable_counter(
                name, [lambda _: self._observe(counter._points())], description=spec.help_text
            )
        return self._counters[name]

    def histogram(self, name: str) -> Histogram:
        """The histogram `name`.

        Raises:
            KeyError: no spec declares it as a histogram.
        """
        spec = self._spec(name, "histogram")
        if name not in self._histograms:
            self._histograms[name] = Histogram(spec, self._max_label_sets)
        return self._histograms[name]

    def gauge(self, name: str, callback: GaugeCallback) -> Gauge:
        """Report what `callback` returns at every scrape: a number, or numbers with labels.

        The callback runs where `read_gauges` is called (the event loop) and must not block.

        Raises:
            KeyError: no spec declares it as a gauge.
        """
        spec = self._spec(name, "gauge")
        if name not in self._gauges:
            self._gauges[name] = []

            def observe(_: CallbackOptions) -> Iterator[Observation]:
                return self._observe(self._gauge_points.get(name, []))

            self._meter.create_observable_gauge(name, [observe], description=spec.help_text)
        return Gauge(self._gauges[name], callback)

    def read_gauges(self) -> None:
        """Ask every gauge for its value; to be called on the event loop before `render`."""
        for name, callbacks in self._gauges.items():
            points: list[tuple[LabelSet, float]] = []
            for callback in callbacks:
                value = callback()
                if isinstance(value, int | float):
                    points.append(((), value))
                else:
                    points.extend((tuple(labels.items()), number) for number, labels in value)
            self._gauge_points[name] = _sum_by_labels(points[: self._max_label_sets])

    def render(self) -> bytes:
        """The Prometheus text format, with gauges as of the last `read_gauges`; any thread."""
        return generate_latest(self._registry)

    def export(self) -> None:
        """Give everything to the exporters, with gauges as of the last `read_gauges`; any thread.

        Waits for the exporters: not for the event loop. Without a counter or gauge there is
        nothing to export to them, histograms included.
        """
        for pusher in self._pushers:
            pusher.force_flush()

    def close(self) -> None:
        """Free the OpenTelemetry provider."""
        self._provider.shutdown()

    def _histogram_states(self) -> list[HistogramState]:
        return [histogram._state(self._common) for histogram in list(self._histograms.values())]

    def _spec(self, name: str, kind: str) -> MetricSpec:
        spec = self._specs.get(name)
        if spec is None or spec.kind != kind:
            raise KeyError(f"no {kind} named {name} is declared")
        return spec

    def _observe(self, points: list[tuple[LabelSet, float]]) -> Iterator[Observation]:
        for key, value in points:
            yield Observation(value, dict(self._common + key))


class _HistogramCollector(Collector):
    """Gives finished buckets to the Prometheus registry."""

    def __init__(self, histograms: Mapping[str, Histogram], common: LabelSet) -> None:
        self._histograms = histograms
        self._common = common

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """One family per histogram."""
        for histogram in list(self._histograms.values()):
            yield histogram._family(self._common)


class _DisabledCounter(Counter):
    __slots__ = ()

    def add(self, n: float = 1, labels: Labels | None = None) -> None:
        """Count nothing."""


class _DisabledHistogram(Histogram):
    __slots__ = ()

    def record(self, value: float, labels: Labels | None = None) -> None:
        """Record nothing."""


class _DisabledMetrics(Metrics):
    """Accepts every name, so that a component runs without its specs being declared."""

    def __init__(self) -> None:
        self._counter = _DisabledCounter(MetricSpec("none_total", "counter", "1", ""), 1)
        self._histogram = _DisabledHistogram(MetricSpec("none", "histogram", "1", ""), 1)
        self._specs = {}

    def declare(self, specs: Iterable[MetricSpec]) -> None:
        """Nothing to make known."""

    def counter(self, name: str) -> Counter:
        """A counter that counts nothing."""
        return self._counter

    def histogram(self, name: str) -> Histogram:
        """A histogram that records nothing."""
        return self._histogram

    def gauge(self, name: str, callback: GaugeCallback) -> Gauge:
        """A gauge that is never asked."""
        return Gauge([], callback)

    def read_gauges(self) -> None:
        """No gauge is asked."""

    def export(self) -> None:
        """Nobody to export to."""

    def render(self) -> bytes:
        """An empty scrape."""
        return b""

    def close(self) -> None:
        """Nothing to free."""


def _new_label_set(spec: MetricSpec, key: LabelSet, used: int, limit: int) -> LabelSet:
    """The key under which a label set seen for the first time is counted."""
    if {name for name, _ in key} != set(spec.labels):
        raise ValueError(f"{spec.name} has the labels {spec.labels}, got {dict(key)}")
    return key if used < limit else _OVERFLOW


def _sum_by_labels(points: list[tuple[LabelSet, float]]) -> list[tuple[LabelSet, float]]:
    """Merge label sets that differ only in order."""
    sums: dict[LabelSet, float] = {}
    for key, value in points:
        ordered = tuple(sorted(key))
        sums[ordered] = sums.get(ordered, 0) + value
    return list(sums.items())
