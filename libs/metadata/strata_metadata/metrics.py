"""Metrics of clients of the nameservers."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_metadata_tries_total",
        "counter",
        "1",
        "Attempts to call a nameserver, by outcome.",
        ("result",),
    ),
    MetricSpec(
        "strata_metadata_followed_revision",
        "gauge",
        "1",
        "Revision of the metadata that this process knows.",
    ),
    MetricSpec(
        "strata_metadata_sources_total",
        "counter",
        "1",
        "Watch streams that this process opened, by kind of source.",
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
        "Heartbeats of this node, by outcome.",
        ("result",),
    ),
    MetricSpec(
        "strata_metadata_age_ms",
        "gauge",
        "ms",
        "Time since a nameserver with a majority last confirmed the metadata of this process.",
    ),
    MetricSpec(
        "strata_metadata_kept_topics",
        "gauge",
        "1",
        "Topics that this storage node keeps in memory.",
    ),
    MetricSpec(
        "strata_metadata_kept_topics_maximum",
        "gauge",
        "1",
        "Most topics that this storage node keeps in memory.",
    ),
    MetricSpec(
        "strata_metadata_topic_reads_total",
        "counter",
        "1",
        "Topics that this storage node read from its copy of the metadata.",
    ),
)
