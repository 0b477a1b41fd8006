"""Requests that are not answered yet, by processor; counted at each scrape.

There are no thread pools whose queues could be measured: calls wait on the event loop for storage
nodes or for messages.
"""

from __future__ import annotations

from collections.abc import Callable

from strata_runtime.metrics import Metrics


def show_watermark(metrics: Metrics, processor: str, count: Callable[[], int]) -> None:
    """Show how many requests a processor has, under RocketMQ's name.

    Args:
        metrics: where.
        processor: RocketMQ's name of it.
        count: gives the number, at each scrape.
    """
    labels = {"processor": processor}
    metrics.gauge("rocketmq_processor_watermark", lambda: [(count(), labels)])
