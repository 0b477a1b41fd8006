"""Adds our histograms to the metrics of the OpenTelemetry SDK on the way to an exporter.

The SDK has no observable histogram and no port for finished buckets from elsewhere, and its own
`record` is too slow for hot paths. An exporter, however, is a public port: a wrapper can add
metrics to each export. Counting costs the same with and without an exporter.

Invariant: totals since the start of the process (cumulative), whatever the exporter prefers: the
next export contains everything that a lost export missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope


class HistogramPoint(NamedTuple):
    """One label set of a histogram: a count per bucket, the last one above all boundaries."""

    labels: Mapping[str, str]
    bucket_counts: Sequence[int]
    total: float


class HistogramState(NamedTuple):
    """A histogram as it stands; `boundaries` are the buckets' upper bounds, inclusive."""

    name: str
    description: str
    boundaries: Sequence[float]
    points: Sequence[HistogramPoint]


class WithHistograms(MetricExporter):
    """An exporter that adds histograms to what it passes on.

    Args:
        exporter: gets everything; shut down with this one.
        histograms: returns them as they stand; called from the exporting thread.
    """

    def __init__(
        self, exporter: MetricExporter, histograms: Callable[[], Iterable[HistogramState]]
    ) -> None:
        super().__init__()
        self._exporter = exporter
        self._histograms = histograms
        self._started_ns = time.time_ns()
        # A name of its own: the OTLP encoder keeps only the last one of scopes that are equal.
        self._scope = InstrumentationScope("strata.histograms")

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Export with the histograms under the process's resource."""
        now_ns = time.time_ns()
        metrics = [self._metric(histogram, now_ns) for histogram in self._histograms()]
        first, *others = metrics_data.resource_metrics
        added = ScopeMetrics(self._scope, metrics, "")
        joined = ResourceMetrics(first.resource, [*first.scope_metrics, added], first.schema_url)
        return self._exporter.export(
            MetricsData([joined, *others]), timeout_millis=timeout_millis, **kwargs
        )

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Flush the exporter."""
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Shut the exporter down."""
        self._exporter.shutdown(timeout_millis, **kwargs)

    def _metric(self, histogram: HistogramState, now_ns: int) -> Metric:
        points = [
            HistogramDataPoint(
                attributes=dict(point.labels),
                start_time_unix_nano=self._started_ns,
                time_unix_nano=now_ns,
                count=sum(point.bucket_counts),
                sum=point.total,
                bucket_counts=list(point.bucket_counts),
                explicit_bounds=list(histogram.boundaries),
                # Optional on the wire, and not kept: they would cost every `record`.
                min=None,  # type: ignore[arg-type]
                max=None,  # type: ignore[arg-type]
            )
            for point in histogram.points
        ]
        data = Histogram(points, AggregationTemporality.CUMULATIVE)
        return Metric(histogram.name, histogram.description, "", data)
