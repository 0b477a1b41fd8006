"""Metrics of key-value tables in a storage node."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_kv_writes_total",
        "counter",
        "1",
        "Write requests by what became of them.",
        ("result",),
    ),
    MetricSpec("strata_kv_reads_total", "counter", "1", "Items that were asked for."),
    MetricSpec("strata_kv_expired_total", "counter", "1", "Items whose time was over."),
    MetricSpec(
        "strata_kv_used",
        "gauge",
        "1",
        "How full a limit is, all raft groups together.",
        ("limit",),
    ),
)
