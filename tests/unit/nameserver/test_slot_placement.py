"""Slots are evened out in small steps, and what came last stays longest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.meta.v1 import meta_pb2
from strata_mq.slots import SLOT_COUNT, striped_slots
from strata_nameserver.policies.slots import SlotFacts, SlotRules, plan_slots

RULES = SlotRules(max_moves_in_flight=2, max_slots_per_move=64)


def facts_of(owners: list[int], groups: int, **changes: object) -> SlotFacts:
    facts = SlotFacts(owners, [1] * SLOT_COUNT, [], range(1, groups + 1))
    return replace(facts, **changes)  # type: ignore[arg-type]


@given(st.integers(1, 6), st.integers(0, 4), st.integers(1, 4), st.integers(100, 400))
@settings(deadline=None, max_examples=10)
def test_raft_groups_that_are_added_get_their_share(
    first: int, added: int, max_moves: int, max_slots_per_move: int
) -> None:
    """Only what exceeds the share moves, within the limits, until counts differ by at most one."""
    rules = SlotRules(max_moves, max_slots_per_move)
    owners = striped_slots(range(1, first + 1))
    since = [1] * SLOT_COUNT
    moved = 0
    while steps := plan_slots(facts_of(owners, first + added, owned_since=since), rules):
        assert len(steps) <= max_moves
        assert len({step.from_raft_group for step in steps}) == len(steps)
        for step in steps:
            assert 0 < len(step.slots) <= max_slots_per_move
            assert list(step.slots) == sorted(set(step.slots))
            moved += len(step.slots)
            for slot in step.slots:
                assert owners[slot] == step.from_raft_group
                owners[slot], since[slot] = step.to_raft_group, 2
    counts = Counter(owners)
    shares = [counts[number] for number in range(1, first + added + 1)]
    assert sum(shares) == SLOT_COUNT
    assert max(shares) - min(shares) <= 1
    assert moved <= sum(shares[first:]) + first + added


@pytest.mark.parametrize("groups", [1, 2, 3, 6, 10])
def test_even_slots_stay_where_they_are(groups: int) -> None:
    """Nothing moves after a drain, say: raft groups keep their slots wherever they are."""
    assert plan_slots(facts_of(striped_slots(range(1, groups + 1)), groups), RULES) == []


def test_moves_under_way_count_as_done() -> None:
    """Their raft groups give up nothing more, their slots are not chosen, their room is taken."""
    owners = striped_slots([1, 2])
    owned_by_1 = tuple(range(0, 128, 2))
    under_way = meta_pb2.SlotMove(from_raft_group=1, to_raft_group=3, slots=owned_by_1)
    (step,) = plan_slots(facts_of(owners, 3, moves=[under_way]), RULES)
    assert (step.from_raft_group, step.to_raft_group) == (2, 3)
    assert step.reason == "raft group 2 owns 2048 slots, 3 owns 64"
    arriving = meta_pb2.SlotMove(from_raft_group=3, to_raft_group=1, revoked_slots=owned_by_1)
    (step,) = plan_slots(facts_of(owners, 3, moves=[arriving]), RULES)
    assert not set(step.slots) & set(owned_by_1)
    assert plan_slots(facts_of(owners, 3, moves=[under_way, arriving]), RULES) == []


def test_moves_that_wait_for_a_leader_make_room_for_others() -> None:
    """From or to a raft group that lost its majority: they may never end, and stop no others."""
    owners = [1 + slot % 5 for slot in range(SLOT_COUNT)]
    stuck = [
        meta_pb2.SlotMove(from_raft_group=1, to_raft_group=3, slots=[0]),
        meta_pb2.SlotMove(from_raft_group=4, to_raft_group=2, slots=[3]),
    ]
    steps = plan_slots(facts_of(owners, 6, moves=stuck, led={3, 4, 5, 6}), RULES)
    assert [(step.from_raft_group, step.to_raft_group) for step in steps] == [(3, 6), (5, 6)]
    assert [len(step.slots) for step in steps] == [64, 64]
    assert plan_slots(facts_of(owners, 6, moves=stuck), RULES) == []


def test_only_raft_groups_with_a_leader_give_and_take() -> None:
    """A raft group that nobody leads could neither revoke nor grant."""
    owners = striped_slots([1, 2])
    assert plan_slots(facts_of(owners, 3, led={1, 2}), RULES) == []
    (step,) = plan_slots(facts_of(owners, 3, led={2, 3}), RULES)
    assert (step.from_raft_group, step.to_raft_group) == (2, 3)
    assert plan_slots(facts_of(owners, 3, led=set()), RULES) == []


def test_what_came_last_stays_longest_and_neighbours_part() -> None:
    """Slots that an operator moved are made up for with others, spread over the whole range."""
    owners = striped_slots([1, 2])
    since = [1] * SLOT_COUNT
    for slot in range(1, 21, 2):
        owners[slot], since[slot] = 1, 50
    (step,) = plan_slots(facts_of(owners, 2, owned_since=since), RULES)
    assert (step.from_raft_group, len(step.slots)) == (1, 10)
    assert not any(slot % 2 for slot in step.slots)
    gaps = [b - a for a, b in zip(step.slots, step.slots[1:], strict=False)]
    assert min(gaps) > 300
