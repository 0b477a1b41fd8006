"""Metrics of Angelia, both sides."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_angelia_calls_total",
        "counter",
        "1",
        "Calls that ended on the serving side, by result code (ok or an AngeliaError's).",
        ("method", "code"),
    ),
    MetricSpec(
        "strata_angelia_calls",
        "gauge",
        "1",
        "Calls under way at a server.",
        ("transport", "class"),
    ),
    MetricSpec(
        "strata_angelia_request_bytes",
        "gauge",
        "bytes",
        "Bytes of requests of the calls under way at a server.",
        ("transport", "class"),
    ),
    MetricSpec(
        "strata_angelia_refused_calls_total",
        "counter",
        "1",
        "Calls that a server refused because the budget of their class was exhausted.",
        ("transport", "class"),
    ),
    MetricSpec(
        "strata_angelia_connections", "gauge", "1", "Open connections of a server.", ("transport",)
    ),
    MetricSpec(
        "strata_angelia_refused_connections_total",
        "counter",
        "1",
        "Connections closed by a server because of a limit or a protocol error.",
        ("reason",),
    ),
    MetricSpec(
        "strata_angelia_forbidden_calls_total",
        "counter",
        "1",
        "Calls that a server refused because of the role in the caller's certificate.",
        ("method", "role"),
    ),
    MetricSpec(
        "strata_angelia_certificate_days_left",
        "gauge",
        "days",
        "Days until the process's certificate for the cluster expires; negative after it has "
        "expired.",
    ),
)
