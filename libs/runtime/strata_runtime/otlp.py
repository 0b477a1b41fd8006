"""Pushes metrics and spans to an OpenTelemetry collector by OTLP over gRPC, if one is configured.

Without a collector no exporter is imported and no thread exists. With one, a task wakes on time,
reads the gauges on the loop and exports in one worker thread; while a push is under way the next
one waits. Spans that a slow collector does not take stay in the tracer's bounded buffer; metrics
are totals, so the next push contains everything that a lost push had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace import SpanKind as SdkSpanKind

from strata_runtime.metrics import Metrics, MetricSpec
from strata_runtime.otlp_options import OtlpOptions
from strata_runtime.tasks import OnFatal, Tasks
from strata_runtime.timeouts import Timeout
from strata_runtime.tracing import Span, SpanBuffer

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_otlp_pushes_total",
        "counter",
        "1",
        "Pushes to the OpenTelemetry collector, by outcome.",
        ("what", "result"),
    ),
)

Result = TypeVar("Result")

_SCOPE = InstrumentationScope("strata")


def metric_exporter(options: OtlpOptions) -> MetricExporter:
    """Return the exporter that `Metrics` is made with."""
    return OTLPMetricExporter(
        endpoint=options.endpoint, insecure=options.is_insecure, timeout=options.timeout_s
    )


class OtlpPush:
    """See the module docstring; a `strata_runtime.lifecycle.Service`.

    Args:
        options: where to, how often.
        metrics: made with `metric_exporter`.
        buffer: spans; None: there are no traces.
        resource: labels of the process.
        on_fatal: told when the task failed.
        span_exporter: None: OTLP over gRPC to the same collector.
    """

    name = "otlp push"

    def __init__(
        self,
        options: OtlpOptions,
        metrics: Metrics,
        buffer: SpanBuffer | None,
        *,
        resource: dict[str, str],
        on_fatal: OnFatal,
        span_exporter: SpanExporter | None = None,
    ) -> None:
        metrics.declare(METRICS)
        self._options = options
        self._metrics = metrics
        self._buffer = buffer
        self._resource = Resource(dict(resource))
        self._pushes = metrics.counter("strata_otlp_pushes_total")
        self._tasks = Tasks("otlp", on_fatal, max_tasks=1)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="otlp")
        self._spans: SpanExporter | None = span_exporter
        if buffer is not None and span_exporter is None:
            self._spans = OTLPSpanExporter(
                endpoint=options.endpoint, insecure=options.is_insecure, timeout=options.timeout_s
            )

    async def start(self) -> None:
        """Begin to push."""
        self._tasks.spawn("push", self._run())

    async def stop(self, grace_s: float) -> None:
        """Push what there is once more, within the grace; gauges as they were last.

        The objects that the gauges read may be closed by now.
        """
        await self._tasks.stop()
        try:
            async with Timeout(min(grace_s, self._options.timeout_s)):
                await self._push_metrics()
                await self._push_spans()
        except TimeoutError:
            self._pushes.add(1, {"what": "all", "result": "given up"})
        if self._spans is not None:
            self._spans.shutdown()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def push(self) -> None:
        """Push metrics and all spans once."""
        self._metrics.read_gauges()
        await self._push_metrics()
        await self._push_spans()

    async def _run(self) -> None:
        interval_s = self._options.interval_s
        loop = asyncio.get_running_loop()
        metrics_due_s = loop.time() + interval_s
        while True:
            await asyncio.sleep(min(interval_s, self._options.span_interval_s))
            await self._push_spans()
            if loop.time() >= metrics_due_s:
                metrics_due_s = loop.time() + interval_s
                await self.push()

    async def _push_metrics(self) -> None:
        await self._in_thread(self._metrics.export)
        self._pushes.add(1, {"what": "metrics", "result": "done"})

    async def _push_spans(self) -> None:
        if self._buffer is None or self._spans is None:
            return
        # As many as wait now: what ends meanwhile goes next time.
        for _ in range(0, len(self._buffer), self._options.max_spans_per_push):
            spans = self._buffer.take(self._options.max_spans_per_push)
            took = await self._in_thread(partial(self._export, spans))
            self._pushes.add(1, {"what": "spans", "result": "done" if took else "failed"})
            if not took:
                return

    def _export(self, spans: Sequence[Span]) -> bool:
        assert self._spans is not None, "asked without an exporter"
        result = self._spans.export([_readable(span, self._resource) for span in spans])
        return result is SpanExportResult.SUCCESS

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _readable(span: Span, resource: Resource) -> ReadableSpan:
    """Return a span as the SDK's exporters know it."""
    context = _context(span.trace_id, span.span_id)
    parent = _context(span.trace_id, span.parent_span_id) if span.parent_span_id else None
    status = Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET)
    return ReadableSpan(
        name=span.name,
        context=context,
        parent=parent,
        resource=resource,
        attributes=span.attributes,
        links=[Link(_context(link.trace_id, link.span_id)) for link in span.links],
        kind=SdkSpanKind(int(span.kind)),
        status=status,
        start_time=span.started_ns,
        end_time=span.ended_ns,
        instrumentation_scope=_SCOPE,
    )


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(1)
    )
