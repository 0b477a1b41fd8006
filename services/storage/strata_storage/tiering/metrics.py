"""Metrics of tiering inside the storage node; those of the object store are `strata_tier`'s."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_storage_tier_objects_total",
        "counter",
        "1",
        "Objects that were uploaded, given up, deleted or found damaged, and leftovers removed.",
        ("result",),
    ),
    MetricSpec(
        "strata_storage_tier_uploaded_bytes_total",
        "counter",
        "bytes",
        "Bytes of objects that were committed.",
    ),
    MetricSpec(
        "strata_storage_tier_failures_total",
        "counter",
        "1",
        "Uploads, reads and other work on the tier that failed and is repeated.",
        ("work",),
    ),
    MetricSpec(
        "strata_storage_tier_upload_ms", "histogram", "ms", "Time of one upload of an object."
    ),
    MetricSpec(
        "strata_storage_tier_backlog",
        "gauge",
        "bytes",
        "Messages of raft groups led here that wait for their upload.",
    ),
    MetricSpec(
        "strata_storage_tier_lag_ms",
        "gauge",
        "ms",
        "Age of the oldest message that waits for its upload.",
    ),
    MetricSpec(
        "rocketmq_tiered_store_dispatch_latency",
        "gauge",
        "ms",
        "Age of the oldest message that waits for its upload.",
    ),
    MetricSpec(
        "rocketmq_tiered_store_dispatch_behind",
        "gauge",
        "1",
        "Messages of raft groups led here that wait for their upload; offsets without one count.",
    ),
    MetricSpec(
        "rocketmq_tiered_store_get_message_fallback_total",
        "counter",
        "1",
        "Reads that asked the tier first and got the messages from the log because the tier "
        "did not have them.",
    ),
    MetricSpec(
        "strata_storage_tier_uploads", "gauge", "1", "Objects being uploaded now (limited)."
    ),
    MetricSpec(
        "strata_storage_tier_proofs",
        "gauge",
        "1",
        "Objects of jobs being read back before their commit now (limited).",
    ),
    MetricSpec(
        "strata_storage_tier_leased_keys",
        "gauge",
        "1",
        "Names of objects that jobs may delete, most of any raft group led here (limited).",
    ),
    MetricSpec(
        "strata_storage_tier_set_aside",
        "gauge",
        "1",
        "Spaces, queues and objects of raft groups led here that failed and are left alone for a "
        "while, so that others go on (limited).",
    ),
    MetricSpec(
        "strata_storage_tier_rested_ms_total",
        "counter",
        "ms",
        "Pauses of uploads while messages came in (`tier.upload_share`).",
    ),
    MetricSpec(
        "strata_storage_tier_read_bytes_total",
        "counter",
        "bytes",
        "Bytes of messages that were served from the tier.",
    ),
)
