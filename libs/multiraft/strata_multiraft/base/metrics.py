"""Metrics of the driver. `strata_limit_used{limit=...}` shows the use of its limits."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("strata_raft_groups", "gauge", "1", "Replicas on this node, by role.", ("role",)),
    MetricSpec(
        "strata_raft_read_only",
        "gauge",
        "1",
        "Replicas that are read-only and take no entries.",
        (),
    ),
    MetricSpec(
        "strata_raft_apply_lag", "gauge", "1", "Committed entries not yet applied, all raft groups."
    ),
    MetricSpec("strata_raft_frames_total", "counter", "1", "Frames written to the log."),
    MetricSpec(
        "strata_raft_syncs_total", "counter", "1", "Synced writes to the log (group commits)."
    ),
    MetricSpec(
        "strata_raft_sync_ms", "histogram", "ms", "Time of write and sync, seen by the event loop."
    ),
    MetricSpec(
        "strata_raft_sync_thread_ms",
        "histogram",
        "ms",
        "Time of write and sync in the writer's thread.",
    ),
    MetricSpec(
        "strata_raft_disk_full_total",
        "counter",
        "1",
        "Writes that failed because the disk was full.",
    ),
    MetricSpec("strata_raft_elections_total", "counter", "1", "Campaigns won by this node."),
    MetricSpec(
        "strata_raft_catch_up_bytes_total",
        "counter",
        "bytes",
        "Entries read back for followers that lag.",
    ),
    MetricSpec(
        "strata_raft_reads_failed_total",
        "counter",
        "1",
        "Reads of entries that failed on the disk and are retried.",
        ("purpose",),
    ),
    MetricSpec(
        "strata_raft_snapshots_open",
        "gauge",
        "1",
        "Snapshots being sent; max_snapshots_open at most.",
    ),
    MetricSpec(
        "strata_raft_snapshot_sent_bytes_total",
        "counter",
        "bytes",
        "Rows and entries sent in snapshots.",
    ),
    MetricSpec(
        "strata_raft_snapshot_installs",
        "gauge",
        "1",
        "Snapshots being installed here; max_snapshot_installs at most.",
    ),
    MetricSpec(
        "strata_raft_snapshots_installed_total",
        "counter",
        "1",
        "Snapshot installs that were completed.",
    ),
    MetricSpec(
        "strata_raft_snapshots_failed_total",
        "counter",
        "1",
        "Snapshot installs that were abandoned.",
    ),
    MetricSpec(
        "strata_raft_snapshot_received_bytes_total",
        "counter",
        "bytes",
        "Rows and entries of installed snapshots.",
    ),
    MetricSpec(
        "strata_raft_refused_total",
        "counter",
        "1",
        "Proposals refused before they were written.",
        ("reason",),
    ),
    MetricSpec(
        "strata_raft_messages_total",
        "counter",
        "1",
        "Raft messages given to the transport.",
        ("class",),
    ),
    MetricSpec(
        "strata_raft_messages_dropped_total",
        "counter",
        "1",
        "Raft messages dropped because a peer's queue was full.",
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
    MetricSpec("strata_peer_frames_total", "counter", "1", "Frames that peers have accepted."),
    MetricSpec(
        "strata_peer_frame_bytes_total",
        "counter",
        "bytes",
        "Raft messages in frames that peers have accepted.",
    ),
    MetricSpec(
        "strata_peer_frame_ms",
        "histogram",
        "ms",
        "Time from sending a frame to the peer's answer.",
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
    MetricSpec(
        "strata_peer_support_lost_total",
        "counter",
        "1",
        "Times a peer became silent and lost support.",
    ),
    MetricSpec(
        "strata_peer_restarts_total", "counter", "1", "Restarts of peers, seen by a new boot id."
    ),
    MetricSpec(
        "strata_raft_quiet",
        "gauge",
        "1",
        "Quiesced raft groups, which neither tick nor send messages.",
    ),
    MetricSpec(
        "strata_raft_quiet_lists_total", "counter", "1", "Full lists of quiesced raft groups sent."
    ),
    MetricSpec(
        "strata_clock_skew_ms", "gauge", "ms", "This node's clock minus the median of its peers."
    ),
)
