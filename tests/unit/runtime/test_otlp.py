"""Pushing spans and metrics, and what is made without a collector."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics, MetricSpec
from strata_runtime.observability import ObservabilityConfig, observe
from strata_runtime.otlp import OtlpPush
from strata_runtime.otlp_options import OtlpOptions
from strata_runtime.tracing import SpanKind, TraceOptions, Tracer

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Kept(SpanExporter):
    """Keeps spans, or refuses them."""

    def __init__(self, result: SpanExportResult = SpanExportResult.SUCCESS) -> None:
        self.result = result
        self.spans: list[ReadableSpan] = []
        self.calls = 0
        self.closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.calls += 1
        self.spans += spans
        return self.result

    def shutdown(self) -> None:
        self.closed = True


def _fatal(name: str, failure: BaseException) -> None:
    raise AssertionError(name) from failure


def _push(tracer: Tracer, metrics: Metrics, exporter: SpanExporter) -> OtlpPush:
    options = OtlpOptions("127.0.0.1:1", max_spans_per_push=3)
    resource = {"service.name": "strata-test", "node_id": "n1"}
    return OtlpPush(
        options, metrics, tracer.buffer, resource=resource, on_fatal=_fatal, span_exporter=exporter
    )


def _end_spans(tracer: Tracer, count: int) -> None:
    for number in range(count):
        span = tracer.begin("append", SpanKind.CLIENT, SAMPLED, {"number": number}, links=[SAMPLED])
        assert span is not None
        span.end(error="refused" if number == 1 else "")


async def test_spans_are_pushed_in_bounded_calls() -> None:
    """All that wait go, with parent, links, status and the process's resource."""
    metrics, exporter = Metrics(), Kept()
    tracer = Tracer(TraceOptions(), metrics)
    push = _push(tracer, metrics, exporter)
    _end_spans(tracer, 7)
    await push.push()
    await push.stop(1.0)
    assert (exporter.calls, len(exporter.spans), len(tracer.buffer)) == (3, 7, 0)
    first, second = exporter.spans[:2]
    assert first.parent is not None
    assert f"{first.parent.span_id:016x}" == "b7ad6b7169203331"
    assert first.context is not None
    assert f"{first.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert len(first.links) == 1
    assert first.status.is_unset
    assert (second.status.is_ok, second.status.description) == (False, "refused")
    assert first.resource.attributes["node_id"] == "n1"
    assert (
        metrics.counter("strata_otlp_pushes_total").value({"what": "spans", "result": "done"}) == 3
    )
    assert exporter.closed


async def test_a_collector_that_fails_is_left_alone_until_the_next_push() -> None:
    """One failed call ends the push; what it had is lost, what waits stays."""
    metrics, exporter = Metrics(), Kept(SpanExportResult.FAILURE)
    tracer = Tracer(TraceOptions(), metrics)
    push = _push(tracer, metrics, exporter)
    _end_spans(tracer, 7)
    await push.push()
    assert (exporter.calls, len(tracer.buffer)) == (1, 4)
    await push.stop(0.5)


def test_every_series_says_whose_it_is() -> None:
    """Cluster, kind and name of the process stand on a series that was counted without them."""
    config = ObservabilityConfig(cluster="orders-eu")
    metrics = observe(config, "strata-broker", "broker", "b-1", SystemClock(), _fatal).metrics
    metrics.declare((MetricSpec("strata_sends_total", "counter", "1", "Sends.", ("topic",)),))
    metrics.counter("strata_sends_total").add(2, {"topic": "a"})
    series = (
        'strata_sends_total{cluster="orders-eu",node_id="b-1",node_type="broker",topic="a"} 2.0'
    )
    assert series in metrics.render().decode().splitlines()
    metrics.close()


def test_the_cluster_is_named_as_rocketmq_names_it() -> None:
    """A board made for RocketMQ finds its default."""
    assert ObservabilityConfig().cluster == "DefaultCluster"


def test_without_a_collector_there_is_nothing() -> None:
    """No service, no thread, a tracer that is off, whatever the sampling says."""
    before = threading.active_count()
    config = ObservabilityConfig(trace_sample_ratio=1.0, trace_clients=True)
    made = observe(config, "strata-test", "broker", "n", SystemClock(), _fatal)
    assert made.services == []
    assert not made.tracer.enabled
    assert threading.active_count() == before
    made.metrics.close()
