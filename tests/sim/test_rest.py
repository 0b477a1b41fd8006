"""Raft groups at rest: what one node misses while the others rest, wake and rest again."""

from __future__ import annotations

import pytest

from strata_raft import Role
from strata_sim import liveness_world
from strata_sim.liveness_world import LivenessWorld, SimNode, Weather, node_of

CALM = Weather(loss=0, repeat=0, slow=0)
SEEDS = range(4)


def world_at_rest(seed: int) -> tuple[LivenessWorld, SimNode, SimNode]:
    """A world with one raft group at rest, its leader, and one of the followers."""
    world = LivenessWorld(seed, raft_groups=1, weather=CALM)
    world.run(6_000)
    assert world.is_quiet()
    leader = world.leader(1)
    assert leader is not None
    return world, leader, next(node for node in world.nodes if node is not leader)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_stood_still_does_not_rest_on_an_older_log(seed: int) -> None:
    """The leader wrote meanwhile, and rests again in the same term."""
    world, leader, follower = world_at_rest(seed)
    follower.stand_still(3_000)
    world.cut |= {(leader.number, follower.number), (follower.number, leader.number)}
    world.run(1_000)
    assert world.propose(1)
    world.run(1_500)
    world.cut.clear()
    world.run(20_000)
    assert world.is_quiet()
    ends = {node.members[1].node.last_index for node in world.nodes}
    assert ends == {leader.members[1].node.commit_index}
    assert leader.members[1].node.role is Role.LEADER


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("both_ways", [True, False])
def test_a_node_that_is_half_cut_off_deposes_nobody(seed: int, both_ways: bool) -> None:
    """A node at rest heard of the leader a moment ago, and refuses pre-votes."""
    world, leader, follower = world_at_rest(seed)
    term = leader.members[1].node.term
    world.cut.add((follower.number, leader.number))
    if both_ways:
        world.cut.add((leader.number, follower.number))
    for _ in range(100):
        world.run(100)
        assert leader.members[1].node.role is Role.LEADER
    assert leader.members[1].node.term == term


def test_a_node_that_another_forgot_is_heard_when_they_meet_again() -> None:
    """Its heartbeats have higher numbers than all that the other one remembers."""
    world, *_ = world_at_rest(0)
    world.run(60_000)
    forgetful, cut_off, other = world.nodes
    for node in (forgetful, other):
        world.cut |= {(cut_off.number, node.number), (node.number, cut_off.number)}
    world.run(2_000)
    held, forgetful.members = forgetful.members, {}
    forgetful.ticked.clear()
    forgetful.resting.clear()
    forgetful.liveness.removed(1)
    receive, forgetful.arrives = forgetful.arrives, lambda *_: None  # type: ignore[method-assign]
    world.run(2_500)
    forgetful.arrives = receive  # type: ignore[method-assign]
    forgetful.members = held
    forgetful.ticked.update(held)
    world.cut.clear()
    world.run(3_000)
    assert cut_off.liveness.heard_nodes()[1] == forgetful.liveness.heard_nodes()[1] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_at_rest_knows_that_a_follower_has_died(seed: int) -> None:
    """Its raft core hears nobody; the heartbeats of the nodes tell whom it may hand over to."""
    world, leader, follower = world_at_rest(seed)
    dead = liveness_world.name(follower.number)
    assert not leader.liveness.is_silent(dead)
    follower.crash()
    world.run(3_000)
    assert world.is_quiet()
    others = {liveness_world.name(node.number) for node in world.nodes} - {dead}
    assert leader.liveness.is_silent(dead)
    assert not any(map(leader.liveness.is_silent, others))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_whose_place_is_not_known_is_missed_when_it_dies(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The followers remember which node they rest under, whatever becomes of the placement."""
    world, leader, _ = world_at_rest(seed)
    lost = leader.members[1].node.replica_id
    for node in world.nodes:
        monkeypatch.setattr(
            node.liveness, "_node_of", lambda each: None if each == lost else node_of(each)
        )
    leader.crash()
    world.run(1_000)
    assert world.leader(1) is None
    world.run(30_000)
    successor = world.leader(1)
    assert successor not in (None, leader)
