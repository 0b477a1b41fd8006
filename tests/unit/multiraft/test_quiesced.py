"""The two sides' lists of quiet raft groups agree in the end, whatever was lost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_multiraft.peering.quiesced import (
    FollowedQuiesced,
    LedQuiesced,
    QuiescedGroup,
    QuiescedSet,
    mix,
)

items = st.builds(QuiescedGroup, st.integers(1, 20), st.integers(1, 3), st.just(5))


@given(st.lists(st.tuples(st.booleans(), items)))
def test_hash_depends_on_the_content_alone(changes: list[tuple[bool, QuiescedGroup]]) -> None:
    """However a set came about, equal content has an equal hash; other content has another."""
    grown = QuiescedSet()
    model: dict[int, QuiescedGroup] = {}
    for adds, item in changes:
        if adds:
            grown.add(item)
            model[item.raft_group] = item
        else:
            assert grown.discard(item.raft_group) == (model.pop(item.raft_group, None) is not None)
    fresh = QuiescedSet()
    for item in sorted(model.values(), reverse=True):
        fresh.add(item)
    assert (len(grown), grown.hash) == (len(fresh), fresh.hash)
    fresh.add(QuiescedGroup(99, 1, 5))
    assert grown.hash != fresh.hash


def test_mix_spreads() -> None:
    """Neighbouring raft groups and terms do not cancel out."""
    values = {mix(raft_group, term) for raft_group in range(200) for term in range(50)}
    assert len(values) == 200 * 50


def test_news_are_named_until_acknowledged() -> None:
    """A beat names what no acknowledged beat has named."""
    led = LedQuiesced()
    led.add(QuiescedGroup(1, 4, 10))
    assert led.take(7) == ([QuiescedGroup(1, 4, 10)], False)
    led.add(QuiescedGroup(2, 4, 11))
    assert led.take(8) == ([QuiescedGroup(1, 4, 10), QuiescedGroup(2, 4, 11)], False)
    led.acknowledged(7)
    assert led.take(9) == ([QuiescedGroup(2, 4, 11)], False)
    led.acknowledged(9)
    assert led.take(10) == ([], False)
    led.list_wanted = True
    assert led.take(11) == ([QuiescedGroup(1, 4, 10), QuiescedGroup(2, 4, 11)], True)
    assert led.take(12)[1] is False
    led.discard(1)
    led.discard(2)
    assert led.take(13) == ([], False)


def test_one_mismatch_is_tolerated() -> None:
    """A message may overtake a beat; the list is asked for when two heartbeats in a row differ."""
    followed = FollowedQuiesced()
    followed.compare(1, 123)
    assert not followed.want_list
    followed.compare(1, 123)
    assert followed.want_list
    followed.compare(0, 0)
    assert not followed.want_list
    followed.compare(1, 123)
    assert not followed.want_list


def test_refusals_are_told_once() -> None:
    """A raft group that was not taken is named in one beat."""
    followed = FollowedQuiesced()
    followed.refused |= {3, 1}
    assert followed.take_refused() == [1, 3]
    assert followed.take_refused() == []


@pytest.mark.parametrize("seed", range(200))
def test_lists_agree_after_lost_heartbeats(seed: int) -> None:
    """Both sides agree in the end, whatever heartbeats are lost and whatever one side forgets."""
    print(f"SEED={seed}")
    chance = random.Random(seed)
    led, followed = LedQuiesced(), FollowedQuiesced()
    acknowledged = 0

    def beat(number: int, loss: float) -> None:
        nonlocal acknowledged
        named, full = led.take(number)
        if chance.random() >= loss:
            if full:
                for raft_group in followed.missing_in(named):
                    followed.groups.discard(raft_group)
            for item in named:
                followed.groups.add(item)
            followed.compare(len(led.groups), led.groups.hash)
            acknowledged = number
        if chance.random() >= loss:
            led.acknowledged(acknowledged)
            led.list_wanted = led.list_wanted or followed.want_list

    for number in range(1, 60):
        raft_group = chance.randint(1, 8)
        match chance.randrange(3):
            case 0:
                led.add(QuiescedGroup(raft_group, chance.randint(1, 3), 1))
            case 1:
                led.discard(raft_group)
            case _:
                followed.groups.discard(raft_group)
        beat(number, loss=0.5)
    for number in range(60, 66):
        beat(number, loss=0)
    assert set(followed.groups) == set(led.groups)
