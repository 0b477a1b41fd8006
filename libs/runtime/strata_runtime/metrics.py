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

This module knows no metric: each package has its own `metrics.py` with `METRICS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from strata_runtime.metric_kinds import (
    BoundCounter,
    BoundHistogram,
    Counter,
    DisabledCounter,
    DisabledHistogram,
    Gauge,
    GaugeCallback,
    Histogram,
    Labels,
    LabelSet,
    MetricSpec,
    sum_by_labels,
)
from strata_runtime.metrics_export import HistogramState, WithHistograms

__all__ = [
    "BoundCounter",
    "BoundHistogram",
    "Counter",
    "Gauge",
    "GaugeCallback",
    "Histogram",
    "Labels",
    "MetricSpec",
    "Metrics",
]


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
    def max_label_sets(self) -> int:
        """Most label sets of one metric; a gauge shows the first ones."""
        return self._max_label_sets

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
                name, [lambda _: self._observe(counter.points())], description=spec.help_text
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
            self._gauge_points[name] = sum_by_labels(points[: self._max_label_sets])

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
        return [histogram.state(self._common) for histogram in list(self._histograms.values())]

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
            yield histogram.family(self._common)


class _DisabledMetrics(Metrics):
    """Accepts every name, so that a component runs without its specs being declared."""

    def __init__(self) -> None:
        self._counter = DisabledCounter(MetricSpec("none_total", "counter", "1", ""), 1)
        self._histogram = DisabledHistogram(MetricSpec("none", "histogram", "1", ""), 1)
        self._max_label_sets = 0
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
