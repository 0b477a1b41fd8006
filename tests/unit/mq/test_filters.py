"""Filters on stored messages, and the cache of parsed ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apache.rocketmq.v2 import definition_pb2 as wire
from strata_broker.base.wire import stored_message
from strata_mq.filters.filter_cache import CachePart, FilterCache
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


def test_an_owner_pushes_out_its_own_filters_first() -> None:
    """By number and by length; filters of others stay, also those that nobody used lately."""
    cache = FilterCache(100, 1_000, {"client": CachePart(3, 20), "address": CachePart(4, 30)})
    other = cache.of(FilterKind.TAG, "other", [("client", "a"), ("address", "h")])
    for number in range(50):
        cache.of(FilterKind.TAG, f"tag{number}", [("client", "b"), ("address", "h")])
    assert (len(cache), cache.characters) == (4, len("other") + 3 * len("tag49"))
    assert cache.find(FilterKind.TAG, "tag47") is not None
    assert cache.find(FilterKind.TAG, "tag46") is None
    cache.of(FilterKind.TAG, "x" * 16, [("client", "b"), ("address", "h")])
    assert (len(cache), cache.characters) == (2, len("other") + 16)
    assert cache.find(FilterKind.TAG, "other") is other
    # The names of clients are free: an address has a part, too.
    for number in range(50):
        cache.of(FilterKind.TAG, f"tag{number}", [("client", f"c{number}"), ("address", "i")])
    assert cache.find(FilterKind.TAG, "other") is other
    assert len(cache) == 2 + 4
    assert cache.owner_count == len("ab") + len("hi") + 4


def test_a_filter_that_others_use_is_not_its_owners_oldest() -> None:
    """Each use counts, whoever asks; a filter beyond the owner's part is not kept at all."""
    cache = FilterCache(10, 1_000, {"client": CachePart(2, 20)})
    owners = [("client", "a")]
    first = cache.of(FilterKind.TAG, "first", owners)
    cache.of(FilterKind.TAG, "second", owners)
    assert cache.of(FilterKind.TAG, "first", [("client", "b")]) is first
    cache.of(FilterKind.TAG, "third", owners)
    assert cache.find(FilterKind.TAG, "first") is first
    assert cache.find(FilterKind.TAG, "second") is None
    cache.of(FilterKind.TAG, "x" * 21, owners)
    assert (len(cache), cache.owner_count) == (2, 1)


@given(
    calls=st.lists(
        st.tuples(st.integers(1, 12), st.sampled_from("abc"), st.sampled_from("hi")), max_size=80
    )
)
def test_no_owner_and_nobody_exceeds_a_limit(calls: list[tuple[int, str, str]]) -> None:
    """The counts are right, and within the limits, after any calls."""
    most = {"client": CachePart(3, 15), "address": CachePart(5, 25)}
    cache = FilterCache(7, 40, most)
    for length, client, address in calls:
        owners = [("client", client), ("address", address)]
        cache.of(FilterKind.TAG, "abcdefghijkl"[-length:], owners)
        assert len(cache) <= 7
        assert cache.characters <= 40
        assert cache.owner_count <= 5
    known = [text for at in range(12) if cache.find(FilterKind.TAG, text := "abcdefghijkl"[at:])]
    assert (len(known), sum(map(len, known))) == (len(cache), cache.characters)
