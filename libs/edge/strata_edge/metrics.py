"""Metrics of the edge."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("strata_edge_calls_total", "counter", "1", "Hot RPCs that arrived.", ("method",)),
    MetricSpec(
        "strata_edge_batch_calls", "histogram", "1", "Hot calls given to the broker in one batch."
    ),
    MetricSpec("strata_edge_hot_calls", "gauge", "1", "Hot calls that wait for their answer."),
    MetricSpec("strata_edge_rare_calls", "gauge", "1", "Calls under way that are not hot."),
    MetricSpec(
        "strata_edge_refused_calls_total",
        "counter",
        "1",
        "Calls refused by a limit: calls, unread (answers), size (of request), upload (too slow).",
        ("limit",),
    ),
    MetricSpec(
        "strata_edge_unread_bytes", "gauge", "bytes", "Answers that clients have not read yet."
    ),
    MetricSpec(
        "strata_edge_answers_not_taken_total",
        "counter",
        "1",
        "Answers whose client disconnected before the transport took them.",
    ),
    MetricSpec("strata_edge_connections", "gauge", "1", "Client connections at the front."),
    MetricSpec(
        "strata_edge_connections_maximum",
        "gauge",
        "1",
        "Most client connections that the front allows.",
    ),
    MetricSpec(
        "strata_edge_refused_connections_total",
        "counter",
        "1",
        "Client connections that the front closed at once because of the limit.",
    ),
    MetricSpec(
        "strata_edge_tls_failures_total", "counter", "1", "TLS handshakes that failed at the front."
    ),
    MetricSpec(
        "strata_edge_handshake_timeouts_total",
        "counter",
        "1",
        "Client connections closed because they did not finish their handshake in time.",
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
        "Pauses in reading a client connection with too many resets, pings or headers.",
    ),
    MetricSpec(
        "strata_edge_ended_connections_total",
        "counter",
        "1",
        "Client connections closed because of endless headers, or because large requests came or "
        "answers were read too slowly while others waited.",
    ),
    MetricSpec(
        "strata_edge_sent_away_total",
        "counter",
        "1",
        "Client connections whose clients were asked to connect again while the port stayed open.",
    ),
    MetricSpec(
        "strata_edge_leaving_connections",
        "gauge",
        "1",
        "Client connections that are still open though their clients were asked to connect again.",
    ),
    MetricSpec(
        "strata_edge_handed_over_total",
        "counter",
        "1",
        "Client connections of the remoting protocol that came by the port for gRPC.",
    ),
    MetricSpec(
        "strata_edge_relayed_connections",
        "gauge",
        "1",
        "Open ones of them whose bytes the edge relays, because it serves their TLS or has a "
        "front.",
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
        "Large requests that clients hold back until the server has room.",
    ),
    MetricSpec(
        "strata_edge_certificate_days_left",
        "gauge",
        "d",
        "Days until the certificate for clients expires; negative after it has expired.",
    ),
    MetricSpec(
        "strata_edge_front_restarts_total", "counter", "1", "Restarts of the front process."
    ),
)
