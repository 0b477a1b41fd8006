"""Metrics of the console's process."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_console_requests_total",
        "counter",
        "1",
        "Requests of browsers, by kind (read, act, live, session, page) and status.",
        ("kind", "status"),
    ),
    MetricSpec(
        "strata_console_request_ms",
        "histogram",
        "ms",
        "Time to answer a request, by kind; live streams are left out.",
        ("kind",),
    ),
    MetricSpec(
        "strata_console_errors_total",
        "counter",
        "1",
        "Reads and acts that failed, by code: usage, not_found, refused, unreachable, failed.",
        ("code",),
    ),
    MetricSpec("strata_console_sessions", "gauge", "1", "Sessions that have not ended."),
    MetricSpec(
        "strata_console_sessions_ended_total",
        "counter",
        "1",
        "Sessions that ended, by reason: signed_out, expired, displaced.",
        ("reason",),
    ),
    MetricSpec(
        "strata_console_sign_ins_total",
        "counter",
        "1",
        "Sign-ins, by outcome: done, refused, limited.",
        ("outcome",),
    ),
    MetricSpec("strata_console_streams", "gauge", "1", "Live pages."),
    MetricSpec("strata_console_calls", "gauge", "1", "Calls to the cluster under way."),
    MetricSpec(
        "strata_console_catalogue_rows",
        "gauge",
        "1",
        "Topics and consumer groups in the lists that are kept.",
    ),
)
