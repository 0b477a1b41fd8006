"""Spans of the broker for messages: one per traced send, one per delivery of a traced message.

A message's trace parent is its own trace context, else the user property `traceparent`, else the
call's metadata. A message without a trace context gets the send's span as its trace context, so
that its deliveries find it. A trace context from the client is stored unchanged.

Deliveries do not parse messages: they search the trace context in the system properties, which
come first in a stored message (`wire.stored_message`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from apache.rocketmq.v2 import definition_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base.wire import system_properties_end
from strata_runtime.tracing import Span, SpanKind, Tracer

_TRACE_PARENT = "traceparent"
# Key of SystemProperties.trace_context, the length of a sampled traceparent, the text.
_STORED = re.compile(rb"\x92\x01\x37([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf])")


class MessageTraces:
    """See the module docstring.

    Attributes:
        tracer: begins the spans.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def sent(
        self, metadata: Mapping[str, str], messages: Sequence[definition_pb2.Message]
    ) -> Span | None:
        """Begin the span of a send, if it is traced; its messages may get a trace context."""
        first = messages[0]
        parents = (_parent_of(message) for message in messages)
        parent = next(filter(None, parents), "") or metadata.get(_TRACE_PARENT, "")
        span = self.tracer.begin(
            f"{first.topic.name} send", SpanKind.SERVER, parent, may_be_root=True
        )
        if span is None:
            return None
        span.attributes |= {
            "messaging.system": "rocketmq",
            "messaging.operation.type": "send",
            "messaging.destination.name": first.topic.name,
            "messaging.rocketmq.namespace": first.topic.resource_namespace,
            "messaging.message.id": first.system_properties.message_id,
            "messaging.batch.message_count": len(messages),
        }
        for message in messages:
            if not message.system_properties.trace_context:
                message.system_properties.trace_context = span.trace_parent
        return span

    def delivered(
        self, topic: str, consumer_group: str, popped: storage_pb2.PopResponse, broker: str
    ) -> None:
        """Record the delivery of each traced message of a receive."""
        for leased in popped.messages:
            end = system_properties_end(leased.message)
            # The last one counts, as it does for protobuf.
            for found in [*_STORED.finditer(leased.message, 0, end)][-1:]:
                span = self.tracer.begin(
                    f"{topic} receive",
                    SpanKind.SERVER,
                    found[1].decode(),
                    {
                        "messaging.system": "rocketmq",
                        "messaging.operation.type": "receive",
                        "messaging.destination.name": topic,
                        "messaging.consumer.group.name": consumer_group,
                        "messaging.destination.partition.id": str(leased.queue),
                        "strata.offset": leased.offset,
                        "strata.attempt": leased.attempt_count,
                        "server.address": broker,
                    },
                )
                if span is not None:
                    span.end()


def _parent_of(message: definition_pb2.Message) -> str:
    return message.system_properties.trace_context or message.user_properties.get(_TRACE_PARENT, "")
