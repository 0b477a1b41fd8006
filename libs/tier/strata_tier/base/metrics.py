"""Metrics of the tier. Label `store`: `ObjectStore.name`, a URL without secrets."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

_STORE = ("store",)
_REQUEST = ("store", "operation")

STORE_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_tier_store_requests_total",
        "counter",
        "1",
        "Requests to the object store with repeats, by operation and outcome; clouds bill these.",
        ("store", "operation", "outcome"),
    ),
    MetricSpec(
        "strata_tier_store_request_ms",
        "histogram",
        "ms",
        "Time of one request, without its wait for a turn.",
        _REQUEST,
    ),
    MetricSpec(
        "strata_tier_store_retries_total", "counter", "1", "Requests that were retried.", _REQUEST
    ),
    MetricSpec(
        "strata_tier_store_given_up_total",
        "counter",
        "1",
        "Requests whose last attempt failed with a retryable error.",
        _REQUEST,
    ),
    MetricSpec(
        "strata_tier_store_uploaded_bytes_total",
        "counter",
        "bytes",
        "Bytes of bodies sent.",
        _STORE,
    ),
    MetricSpec(
        "strata_tier_store_downloaded_bytes_total",
        "counter",
        "bytes",
        "Bytes of bodies received.",
        _STORE,
    ),
    MetricSpec("strata_tier_store_requests_in_flight", "gauge", "1", "Requests under way.", _STORE),
    MetricSpec(
        "strata_tier_store_requests_in_flight_limit",
        "gauge",
        "1",
        "Most concurrent requests to a store (tier.max_requests_in_flight).",
        _STORE,
    ),
    MetricSpec(
        "strata_tier_store_requests_waiting", "gauge", "1", "Requests that wait for a turn.", _STORE
    ),
    MetricSpec(
        "strata_tier_store_requests_waiting_limit",
        "gauge",
        "1",
        "Most requests that may wait for a turn.",
        _STORE,
    ),
    MetricSpec(
        "strata_tier_store_budget_wait_ms",
        "histogram",
        "ms",
        "Time that requests waited for a budget.",
        ("store", "budget"),
    ),
    MetricSpec(
        "rocketmq_tiered_store_provider_rpc_latency",
        "histogram",
        "ms",
        "Time of one request to the object store, without its wait for a turn.",
        ("operation", "success"),
    ),
    MetricSpec(
        "rocketmq_tiered_store_provider_upload_bytes",
        "histogram",
        "bytes",
        "Bodies sent to the object store.",
        ("operation",),
    ),
    MetricSpec(
        "rocketmq_tiered_store_provider_download_bytes",
        "histogram",
        "bytes",
        "Bodies received from the object store.",
        ("operation",),
    ),
)

READ_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_tier_read_blocks_total",
        "counter",
        "1",
        "Blocks that reads needed: cached, joined (another read fetched them), read, or pieces.",
        ("how",),
    ),
    MetricSpec("strata_tier_read_messages_total", "counter", "1", "Messages read from the tier."),
    MetricSpec(
        "strata_tier_read_wanted_bytes_total",
        "counter",
        "bytes",
        "Bytes of the messages that reads asked for.",
    ),
    MetricSpec(
        "strata_tier_read_fetched_bytes_total",
        "counter",
        "bytes",
        "Bytes fetched for reads: blocks, ahead (blocks read ahead), pieces, columns, index.",
        ("what",),
    ),
    MetricSpec(
        "strata_tier_read_passed_over_bytes_total",
        "counter",
        "bytes",
        "Bytes of blocks that a tag filter skipped without fetching their messages.",
    ),
    MetricSpec(
        "strata_tier_read_damaged_total",
        "counter",
        "1",
        "Reads whose bytes did not match their checksum; they were repeated or refused.",
    ),
    MetricSpec(
        "strata_tier_read_ahead_unused_total",
        "counter",
        "1",
        "Blocks read ahead that were evicted unused.",
    ),
    MetricSpec(
        "rocketmq_tiered_store_messages_out_total",
        "counter",
        "1",
        "Messages read from the tier.",
    ),
    MetricSpec(
        "rocketmq_tiered_store_api_latency",
        "histogram",
        "ms",
        "Time of one read of messages from the tier, failed reads included.",
        ("operation",),
    ),
    MetricSpec(
        "rocketmq_tiered_store_read_ahead_cache_access_total",
        "counter",
        "1",
        "Messages that reads asked for.",
    ),
    MetricSpec(
        "rocketmq_tiered_store_read_ahead_cache_hit_total",
        "counter",
        "1",
        "Messages that reads asked for and whose block was in memory.",
    ),
    MetricSpec(
        "rocketmq_tiered_store_read_ahead_cache_count",
        "gauge",
        "1",
        "Messages in the blocks in memory.",
    ),
    MetricSpec("strata_tier_cache_bytes", "gauge", "bytes", "Bytes of the blocks in memory."),
    MetricSpec(
        "rocketmq_tiered_store_read_ahead_cache_bytes",
        "gauge",
        "bytes",
        "Bytes of the blocks in memory.",
    ),
    MetricSpec(
        "strata_tier_cache_limit_bytes",
        "gauge",
        "bytes",
        "Most bytes of blocks in memory (tier.cache_bytes).",
    ),
    MetricSpec(
        "strata_tier_index_bytes", "gauge", "bytes", "Bytes of the indexes of objects in memory."
    ),
    MetricSpec(
        "strata_tier_index_limit_bytes",
        "gauge",
        "bytes",
        "Most bytes of indexes of objects in memory.",
    ),
    MetricSpec("strata_tier_reads_under_way", "gauge", "1", "Reads of blocks under way."),
    MetricSpec(
        "strata_tier_reads_under_way_limit", "gauge", "1", "Most reads of blocks at the same time."
    ),
)

COST_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_tier_topic_requests_total",
        "counter",
        "1",
        "Requests for a topic (`~other`: beyond the limit of topics), by operation put or get;"
        " requests for an object of several topics are shared by bytes.",
        ("namespace", "topic", "operation"),
    ),
    MetricSpec(
        "strata_tier_topic_bytes_total",
        "counter",
        "bytes",
        "Bytes for a topic, by direction up or down, shared in the same way.",
        ("namespace", "topic", "direction"),
    ),
    MetricSpec(
        "rocketmq_tiered_store_messages_dispatch_total",
        "counter",
        "1",
        "Messages uploaded to the object store, by topic or `~other`; repeats count again.",
        ("namespace", "topic"),
    ),
)

METRICS: tuple[MetricSpec, ...] = STORE_METRICS + READ_METRICS + COST_METRICS
