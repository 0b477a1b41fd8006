"""Options of the push to an OpenTelemetry collector; without one no exporter is imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OtlpOptions:
    """Where to push, and how often.

    Attributes:
        endpoint: host:port of a collector that takes OTLP over gRPC.
        is_insecure: without TLS.
        timeout_s: for one push; then it is given up.
        interval_s: time between two pushes of metrics.
        span_interval_s: the same for spans.
        max_spans_per_push: spans in one call.
    """

    endpoint: str
    is_insecure: bool = True
    timeout_s: float = 5.0
    interval_s: float = 10.0
    span_interval_s: float = 1.0
    max_spans_per_push: int = 512
