"""Messages of remoting producers as gRPC messages: nothing here waits or sends.

Properties become fields where a gRPC message has one; a delay level or a timer becomes a delivery
time. A message of a FIFO topic needs a message group: its sharding key, or else one that stands for
the queue that its producer chose, so that messages of a queue keep their order.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import lru_cache

from apache.rocketmq.v2 import definition_pb2
from strata_broker.metadata.metadata import TopicRow
from strata_broker.remoting import property_names as names
from strata_broker.remoting.answers import RemotingRefusal
from strata_broker.remoting.send_headers import SendHeader
from strata_broker.remoting.timestamps import put_ms
from strata_mq.requests import TopicType
from strata_mq.slots import fifo_queue
from strata_remoting import ResponseCode, decode_properties

DELAY_LEVELS_S = (
    *(1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200),
)
"""Delay of each level in seconds, level 1 first: RocketMQ's default table."""

_TRANSACTION_BITS = 0b1100
_MOST_DELAY_MS = 1 << 53


def new_message(
    header: SendHeader, body: bytes, text: str, topic: TopicRow, now_ms: int
) -> definition_pb2.Message:
    """Return a gRPC message.

    Args:
        header: of its send.
        body: of the message, not compressed.
        text: its properties as one text.
        topic: where it goes.
        now_ms: wall time, for delays.

    Raises:
        RemotingRefusal: the flags contradict the properties, or a delay is no number.
    """
    properties = decode_properties(text)
    is_half = is_transactional(header, properties)
    if header.system_flag & _TRANSACTION_BITS and not is_half:
        raise RemotingRefusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the system flag {header.system_flag} is that of a transactional message, but the "
            f"property {names.TRANSACTION} is missing",
        )
    message = definition_pb2.Message(
        topic=definition_pb2.Resource(resource_namespace=topic.namespace, name=topic.name),
        body=body,
    )
    system = message.system_properties
    system.message_id = properties.get(names.UNIQUE_KEY) or secrets.token_hex(16).upper()
    system.body_encoding = definition_pb2.IDENTITY
    if header.born_ms > 0:
        put_ms(system.born_timestamp, header.born_ms)
    if tag := properties.get(names.TAGS, ""):
        system.tag = tag
    system.keys.extend(properties.get(names.KEYS, "").split())
    # As a producer does, the broker ignores the delay of a transactional message.
    delivery_ms = None if is_half else _delivery_ms(properties, now_ms)
    if is_half:
        _make_half(system, header, properties)
    elif delivery_ms is not None:
        put_ms(system.delivery_timestamp, delivery_ms)
    elif group := _message_group(properties, header.queue_id, topic):
        system.message_group = group
        properties.pop(names.SHARDING_KEY, None)
    _put_user_properties(message, header, properties)
    return message


def is_transactional(header: SendHeader, properties: Mapping[str, str]) -> bool:
    """Whether a message waits for its producer's decision.

    A message that a consumer sends back with all its properties does not.
    """
    is_back = header.reconsume_times > 0 and names.DELAY in properties
    return properties.get(names.TRANSACTION, "").lower() == "true" and not is_back


@lru_cache(maxsize=4_096)
def queue_message_group(queue: int, queue_count: int) -> str:
    """Return the message group of the messages for a queue: one whose queue that is."""
    wanted = queue % queue_count if queue >= 0 else 0
    salt = 0
    while fifo_queue(name := f"remoting-queue-{wanted}-{salt}", queue_count) != wanted:
        salt += 1
    return name


def delay_ms(level: int) -> int:
    """Return the delay of a level; the highest level stands for those above it."""
    return DELAY_LEVELS_S[min(level, len(DELAY_LEVELS_S)) - 1] * 1_000 if level > 0 else 0


def _make_half(
    system: definition_pb2.SystemProperties, header: SendHeader, properties: dict[str, str]
) -> None:
    """Make a transactional message, whose first check its producer may have put off."""
    system.message_type = definition_pb2.TRANSACTION
    properties.setdefault(names.PRODUCER_GROUP, header.producer_group)
    if names.FIRST_CHECK_S in properties:
        after_s = _number(properties, names.FIRST_CHECK_S)
        system.orphaned_transaction_recovery_duration.FromMilliseconds(after_s * 1_000)


def _message_group(properties: dict[str, str], queue: int, topic: TopicRow) -> str:
    """Return the message group of a message that is not delayed; "": it has none."""
    kind = int(topic.topic_type)
    if kind not in (TopicType.FIFO, TopicType.MIXED):
        return ""
    group = properties.get(names.SHARDING_KEY, "")
    if group or kind == TopicType.MIXED:
        return group
    return queue_message_group(queue, topic.queue_count)


def _delivery_ms(properties: dict[str, str], now_ms: int) -> int | None:
    """Return when a message is due; None: at once. RocketMQ looks for a timer first."""
    if names.TIMER_DELAY_S in properties:
        return now_ms + _number(properties, names.TIMER_DELAY_S) * 1_000
    if names.TIMER_DELAY_MS in properties:
        return now_ms + _number(properties, names.TIMER_DELAY_MS)
    if names.TIMER_DELIVER_MS in properties:
        return _number(properties, names.TIMER_DELIVER_MS)
    if names.DELAY in properties:
        delay = delay_ms(_number(properties, names.DELAY))
        return now_ms + delay if delay else None
    return None


def _number(properties: dict[str, str], name: str) -> int:
    text = properties[name].strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 16:
        raise RemotingRefusal(
            ResponseCode.MESSAGE_ILLEGAL, f"the property {name} is no number: {text[:40]!r}"
        )
    return min(int(text), _MOST_DELAY_MS)


def _put_user_properties(
    message: definition_pb2.Message, header: SendHeader, properties: dict[str, str]
) -> None:
    kept = message.user_properties
    for name, value in properties.items():
        # Names with the prefix are the broker's own.
        if name not in names.NOT_STORED and not name.startswith(names.PREFIX):
            kept[names.stored_name(name)] = value
    if header.flag:
        kept[names.STORED_FLAG] = str(header.flag)
    times = header.reconsume_times or _reconsume_time(properties)
    if times:
        kept[names.STORED_RECONSUME_TIMES] = str(times)


def _reconsume_time(properties: dict[str, str]) -> int:
    text = properties.get(names.RECONSUME_TIME, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
