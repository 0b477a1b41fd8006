"""Metrics of the storage node."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec
from strata_storage.tiering.metrics import METRICS as TIER_METRICS

_STORAGE = ("storage_type", "storage_medium")

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "rocketmq_storage_size", "gauge", "bytes", "Bytes of the log on the disk.", _STORAGE
    ),
    MetricSpec(
        "rocketmq_storage_flush_behind_bytes",
        "gauge",
        "bytes",
        "Payloads that wait for the log's next sync; nothing of them is acked.",
        _STORAGE,
    ),
    MetricSpec(
        "rocketmq_storage_dispatch_behind_bytes",
        "gauge",
        "bytes",
        "Committed payloads in memory that wait to be applied.",
        _STORAGE,
    ),
    MetricSpec(
        "rocketmq_storage_message_reserve_time",
        "gauge",
        "ms",
        "Age of the oldest message of the raft groups led here, in the log (local) and in "
        "the tier (tiered), as of the last turn of retention.",
        _STORAGE,
    ),
    MetricSpec(
        "strata_storage_removed_replicas",
        "gauge",
        "replicas",
        "Replicas that were removed from this node and are kept to be taken back.",
    ),
    MetricSpec(
        "strata_storage_removed_bytes",
        "gauge",
        "bytes",
        "Log segments that are kept for removed replicas only, as of the last turn of "
        "retention; the limit is storage.max_removed_replica_bytes.",
    ),
    MetricSpec(
        "strata_storage_removed_replicas_total",
        "counter",
        "replicas",
        "Removed replicas by result: kept, found empty, or deleted later.",
        ("result",),
    ),
    MetricSpec(
        "rocketmq_broker_permission",
        "gauge",
        "1",
        "Client permission by the disk mark: 6 send and receive, 4 receive, 0 neither.",
    ),
    MetricSpec(
        "rocketmq_timer_dequeue_lag",
        "gauge",
        "1",
        "Delayed messages, and half messages to be checked, that are due and undecided in "
        "the raft groups led here.",
    ),
    MetricSpec(
        "rocketmq_timer_dequeue_latency",
        "gauge",
        "ms",
        "Time since the oldest such message became due; see `rocketmq_timer_dequeue_lag`.",
    ),
    MetricSpec(
        "rocketmq_finish_message_latency",
        "histogram",
        "s",
        "From storing a half message to its commit.",
        boundaries=(5, 60, 600, 3_600, 43_200, 86_400),
    ),
    MetricSpec(
        "rocketmq_half_messages", "gauge", "1", "Half messages in the raft groups led here."
    ),
    MetricSpec(
        "rocketmq_send_to_dlq_messages_total",
        "counter",
        "1",
        "Messages that went to a dead-letter topic because their attempts were used up.",
    ),
    MetricSpec(
        "rocketmq_timing_messages", "gauge", "1", "Delayed messages in the raft groups led here."
    ),
    MetricSpec(
        "strata_storage_append_ms",
        "histogram",
        "ms",
        "Time of a call of Append, from its arrival to its answer.",
    ),
    MetricSpec(
        "strata_storage_refused_total", "counter", "1", "Refused parts of requests.", ("outcome",)
    ),
    MetricSpec("strata_storage_popped_total", "counter", "1", "Messages handed out by pops."),
    MetricSpec(
        "strata_storage_served_bytes_total",
        "counter",
        "bytes",
        "Bytes of messages that this node gave to brokers, leading or not.",
    ),
    MetricSpec(
        "strata_storage_filtered_total",
        "counter",
        "1",
        "Messages that consumer groups passed over because of their filters.",
    ),
    MetricSpec(
        "strata_storage_filter_steps_total",
        "counter",
        "steps",
        "Steps of SQL92 filters: nodes of expressions, and texts that they compared.",
    ),
    MetricSpec(
        "strata_storage_filter_waits_total",
        "counter",
        "1",
        "Waits of a filter for another turn of the event loop, because the turn's steps "
        "(storage.filter_steps_per_turn) were used up.",
    ),
    MetricSpec(
        "strata_storage_filter_limited_total",
        "counter",
        "1",
        "Receives and pulls that ended early because their filter had used its steps "
        "(storage.filter_steps_per_receive); the next one continues.",
    ),
    MetricSpec("strata_storage_acked_total", "counter", "1", "Messages acked."),
    MetricSpec(
        "strata_storage_dead_letters_total",
        "counter",
        "1",
        "Messages whose attempts were used up, by result.",
        ("result",),
    ),
    MetricSpec(
        "strata_storage_released_total", "counter", "1", "Leases released of clients that died."
    ),
    MetricSpec(
        "strata_storage_reads_failed_total",
        "counter",
        "1",
        "Messages that the disk could not read for now; they are not damaged.",
    ),
    MetricSpec("strata_storage_corrupt_total", "counter", "1", "Reads that found damaged bytes."),
    MetricSpec(
        "strata_storage_trimmed_leases_total",
        "counter",
        "1",
        "In-flight leases whose message left the disk.",
    ),
    MetricSpec(
        "strata_storage_flush_ms", "histogram", "ms", "Time of one flush of replicated state."
    ),
    MetricSpec("strata_storage_checkpoints_total", "counter", "1", "Checkpoints written."),
    MetricSpec("strata_storage_freed_segments_total", "counter", "1", "Log segments deleted."),
    MetricSpec(
        "strata_storage_membership_steps_total",
        "counter",
        "1",
        "Steps of raft groups towards wanted replicas and leaders.",
        ("kind", "result"),
    ),
    MetricSpec(
        "strata_storage_membership_steps",
        "gauge",
        "1",
        "Steps of raft groups towards wanted replicas and leaders that are under way (limited).",
    ),
    MetricSpec(
        "strata_storage_queue_moves_total", "counter", "1", "Steps of queue moves.", ("result",)
    ),
    MetricSpec("strata_storage_queue_moves", "gauge", "1", "Queue moves under way (limited)."),
    MetricSpec(
        "strata_storage_slot_moves_total",
        "counter",
        "1",
        "Steps of slot moves, by result.",
        ("result",),
    ),
    MetricSpec(
        "strata_storage_slot_moves", "gauge", "1", "Raft groups whose slots change now (limited)."
    ),
    MetricSpec(
        "strata_storage_relocated_bytes_total",
        "counter",
        "bytes",
        "Bytes of live entries that were copied to the log's end to free the oldest segments.",
    ),
    MetricSpec(
        "strata_storage_used",
        "gauge",
        "1",
        "Use of a limit, for all raft groups together.",
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
        "Delayed and half messages that stopped waiting, by result.",
        ("result",),
    ),
    MetricSpec(
        "strata_storage_late_ms",
        "histogram",
        "ms",
        "Time from the due time of a delayed message until it was in its queue.",
    ),
    MetricSpec(
        "strata_storage_transaction_checks_total",
        "counter",
        "1",
        "Checks of open transactions, by result.",
        ("result",),
    ),
    MetricSpec(
        "strata_storage_forwarded_total",
        "counter",
        "1",
        "Delayed and half messages appended where their queue is now.",
        ("result",),
    ),
    MetricSpec(
        "strata_storage_state_memory", "gauge", "bytes", "Bytes of rows that are not flushed yet."
    ),
    MetricSpec(
        "strata_storage_unflushed_log",
        "gauge",
        "bytes",
        "Bytes of the log that a restart would replay.",
    ),
    MetricSpec("strata_storage_disk_mark", "gauge", "1", "Disk mark: 0 normal to 3 stop."),
    MetricSpec(
        "strata_storage_quota_bytes",
        "gauge",
        "bytes",
        "The node's share of its disk (storage.disk_quota_ratio).",
    ),
    MetricSpec(
        "strata_storage_quota_used_bytes",
        "gauge",
        "bytes",
        "Bytes of the CommitLog, consume queue and index in that share.",
    ),
    MetricSpec("strata_storage_disk_free", "gauge", "bytes", "Free room on the log's disk."),
    *TIER_METRICS,
)
