"""Metrics of the driver. How full its limits are shows as `strata_limit_used{limit=...}`."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("strata_raft_groups", "gauge", "1", "Replicas on this node, by role.", ("role",)),
    MetricSpec("strata_raft_read_only", "gauge", "1", "Replicas that take no entries.", ()),
    MetricSpec(
        "strata_raft_apply_lag", "gauge", "1", "Committed entries that are not applied, all groups."
    ),
    MetricSpec("strata_raft_frames_total", "counter", "1", "Frames written to the log."),
    MetricSpec("strata_raft_syncs_total", "counter", "1", "Writes with sync: group commits."),
    MetricSpec("strata_raft_sync_ms", "histogram", "ms", "Write and sync as the loop sees them."),
    MetricSpec(
        "strata_raft_sync_thread_ms", "histogram", "ms", "Write and sync in the writer's thread."
    ),
    MetricSpec("strata_raft_disk_full_total", "counter", "1", "Writes that found no room."),
    MetricSpec("strata_raft_elections_total", "counter", "1", "Campaigns won by this node."),
    MetricSpec(
        "strata_raft_refused_total", "counter", "1", "Proposals refused at once.", ("reason",)
    ),
    MetricSpec(
        "strata_raft_messages_total",
        "counter",
        "1",
        "Messages handed to the transport.",
        ("class",),
    ),
    MetricSpec(
        "strata_raft_messages_dropped_total",
        "counter",
        "1",
        "Messages that a full peer queue dropped (rule 15).",
        ("class",),
    ),
)
