"""Metrics of the nameserver."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("strata_metadata_revision", "gauge", "1", "Revision of the applied metadata."),
    MetricSpec("strata_metadata_rows", "gauge", "1", "Rows that exist, by kind.", ("kind",)),
    MetricSpec(
        "strata_metadata_rows_maximum", "gauge", "1", "Rows that may exist, by kind.", ("kind",)
    ),
    MetricSpec(
        "strata_metadata_changes_in_flight", "gauge", "1", "Changes proposed and not applied yet."
    ),
    MetricSpec("strata_metadata_changes_total", "counter", "1", "Changes applied."),
    MetricSpec(
        "strata_metadata_refused_total", "counter", "1", "Calls refused, by outcome.", ("outcome",)
    ),
    MetricSpec(
        "strata_metadata_watch_snapshots_total",
        "counter",
        "1",
        "Watch streams that needed a snapshot.",
    ),
    MetricSpec("strata_metadata_nodes_alive", "gauge", "1", "Nodes heard of lately.", ("kind",)),
)
