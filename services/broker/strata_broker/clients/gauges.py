"""Metrics of a broker as a whole, some of them under RocketMQ's names."""

from __future__ import annotations

from collections.abc import Callable

from strata_broker.clients.sessions import Sessions
from strata_broker.metadata.metadata import MetadataView
from strata_runtime.metrics import Metrics


def show_broker(
    metrics: Metrics, sessions: Sessions, view: MetadataView, serves: Callable[[], bool]
) -> None:
    """Show how many clients, topics and consumer groups a broker knows, and whether it serves."""
    metrics.gauge("rocketmq_producer_connections", lambda: sessions.count(consumers=False))
    metrics.gauge("rocketmq_consumer_connections", lambda: sessions.count(consumers=True))
    metrics.gauge("rocketmq_topic_number", lambda: len(view.topics()))
    metrics.gauge("rocketmq_consumer_group_number", lambda: len(view.consumer_groups()))
    metrics.gauge("rocketmq_proxy_up", lambda: int(serves()))
    metrics.gauge("strata_broker_clients", lambda: len(sessions))
    metrics.gauge("strata_broker_topics", lambda: len(view.topics()))
    metrics.gauge("strata_broker_topics_in_use", lambda: view.topics().in_use)
    metrics.gauge("strata_broker_metadata_revision", lambda: view.revision)
