"""Data for an OpenTelemetry exporter: everything that a scrape shows, histograms included."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)

from strata_runtime.metrics import Metrics, MetricSpec

SPECS = (
    MetricSpec("strata_syncs_total", "counter", "1", "Syncs."),
    MetricSpec("strata_up", "gauge", "1", "Whether it runs."),
    MetricSpec("strata_sync_ms", "histogram", "ms", "Sync time.", ("node", "disk"), (1, 10)),
)


class Kept(MetricExporter):
    """Keeps what it is given, as an OTLP exporter would send it."""

    def __init__(self) -> None:
        super().__init__()
        self.exports: list[MetricsData] = []
        self.closed = False

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        self.exports.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self.closed = True

    def metrics(self) -> dict[str, Metric]:
        """The metrics of the last export by name."""
        (resource,) = self.exports[-1].resource_metrics
        assert resource.resource.attributes["service.name"] == "strata-test"
        return {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}

    def histogram(self) -> Histogram:
        """The histogram of the last export."""
        data = self.metrics()["strata_sync_ms"].data
        assert isinstance(data, Histogram)
        return data


def test_exporters_get_histograms_beside_the_rest() -> None:
    """Buckets, sum and labels of a histogram arrive under the process's resource."""
    exporter = Kept()
    metrics = Metrics(
        SPECS, service="strata-test", common_labels={"cluster": "c"}, exporters=[exporter]
    )
    metrics.counter("strata_syncs_total").add(3)
    metrics.gauge("strata_up", lambda: 1)
    histogram = metrics.histogram("strata_sync_ms")
    for value in (0.5, 1, 5, 50):
        histogram.record(value, {"node": "a", "disk": "x"})
    metrics.read_gauges()
    metrics.export()
    assert set(exporter.metrics()) == {spec.name for spec in SPECS}
    data = exporter.histogram()
    assert data.aggregation_temporality is AggregationTemporality.CUMULATIVE
    (point,) = data.data_points
    assert point.attributes == {"cluster": "c", "node": "a", "disk": "x"}
    assert list(point.explicit_bounds) == [1, 10]
    assert (list(point.bucket_counts), point.count, point.sum) == ([2, 1, 1], 4, 56.5)
    assert point.start_time_unix_nano <= point.time_unix_nano
    metrics.close()
    assert exporter.closed


def test_totals_go_on_and_label_order_does_not_matter() -> None:
    """Every export has all values since the start; one label set is one point in any order."""
    exporter = Kept()
    metrics = Metrics(SPECS, service="strata-test", exporters=[exporter])
    metrics.counter("strata_syncs_total").add()
    histogram = metrics.histogram("strata_sync_ms")
    histogram.record(5, {"node": "a", "disk": "x"})
    metrics.export()
    histogram.record(20, {"disk": "x", "node": "a"})
    histogram.record(0, {"disk": "y", "node": "a"})
    metrics.export()
    points = exporter.histogram().data_points
    assert {(point.attributes or {})["disk"]: list(point.bucket_counts) for point in points} == {
        "x": [0, 1, 1],
        "y": [1, 0, 0],
    }
    assert {point.sum for point in points} == {25, 0}
    assert len(exporter.exports) == 2
    metrics.close()
