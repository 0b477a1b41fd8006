"""Metrics of key-value tables in a broker."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_kv_batch_writes", "histogram", "1", "Write requests in one call to a raft group."
    ),
    MetricSpec(
        "strata_kv_batch_reads", "histogram", "1", "Items that one call reads from a raft group."
    ),
    MetricSpec(
        "strata_kv_write_latency",
        "histogram",
        "ms",
        "Time of one call that writes to a raft group, including its repeats.",
    ),
    MetricSpec("strata_kv_broker_used", "gauge", "1", "Use of a limit.", ("limit",)),
)
