"""Steps of a raft group towards wanted replicas: examples, then every schedule hypothesis finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from strata_storage.cluster.membership_plan import (
    ChangeTo,
    Desired,
    HandOver,
    Settled,
    Standing,
    Wait,
    next_step,
)
from tests.stages import examples

IDS = range(1, 8)


def ids(*replicas: int) -> frozenset[int]:
    return frozenset(replicas)


def standing(
    leader: int,
    voters: frozenset[int],
    learners: frozenset[int] = frozenset(),
    *,
    caught_up: frozenset[int],
) -> Standing:
    """Return the present state of a raft group whose replicas have applied what they hold."""
    return Standing(leader, voters, learners, caught_up=caught_up, applied=caught_up)


def test_wanted_replicas_join_as_learners_first() -> None:
    """A missing replica becomes a learner, and nothing else changes."""
    step = next_step(Desired(ids(1, 2, 4)), standing(1, ids(1, 2, 3), caught_up=ids(1, 2, 3)))
    assert step == ChangeTo(ids(1, 2, 3), ids(4))


def test_a_learner_that_is_behind_is_waited_for() -> None:
    """No promotion before the learner holds the data; the unwanted voter stays."""
    now = standing(1, ids(1, 2, 3), ids(4), caught_up=ids(1, 2, 3))
    assert isinstance(next_step(Desired(ids(1, 2, 4)), now), Wait)


def test_a_caught_up_learner_replaces_an_unwanted_voter_in_one_change() -> None:
    """Promotion and removal are one joint change."""
    now = standing(1, ids(1, 2, 3), ids(4), caught_up=ids(1, 2, 4))
    assert next_step(Desired(ids(1, 2, 4)), now) == ChangeTo(ids(1, 2, 4), ids())


def test_an_unwanted_leader_hands_over_before_it_is_removed() -> None:
    """The leader is never in a change that leaves itself out."""
    now = standing(1, ids(1, 2, 3), caught_up=ids(1, 2, 3))
    assert next_step(Desired(ids(2, 3, 4)), now) == HandOver(2)


def test_the_only_voter_is_replaced_over_two() -> None:
    """1 -> {1, 2} -> leader 2 -> 2."""
    desired = Desired(ids(2))
    assert next_step(desired, standing(1, ids(1), caught_up=ids(1))) == ChangeTo(ids(1), ids(2))
    joined = standing(1, ids(1), ids(2), caught_up=ids(1, 2))
    assert next_step(desired, joined) == ChangeTo(ids(1, 2), ids())
    assert next_step(desired, standing(1, ids(1, 2), caught_up=ids(1, 2))) == HandOver(2)
    led_by_2 = standing(2, ids(1, 2), caught_up=ids(1, 2))
    assert next_step(desired, led_by_2) == ChangeTo(ids(2), ids())


def test_a_preferred_leader_gets_the_leadership_when_it_is_caught_up() -> None:
    """Not before, and not on a draining node."""
    desired = Desired(ids(1, 2, 3), preferred_leader=3)
    assert next_step(desired, standing(1, ids(1, 2, 3), caught_up=ids(1, 2, 3))) == HandOver(3)
    assert isinstance(next_step(desired, standing(1, ids(1, 2, 3), caught_up=ids(1, 2))), Wait)
    draining = Desired(ids(1, 2, 3), preferred_leader=3, unfit=ids(3))
    assert isinstance(next_step(draining, standing(1, ids(1, 2, 3), caught_up=ids(1, 2, 3))), Wait)


def test_who_has_rows_to_rebuild_gets_no_leadership() -> None:
    """It holds the log, so it may vote; it would be silent as a leader, so others lead."""
    rebuilding = Standing(1, ids(1, 2, 3), caught_up=ids(1, 2, 3), applied=ids(1, 3))
    assert isinstance(next_step(Desired(ids(1, 2, 3), preferred_leader=2), rebuilding), Wait)
    assert next_step(Desired(ids(1, 2, 3), unfit=ids(1)), rebuilding) == HandOver(3)
    assert next_step(Desired(ids(2, 3)), rebuilding) == HandOver(3)


def test_a_draining_leader_hands_over() -> None:
    """To a voter whose node is not drained."""
    desired = Desired(ids(1, 2, 3), unfit=ids(1, 2))
    assert next_step(desired, standing(1, ids(1, 2, 3), caught_up=ids(1, 2, 3))) == HandOver(3)


def test_nothing_is_done_without_a_wish_or_during_a_change() -> None:
    """An unknown row removes nobody; a change under way is left alone."""
    assert next_step(Desired(ids()), Standing(1, ids(1, 2, 3))) == Settled()
    changing = Standing(1, ids(1, 2, 3), changing=True)
    assert isinstance(next_step(Desired(ids(1)), changing), Wait)


wishes = st.builds(
    lambda voters, learners, preferred, unfit: Desired(
        frozenset(voters), frozenset(learners) - frozenset(voters), preferred, frozenset(unfit)
    ),
    st.sets(st.sampled_from(IDS), min_size=1, max_size=5),
    st.sets(st.sampled_from(IDS), max_size=2),
    st.sampled_from([0, *IDS]),
    st.sets(st.sampled_from(IDS), max_size=2),
)


def take(now: Standing, step: ChangeTo | HandOver) -> Standing:
    """Do a step as a raft group would, asserting what each must keep."""
    if isinstance(step, HandOver):
        assert step.target in now.voters & now.applied
        return standing(step.target, now.voters, now.learners, caught_up=ids())
    assert now.leader in step.voters, "the leader votes itself out"
    assert not step.voters & step.learners
    new_voters = step.voters - now.voters
    assert new_voters <= now.caught_up, "a voter that is not caught up"
    healthy = step.voters & (now.caught_up | {now.leader})
    if step.voters != now.voters:
        assert len(healthy) > len(step.voters) // 2, "no healthy majority of the new voters"
    return standing(now.leader, step.voters, step.learners, caught_up=now.caught_up)


@settings(max_examples=examples(100, 500))
@given(st.data())
def test_every_schedule_keeps_a_quorum_and_ends_where_it_is_wanted(data: st.DataObject) -> None:
    """With replicas that catch up now and then and wishes that change, it ends at the last wish."""
    first = frozenset(data.draw(st.sets(st.sampled_from(IDS), min_size=1, max_size=5)))
    now = standing(min(first), first, caught_up=ids(min(first)))
    desired = data.draw(wishes)
    for _ in range(data.draw(st.integers(0, 12))):
        members = now.voters | now.learners
        up = frozenset(data.draw(st.sets(st.sampled_from(sorted(members))))) | {now.leader}
        applied = frozenset(data.draw(st.sets(st.sampled_from(sorted(up))))) | {now.leader}
        now = Standing(now.leader, now.voters, now.learners, caught_up=up, applied=applied)
        step = next_step(desired, now)
        if isinstance(step, (ChangeTo, HandOver)):
            now = take(now, step)
        if data.draw(st.booleans()):
            desired = data.draw(wishes)
    for _ in range(20):
        members = now.voters | now.learners
        now = standing(now.leader, now.voters, now.learners, caught_up=members)
        step = next_step(desired, now)
        if not isinstance(step, (ChangeTo, HandOver)):
            break
        now = take(now, step)
    assert now.voters == desired.voters
    assert now.learners == desired.learners
    preferred = desired.preferred_leader
    if preferred in desired.voters - desired.unfit:
        assert now.leader == preferred
    elif desired.voters - desired.unfit:
        assert now.leader not in desired.unfit
