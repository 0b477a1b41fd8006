"""Metrics of key-value tables in a storage node."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_kv_writes_total",
        "counter",
        "1",
        "Write requests by result.",
        ("result",),
    ),
    MetricSpec("strata_kv_reads_total", "counter", "1", "Items that calls asked for."),
    MetricSpec(
        "strata_kv_expired_total",
        "counter",
        "1",
        "Items that were deleted because their time was over.",
    ),
    MetricSpec(
        "strata_kv_used",
        "gauge",
        "1",
        "Use of a limit, for all raft groups together.",
        ("limit",),
    ),
)
