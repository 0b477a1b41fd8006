"""Stored messages as clients get them: with their place and their store time.

Fields of one delivery are added to the stored bytes; the body is not parsed.
"""

from __future__ import annotations

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.base import wire
from strata_broker.metadata.metadata import TopicRow
from strata_mq.traces import DeadLetterOrigin, delivery_fragment


def shown_message(
    topic: TopicRow,
    message: bytes,
    store_time_ms: int,
    store_host: str,
    queue: int,
    offset: int,
    receipt_handle: str = "",
    attempt: int = 1,
) -> bytes:
    """Return a stored message as field 2 of an answer: of a receive, and of a pull as well.

    Args:
        topic: where it was found; a dead letter also names its former topic.
        message: as it is stored.
        store_time_ms: when it was stored.
        store_host: host that clients log as the one that stored it.
        queue: of the topic.
        offset: in the queue.
        receipt_handle: of this delivery; "": no ack is needed.
        attempt: number of this delivery, counted from 1.
    """
    origin, rest = None, b""
    if topic.is_dead_letter:
        stored = definition_pb2.Message.FromString(message)
        origin = DeadLetterOrigin(stored.topic.name, stored.system_properties.message_id)
        # The stored message still names the topic it was first sent to.
        rest = definition_pb2.Message(
            topic=definition_pb2.Resource(resource_namespace=topic.namespace, name=topic.name)
        ).SerializeToString()
    fragment = delivery_fragment(
        store_time_ms, store_host, receipt_handle, queue, offset, attempt, origin
    )
    return wire.received_message(message, fragment, rest)


def parsed_message(
    topic: TopicRow, message: bytes, store_time_ms: int, store_host: str, queue: int, offset: int
) -> definition_pb2.Message:
    """Return a stored message as `shown_message` does, parsed."""
    shown = shown_message(topic, message, store_time_ms, store_host, queue, offset)
    parsed = service_pb2.ReceiveMessageResponse.FromString(shown).message
    parsed.system_properties.ClearField("receipt_handle")
    return parsed
