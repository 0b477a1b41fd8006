"""Lite topics: golden bytes of the command and of the rows, round trips, numbers, lifetimes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_mq.commands import (
    CommandError,
    CommandKind,
    LiteChange,
    command_kind,
    decode_lite_topics,
    encode_lite_topics,
)
from strata_mq.layout import (
    LiteParentRow,
    decode_lite_number,
    decode_lite_parent,
    encode_lite_number,
    encode_lite_parent,
    lite_name_key,
    lite_number_key,
    lite_parent_key,
    parse_lite_name_key,
    parse_lite_number_key,
    parse_lite_parent_key,
)
from strata_mq.lite_policy import lifetime_ms_of, stored_lifetime_ms
from strata_mq.slots import FIRST_LITE_QUEUE, lite_home, lite_queue

_U32 = st.integers(0, 2**32 - 1)
_NAMED = st.lists(st.tuples(_U32, st.binary(max_size=64)), max_size=3).map(tuple)
_SECTIONS = st.lists(
    st.builds(LiteChange, _U32, _U32, _U32, _U32, _U32, _NAMED, _NAMED, st.lists(_U32, max_size=3)),
    max_size=3,
)


def test_bytes_are_those_of_the_layout() -> None:
    """The command and each row are written as docs/data-layout.md says."""
    section = LiteChange(7, 1, 3, 2, 4, ((FIRST_LITE_QUEUE + 9, b"a"),), ((5, b"bc"),), (6,))
    assert encode_lite_topics(8, [section]).hex() == (
        "15010001000000000000000000000008"
        "0000000700000001000000030000000200000004000000010000000100000001"
        "00100009000161"
        "0000000500026263"
        "00000006"
    )
    assert lite_parent_key(1, 7, 2).hex() == "00000001240000000700000002"
    assert encode_lite_parent(LiteParentRow(3, 2, 4)).hex() == "000000030000000200000004"
    assert lite_number_key(1, 7, b"a").hex() == "00000001250000000761"
    assert encode_lite_number(9).hex() == "00000009"
    assert lite_name_key(1, 7, 9).hex() == "00000001260000000700000009"
    assert command_kind(encode_lite_topics(8, [])) is CommandKind.LITE_TOPICS


@given(_U32, _SECTIONS)
def test_commands_come_back(group_time_ms: int, sections: list[LiteChange]) -> None:
    """Decoding gives the values that were encoded; cut or longer bytes are refused."""
    payload = encode_lite_topics(group_time_ms, sections)
    found_ms, found = decode_lite_topics(payload)
    assert found_ms == group_time_ms
    for one, other in zip(found, sections, strict=True):
        assert (one.topic_id, one.home) == (other.topic_id, other.home)
        assert (one.next_turn, one.lite_count, one.queue_count) == (
            other.next_turn,
            other.lite_count,
            other.queue_count,
        )
        assert (tuple(one.added), tuple(one.dropped)) == (other.added, other.dropped)
        assert list(one.consumer_group_ids) == other.consumer_group_ids
    for wrong in (payload[:-1], payload + b"\0"):
        with pytest.raises(CommandError):
            decode_lite_topics(wrong)


@given(_U32, _U32, st.binary(max_size=64))
def test_rows_come_back(topic_id: int, number: int, name: bytes) -> None:
    """Keys and values are told apart again."""
    assert parse_lite_parent_key(lite_parent_key(1, topic_id, number)) == (topic_id, number)
    assert parse_lite_name_key(lite_name_key(1, topic_id, number)) == (topic_id, number)
    assert parse_lite_number_key(lite_number_key(1, topic_id, name)) == name
    assert decode_lite_number(encode_lite_number(number)) == number
    row = LiteParentRow(number, topic_id, 3)
    assert decode_lite_parent(encode_lite_parent(row)) == row


@given(st.integers(0, 1_000), st.integers(1, 64), st.data())
def test_a_number_tells_its_queue_and_belongs_to_one_turn(
    turn: int, queue_count: int, data: st.DataObject
) -> None:
    """No two turns, and no two queues, share a number."""
    home = data.draw(st.integers(0, queue_count - 1))
    number = lite_queue(turn, home, queue_count)
    assert number >= FIRST_LITE_QUEUE
    assert lite_home(number, queue_count) == home
    assert (number - FIRST_LITE_QUEUE) // queue_count == turn


def test_a_lifetime_is_a_number_of_minutes() -> None:
    """No attribute, and -1, mean no end; so does a stored one that cannot be read."""
    assert lifetime_ms_of({}) is None
    assert lifetime_ms_of({"lite.topic.expiration": "-1"}) is None
    assert lifetime_ms_of({"lite.topic.expiration": " 2 "}) == 120_000
    for wrong in ("0", "x", "-2", "1.5"):
        with pytest.raises(ValueError, match=r"lite\.topic\.expiration"):
            lifetime_ms_of({"lite.topic.expiration": wrong})
        assert stored_lifetime_ms({"lite.topic.expiration": wrong}) is None
