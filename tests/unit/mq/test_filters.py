"""Filters on stored messages, and the cache of parsed ones."""

from __future__ import annotations

import pytest

from apache.rocketmq.v2 import definition_pb2 as wire
from strata_broker.base.wire import stored_message
from strata_mq.filters.filter_cache import FilterCache
from strata_mq.filters.filters import (
    EVERYTHING,
    FilterKind,
    TagFilter,
    parse_filter,
    parse_tag_expression,
)
from strata_mq.layout.hashing import text_hash
from strata_mq.requests.errors import Code, RequestError
from strata_mq.traces.delivery import store_fragment


def stored(tag: str = "", **properties: str) -> bytes:
    """Return a message as storage has it."""
    message = wire.Message(user_properties=properties, body=b"body")
    system = wire.SystemProperties(message_id="id", tag=tag or None, keys=["k1", "k2"])
    return stored_message(
        system.SerializeToString(), store_fragment("A" * 32), message.SerializeToString()
    )


@pytest.mark.parametrize("expression", ["*", "", " * "])
def test_everything_matches_messages_with_and_without_tag(expression: str) -> None:
    """A star or nothing is no filter: nothing has to be read."""
    wanted = parse_tag_expression(expression)
    assert wanted is EVERYTHING is parse_filter(FilterKind.ALL, "ignored")
    assert wanted.tag_hashes is None
    assert not wanted.needs_messages
    assert wanted.matches(stored())
    assert wanted.matches(b"no message")


def test_tags_are_exact_and_blanks_do_not_count() -> None:
    """`A || B||||C` is three tags; case matters; no tag matches nothing."""
    wanted = parse_tag_expression(" A || B||||C ")
    assert wanted.tags == frozenset({"A", "B", "C"})
    assert wanted.tag_hashes == frozenset(map(text_hash, "ABC"))
    assert not wanted.needs_messages
    assert wanted.matches(stored("B"))
    for message in (stored("b"), stored("AB"), stored(), b"", b"no message"):
        assert not wanted.matches(message)


def test_a_tag_of_the_same_hash_does_not_match() -> None:
    """The text decides: hashes only spare reading."""
    twin = TagFilter(frozenset({"A"}), frozenset({text_hash("B")}))
    assert not twin.matches(stored("B"))


@pytest.mark.parametrize("expression", ["||", " || || ", "x" * 65_537])
def test_expressions_without_a_tag_are_illegal(expression: str) -> None:
    """Neither an empty list of tags nor a huge one is a subscription."""
    with pytest.raises(RequestError) as caught:
        parse_filter(FilterKind.TAG, expression)
    assert caught.value.code is Code.ILLEGAL_FILTER_EXPRESSION


def test_sql_looks_at_user_and_system_properties() -> None:
    """TRUE matches; FALSE, NULL, a failure and bytes that are no message do not."""
    wanted = parse_filter(FilterKind.SQL, "amount > 5 AND TAGS <> 'x' AND KEYS CONTAINS 'k2'")
    assert wanted.needs_messages
    assert wanted.matches(stored("t", amount="6"))
    assert not wanted.matches(stored("t", amount="5"))
    assert not wanted.matches(stored("x", amount="6"))
    assert not wanted.matches(stored("t"))
    assert not wanted.matches(stored("t", amount="many"))
    assert not wanted.matches(b"no message")


def test_sql_that_pins_the_tag_can_use_the_index() -> None:
    """Then only messages with the hash of that tag have to be read."""
    assert parse_filter(FilterKind.SQL, "a > 5").tag_hashes is None
    pinned = parse_filter(FilterKind.SQL, "a > 5 AND TAGS IN ('x', 'y')")
    assert pinned.tag_hashes == frozenset((text_hash("x"), text_hash("y")))


def test_a_filter_is_parsed_once_while_it_is_remembered() -> None:
    """The same kind and expression give the same object; the kind counts."""
    cache = FilterCache(10, 1_000)
    first = cache.of(FilterKind.TAG, "a")
    assert cache.of(FilterKind.TAG, "a") is first
    assert cache.of(FilterKind.SQL, "a") is not first
    assert (len(cache), cache.characters) == (2, 2)


def test_the_cache_keeps_to_both_limits() -> None:
    """The filters used longest ago go, by number and by length; a huge one is not kept at all."""
    cache = FilterCache(3, 10)
    kept = [cache.of(FilterKind.TAG, tag) for tag in "abc"]
    assert cache.of(FilterKind.TAG, "a") is kept[0]
    cache.of(FilterKind.TAG, "d")
    assert cache.of(FilterKind.TAG, "a") is kept[0]
    assert len(cache) == 3
    cache.of(FilterKind.TAG, "e" * 9)
    assert (len(cache), cache.characters) == (2, 10)
    cache.of(FilterKind.TAG, "f" * 11)
    assert (len(cache), cache.characters) == (2, 10)


def test_bad_expressions_are_not_remembered() -> None:
    """They are refused each time, and take no room."""
    cache = FilterCache(3, 10)
    for _ in range(2):
        with pytest.raises(RequestError):
            cache.of(FilterKind.SQL, "a >")
    assert (len(cache), cache.characters) == (0, 0)
