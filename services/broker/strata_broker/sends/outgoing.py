"""Turns the messages of a SendMessageRequest into the messages of a batch.

Role: check every message, derive its type, queue and due time, hash the fields that storage selects
by. A stored message has the form of `wire.stored_message`. Nothing here waits or sends.

Delay messages always wait in storage, even if their time is past: only the leader's group time
decides whether a message is due (rule 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import md5
from typing import NamedTuple

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.base.config import TransactionSection
from strata_broker.base.group_clock import GroupClock
from strata_broker.base.parsing import parse
from strata_broker.base.wire import stored_message
from strata_broker.metadata.metadata import Name, TopicRow
from strata_broker.metadata.requests import Caller, milliseconds
from strata_broker.sends.send_pass import MESSAGE_GROUP_PROPERTY
from strata_edge.passes import SendPass
from strata_mq.layout import (
    Checksum,
    LiteMessage,
    OutgoingMessage,
    PartKind,
    PrioritizedMessage,
    key_hash,
    pack_message_id,
    text_hash,
)
from strata_mq.requests import (
    ACCEPTED_TYPES,
    Code,
    Limits,
    MessageType,
    RequestError,
    TopicType,
    check_lite_topic,
    check_message,
    check_overhead,
    check_topic_accepts,
    message_type_of,
)
from strata_mq.traces import sender_fragment, store_fragment, user_property_fragment

# Topics whose messages may be of several kinds.
_DIVIDED_TOPICS: frozenset[int] = frozenset(
    (TopicType.DELAY, TopicType.TRANSACTION, TopicType.MIXED)
)
# User property in which RocketMQ repeats the transaction id; clients rely on it.
_TRANSACTION_ID_PROPERTY = "__transactionId__"

_NANOS_PER_MS = 1_000_000

# Counting takes some percent of the time of a large batch of small messages.
_COUNTED_FROM_BYTES = 262_144

_PART_KINDS: dict[int, PartKind] = {
    MessageType.DELAY: PartKind.DELAYED,
    MessageType.TRANSACTION: PartKind.HALF,
}

# The only type that a topic of these types takes; most messages have it.
_PLAIN_TYPES: dict[int, MessageType] = {
    TopicType.NORMAL: MessageType.NORMAL,
    TopicType.FIFO: MessageType.FIFO,
}


class ParsedSend(NamedTuple):
    """A SendMessageRequest whose messages have one topic.

    Attributes:
        request: as it came.
        message_ids: one per message.
        topic: of all messages.
        client_id: who sends.
        messages: parsed; empty if a native pass read the request.
        user: who signed the call; "": access is not controlled.
    """

    request: bytes
    message_ids: Sequence[str]
    topic: Name
    client_id: str
    messages: Sequence[definition_pb2.Message] = ()
    user: str = ""


def parse_messages(request: bytes) -> service_pb2.SendMessageRequest:
    """Parse a request without checking its content.

    Raises:
        DecodeError: see `parsing.parse`.
    """
    return parse(service_pb2.SendMessageRequest, request, counted_from_bytes=_COUNTED_FROM_BYTES)


def read_send(
    request: bytes, caller: Caller, send_pass: SendPass[OutgoingMessage]
) -> ParsedSend | None:
    """Let a native pass read a request; None: `parse_send` is to decide."""
    read = send_pass.read(request)
    if read is None:
        return None
    namespace, name, message_ids = read
    topic = namespace or caller.namespace, name
    return ParsedSend(request, message_ids, topic, caller.client_id)


def parse_send(request: bytes, caller: Caller, max_messages: int) -> ParsedSend:
    """Parse a request.

    Raises:
        RequestError: BAD_REQUEST or MESSAGE_CORRUPTED.
    """
    try:
        messages = parse_messages(request).messages
    except DecodeError as error:
        raise RequestError(Code.BAD_REQUEST, str(error)) from error
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
    return ParsedSend(request, ids, caller.name_of(first), caller.client_id, messages)


def runs_by_kind(
    topic: TopicRow, outgoing: Sequence[OutgoingMessage], indexes: Sequence[int]
) -> list[Sequence[int]]:
    """Divide messages by the kind of part that stores them, in order.

    Raises:
        RequestError: MESSAGE_CORRUPTED: a transactional message is not the only message.
    """
    if topic.topic_type not in _DIVIDED_TOPICS:
        return [indexes]
    divided: dict[PartKind, list[int]] = {}
    for index in indexes:
        divided.setdefault(part_kind(outgoing[index]), []).append(index)
    if len(outgoing) > 1 and PartKind.HALF in divided:
        raise RequestError(
            Code.MESSAGE_CORRUPTED,
            "a transactional message must be the only message of its request",
        )
    return list(divided.values())


def part_kind(message: OutgoingMessage) -> PartKind:
    """Return the kind of part that stores a message."""
    return _PART_KINDS.get(message.message_type, PartKind.PLAIN)


def with_transaction_id(
    half: OutgoingMessage, transaction_id: str, checksum: Checksum
) -> OutgoingMessage:
    """Return a transactional message that carries its transaction's id for its consumers."""
    stored = half.stored + user_property_fragment(_TRANSACTION_ID_PROPERTY, transaction_id)
    return half._replace(stored=stored, checksum=checksum(stored))


class MessagePreparer:
    """Checks messages and makes them ready for a batch.

    Args:
        limits: of a message.
        transaction: times of the first checks.
        checksum: CRC32C.
        clock: group time, for delays.
        send_pass: what read the requests that come without messages.
    """

    def __init__(
        self,
        limits: Limits,
        transaction: TransactionSection,
        checksum: Checksum,
        *,
        clock: GroupClock,
        send_pass: SendPass[OutgoingMessage] | None = None,
    ) -> None:
        self._limits = limits
        self._send_pass = send_pass
        self._transaction = transaction
        self._checksum = checksum
        self._group_clock = clock

    def prepare_all(self, parsed: ParsedSend, topic: TopicRow) -> Sequence[OutgoingMessage]:
        """Check the messages of a request and return their stored forms; they are used up.

        Raises:
            RequestError: the first thing that is wrong with one of them.
        """
        if taken := self.prepare_each((parsed,), (topic,))[0]:
            return taken
        sender = sender_fragment(parsed.client_id)
        messages = parsed.messages or parse_messages(parsed.request).messages
        return [self.prepare(message, topic, sender) for message in messages]

    def prepare_each(
        self, sends: Sequence[ParsedSend], topics: Sequence[TopicRow]
    ) -> Sequence[Sequence[OutgoingMessage]]:
        """Return what `prepare_all` would for each request; nothing: `prepare_all` is to decide.

        One pass over all of them: their bodies are hashed side by side.

        Args:
            sends: requests.
            topics: of each one.
        """
        if self._send_pass is None:
            return [()] * len(sends)
        read = [parsed for parsed in sends if not parsed.messages]
        stored = iter(
            self._send_pass.store_each(
                [parsed.request for parsed in read],
                [sender_fragment(parsed.client_id) for parsed in read],
            )
        )
        return [
            () if parsed.messages else self.taken(next(stored), topic)
            for parsed, topic in zip(sends, topics, strict=True)
        ]

    def store_each(
        self, requests: Sequence[bytes], client_ids: Sequence[str]
    ) -> Sequence[Sequence[OutgoingMessage]]:
        """Return the messages of requests that the native pass read; `taken` is to follow.

        Args:
            requests: serialised.
            client_ids: who sent each.
        """
        assert self._send_pass is not None
        return self._send_pass.store_each(
            requests, [sender_fragment(client_id) for client_id in client_ids]
        )

    def taken(
        self, outgoing: Sequence[OutgoingMessage], topic: TopicRow
    ) -> Sequence[OutgoingMessage]:
        """Return what a native pass made as this topic stores it; nothing: it is to be checked."""
        plain = _PLAIN_TYPES.get(topic.topic_type)
        for message in outgoing:
            if message.message_type is not plain:
                break
        else:
            return outgoing
        accepted = ACCEPTED_TYPES[TopicType(topic.topic_type)]
        latest_ms = self._group_clock.now_ms() + self._limits.max_delay_ms
        if not all([one.message_type in accepted and one.due_ms <= latest_ms for one in outgoing]):
            return ()
        first_check_ms = self._transaction.first_check_ms
        return [
            one._replace(due_ms=first_check_ms)
            if one.message_type is MessageType.TRANSACTION
            else one
            for one in outgoing
        ]

    def prepare(
        self, message: definition_pb2.Message, topic: TopicRow, sender: bytes
    ) -> OutgoingMessage:
        """Check one message and return its stored form; the message is used up.

        `sender` is the `sender_fragment` of its client's id.

        Raises:
            RequestError: the first thing that is wrong with it.
        """
        properties = message.system_properties
        body = message.body
        message_id, lite_topic = properties.message_id, properties.lite_topic
        tag, keys = properties.tag, list(properties.keys)
        message_group = properties.message_group if properties.HasField("message_group") else None
        now_ms, delivery_ms = 0, None
        if properties.HasField("delivery_timestamp"):
            now_ms = self._group_clock.now_ms()
            delivery_ms = _delivery_ms(properties.delivery_timestamp)
        priority = properties.priority if properties.HasField("priority") else None
        check_message(
            self._limits,
            body_bytes=len(body),
            message_id=message_id,
            tag=tag,
            keys=keys,
            message_group=message_group,
            properties=message.user_properties,
            delivery_time_ms=delivery_ms,
            now_ms=now_ms,
            priority=priority,
        )
        declared = int(properties.message_type)
        message_type = message_type_of(
            declared,
            has_message_group=message_group is not None,
            has_delivery_time=delivery_ms is not None,
            has_priority=priority is not None,
            has_lite_topic=properties.HasField("lite_topic"),
        )
        if message_type != _PLAIN_TYPES.get(topic.topic_type):
            check_topic_accepts(TopicType(topic.topic_type), message_type)
        due_ms = max(delivery_ms or 0, 0)
        if message_type is MessageType.LITE:
            check_lite_topic(self._limits, lite_topic)
        elif message_type is MessageType.TRANSACTION:
            due_ms = self._first_check_after_ms(properties)
        added = store_fragment(
            md5(body, usedforsecurity=False).hexdigest().upper(),
            set_identity=properties.body_encoding == definition_pb2.ENCODING_UNSPECIFIED,
            message_type=None if declared == message_type else message_type,
        )
        born_ms = _born_ms(properties.born_timestamp)
        own_properties, rest = _taken_apart(message, message_type)
        check_overhead(self._limits, len(own_properties) + len(rest) - len(body))
        if message_group is not None:
            rest += user_property_fragment(MESSAGE_GROUP_PROPERTY, message_group)
        stored = stored_message(own_properties, added + sender, rest)
        outgoing = OutgoingMessage(
            stored,
            self._checksum(stored),
            text_hash(tag) if tag else 0,
            text_hash(message_group) if message_group is not None else 0,
            pack_message_id(message_id),
            message_type,
            born_ms,
            [key_hash(key) for key in keys],
            due_ms,
        )
        return _choosing(outgoing, priority, lite_topic)

    def _first_check_after_ms(self, properties: definition_pb2.SystemProperties) -> int:
        """Return the time between storing a transactional message and the first check.

        Raises:
            RequestError: the message has contradictory fields.
        """
        if properties.HasField("delivery_timestamp"):
            # Its commit would deliver it early.
            raise RequestError(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "a transactional message cannot have a delivery timestamp",
            )
        after_ms = self._transaction.first_check_ms
        if properties.HasField("orphaned_transaction_recovery_duration"):
            after_ms = milliseconds(properties.orphaned_transaction_recovery_duration)
            most_ms = self._transaction.max_first_check_ms
            if not 0 <= after_ms <= most_ms:
                raise RequestError(
                    Code.BAD_REQUEST,
                    f"the orphaned transaction recovery duration is out of range, 0 to {most_ms}",
                )
        return after_ms


def _choosing(message: OutgoingMessage, priority: int | None, lite_topic: str) -> OutgoingMessage:
    """Return a message with what chooses its queue, if no column has it."""
    if message.message_type is MessageType.LITE:
        return LiteMessage.of(message, lite_topic)
    return message if priority is None else PrioritizedMessage.of(message, priority)


def _taken_apart(message: definition_pb2.Message, message_type: MessageType) -> tuple[bytes, bytes]:
    """Return the bytes of a message's system properties and of its other fields; it is used up.

    Fields that only a delivery sets are left out: a forwarded message has those of its last
    delivery. Other fields of this kind are overridden by each delivery. So is the priority of a
    message of another type, as in RocketMQ (`SendMessageProcessor`).
    """
    properties = message.system_properties
    if message_type is not MessageType.PRIORITY:
        properties.ClearField("priority")
    properties.ClearField("store_host")
    properties.ClearField("receipt_handle")
    properties.ClearField("invisible_duration")
    properties.ClearField("dead_letter_queue")
    own = properties.SerializeToString()
    message.ClearField("system_properties")
    return own, message.SerializeToString()


def _delivery_ms(delivery: Timestamp) -> int:
    """Return a delivery time rounded up: not a fraction of a millisecond early."""
    return delivery.seconds * 1000 - (-delivery.nanos // _NANOS_PER_MS)


def _born_ms(born: Timestamp) -> int:
    """Return the born time for the unsigned column; an invalid time becomes 0."""
    born_ms = born.seconds * 1000 + born.nanos // _NANOS_PER_MS
    return born_ms if 0 <= born_ms < 1 << 63 else 0
