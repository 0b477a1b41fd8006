"""Stored messages as remoting consumers get them, in RocketMQ's CommitLog format."""

from __future__ import annotations

from typing import NamedTuple

from apache.rocketmq.v2 import definition_pb2
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.requests import host_of, milliseconds
from strata_broker.remoting import property_names as names
from strata_broker.remoting.client_traces import REGION
from strata_remoting import (
    OffsetPlace,
    PulledMessage,
    Store,
    encode_properties,
    physical_offset,
)

_MOST_INT = (1 << 31) - 1


class ShownQueue(NamedTuple):
    """A queue, as the broker and as remoting clients know it."""

    topic: TopicRow
    queue: int
    queue_id: int


def pulled_message(
    message: definition_pb2.Message, queue: ShownQueue, store: Store, region: str = ""
) -> PulledMessage:
    """Return a message in the form of the older protocol.

    Args:
        message: as a gRPC client pulls it.
        queue: where it is.
        store: address that the message names as its store: of this broker.
        region: that it names; "": none, so that its consumer makes no traces.
    """
    times = _number(message.user_properties.get(names.STORED_RECONSUME_TIMES, ""))
    return _shown(message, queue, store, _properties(message, region), times)


def popped_message(
    message: definition_pb2.Message,
    queue: ShownQueue,
    store: Store,
    extra_info: str,
    region: str = "",
) -> PulledMessage:
    """Return a message as `pulled_message` does, with the extra info that its consumer acks."""
    properties = _properties(message, region)
    # A producer may write this property, too.
    properties[names.POP_CHECK] = extra_info
    times = max(message.system_properties.delivery_attempt - 1, 0)
    return _shown(message, queue, store, properties, times)


def _shown(
    message: definition_pb2.Message,
    queue: ShownQueue,
    store: Store,
    properties: dict[str, str],
    times: int,
) -> PulledMessage:
    system = message.system_properties
    place = OffsetPlace(queue.topic.topic_id, queue.queue, system.queue_offset)
    return PulledMessage(
        queue_id=queue.queue_id,
        queue_offset=system.queue_offset,
        physical_offset=physical_offset(place),
        born_ms=milliseconds(system.born_timestamp),
        born=_address(system.born_host),
        stored_ms=milliseconds(system.store_timestamp),
        store=store,
        topic=queue.topic.name,
        body=message.body,
        properties=encode_properties(properties),
        flag=_number(message.user_properties.get(names.STORED_FLAG, "")),
        reconsume_times=times,
    )


def _properties(message: definition_pb2.Message, region: str) -> dict[str, str]:
    system = message.system_properties
    shown = {
        names.shown_name(name): value
        for name, value in message.user_properties.items()
        if name not in names.NOT_SHOWN
    }
    # A message that was sent back keeps the id that its consumers know it by.
    shown.setdefault(names.UNIQUE_KEY, system.message_id)
    if system.tag:
        shown[names.TAGS] = system.tag
    if system.keys:
        shown[names.KEYS] = " ".join(system.keys)
    if system.HasField("message_group"):
        shown[names.SHARDING_KEY] = system.message_group
    if region:
        shown[REGION] = region
    if system.HasField("dead_letter_queue"):
        shown[names.DEAD_LETTER_TOPIC] = system.dead_letter_queue.topic
        shown[names.DEAD_LETTER_MESSAGE_ID] = system.dead_letter_queue.message_id
    return shown


def _address(shown: str) -> Store:
    """Return the address that a message was born at; gRPC clients may give a mere name."""
    host, _, port = shown.rpartition(":")
    digits = port.isascii() and port.isdigit() and len(port) < 6
    if not host or not digits:
        return Store.of(shown, 0)
    return Store.of(host_of(shown), min(int(port), 65_535))


def _number(text: str) -> int:
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 10:
        return 0
    return max(-_MOST_INT - 1, min(int(text), _MOST_INT))
