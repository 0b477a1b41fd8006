"""Metrics of the edge."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_edge_calls_total", "counter", "1", "RPCs that arrived, hot ones only.", ("method",)
    ),
    MetricSpec(
        "strata_edge_batch_calls", "histogram", "1", "Hot calls given to the broker in one turn."
    ),
    MetricSpec("strata_edge_hot_calls", "gauge", "1", "Hot calls waiting for their answer."),
    MetricSpec("strata_edge_rare_calls", "gauge", "1", "All other calls under way."),
    MetricSpec(
        "strata_edge_refused_calls_total",
        "counter",
        "1",
        "Calls refused by a limit: calls, unread, size (of the request), upload (too slow).",
        ("limit",),
    ),
    MetricSpec(
        "strata_edge_unread_bytes", "gauge", "bytes", "Answers that wait for their clients."
    ),
    MetricSpec(
        "strata_edge_answers_not_taken_total",
        "counter",
        "1",
        "Answers whose client had gone before the transport took them.",
    ),
    MetricSpec("strata_edge_connections", "gauge", "1", "Client connections at the front."),
    MetricSpec(
        "strata_edge_connections_maximum", "gauge", "1", "Client connections the front allows."
    ),
    MetricSpec(
        "strata_edge_refused_connections_total",
        "counter",
        "1",
        "Client connections the front closed at once because of the limit.",
    ),
    MetricSpec(
        "strata_edge_tls_failures_total", "counter", "1", "TLS handshakes that failed at the front."
    ),
    MetricSpec(
        "strata_edge_handshake_timeouts_total",
        "counter",
        "1",
        "Client connections closed because they said nothing, or not all of a TLS handshake, in "
        "time.",
    ),
    MetricSpec(
        "strata_edge_plaintext_refused_total",
        "counter",
        "1",
        "Client connections closed because they spoke plaintext (edge.tls_only).",
    ),
    MetricSpec(
        "strata_edge_connection_pauses_total",
        "counter",
        "1",
        "Times a client connection was not read for a while: too many resets, pings or headers.",
    ),
    MetricSpec(
        "strata_edge_ended_connections_total",
        "counter",
        "1",
        "Client connections ended for headers without end, or a large request that stood still.",
    ),
    MetricSpec(
        "strata_edge_large_request_bytes",
        "gauge",
        "bytes",
        "Large requests that the server receives or has not answered.",
    ),
    MetricSpec(
        "strata_edge_large_requests_waiting",
        "gauge",
        "1",
        "Large requests that wait at their clients for room.",
    ),
    MetricSpec(
        "strata_edge_certificate_days_left",
        "gauge",
        "d",
        "Days until the certificate for clients ends; negative when it has.",
    ),
    MetricSpec("strata_edge_front_restarts_total", "counter", "1", "Restarts of the front."),
)
