"""Store liveness under random faults: no raft group stays leaderless, or quiet under a dead leader.

`STRATA_SIM_SEED=n` replays one run; `STRATA_LIVENESS_SEEDS=n` runs that many.
"""

from __future__ import annotations

import os

import pytest

from strata_multiraft.peering.peering_options import LivenessOptions
from strata_raft import Role
from strata_sim.liveness_world import LivenessWorld, SimNode, Weather

ONE = os.environ.get("STRATA_SIM_SEED")
SEEDS = [int(ONE)] if ONE else range(int(os.environ.get("STRATA_LIVENESS_SEEDS", "25")))
CALM = Weather(loss=0, repeat=0, slow=0)


def storm(world: LivenessWorld, faults: int) -> None:
    """Let faults happen, one after another."""
    for _ in range(faults):
        world.any_fault()
        world.run(world.random.randint(1, 500))


def led_by(node: SimNode) -> int:
    """The number of raft groups that a node leads."""
    return sum(member.node.role is Role.LEADER for member in node.members.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_after_any_faults_everything_serves_and_rests_again(seed: int) -> None:
    """When the faults end, all raft groups take proposals soon, then rest; nothing more is sent."""
    print(f"SEED={seed}")
    world = LivenessWorld(seed, nodes=3 + seed % 3, raft_groups=5)
    storm(world, 40)
    world.heal()
    world.run(6_000)
    for raft_group, placed in world.placement.items():
        assert world.propose(raft_group), f"raft group {raft_group} has no leader"
        world.run(2_000)
        leader = world.leader(raft_group)
        assert leader is not None
        last_index = leader.members[raft_group].node.last_index
        for number in placed:
            assert len(world.nodes[number].members[raft_group].applied) == last_index
    world.weather = CALM
    world.run(5_000)
    assert world.is_quiet()
    sent = world.raft_messages
    world.run(5_000)
    assert world.is_quiet()
    assert world.raft_messages == sent


@pytest.mark.parametrize("seed", SEEDS)
def test_a_minority_that_stays_dead_keeps_nobody_from_serving_and_resting(seed: int) -> None:
    """With one node dead for good every raft group gets a live leader and rests without it."""
    print(f"SEED={seed}")
    world = LivenessWorld(seed, nodes=3 + seed % 3, raft_groups=5)
    storm(world, 25)
    world.heal()
    world.run(world.random.randint(0, 5_000))
    dead = world.random.choice(world.nodes)
    dead.crash()
    world.run(5_000)
    for raft_group in world.placement:
        assert world.propose(raft_group), f"raft group {raft_group} has no leader"
    world.weather = CALM
    world.run(8_000)
    assert world.is_quiet()
    for raft_group in world.placement:
        leader = world.leader(raft_group)
        assert leader is not None
        assert leader is not dead


@pytest.mark.parametrize("seed", range(10))
def test_a_dead_leader_is_replaced_in_time(seed: int) -> None:
    """In a calm network a leader node's resting raft groups have a leader within 1.1 s."""
    print(f"SEED={seed}")
    world = LivenessWorld(seed, raft_groups=20, weather=CALM)
    world.run(5_000)
    assert world.is_quiet()
    node = max(world.nodes, key=led_by)
    orphans = [g for g, member in node.members.items() if member.node.role is Role.LEADER]
    assert orphans
    node.crash()
    world.run(1_100)
    assert all(world.leader(raft_group) is not None for raft_group in orphans)


@pytest.mark.parametrize("direction", ["both", "in", "out"])
def test_a_resting_leader_that_is_cut_off_steps_down(direction: str) -> None:
    """Cut off in one direction or both, a leader wakes, misses its quorum, and another leads."""
    world = LivenessWorld(1, raft_groups=3, weather=CALM)
    world.run(5_000)
    assert world.is_quiet()
    old = world.leader(1)
    assert old is not None
    for other in world.nodes:
        if direction != "in":
            world.cut.add((old.number, other.number))
        if direction != "out":
            world.cut.add((other.number, old.number))
    world.run(3_000)
    assert old.members[1].node.role is not Role.LEADER
    assert world.leader(1) not in (None, old)


def test_a_resting_leader_that_fails_alone_is_replaced() -> None:
    """A leader replica that falls silent on a live node is off its list, so followers wake."""
    world = LivenessWorld(1, raft_groups=3, weather=CALM)
    world.run(5_000)
    assert world.is_quiet()
    old = world.leader(1)
    assert old is not None
    old.fail(1)
    world.run(3_500)
    assert world.leader(1) not in (None, old)
    assert world.propose(1)


def test_idle_raft_groups_send_nothing_but_heartbeats() -> None:
    """1,000 raft groups at rest cost one beat per pair of nodes and interval, and no message."""
    world = LivenessWorld(1, raft_groups=1_000, weather=CALM, options=LivenessOptions())
    world.run(6_000)
    assert world.is_quiet()
    messages, heartbeats = world.raft_messages, world.heartbeats
    world.run(10_000)
    assert world.raft_messages == messages
    assert world.heartbeats - heartbeats == pytest.approx(6 * 100, rel=0.02)


def test_a_follower_that_stood_still_wakes_nobody() -> None:
    """A node without leaderships that was silent for seconds comes back without a raft message."""
    world = LivenessWorld(2, raft_groups=2, weather=CALM)
    world.run(5_000)
    assert world.is_quiet()
    victim = next(node for node in world.nodes if not led_by(node))
    messages = world.raft_messages
    victim.stand_still(3_000)
    world.run(2_500)
    others = [node for node in world.nodes if node is not victim]
    assert all(f"n{victim.number}" in node.liveness.heard_nodes()[1] for node in others)
    world.run(5_000)
    assert all(len(node.liveness.heard_nodes()[0]) == 2 for node in world.nodes)
    assert world.is_quiet()
    assert world.raft_messages == messages


def test_a_short_standstill_costs_no_leader() -> None:
    """A node that stood still for long judges nobody before it heard its peers again (rule 14)."""
    world = LivenessWorld(3, raft_groups=6, weather=CALM)
    world.run(5_000)
    terms = {g: world.leader(g).members[g].node.term for g in world.placement}  # type: ignore[union-attr]
    victim = min(world.nodes, key=led_by)
    led = [g for g, m in victim.members.items() if m.node.role is Role.LEADER]
    victim.stand_still(5_000)
    world.run(12_000)
    for raft_group, term in terms.items():
        leader = world.leader(raft_group)
        assert leader is not None
        if raft_group not in led:
            assert leader.members[raft_group].node.term == term


def test_a_wrong_clock_is_not_forgotten_when_a_right_one_falls_silent() -> None:
    """One of three nodes has a wrong clock and one dies: the wrong one still leads nothing."""
    world = LivenessWorld(1, raft_groups=3, weather=CALM)
    wrong, dead, right = world.nodes
    wrong.clock_offset_ms = 5_000
    world.run(5_000)
    assert wrong.liveness.clock_skew_ms() == pytest.approx(5_000, abs=50)
    dead.crash()
    world.run(5_000)
    assert wrong.liveness.clock_skew_ms() == pytest.approx(5_000, abs=50)
    assert not wrong.liveness.may_campaign()
    assert all(world.leader(raft_group) is right for raft_group in world.placement)

    wrong.clock_offset_ms = 0
    world.run(1_000)
    assert wrong.liveness.may_campaign()


def test_a_machine_is_one_voice_among_the_clocks() -> None:
    """Three storage nodes of one machine have a wrong clock: the two other machines are right."""
    world = LivenessWorld(1, nodes=5, raft_groups=5, weather=CALM)
    machines = {"n2": "m", "n3": "m", "n4": "m"}
    for node in world.nodes:
        node.liveness.machine_of = lambda node_id: machines.get(node_id, node_id)
    for wrong in world.nodes[2:]:
        wrong.clock_offset_ms = 5_000
    world.run(5_000)

    for right in world.nodes[:2]:
        assert right.liveness.clock_skew_ms() == pytest.approx(0, abs=50)
        assert right.liveness.may_campaign()
    world.nodes[0].liveness.machine_of = lambda node_id: node_id
    world.run(1_000)
    assert not world.nodes[0].liveness.may_campaign(), "by nodes the wrong clocks are the majority"
