"""Metrics of whoever talks to the nameservers."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_metadata_tries_total",
        "counter",
        "1",
        "Tries of calls at nameservers, by how they ended.",
        ("result",),
    ),
    MetricSpec(
        "strata_metadata_followed_revision", "gauge", "1", "Revision of the metadata known here."
    ),
    MetricSpec(
        "strata_metadata_sources_total",
        "counter",
        "1",
        "Watch streams that were begun, by kind of source.",
        ("kind",),
    ),
    MetricSpec(
        "strata_metadata_watch_snapshots_total",
        "counter",
        "1",
        "Watch streams that needed a snapshot.",
    ),
    MetricSpec(
        "strata_metadata_heartbeats_total",
        "counter",
        "1",
        "Heartbeats of this node, by how they ended.",
        ("result",),
    ),
    MetricSpec(
        "strata_metadata_age_ms",
        "gauge",
        "ms",
        "Time since a nameserver with a majority last confirmed what this process knows.",
    ),
)
