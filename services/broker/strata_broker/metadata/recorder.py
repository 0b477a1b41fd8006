"""Counts stored and delivered messages under RocketMQ's metric names; labels are cached.

A metric has a limit of label sets, and messages of all further topics are counted together. So what
is kept here is as much, and a message to one of a million topics makes no labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strata_broker.base.receive_config import RefusalsSection
from strata_broker.base.refusal_pace import RefusalPace
from strata_broker.metadata.metadata import TopicRow
from strata_mq.requests import Code, MessageType
from strata_runtime.clock import Clock
from strata_runtime.metrics import BoundCounter, BoundHistogram, Metrics

_REQUEST_CODES = {
    "SendMessage": "send_message",
    "ReceiveMessage": "pop_message",
    "AckMessage": "ack_message",
}


class _Stored(NamedTuple):
    """Counters of a topic and message type."""

    messages: BoundCounter
    size_bytes: BoundCounter


class Recorder:
    """See the module docstring.

    Attributes:
        messages_in, total_bytes_in: stored since the start.
        messages_out, total_bytes_out: delivered since the start.
        pace: what refused calls are charged to.
    """

    def __init__(self, clock: Clock, metrics: Metrics, refusals: RefusalsSection) -> None:
        self.pace = RefusalPace(refusals, clock, metrics)
        self.messages_in = self.total_bytes_in = 0
        self.messages_out = self.total_bytes_out = 0
        self._clock = clock
        self._messages_in = metrics.counter("rocketmq_messages_in_total")
        self._bytes_in = metrics.counter("rocketmq_throughput_in_total")
        self._messages_out = metrics.counter("rocketmq_messages_out_total")
        self._bytes_out = metrics.counter("rocketmq_throughput_out_total")
        self._latency = metrics.histogram("rocketmq_rpc_latency")
        self._message_size = metrics.histogram("rocketmq_message_size").bound()
        # By the name of a topic, its namespace and the message type: as label sets are told apart.
        self._stored: dict[tuple[str, str, int], _Stored] = {}
        # Counters for all topics that came when the label sets were used up.
        self._stored_of_others: _Stored | None = None
        self._latencies: dict[tuple[str, Code], BoundHistogram] = {}

    def sent(self, topic: TopicRow, message_type: int, message_count: int, size_bytes: int) -> None:
        """Count a stored request."""
        self._count_stored(topic, message_type, message_count, size_bytes)
        self._message_size.record(size_bytes / message_count)

    def sent_together(
        self,
        topic: TopicRow,
        message_type: int,
        requests: Sequence[tuple[int, int]],
        started_s: float,
    ) -> None:
        """Count stored requests, and their answers.

        Args:
            topic: of all messages.
            message_type: of all messages.
            requests: messages and bytes of each one.
            started_s: when all of them began.
        """
        if len(requests) == 1:
            # Messages to many topics are not together with others.
            self.sent(topic, message_type, *requests[0])
            self.answered("SendMessage", Code.OK, started_s)
            return
        message_count = sum([count for count, _ in requests])
        size_bytes = sum([size_bytes for _, size_bytes in requests])
        self._count_stored(topic, message_type, message_count, size_bytes)
        self._message_size.record_all([size_bytes / count for count, size_bytes in requests])
        self.answered("SendMessage", Code.OK, started_s, len(requests))

    def delivered(
        self,
        topic: TopicRow,
        group: str,
        sizes_bytes: tuple[int, int],
        counts: tuple[int, int],
    ) -> None:
        """Count delivered messages: (first deliveries, repeated ones)."""
        for is_retry in (0, 1):
            if counts[is_retry]:
                self.messages_out += counts[is_retry]
                self.total_bytes_out += sizes_bytes[is_retry]
                labels = {
                    "namespace": topic.namespace,
                    "topic": topic.name,
                    "consumer_group": group,
                    "is_retry": "true" if is_retry else "false",
                }
                self._messages_out.add(counts[is_retry], labels)
                self._bytes_out.add(sizes_bytes[is_retry], labels)

    def answered(self, rpc: str, code: Code, started_s: float, count: int = 1) -> None:
        """Count an answer and its time, or so many of the same time."""
        latency = self._latencies.get((rpc, code))
        if latency is None:
            labels = {
                "request_code": _REQUEST_CODES.get(rpc, rpc),
                "response_code": code.name.lower(),
            }
            latency = self._latencies[rpc, code] = self._latency.bound(labels)
        latency.record((self._clock.monotonic_s() - started_s) * 1000, count)

    def _count_stored(
        self, topic: TopicRow, message_type: int, message_count: int, size_bytes: int
    ) -> None:
        stored = self._stored.get((topic.name, topic.namespace, message_type))
        if stored is None:
            stored = self._stored_of_others or self._stored_of(topic, message_type)
        self.messages_in += message_count
        self.total_bytes_in += size_bytes
        stored.messages.add(message_count)
        stored.size_bytes.add(size_bytes)

    def _stored_of(self, topic: TopicRow, message_type: int) -> _Stored:
        labels = {
            "namespace": topic.namespace,
            "topic": topic.name,
            "message_type": MessageType(message_type).name.lower(),
        }
        stored = _Stored(self._messages_in.bound(labels), self._bytes_in.bound(labels))
        if stored.messages.is_overflow:
            self._stored_of_others = stored
        else:
            self._stored[topic.name, topic.namespace, message_type] = stored
        return stored
