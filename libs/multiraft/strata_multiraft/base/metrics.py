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
        "strata_raft_catch_up_bytes_total",
        "counter",
        "bytes",
        "Entries read back for followers that are behind.",
    ),
    MetricSpec(
        "strata_raft_reads_failed_total",
        "counter",
        "1",
        "Reads of entries that the disk failed and that are tried again.",
        ("purpose",),
    ),
    MetricSpec(
        "strata_raft_snapshots_open", "gauge", "1", "Snapshots being sent (max_snapshots_open)."
    ),
    MetricSpec(
        "strata_raft_snapshot_sent_bytes_total", "counter", "bytes", "Rows and entries sent."
    ),
    MetricSpec(
        "strata_raft_snapshot_installs",
        "gauge",
        "1",
        "Snapshots being installed here (max_snapshot_installs).",
    ),
    MetricSpec("strata_raft_snapshots_installed_total", "counter", "1", "Installs that ended."),
    MetricSpec(
        "strata_raft_snapshots_failed_total", "counter", "1", "Installs that were given up."
    ),
    MetricSpec(
        "strata_raft_snapshot_received_bytes_total",
        "counter",
        "bytes",
        "Rows and entries of installed snapshots.",
    ),
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
        "Messages that a full peer queue dropped.",
        ("class",),
    ),
    MetricSpec(
        "strata_peer_queued_bytes",
        "gauge",
        "bytes",
        "Raft messages that wait to be sent to other nodes.",
        ("class",),
    ),
    MetricSpec(
        "strata_peer_frames_in_flight", "gauge", "1", "Frames that peers have not answered yet."
    ),
    MetricSpec("strata_peer_frames_total", "counter", "1", "Frames that peers have taken."),
    MetricSpec("strata_peer_frame_bytes_total", "counter", "bytes", "Raft messages in them."),
    MetricSpec(
        "strata_peer_frame_ms",
        "histogram",
        "ms",
        "From sending a frame to the peer's answer.",
        ("peer",),
    ),
    MetricSpec(
        "strata_peer_frames_failed_total",
        "counter",
        "1",
        "Frames that were lost, by AngeliaError code.",
        ("code",),
    ),
    MetricSpec("strata_peers", "gauge", "1", "Other nodes that share raft groups.", ("state",)),
    MetricSpec("strata_peer_support_lost_total", "counter", "1", "Times a peer fell silent."),
    MetricSpec("strata_peer_restarts_total", "counter", "1", "New boot ids of peers."),
    MetricSpec(
        "strata_raft_quiet", "gauge", "1", "Raft groups that rest: neither ticks nor messages."
    ),
    MetricSpec(
        "strata_raft_quiet_lists_total", "counter", "1", "Full lists of quiet raft groups sent."
    ),
    MetricSpec(
        "strata_clock_skew_ms", "gauge", "ms", "This node's clock minus the median of its peers."
    ),
)
