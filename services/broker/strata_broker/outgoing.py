"""Turns the messages of a SendMessageRequest into what a batch stores.

Role: check every message, derive its type, hash what storage selects by. The form of a
stored message is `wire.stored_message`'s. Choosing only: nothing here waits or sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import md5
from typing import NamedTuple

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.metadata import Name, TopicRow
from strata_broker.requests import Caller
from strata_broker.wire import stored_message
from strata_mq.batch import Checksum, OutgoingMessage
from strata_mq.delivery import store_fragment, user_property_fragment
from strata_mq.errors import Code, RequestError
from strata_mq.hashing import key_hash, pack_message_id, text_hash
from strata_mq.types import MessageType, TopicType, check_topic_accepts, message_type_of
from strata_mq.validation import Limits, check_message

# User property in which RocketMQ repeats the message group; clients rely on it.
_MESSAGE_GROUP_PROPERTY = "__SHARDINGKEY"

_LATER_TYPES = {
    MessageType.DELAY: "delay messages are not supported yet",
    MessageType.TRANSACTION: "transactional messages are not supported yet",
    MessageType.LITE: "lite messages are not supported yet",
    MessageType.PRIORITY: "priority messages are not supported yet",
}

# The one type that a topic of these types takes: what most messages are.
_PLAIN_TYPES: dict[int, MessageType] = {
    TopicType.NORMAL: MessageType.NORMAL,
    TopicType.FIFO: MessageType.FIFO,
}


class ParsedSend(NamedTuple):
    """A SendMessageRequest whose messages have one topic."""

    messages: Sequence[definition_pb2.Message]
    message_ids: Sequence[str]
    topic: Name


def parse_send(request: bytes, caller: Caller, max_messages: int) -> ParsedSend:
    """Parse a request.

    Raises:
        RequestError: BAD_REQUEST or MESSAGE_CORRUPTED.
    """
    try:
        messages = service_pb2.SendMessageRequest.FromString(request).messages
    except DecodeError as error:
        raise RequestError(Code.BAD_REQUEST, "not a SendMessageRequest") from error
    count = len(messages)
    if not count:
        raise RequestError(Code.MESSAGE_CORRUPTED, "no message to send")
    if count > max_messages:
        raise RequestError(
            Code.MESSAGE_CORRUPTED, f"the max number of messages in a request is {max_messages}"
        )
    first = messages[0].topic
    namespace, name = first.resource_namespace, first.name
    for message in messages:
        named = message.topic
        if named.name != name or named.resource_namespace != namespace:
            raise RequestError(Code.MESSAGE_CORRUPTED, "different message has different topic")
    ids = [message.system_properties.message_id for message in messages]
    return ParsedSend(messages, ids, caller.name_of(first))


class MessagePreparer:
    """Checks messages and makes them ready for a batch."""

    def __init__(self, limits: Limits, checksum: Checksum) -> None:
        self._limits = limits
        self._checksum = checksum

    def prepare(self, message: definition_pb2.Message, topic: TopicRow) -> OutgoingMessage:
        """Check one message and return what is stored of it; the message is used up.

        Raises:
            RequestError: the first thing that is wrong with it.
        """
        properties = message.system_properties
        body = message.body
        message_id = properties.message_id
        tag = properties.tag
        keys = list(properties.keys)
        message_group = properties.message_group if properties.HasField("message_group") else None
        check_message(
            self._limits,
            body_bytes=len(body),
            message_id=message_id,
            tag=tag,
            keys=keys,
            message_group=message_group,
            properties=message.user_properties,
        )
        declared = int(properties.message_type)
        message_type = message_type_of(
            declared,
            has_message_group=message_group is not None,
            has_delivery_time=properties.HasField("delivery_timestamp"),
            has_priority=properties.HasField("priority"),
            has_lite_topic=properties.HasField("lite_topic"),
        )
        if message_type != _PLAIN_TYPES.get(topic.topic_type):
            _check_type(topic, message_type)
        added = store_fragment(
            md5(body, usedforsecurity=False).hexdigest().upper(),
            set_identity=properties.body_encoding == definition_pb2.ENCODING_UNSPECIFIED,
            message_type=None if declared == message_type else message_type,
        )
        born_ms = _born_ms(properties.born_timestamp)
        own_properties = properties.SerializeToString()
        message.ClearField("system_properties")
        rest = message.SerializeToString()
        if message_group is not None:
            rest += user_property_fragment(_MESSAGE_GROUP_PROPERTY, message_group)
        stored = stored_message(own_properties, added, rest)
        return OutgoingMessage(
            stored,
            self._checksum(stored),
            text_hash(tag) if tag else 0,
            text_hash(message_group) if message_group is not None else 0,
            pack_message_id(message_id),
            message_type,
            born_ms,
            [key_hash(key) for key in keys],
        )


def _check_type(topic: TopicRow, message_type: MessageType) -> None:
    check_topic_accepts(TopicType(topic.topic_type), message_type)
    if message_type in _LATER_TYPES:
        raise RequestError(Code.NOT_IMPLEMENTED, _LATER_TYPES[message_type])


def _born_ms(born: Timestamp) -> int:
    """Return the born time as the unsigned column holds it; nonsense becomes 0."""
    born_ms = born.seconds * 1000 + born.nanos // 1_000_000
    return born_ms if 0 <= born_ms < 1 << 63 else 0
