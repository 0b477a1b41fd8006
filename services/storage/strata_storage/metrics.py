"""Metrics of the storage node."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_storage_refused_total", "counter", "1", "Refused parts of requests.", ("outcome",)
    ),
    MetricSpec("strata_storage_popped_total", "counter", "1", "Messages handed out by pops."),
    MetricSpec(
        "strata_storage_filtered_total",
        "counter",
        "1",
        "Messages that consumer groups passed over because of their filters.",
    ),
    MetricSpec("strata_storage_acked_total", "counter", "1", "Messages acked."),
    MetricSpec(
        "strata_storage_dead_letters_total",
        "counter",
        "1",
        "Messages whose attempts were used up, by what became of them.",
        ("result",),
    ),
    MetricSpec(
        "strata_storage_released_total", "counter", "1", "Leases released of clients that died."
    ),
    MetricSpec("strata_storage_corrupt_total", "counter", "1", "Reads that found damaged bytes."),
    MetricSpec(
        "strata_storage_trimmed_leases_total",
        "counter",
        "1",
        "In-flight leases whose message left the disk.",
    ),
    MetricSpec("strata_storage_flush_ms", "histogram", "ms", "Flushes of replicated state."),
    MetricSpec("strata_storage_checkpoints_total", "counter", "1", "Checkpoints written."),
    MetricSpec("strata_storage_freed_segments_total", "counter", "1", "Log segments deleted."),
    MetricSpec(
        "strata_storage_membership_steps_total",
        "counter",
        "1",
        "Steps of raft groups towards wanted replicas and leaders.",
        ("kind", "result"),
    ),
    MetricSpec("strata_storage_membership_steps", "gauge", "1", "Such steps under way (limited)."),
    MetricSpec(
        "strata_storage_queue_moves_total", "counter", "1", "Steps of queue moves.", ("result",)
    ),
    MetricSpec("strata_storage_queue_moves", "gauge", "1", "Queue moves under way (limited)."),
    MetricSpec(
        "strata_storage_slot_moves_total",
        "counter",
        "1",
        "Times that slots were looked after, by what came of it.",
        ("result",),
    ),
    MetricSpec(
        "strata_storage_slot_moves", "gauge", "1", "Raft groups whose slots change now (limited)."
    ),
    MetricSpec(
        "strata_storage_relocated_bytes_total",
        "counter",
        "bytes",
        "Live entries copied to the log's end so that the oldest segments could go.",
    ),
    MetricSpec(
        "strata_storage_used",
        "gauge",
        "1",
        "How full a limit is, all raft groups together.",
        ("limit",),
    ),
    MetricSpec(
        "strata_storage_pending",
        "gauge",
        "1",
        "Delayed and half messages that wait in the raft groups led here.",
        ("kind",),
    ),
    MetricSpec(
        "strata_storage_resolved_total",
        "counter",
        "1",
        "Delayed and half messages that stopped waiting, by how.",
        ("result",),
    ),
    MetricSpec(
        "strata_storage_late_ms",
        "histogram",
        "ms",
        "How long after its time a delayed message had its place in a queue.",
    ),
    MetricSpec(
        "strata_storage_transaction_checks_total",
        "counter",
        "1",
        "Checks of transactions that nobody ended, by what became of them.",
        ("result",),
    ),
    MetricSpec(
        "strata_storage_forwarded_total",
        "counter",
        "1",
        "Delayed and half messages appended where their queue is now.",
        ("result",),
    ),
    MetricSpec("strata_storage_state_memory", "gauge", "bytes", "Rows not flushed yet."),
    MetricSpec("strata_storage_unflushed_log", "gauge", "bytes", "Log a restart would replay."),
    MetricSpec("strata_storage_disk_mark", "gauge", "1", "Disk mark: 0 normal to 3 stop."),
    MetricSpec("strata_storage_disk_free", "gauge", "bytes", "Free room on the log's disk."),
)
