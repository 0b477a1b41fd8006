"""Limits and checks of requests, with RocketMQ's own codes and texts.

Functions over primitive values; knows no protobuf type. `check_message` is on the path of every
message, so the usual case is decided by C methods of `str` (`isascii`, `isprintable`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from strata_mq.requests.errors import Code, RequestError

_DAY_MS = 86_400_000

# As in Java's Character.isISOControl.
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_RESERVED_NAMES = """
KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON
UNIQ_KEY EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME
TRAN_PREPARED_QUEUE_OFFSET DUP_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME
PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_LEVEL TIMER_DELAY_MS
TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS
TIMER_DEL_UNIQKEY BORN_TIMESTAMP __BORNHOST DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __CRC32#
"""
RESERVED_PROPERTIES = frozenset(_RESERVED_NAMES.split())
"""Names of user properties that RocketMQ keeps for itself."""


MAX_MESSAGE_ID_LENGTH = 255
"""Most characters of a message id."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one request."""

    max_body_bytes: int = 4 * 1024 * 1024
    # User properties, tag and keys together, in UTF-8.
    max_properties_bytes: int = 16_384
    # All of a message but its body.
    max_overhead_bytes: int = 32_768
    max_property_count: int = 128
    # The key count of a batch is one byte.
    max_key_count: int = 255
    # A message group must be shorter than this.
    max_message_group_bytes: int = 64
    max_delay_ms: int = 40 * _DAY_MS
    min_receive_invisible_ms: int = 10_000
    max_invisible_ms: int = 43_200_000
    min_polling_ms: int = 5_000
    max_polling_ms: int = 20_000
    max_receive_batch: int = 32
    # The name of a lite topic.
    max_lite_topic_bytes: int = 64


DEFAULT_LIMITS = Limits()


def check_message(
    limits: Limits,
    *,
    body_bytes: int,
    message_id: str,
    tag: str = "",
    keys: Collection[str] = (),
    message_group: str | None = None,
    properties: Mapping[str, str] | None = None,
    delivery_time_ms: int | None = None,
    now_ms: int = 0,
    priority: int | None = None,
) -> None:
    """Check one message, except its topic and type.

    Args:
        limits: The limits.
        body_bytes: Length of the body.
        message_id: Chosen by the client.
        tag: "" for none.
        keys: Message keys.
        message_group: None for none.
        properties: User properties.
        delivery_time_ms: When a delayed message is due; None: not delayed.
        now_ms: Wall time, used only for `delivery_time_ms`.
        priority: None for none.

    Raises:
        RequestError: the first thing that is wrong.
    """
    if body_bytes <= 0:
        raise RequestError(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if body_bytes > limits.max_body_bytes:
        raise RequestError(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"message body cannot exceed the max {limits.max_body_bytes}",
        )
    check_message_id(message_id)
    if message_group is None and _are_plain(limits, tag, keys, properties):
        tag, keys, properties = "", (), None
    size_bytes = 0
    if tag:
        check_tag(tag)
        size_bytes = _utf8_bytes(tag)
    if keys:
        size_bytes += _check_keys(limits, keys)
    if message_group is not None:
        check_message_group(limits, message_group)
    if properties:
        size_bytes += _check_properties(limits, properties)
    if size_bytes > limits.max_properties_bytes:
        raise RequestError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {limits.max_properties_bytes}",
        )
    if delivery_time_ms is not None:
        check_delivery_time(limits, delivery_time_ms, now_ms)
    if priority is not None and priority < 0:
        raise RequestError(Code.BAD_REQUEST, "The priority must be greater than or equal to 0")


def _are_plain(
    limits: Limits, tag: str, keys: Collection[str], properties: Mapping[str, str] | None
) -> bool:
    """Whether tag, keys and properties are printable ASCII with nothing wrong: most are.

    One look at all of them joined; False only means that each has to be looked at alone.
    """
    names = list(properties) if properties else []
    texts = [tag, *keys, *names]
    if properties:
        texts += [properties[name] for name in names]
    joined = "".join(texts)
    return (
        joined.isprintable()
        and joined.isascii()
        and len(joined) <= limits.max_properties_bytes
        and len(names) <= limits.max_property_count
        and len(keys) <= limits.max_key_count
        and RESERVED_PROPERTIES.isdisjoint(names)
        and "|" not in tag
        and not tag.isspace()
        and all(keys)
        and not any(map(str.isspace, keys))
    )


def check_access_point(addresses: Iterable[tuple[str, int]]) -> None:
    """Check the addresses under which a client says that it reaches the brokers; none is fine.

    Args:
        addresses: (host, port) of each.

    Raises:
        RequestError: ILLEGAL_ACCESS_POINT.
    """
    for host, port in addresses:
        if not host or host.isspace() or not 0 < port < 1 << 16:
            raise RequestError(
                Code.ILLEGAL_ACCESS_POINT, f"no access point has the address [{host}:{port}]"
            )


def check_message_id(message_id: str) -> None:
    """Check a message id.

    Raises:
        RequestError: ILLEGAL_MESSAGE_ID.
    """
    if not message_id or message_id.isspace():
        raise RequestError(Code.ILLEGAL_MESSAGE_ID, "message id cannot be blank")
    if len(message_id) > MAX_MESSAGE_ID_LENGTH:
        raise RequestError(
            Code.ILLEGAL_MESSAGE_ID, f"message id is longer than {MAX_MESSAGE_ID_LENGTH}"
        )


def check_overhead(limits: Limits, overhead_bytes: int) -> None:
    """Check how much a message is beside its body: names, ids, hosts, trace context, all fields.

    Raises:
        RequestError: MESSAGE_PROPERTIES_TOO_LARGE.
    """
    if overhead_bytes > limits.max_overhead_bytes:
        raise RequestError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message without its body is too large, max is {limits.max_overhead_bytes}",
        )


def check_tag(tag: str) -> None:
    """Check a tag that is not empty.

    Raises:
        RequestError: ILLEGAL_MESSAGE_TAG.
    """
    if tag.isspace():
        raise RequestError(
            Code.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace"
        )
    if "|" in tag:
        raise RequestError(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    if _has_control_character(tag):
        raise RequestError(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain control character")


def check_message_group(limits: Limits, message_group: str) -> None:
    """Check a message group that was given.

    Raises:
        RequestError: ILLEGAL_MESSAGE_GROUP.
    """
    if not message_group or message_group.isspace():
        raise RequestError(
            Code.ILLEGAL_MESSAGE_GROUP,
            "message group cannot be the char sequence of whitespace",
        )
    if _utf8_bytes(message_group) >= limits.max_message_group_bytes:
        raise RequestError(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"message group exceed the max size {limits.max_message_group_bytes}",
        )
    if _has_control_character(message_group):
        raise RequestError(
            Code.ILLEGAL_MESSAGE_GROUP, "message group cannot contain control character"
        )


def check_lite_topic(limits: Limits, lite_topic: str) -> None:
    """Check the name of a lite topic.

    Raises:
        RequestError: ILLEGAL_LITE_TOPIC.
    """
    if not lite_topic or lite_topic.isspace():
        raise RequestError(Code.ILLEGAL_LITE_TOPIC, "the name of a lite topic cannot be blank")
    if _utf8_bytes(lite_topic) > limits.max_lite_topic_bytes:
        raise RequestError(
            Code.ILLEGAL_LITE_TOPIC,
            f"the name of a lite topic has {_utf8_bytes(lite_topic)} bytes, at most "
            f"{limits.max_lite_topic_bytes} are allowed",
        )
    if _has_control_character(lite_topic):
        raise RequestError(
            Code.ILLEGAL_LITE_TOPIC, "the name of a lite topic cannot contain control character"
        )


def check_delivery_time(limits: Limits, delivery_time_ms: int, now_ms: int) -> None:
    """Check when a delayed message is due; a time in the past is fine (at once).

    Raises:
        RequestError: ILLEGAL_DELIVERY_TIME.
    """
    if delivery_time_ms - now_ms > limits.max_delay_ms:
        raise RequestError(
            Code.ILLEGAL_DELIVERY_TIME,
            f"the max delay time of message is too large, max is {limits.max_delay_ms}",
        )


def check_receive_invisible(limits: Limits, invisible_ms: int) -> None:
    """Check the invisible duration of a receive that renews its leases itself.

    Raises:
        RequestError: ILLEGAL_INVISIBLE_TIME.
    """
    _check_invisible(invisible_ms, limits.min_receive_invisible_ms, limits.max_invisible_ms)


def check_change_invisible(limits: Limits, invisible_ms: int) -> None:
    """Check the invisible duration of a change; 0 makes the message visible at once.

    Raises:
        RequestError: ILLEGAL_INVISIBLE_TIME.
    """
    _check_invisible(invisible_ms, 0, limits.max_invisible_ms)


def unsaid_polling_ms(limits: Limits, remaining_ms: int | None, request_timeout_ms: int) -> int:
    """Return how long a receive wants to wait that does not say it: RocketMQ's rule.

    Args:
        limits: whose longest wait is for a call without deadline.
        remaining_ms: until the call's deadline; None: no deadline.
        request_timeout_ms: of the client's settings; half of it is left for the way.
    """
    if remaining_ms is None:
        return limits.max_polling_ms
    return remaining_ms - request_timeout_ms // 2


def polling_ms(limits: Limits, wanted_ms: int, remaining_ms: int | None) -> int:
    """Return how long a receive may wait for messages.

    A client whose wait is as long as its deadline is no error: it waits a little less. Only one
    that wants to wait much longer than it has time is told so.

    Args:
        limits: The wait is brought between their two bounds.
        wanted_ms: The time that the client asks for.
        remaining_ms: Until the call's deadline, with time for the answer taken off; None: no
            deadline.

    Raises:
        RequestError: ILLEGAL_POLLING_TIME: neither the shortest wait fits, nor half the wanted one.
    """
    wait_ms = min(max(wanted_ms, limits.min_polling_ms), limits.max_polling_ms)
    if remaining_ms is None or wait_ms <= remaining_ms:
        return wait_ms
    if remaining_ms < max(0, min(limits.min_polling_ms, wanted_ms // 2)):
        raise RequestError(
            Code.ILLEGAL_POLLING_TIME,
            "The deadline time remaining is not enough for polling, please check network condition",
        )
    return remaining_ms


def _check_keys(limits: Limits, keys: Iterable[str]) -> int:
    """Check keys and return their size in bytes."""
    size_bytes = count = 0
    for key in keys:
        count += 1
        if not key or key.isspace():
            raise RequestError(
                Code.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace"
            )
        if _has_control_character(key):
            raise RequestError(Code.ILLEGAL_MESSAGE_KEY, "key cannot contain control character")
        size_bytes += _utf8_bytes(key)
    if count > limits.max_key_count:
        raise RequestError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the number of keys exceeds the max {limits.max_key_count}",
        )
    return size_bytes


def _check_properties(limits: Limits, properties: Mapping[str, str]) -> int:
    """Check user properties and return their size in bytes."""
    if len(properties) > limits.max_property_count:
        raise RequestError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the number of user property exceed the max {limits.max_property_count}",
        )
    size_bytes = 0
    for name, value in properties.items():
        if name in RESERVED_PROPERTIES:
            raise RequestError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}"
            )
        if _has_control_character(name):
            raise RequestError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the key {name!r} of property cannot contain control character",
            )
        if _has_control_character(value):
            raise RequestError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the value of property {name} cannot contain control character",
            )
        size_bytes += _utf8_bytes(name) + _utf8_bytes(value)
    return size_bytes


def _check_invisible(invisible_ms: int, min_ms: int, max_ms: int) -> None:
    if invisible_ms < min_ms:
        raise RequestError(
            Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {min_ms}"
        )
    if invisible_ms > max_ms:
        raise RequestError(
            Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {max_ms}"
        )


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _has_control_character(text: str) -> bool:
    # Printable text has none; other text may still have none (an ideographic space).
    return not text.isprintable() and _CONTROL_CHARACTER.search(text) is not None
