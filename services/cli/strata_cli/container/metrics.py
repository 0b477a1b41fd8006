"""Metrics of a container and of its members' logs."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_container_members",
        "gauge",
        "1",
        "Members of this container, by state: serving, starting, or waiting for their next start.",
        ("state",),
    ),
    MetricSpec("strata_container_members_maximum", "gauge", "1", "Most members of the container."),
    MetricSpec(
        "strata_container_restarts_total",
        "counter",
        "1",
        "Members that failed and were started again, by their name.",
        ("member",),
    ),
    MetricSpec(
        "strata_container_block_cache_bytes",
        "gauge",
        "bytes",
        "Bytes in the block cache of all storage nodes of the container.",
    ),
    MetricSpec(
        "strata_container_shared_connections",
        "gauge",
        "1",
        "Connections to nameservers that the members share.",
    ),
    MetricSpec(
        "strata_container_log_lines_total",
        "counter",
        "1",
        "Lines written to the log of a member, by its name.",
        ("member",),
    ),
    MetricSpec(
        "strata_container_log_dropped_total",
        "counter",
        "1",
        "Lines that the log of a member lost: too many waited, or the disk refused them.",
        ("member",),
    ),
)
