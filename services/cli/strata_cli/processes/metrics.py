"""Metrics of the processes that the `strata` command composes itself."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("strata_forwarder_connections", "gauge", "1", "Connections of clients."),
    MetricSpec(
        "strata_forwarder_brokers_serving", "gauge", "1", "Brokers that accept connections."
    ),
    MetricSpec(
        "strata_forwarder_refused_connections_total",
        "counter",
        "1",
        "Connections of clients that were refused.",
        ("reason",),
    ),
)
