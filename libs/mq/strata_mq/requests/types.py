"""Kinds of messages and topics, and the kinds of messages that each topic accepts.

Knows numbers and names only; `MessageType` has the numbers of `apache.rocketmq.v2.MessageType`,
`TopicType` those of `strata.meta.v1.TopicType`.
"""

from __future__ import annotations

from enum import IntEnum

from strata_mq.requests.errors import Code, RequestError


class MessageType(IntEnum):
    """`apache.rocketmq.v2.MessageType`."""

    UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class TopicType(IntEnum):
    """`strata.meta.v1.TopicType`."""

    UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    MIXED = 5
    LITE = 6
    PRIORITY = 7
    DEAD_LETTER = 8


# In a stable order: routes repeat it to clients, which compare whole routes.
ACCEPTED_TYPES: dict[TopicType, tuple[MessageType, ...]] = {
    TopicType.UNSPECIFIED: (),
    TopicType.NORMAL: (MessageType.NORMAL,),
    TopicType.FIFO: (MessageType.FIFO,),
    TopicType.DELAY: (MessageType.DELAY,),
    TopicType.TRANSACTION: (MessageType.TRANSACTION,),
    TopicType.MIXED: (
        MessageType.NORMAL,
        MessageType.FIFO,
        MessageType.DELAY,
        MessageType.TRANSACTION,
    ),
    TopicType.LITE: (MessageType.LITE,),
    TopicType.PRIORITY: (MessageType.PRIORITY,),
    TopicType.DEAD_LETTER: (MessageType.NORMAL,),
}

ORDERED_TYPES: frozenset[int] = frozenset(
    (TopicType.FIFO, TopicType.DELAY, TopicType.TRANSACTION, TopicType.MIXED)
)
"""Topics whose messages may have a message group, which keeps its queue (rule 23)."""

MAX_PRIORITY_LEVELS = 64
"""Most queues of a topic of type PRIORITY: each is one level, and one bit of a pop's answer."""


def message_type_of(
    declared: int,
    *,
    has_message_group: bool,
    has_delivery_time: bool,
    has_priority: bool = False,
    has_lite_topic: bool = False,
) -> MessageType:
    """Return what a message is by its fields: transactional > delay > FIFO > priority > lite.

    The order is RocketMQ's (`TopicMessageType.parseFromMessageProperty` of 5.5).

    Args:
        declared: The type the client wrote; it alone says that a message is transactional.
        has_message_group: The message has a message group.
        has_delivery_time: The message has a delivery timestamp.
        has_priority: The message has a priority.
        has_lite_topic: The message names a lite topic.
    """
    if declared == MessageType.TRANSACTION:
        return MessageType.TRANSACTION
    if has_delivery_time:
        return MessageType.DELAY
    if has_message_group:
        return MessageType.FIFO
    if has_priority:
        return MessageType.PRIORITY
    if has_lite_topic:
        return MessageType.LITE
    return MessageType.NORMAL


def check_topic_accepts(topic_type: TopicType, message_type: MessageType) -> None:
    """Check that a topic takes a message of this type.

    Raises:
        RequestError: MESSAGE_PROPERTY_CONFLICT_WITH_TYPE.
    """
    if message_type not in ACCEPTED_TYPES[topic_type]:
        raise RequestError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"TopicMessageType validate failed, the expected type is {topic_type.name}, "
            f"but actual type is {message_type.name}",
        )
