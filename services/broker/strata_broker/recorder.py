"""Counts what goes in and out, under RocketMQ's metric names; labels are built once."""

from __future__ import annotations

from collections.abc import Mapping

from strata_broker.metadata import TopicRow
from strata_mq.errors import Code
from strata_mq.types import MessageType
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

_REQUEST_CODES = {
    "SendMessage": "send_message",
    "ReceiveMessage": "pop_message",
    "AckMessage": "ack_message",
}
_MAX_KEPT_LABELS = 10_000


class Recorder:
    """See the module docstring.

    Attributes:
        messages_in: stored since the start.
        messages_out: delivered since the start.
    """

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self.messages_in = 0
        self.messages_out = 0
        self._clock = clock
        self._messages_in = metrics.counter("rocketmq_messages_in_total")
        self._bytes_in = metrics.counter("rocketmq_throughput_in_total")
        self._messages_out = metrics.counter("rocketmq_messages_out_total")
        self._bytes_out = metrics.counter("rocketmq_throughput_out_total")
        self._latency = metrics.histogram("rocketmq_rpc_latency")
        self._message_size = metrics.histogram("rocketmq_message_size")
        self._in_labels: dict[tuple[int, int], Mapping[str, str]] = {}
        self._rpc_labels: dict[tuple[str, Code], Mapping[str, str]] = {}

    def sent(self, topic: TopicRow, message_type: int, message_count: int, size_bytes: int) -> None:
        """Count a stored request."""
        key = (topic.topic_id, message_type)
        labels = self._in_labels.get(key)
        if labels is None:
            if len(self._in_labels) >= _MAX_KEPT_LABELS:
                self._in_labels.clear()
            labels = self._in_labels[key] = {
                "topic": topic.name,
                "message_type": MessageType(message_type).name.lower(),
            }
        self.messages_in += message_count
        self._messages_in.add(message_count, labels)
        self._bytes_in.add(size_bytes, labels)
        self._message_size.record(size_bytes / message_count)

    def delivered(
        self, topic: str, group: str, sizes_bytes: tuple[int, int], counts: tuple[int, int]
    ) -> None:
        """Count delivered messages: (first deliveries, repeated ones)."""
        for is_retry in (0, 1):
            if counts[is_retry]:
                self.messages_out += counts[is_retry]
                labels = {
                    "topic": topic,
                    "consumer_group": group,
                    "is_retry": "true" if is_retry else "false",
                }
                self._messages_out.add(counts[is_retry], labels)
                self._bytes_out.add(sizes_bytes[is_retry], labels)

    def answered(self, rpc: str, code: Code, started_s: float) -> None:
        """Count an answer and how long it took."""
        key = (rpc, code)
        labels = self._rpc_labels.get(key)
        if labels is None:
            labels = self._rpc_labels[key] = {
                "request_code": _REQUEST_CODES.get(rpc, rpc),
                "response_code": code.name.lower(),
            }
        self._latency.record((self._clock.monotonic_s() - started_s) * 1000, labels)
