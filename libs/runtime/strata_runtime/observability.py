"""Observability of a process: the section `[observability]`, and its assembled parts.

Everything here is off by default and then costs nothing: no exporter, no thread, no span. The
Prometheus port is `node.metrics_port`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field

from strata_runtime.clock import Clock
from strata_runtime.config import Section
from strata_runtime.lifecycle import Service
from strata_runtime.metrics import Metrics
from strata_runtime.otlp_options import OtlpOptions
from strata_runtime.tasks import OnFatal
from strata_runtime.tracing import TraceOptions, Tracer

COMMON_LABELS = ("cluster", "node_type", "node_id")
"""Labels of every series of a process, RocketMQ's own."""


class ObservabilityConfig(Section):
    """The section `[observability]`."""

    renamed_keys: ClassVar[Mapping[str, str]] = {
        "trace_max_spans": "max_trace_spans",
    }

    cluster: str = Field(
        default="DefaultCluster",
        min_length=1,
        description="Name of the cluster: label `cluster` of every metric, as RocketMQ's "
        "brokerClusterName.",
    )
    otlp_endpoint: str = Field(
        default="",
        description="host:port of an OpenTelemetry collector (OTLP over gRPC) that receives "
        "metrics and spans; empty: no export.",
    )
    otlp_insecure: bool = Field(default=True, description="Connect to the collector without TLS.")
    otlp_interval_ms: int = Field(
        default=10_000, ge=100, description="Time between two pushes of metrics."
    )
    otlp_timeout_ms: int = Field(default=5_000, ge=100, description="Longest time of one push.")
    trace_sample_ratio: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the messages without a client trace for which a trace is started.",
    )
    trace_clients: bool = Field(
        default=False,
        description="Continue the traces that clients sampled (traceparent in the trace context or "
        "the user properties of a message, or in the metadata of the call).",
    )
    max_trace_spans: int = Field(
        default=4_096,
        ge=1,
        description="Most spans that wait for the collector; further spans are lost.",
    )
    trace_span_interval_ms: int = Field(
        default=1_000, ge=10, description="Time between two pushes of spans."
    )
    windows: bool = Field(
        default=False,
        description="Publish metric windows of 10 s to the topic __strata_metrics, for placement.",
    )
    window_ms: int = Field(
        default=10_000, ge=100, le=600_000, description="Length of a metric window."
    )
    max_unpublished_windows: int = Field(
        default=100,
        ge=1,
        le=10_000,
        description="Batches of metric windows that a broker keeps until they are stored; the "
        "oldest are lost.",
    )

    def traces(self) -> TraceOptions:
        """Return which messages are traced."""
        return TraceOptions(
            self.trace_sample_ratio,
            follow_parents=self.trace_clients,
            max_spans=self.max_trace_spans,
        )

    def otlp(self) -> OtlpOptions | None:
        """Return where to push to; None: nowhere."""
        if not self.otlp_endpoint:
            return None
        return OtlpOptions(
            self.otlp_endpoint,
            is_insecure=self.otlp_insecure,
            timeout_s=self.otlp_timeout_ms / 1_000,
            interval_s=self.otlp_interval_ms / 1_000,
            span_interval_s=self.trace_span_interval_ms / 1_000,
        )


@dataclass(frozen=True, slots=True)
class Observability:
    """A process's metrics and tracer, and what pushes them.

    Attributes:
        metrics: of the process.
        tracer: of the process; disabled unless a collector gets its spans.
        services: to be started before what they watch.
    """

    metrics: Metrics
    tracer: Tracer
    services: list[Service] = field(default_factory=list)


def observe(
    config: ObservabilityConfig,
    service: str,
    node_type: str,
    node_id: str,
    clock: Clock,
    on_fatal: OnFatal,
) -> Observability:
    """Make what the configuration asks for.

    Args:
        config: the section.
        service: name of the process, OpenTelemetry's `service.name`.
        node_type: what the process is; a label of every series.
        node_id: which one of these; likewise.
        clock: time.
        on_fatal: told when the process must end.
    """
    # The registry adds them when it is read: counting pays nothing for them.
    labels = dict(zip(COMMON_LABELS, (config.cluster, node_type, node_id), strict=True))
    otlp = config.otlp()
    if otlp is None:
        return Observability(Metrics(service=service, common_labels=labels), Tracer.disabled())
    # The exporters bring gRPC stubs and take a moment to import: only who needs them pays.
    from strata_runtime.otlp import OtlpPush, metric_exporter

    metrics = Metrics(service=service, common_labels=labels, exporters=[metric_exporter(otlp)])
    tracer = Tracer(config.traces(), metrics, clock)
    resource = {"service.name": service, **labels}
    buffer = tracer.buffer if tracer.enabled else None
    push = OtlpPush(otlp, metrics, buffer, resource=resource, on_fatal=on_fatal)
    return Observability(metrics, tracer, [push])
