"""Metrics of lite topics in a storage node."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_lite_topics",
        "gauge",
        "1",
        "Lite topics of the raft groups led here; the limit of each raft group is"
        " storage.max_lite_topics.",
    ),
    MetricSpec(
        "strata_lite_topics_expired_total",
        "counter",
        "1",
        "Lite topics that were deleted because nothing was sent to them for their lifetime.",
    ),
)
