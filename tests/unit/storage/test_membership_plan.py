"""Steps of a raft group towards wanted replicas: examples, then every schedule hypothesis finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from strata_storage.membership.membership_plan import (
    ChangeTo,
    Desired,
    HandOver,
    Settled,
    Standing,
    Wait,
    next_step,
)

IDS = range(1, 8)


def ids(*replicas: int) -> frozenset[int]:
    return frozenset(replicas)


def test_wanted_replicas_join_as_learners_first() -> None:
    """A missing replica becomes a learner, and nothing else changes."""
    step = next_step(Desired(ids(1, 2, 4)), Standing(1, ids(1, 2, 3), caught_up=ids(1, 2, 3)))
    assert step == ChangeTo(ids(1, 2, 3), ids(4))


def test_a_learner_that_is_behind_is_waited_for() -> None:
    """No promotion before the learner holds the data; the unwanted voter stays."""
    standing = Standing(1, ids(1, 2, 3), ids(4), caught_up=ids(1, 2, 3))
    assert isinstance(next_step(Desired(ids(1, 2, 4)), standing), Wait)


def test_a_caught_up_learner_replaces_an_unwanted_voter_in_one_change() -> None:
    """Promotion and removal are one joint change."""
    standing = Standing(1, ids(1, 2, 3), ids(4), caught_up=ids(1, 2, 4))
    assert next_step(Desired(ids(1, 2, 4)), standing) == ChangeTo(ids(1, 2, 4), ids())


def test_an_unwanted_leader_hands_over_before_it_is_removed() -> None:
    """The leader is never in a change that leaves itself out."""
    standing = Standing(1, ids(1, 2, 3), caught_up=ids(1, 2, 3))
    assert next_step(Desired(ids(2, 3, 4)), standing) == HandOver(2)


def test_the_only_voter_is_replaced_over_two() -> None:
    """1 -> {1, 2} -> leader 2 -> 2."""
    desired = Desired(ids(2))
    assert next_step(desired, Standing(1, ids(1), caught_up=ids(1))) == ChangeTo(ids(1), ids(2))
    joined = Standing(1, ids(1), ids(2), caught_up=ids(1, 2))
    assert next_step(desired, joined) == ChangeTo(ids(1, 2), ids())
    assert next_step(desired, Standing(1, ids(1, 2), caught_up=ids(1, 2))) == HandOver(2)
    led_by_2 = Standing(2, ids(1, 2), caught_up=ids(1, 2))
    assert next_step(desired, led_by_2) == ChangeTo(ids(2), ids())


def test_a_preferred_leader_gets_the_leadership_when_it_is_caught_up() -> None:
    """Not before, and not on a draining node."""
    desired = Desired(ids(1, 2, 3), preferred_leader=3)
    assert next_step(desired, Standing(1, ids(1, 2, 3), caught_up=ids(1, 2, 3))) == HandOver(3)
    assert isinstance(next_step(desired, Standing(1, ids(1, 2, 3), caught_up=ids(1, 2))), Wait)
    draining = Desired(ids(1, 2, 3), preferred_leader=3, unfit=ids(3))
    assert isinstance(next_step(draining, Standing(1, ids(1, 2, 3), caught_up=ids(1, 2, 3))), Wait)


def test_a_draining_leader_hands_over() -> None:
    """To a voter whose node is not drained."""
    desired = Desired(ids(1, 2, 3), unfit=ids(1, 2))
    assert next_step(desired, Standing(1, ids(1, 2, 3), caught_up=ids(1, 2, 3))) == HandOver(3)


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


def take(standing: Standing, step: ChangeTo | HandOver) -> Standing:
    """Do a step as a raft group would, asserting what each must keep."""
    if isinstance(step, HandOver):
        assert step.target in standing.voters & standing.caught_up
        return Standing(step.target, standing.voters, standing.learners, caught_up=ids())
    assert standing.leader in step.voters, "the leader votes itself out"
    assert not step.voters & step.learners
    new_voters = step.voters - standing.voters
    assert new_voters <= standing.caught_up, "a voter that is not caught up"
    healthy = step.voters & (standing.caught_up | {standing.leader})
    if step.voters != standing.voters:
        assert len(healthy) > len(step.voters) // 2, "no healthy majority of the new voters"
    return Standing(standing.leader, step.voters, step.learners, caught_up=standing.caught_up)


@settings(max_examples=500)
@given(st.data())
def test_every_schedule_keeps_a_quorum_and_ends_where_it_is_wanted(data: st.DataObject) -> None:
    """With replicas that catch up now and then and wishes that change, it ends at the last wish."""
    first = frozenset(data.draw(st.sets(st.sampled_from(IDS), min_size=1, max_size=5)))
    standing = Standing(min(first), first, caught_up=ids(min(first)))
    desired = data.draw(wishes)
    for _ in range(data.draw(st.integers(0, 12))):
        members = standing.voters | standing.learners
        up = frozenset(data.draw(st.sets(st.sampled_from(sorted(members))))) | {standing.leader}
        standing = Standing(standing.leader, standing.voters, standing.learners, caught_up=up)
        step = next_step(desired, standing)
        if isinstance(step, (ChangeTo, HandOver)):
            standing = take(standing, step)
        if data.draw(st.booleans()):
            desired = data.draw(wishes)
    for _ in range(20):
        members = standing.voters | standing.learners
        standing = Standing(standing.leader, standing.voters, standing.learners, caught_up=members)
        step = next_step(desired, standing)
        if not isinstance(step, (ChangeTo, HandOver)):
            break
        standing = take(standing, step)
    assert standing.voters == desired.voters
    assert standing.learners == desired.learners
    preferred = desired.preferred_leader
    if preferred in desired.voters - desired.unfit:
        assert standing.leader == preferred
    elif desired.voters - desired.unfit:
        assert standing.leader not in desired.unfit
