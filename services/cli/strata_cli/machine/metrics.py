"""Metrics of a machine's supervisor."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_machine_processes",
        "gauge",
        "1",
        "Workers or shards of this machine, by state: ready, starting, or waiting for their next "
        "start.",
        ("state",),
    ),
    MetricSpec(
        "strata_machine_restarts_total",
        "counter",
        "1",
        "Workers or shards that died and were started again, by their number.",
        ("number",),
    ),
    MetricSpec(
        "strata_machine_scrape_failures_total",
        "counter",
        "1",
        "Times that a worker or shard did not give its metrics or health.",
        ("number",),
    ),
)
