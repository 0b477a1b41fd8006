"""Metrics of a broker: RocketMQ's documented names first, then our own.

RocketMQ's names carry no unit suffix, so their unit stands in the description. How full each
limit is shows under the names of `strata_runtime.limits`.
"""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

_TOPIC = ("topic", "message_type")
_CONSUMER = ("topic", "consumer_group", "is_retry")

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("rocketmq_messages_in_total", "counter", "1", "Messages produced.", _TOPIC),
    MetricSpec("rocketmq_messages_out_total", "counter", "1", "Messages delivered.", _CONSUMER),
    MetricSpec("rocketmq_throughput_in_total", "counter", "bytes", "Bytes produced.", _TOPIC),
    MetricSpec("rocketmq_throughput_out_total", "counter", "bytes", "Bytes delivered.", _CONSUMER),
    MetricSpec(
        "rocketmq_rpc_latency",
        "histogram",
        "ms",
        "Time from a request's arrival to its answer.",
        ("request_code", "response_code"),
    ),
    MetricSpec("rocketmq_producer_connections", "gauge", "1", "Producers connected."),
    MetricSpec("rocketmq_consumer_connections", "gauge", "1", "Consumers connected."),
    MetricSpec("rocketmq_message_size", "histogram", "bytes", "Size of produced messages."),
    MetricSpec("strata_broker_append_batches_total", "counter", "1", "Append batches sent."),
    MetricSpec("strata_broker_append_messages", "histogram", "1", "Messages per append batch."),
    MetricSpec("strata_broker_append_latency", "histogram", "ms", "Duration of an Append call."),
    MetricSpec("strata_broker_clients", "gauge", "1", "Clients known to be alive."),
    MetricSpec("strata_broker_topics", "gauge", "1", "Topics in this broker's copy."),
    MetricSpec("strata_broker_metadata_revision", "gauge", "1", "Revision of that copy."),
    MetricSpec(
        "strata_broker_rehashing_topics",
        "gauge",
        "1",
        "Topics that got more queues and have message groups in the old ones still.",
    ),
    MetricSpec(
        "strata_broker_pending_drops",
        "gauge",
        "1",
        "Deleted topics and consumer groups whose data is not gone everywhere yet.",
    ),
    MetricSpec(
        "strata_broker_storage_retries_total",
        "counter",
        "1",
        "Calls repeated after a refusal or a lost connection.",
        ("reason",),
    ),
    MetricSpec(
        "strata_broker_settings_pushed_total",
        "counter",
        "1",
        "Settings pushed to clients because their consumer group changed.",
    ),
    MetricSpec(
        "strata_broker_settings_waiting",
        "gauge",
        "1",
        "Clients whose settings wait to be looked at after such a change; at most max_streams.",
    ),
    MetricSpec(
        "strata_broker_filtered_total",
        "counter",
        "1",
        "Leased messages whose tag only shared a hash with the wanted one; acked silently.",
    ),
    MetricSpec(
        "strata_broker_released_total",
        "counter",
        "1",
        "Leased messages given back because their client had gone.",
    ),
)
"""Everything this package counts."""
