"""Validation: real codes and texts, and what must pass."""

from __future__ import annotations

from typing import Any

import pytest

from strata_mq.requests.errors import Code, RequestError
from strata_mq.requests.types import (
    ACCEPTED_TYPES,
    MessageType,
    TopicType,
    check_topic_accepts,
    message_type_of,
)
from strata_mq.requests.validation import (
    DEFAULT_LIMITS,
    RESERVED_PROPERTIES,
    check_access_point,
    check_change_invisible,
    check_message,
    check_receive_invisible,
    polling_ms,
)

DAY_MS = 86_400_000


def check(**changed: Any) -> None:
    check_message(DEFAULT_LIMITS, **{"body_bytes": 1, "message_id": "0190DB80539A6F48", **changed})


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"body_bytes": 4 * 1024 * 1024},
        {"tag": "tag A-1 日本"},
        {"keys": ["key", "鍵", "🔑", "with blank", "a\u3000b"]},
        {"message_group": "g" * 63},
        {"message_group": "é" * 31},
        {"properties": {"🔑": "🎁", "名": "\u3000"}},
        {"properties": {"n": "v" * 16_383}},
        {"properties": {f"n{number}": "" for number in range(128)}},
        {"properties": {"__SHARDINGKEY": "x", "__transactionId__": "y", "keys": "z"}},
        {"delivery_time_ms": 5, "now_ms": 40 * DAY_MS},
        {"delivery_time_ms": 40 * DAY_MS},
        {"priority": 0},
        {"keys": [str(number) for number in range(255)]},
    ],
)
def test_good_messages_pass(message: dict[str, Any]) -> None:
    """Everything up to the limits is taken, in any script."""
    check(**message)


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        ({"body_bytes": 0}, Code.MESSAGE_BODY_EMPTY, "message body cannot be empty"),
        (
            {"body_bytes": 4 * 1024 * 1024 + 1},
            Code.MESSAGE_BODY_TOO_LARGE,
            "message body cannot exceed the max 4194304",
        ),
        ({"message_id": " "}, Code.ILLEGAL_MESSAGE_ID, "blank"),
        ({"tag": " \t"}, Code.ILLEGAL_MESSAGE_TAG, "whitespace"),
        ({"tag": "a|b"}, Code.ILLEGAL_MESSAGE_TAG, "|"),
        ({"tag": "a\x01"}, Code.ILLEGAL_MESSAGE_TAG, "control"),
        ({"keys": ["good", ""]}, Code.ILLEGAL_MESSAGE_KEY, "whitespace"),
        ({"keys": ["a\x7f"]}, Code.ILLEGAL_MESSAGE_KEY, "control"),
        ({"keys": ["k"] * 256}, Code.MESSAGE_PROPERTIES_TOO_LARGE, "255"),
        ({"message_group": ""}, Code.ILLEGAL_MESSAGE_GROUP, "whitespace"),
        (
            {"message_group": "g" * 64},
            Code.ILLEGAL_MESSAGE_GROUP,
            "message group exceed the max size 64",
        ),
        ({"message_group": "é" * 32}, Code.ILLEGAL_MESSAGE_GROUP, "max size 64"),
        ({"message_group": "a\n"}, Code.ILLEGAL_MESSAGE_GROUP, "control"),
        ({"properties": {"UNIQ_KEY": "x"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "UNIQ_KEY"),
        ({"properties": {"a\x00": "x"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "control"),
        ({"properties": {"a": "\x85"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "control"),
        (
            {"properties": {f"n{number}": "" for number in range(129)}},
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            "128",
        ),
        (
            {"properties": {"n": "v" * 16_384}},
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            "the total size of user property is too large, max is 16384",
        ),
        (
            {"properties": {"n": "é" * 8_190}, "tag": "abc", "keys": ["k"]},
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            "16384",
        ),
        (
            {"delivery_time_ms": 40 * DAY_MS + 1},
            Code.ILLEGAL_DELIVERY_TIME,
            "the max delay time of message is too large, max is 3456000000",
        ),
        ({"priority": -1}, Code.BAD_REQUEST, "priority"),
    ],
)
def test_bad_messages_are_refused(message: dict[str, Any], code: Code, text: str) -> None:
    """Each check has RocketMQ's code and, where it was observed, its text."""
    with pytest.raises(RequestError) as caught:
        check(**message)
    assert caught.value.code is code
    assert text in caught.value.text


def test_reserved_names_are_those_of_the_product() -> None:
    """The list is complete and holds no empty name."""
    assert len(RESERVED_PROPERTIES) == 51
    assert "KEYS" in RESERVED_PROPERTIES
    assert "__CRC32#" in RESERVED_PROPERTIES


def test_invisible_times_have_the_observed_texts() -> None:
    """Receive wants 10 s to 12 h, change 0 to 12 h."""
    check_receive_invisible(DEFAULT_LIMITS, 10_000)
    check_change_invisible(DEFAULT_LIMITS, 0)
    check_change_invisible(DEFAULT_LIMITS, 43_200_000)
    for check_it, value_ms, text in (
        (check_receive_invisible, 9_999, "the invisibleTime is too small. min is 10000"),
        (check_receive_invisible, 43_200_001, "the invisibleTime is too large. max is 43200000"),
        (check_change_invisible, -1, "the invisibleTime is too small. min is 0"),
    ):
        with pytest.raises(RequestError) as caught:
            check_it(DEFAULT_LIMITS, value_ms)
        assert (caught.value.code, caught.value.text) == (Code.ILLEGAL_INVISIBLE_TIME, text)


@pytest.mark.parametrize(
    ("wanted_ms", "remaining_ms", "expected_ms"),
    [
        (2_000, None, 5_000),
        (60_000, None, 20_000),
        (3_000, 6_000, 5_000),
        (20_000, 23_000, 20_000),
        (20_000, 7_000, 7_000),
        (3_000, 2_900, 2_900),
        (5_000, 4_900, 4_900),
        (0, 100, 100),
        (-1, 0, 0),
    ],
)
def test_polling_fits_between_its_bounds_and_the_deadline(
    wanted_ms: int, remaining_ms: int | None, expected_ms: int
) -> None:
    """5 to 20 seconds, less when the call ends before."""
    assert polling_ms(DEFAULT_LIMITS, wanted_ms, remaining_ms) == expected_ms


def test_polling_that_cannot_fit_is_refused() -> None:
    """A deadline below the shortest wait, or half of what is wanted, is ILLEGAL_POLLING_TIME."""
    for wanted_ms, remaining_ms in ((20_000, 4_999), (4_000, 1_999), (0, -1)):
        with pytest.raises(RequestError) as caught:
            polling_ms(DEFAULT_LIMITS, wanted_ms, remaining_ms)
        assert caught.value.code is Code.ILLEGAL_POLLING_TIME


def test_access_points_have_a_host_and_a_port() -> None:
    """Any host with a port of TCP is fine, and so is none; ILLEGAL_ACCESS_POINT otherwise."""
    check_access_point([])
    check_access_point([("::1", 1), ("broker.example", 65_535)])
    for address in (("", 8081), (" ", 8081), ("a", 0), ("a", 65_536), ("a", -1)):
        with pytest.raises(RequestError) as caught:
            check_access_point([("127.0.0.1", 8081), address])
        assert caught.value.code is Code.ILLEGAL_ACCESS_POINT


def test_the_type_follows_from_the_fields() -> None:
    """Transactional wins over delay, delay over FIFO, and NORMAL is what is left."""
    both = {"has_message_group": True, "has_delivery_time": True}
    none = {"has_message_group": False, "has_delivery_time": False}
    assert message_type_of(MessageType.TRANSACTION, **both) is MessageType.TRANSACTION
    assert message_type_of(MessageType.NORMAL, **both) is MessageType.DELAY
    assert (
        message_type_of(MessageType.NORMAL, has_message_group=True, has_delivery_time=False)
        is MessageType.FIFO
    )
    assert message_type_of(0, **none) is MessageType.NORMAL
    assert message_type_of(0, **none, has_priority=True) is MessageType.PRIORITY
    assert message_type_of(0, **none, has_lite_topic=True) is MessageType.LITE
    named = {"has_priority": True, "has_lite_topic": True}
    assert message_type_of(0, **none, **named) is MessageType.PRIORITY


def test_a_topic_takes_its_own_type_only() -> None:
    """The text names both types, as clients' tests look for it; MIXED takes four."""
    check_topic_accepts(TopicType.NORMAL, MessageType.NORMAL)
    for message_type in ACCEPTED_TYPES[TopicType.MIXED]:
        check_topic_accepts(TopicType.MIXED, message_type)
    with pytest.raises(RequestError) as caught:
        check_topic_accepts(TopicType.FIFO, MessageType.NORMAL)
    assert caught.value.code is Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert caught.value.text == (
        "TopicMessageType validate failed, the expected type is FIFO, but actual type is NORMAL"
    )
    assert set(ACCEPTED_TYPES) == set(TopicType)
