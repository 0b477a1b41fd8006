"""The native pass over SendMessageRequests, with this broker's limits and fragments.

Its twin is `outgoing.py`: what the pass does not take, the twin takes or refuses.
"""

from __future__ import annotations

from collections.abc import Collection

from strata_broker.base import wire
from strata_edge.passes import NativePasses, SendFragments, SendLimits, SendPass
from strata_mq.layout import OutgoingMessage
from strata_mq.requests import (
    MAX_MESSAGE_ID_LENGTH,
    RESERVED_PROPERTIES,
    Limits,
    MessageType,
)
from strata_mq.traces import STORE_FRAGMENTS

MESSAGE_GROUP_PROPERTY = "__SHARDINGKEY"
"""User property in which RocketMQ repeats the message group; clients rely on it."""


def new_send_pass(
    passes: NativePasses,
    limits: Limits,
    max_messages: int,
    *,
    marks: Collection[str] = (),
) -> SendPass[OutgoingMessage]:
    """Return a pass.

    Args:
        passes: makes it.
        limits: of one message.
        max_messages: of one request.
        marks: names of user properties that the pass leaves to its twin, too.
    """
    fragments = STORE_FRAGMENTS
    return passes.SendPass(
        OutgoingMessage,
        tuple(MessageType),
        SendLimits(
            max_messages,
            limits.max_body_bytes,
            limits.max_properties_bytes,
            limits.max_overhead_bytes,
            limits.max_property_count,
            limits.max_key_count,
            MAX_MESSAGE_ID_LENGTH,
            limits.max_message_group_bytes,
        ),
        SendFragments(
            fragments.body_digest_md5,
            fragments.body_encoding_identity,
            fragments.message_type,
            wire.SYSTEM_PROPERTIES_KEY,
            fragments.user_property,
            fragments.property_name(MESSAGE_GROUP_PROPERTY),
            wire.OK_ANSWER,
        ),
        sorted({*RESERVED_PROPERTIES, *marks}),
    )
