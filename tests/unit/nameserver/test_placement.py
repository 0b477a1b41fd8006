"""Placement of replicas: from any state to a good one, by safe steps, and then nothing more."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.meta.v1 import meta_pb2
from strata_nameserver.policies.facts import (
    GroupFacts,
    NodeFacts,
    PlacementRules,
    ReplicaFacts,
)
from strata_nameserver.policies.replicas import ChangeReplica, layout_of_new, plan_replicas

RULES = PlacementRules(repair_delay_ms=1_000)
UP, SUSPECT, DOWN = (
    meta_pb2.NODE_STATE_UP,
    meta_pb2.NODE_STATE_SUSPECT,
    meta_pb2.NODE_STATE_DOWN,
)


@dataclass
class Cluster:
    """Carries out what placement chooses, as leaders would."""

    nodes: dict[str, NodeFacts]
    groups: dict[int, GroupFacts]
    rules: PlacementRules = RULES
    next_replica_id: int = 1_000
    log: list[ChangeReplica] = field(default_factory=list)

    def run(self, rounds: int = 500) -> None:
        """Plan and carry out until nothing is left to do."""
        for _ in range(rounds):
            steps = plan_replicas(self.nodes.values(), self.groups.values(), self.rules)
            if not steps:
                return
            assert len(steps) <= self.rules.max_moves_in_flight
            assert len({step.raft_group for step in steps}) == len(steps)
            for step in steps:
                self.carry_out(step)
        pytest.fail(f"not at rest after {rounds} rounds; last: {self.log[-4:]}")

    def carry_out(self, step: ChangeReplica) -> None:
        self.log.append(step)
        group = self.groups[step.raft_group]
        gone = [r for r in group.replicas if r.replica_id == step.remove_replica_id]
        replicas = [r for r in group.replicas if r.replica_id != step.remove_replica_id]
        assert len(gone) == (step.remove_replica_id != 0)
        if step.add_node_id:
            assert self.nodes[step.add_node_id].can_take
            assert step.add_node_id not in [r.node_id for r in replicas]
            replicas.append(
                ReplicaFacts(self.next_replica_id, step.add_node_id, is_learner=step.is_learner)
            )
            self.next_replica_id += 1
        # A change needs a majority of the replicas that stay.
        alive = [r for r in replicas if r.node_id in self.nodes and self.is_up(r.node_id)]
        assert 2 * len(alive) > len(replicas) or not gone
        self.groups[step.raft_group] = replace(group, replicas=tuple(replicas))

    def is_up(self, node_id: str) -> bool:
        return self.nodes[node_id].state == UP

    def counts(self) -> Counter[str]:
        return Counter(r.node_id for group in self.groups.values() for r in group.replicas)


def make_cluster(racks: list[str], group_count: int, rules: PlacementRules = RULES) -> Cluster:
    nodes = {f"n{i}": NodeFacts(f"n{i}", rack) for i, rack in enumerate(racks)}
    layout = layout_of_new(nodes.values(), group_count, rules)
    ids = iter(range(1, 1_000))
    groups = {
        number: GroupFacts(
            number,
            tuple(ReplicaFacts(next(ids), node_id) for node_id in node_ids),
            leader_node_id=node_ids[0],
        )
        for number, node_ids in enumerate(layout, start=1)
    }
    return Cluster(nodes, groups, rules)


@given(
    node_count=st.integers(1, 12),
    group_count=st.integers(1, 24),
    factor=st.integers(1, 5),
)
@settings(deadline=None, max_examples=60)
def test_a_first_layout_is_even(node_count: int, group_count: int, factor: int) -> None:
    """Replicas and leaders differ by at most one; no node has two replicas of a raft group."""
    rules = PlacementRules(replication_factor=factor)
    nodes = [NodeFacts(f"n{i}") for i in range(node_count)]
    layout = layout_of_new(nodes, group_count, rules)
    counts = Counter({node.node_id: 0 for node in nodes})
    counts.update(node_id for node_ids in layout for node_id in node_ids)

    assert [len(node_ids) for node_ids in layout] == [min(factor, node_count)] * group_count
    assert all(len(set(node_ids)) == len(node_ids) for node_ids in layout)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_first_layout_spreads_over_racks() -> None:
    """With three racks every raft group has one replica in each."""
    nodes = [NodeFacts(f"n{i}", f"rack-{i % 3}") for i in range(6)]
    racks = {node.node_id: node.rack for node in nodes}

    for node_ids in layout_of_new(nodes, 12, PlacementRules()):
        assert sorted(racks[node_id] for node_id in node_ids) == ["rack-0", "rack-1", "rack-2"]


@given(st.integers(3, 8), st.integers(1, 16), st.integers(1, 4))
@settings(deadline=None, max_examples=40)
def test_nodes_that_join_get_their_share(first: int, group_count: int, joining: int) -> None:
    """After rebalancing, nodes have equally many replicas, give or take one; a move per replica."""
    cluster = make_cluster([""] * first, group_count)
    for number in range(first, first + joining):
        cluster.nodes[f"n{number}"] = NodeFacts(f"n{number}")
    cluster.run()
    counts = cluster.counts()

    assert all(len(group.replicas) == 3 for group in cluster.groups.values())
    values = [counts[node_id] for node_id in cluster.nodes]
    assert max(values) - min(values) <= 1
    moved = sum(counts[f"n{number}"] for number in range(first, first + joining))
    assert len(cluster.log) == moved


@given(st.integers(4, 8), st.integers(1, 16), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_a_drained_node_ends_up_empty(
    node_count: int, group_count: int, chooser: random.Random
) -> None:
    """Its replicas go one by one, those it leads only after the leader went; nothing else moves."""
    cluster = make_cluster([""] * node_count, group_count)
    drained = chooser.choice(sorted(cluster.nodes))
    cluster.nodes[drained] = replace(cluster.nodes[drained], draining=True)
    cluster.run()
    led = [g for g in cluster.groups.values() if g.leader_node_id == drained]
    assert cluster.counts()[drained] == len(led)
    for group in led:
        other = next(r.node_id for r in group.replicas if r.node_id != drained)
        cluster.groups[group.raft_group] = replace(group, leader_node_id=other)
    cluster.run()

    assert cluster.counts()[drained] == 0
    assert all(len(group.replicas) == 3 for group in cluster.groups.values())


def test_a_node_cannot_be_emptied_when_nobody_can_take_its_replicas() -> None:
    """With three nodes and three replicas, draining moves nothing: all replicas are needed."""
    cluster = make_cluster([""] * 3, 6)
    cluster.nodes["n0"] = replace(cluster.nodes["n0"], draining=True)
    cluster.run()

    assert cluster.log == []


@pytest.mark.parametrize(("down_ms", "expected"), [(999, 0), (1_000, 6)])
def test_lost_replicas_are_rebuilt_after_the_delay(down_ms: int, expected: int) -> None:
    """A node that is DOWN for less than the delay keeps its replicas."""
    cluster = make_cluster([""] * 4, 8)
    cluster.nodes["n1"] = replace(cluster.nodes["n1"], state=DOWN, down_ms=down_ms)
    assert cluster.counts()["n1"] == 6
    cluster.run()

    assert len(cluster.log) == expected
    assert cluster.counts()["n1"] == 6 - expected
    assert all("DOWN for" in step.reason for step in cluster.log)


def test_a_lost_replica_goes_to_a_full_disk_only_when_nobody_else_can_take_it() -> None:
    """A full disk is better than a missing replica, and any other node is better than that."""
    cluster = make_cluster([""] * 5, 6)
    full, down = cluster.nodes["n0"], cluster.nodes["n1"]
    cluster.nodes["n0"] = replace(full, disk_used=RULES.full_above + 0.01)
    held = cluster.counts()["n0"]
    cluster.nodes["n1"] = replace(down, state=DOWN, down_ms=5_000)
    cluster.run()
    assert cluster.counts()["n0"] == held
    assert cluster.counts()["n1"] == 0

    cluster.nodes["n2"] = replace(cluster.nodes["n2"], state=DOWN, down_ms=5_000)
    cluster.run()
    assert cluster.counts() == {"n0": 6, "n3": 6, "n4": 6}


def test_a_node_that_is_not_steadily_up_gets_a_lost_replica_only_as_the_last() -> None:
    """It was DOWN for too long lately: what it gets may be lost again in a moment."""
    cluster = make_cluster([""] * 5, 6)
    held = cluster.counts()["n0"]
    cluster.nodes["n0"] = replace(cluster.nodes["n0"], down_ms=RULES.repair_delay_ms)
    cluster.nodes["n1"] = replace(cluster.nodes["n1"], state=DOWN, down_ms=5_000)
    cluster.run()
    assert (cluster.counts()["n0"], cluster.counts()["n1"]) == (held, 0)

    cluster.nodes["n2"] = replace(cluster.nodes["n2"], state=DOWN, down_ms=5_000)
    cluster.run()
    assert cluster.counts() == {"n0": 6, "n3": 6, "n4": 6}


@pytest.mark.parametrize(("down_ms", "expected"), [(999, 3), (1_000, 0)])
def test_evenness_and_racks_wait_until_a_node_is_steadily_up(down_ms: int, expected: int) -> None:
    """A short time DOWN is an ordinary restart; after a long one replicas come back later."""
    cluster = make_cluster([""] * 3, 4)
    cluster.nodes["n3"] = NodeFacts("n3", down_ms=down_ms)
    cluster.run()
    assert cluster.counts()["n3"] == expected

    cluster = make_cluster(["a", "a", "b"], 3)
    cluster.nodes["n3"] = NodeFacts("n3", "c", down_ms=down_ms)
    cluster.run()
    assert cluster.counts()["n3"] == expected


def test_the_replicas_of_a_removed_node_are_rebuilt_at_once() -> None:
    """A node without a row never comes back."""
    cluster = make_cluster([""] * 4, 8)
    del cluster.nodes["n2"]
    cluster.run()

    assert "n2" not in cluster.counts()
    assert all(len(group.replicas) == 3 for group in cluster.groups.values())


def test_a_damaged_replica_starts_over_on_its_own_node() -> None:
    """Where no other node can take it, it goes first and then a new one comes (rule 8)."""
    cluster = make_cluster([""] * 3, 1)
    group = cluster.groups[1]
    damaged = replace(group.replicas[0], is_damaged=True)
    cluster.groups[1] = replace(group, replicas=(damaged, *group.replicas[1:]))
    cluster.run()

    assert [(s.remove_replica_id, s.add_node_id) for s in cluster.log] == [
        (damaged.replica_id, ""),
        (0, damaged.node_id),
    ]
    assert damaged.replica_id not in {r.replica_id for r in cluster.groups[1].replicas}


def test_nothing_new_begins_before_the_last_change_is_done() -> None:
    """Raft groups in motion use the budget up, and are left alone themselves."""
    cluster = make_cluster([""] * 5, 10)
    cluster.nodes["n0"] = replace(cluster.nodes["n0"], state=DOWN, down_ms=10_000)
    lost = [n for n, g in cluster.groups.items() if "n0" in g.node_ids][:2]
    for number in lost:
        cluster.groups[number] = replace(cluster.groups[number], is_settled=False)

    assert plan_replicas(cluster.nodes.values(), cluster.groups.values(), RULES) == []


def test_raft_groups_that_lost_their_majority_stop_no_repair_of_others() -> None:
    """Leaderless for good, whether a change of them was under way or not: nothing moves there."""
    nodes = {f"n{i}": NodeFacts(f"n{i}") for i in range(6)}
    for node_id in ("n0", "n1"):
        nodes[node_id] = replace(nodes[node_id], state=DOWN, down_ms=10_000)
    layout = ["n0 n1 n2", "n0 n1 n3", "n0 n1 n4", "n0 n2 n3"]
    groups = {
        number: GroupFacts(
            number,
            tuple(ReplicaFacts(10 * number + at, n) for at, n in enumerate(node_ids.split())),
            is_led=number == 4,
        )
        for number, node_ids in enumerate(layout, start=1)
    }
    groups[3] = replace(
        groups[3],
        # The replica on n4 is new, and none of the voters.
        replicas=(*groups[3].replicas[:2], replace(groups[3].replicas[2], is_voter=False)),
        is_settled=False,
        leaving_node_ids=frozenset({"n5"}),
    )
    rules = replace(RULES, max_moves_in_flight=1)
    (step,) = plan_replicas(nodes.values(), groups.values(), rules)

    assert (step.raft_group, step.remove_replica_id, step.add_node_id) == (4, 40, "n5")
    assert "DOWN for" in step.reason


def test_a_change_goes_on_counting_while_its_raft_group_elects_a_leader() -> None:
    """It will go on: its voters are there; and nothing begins where nobody leads."""
    cluster = make_cluster([""] * 5, 6)
    cluster.nodes["n0"] = replace(cluster.nodes["n0"], state=DOWN, down_ms=10_000)
    rules = replace(RULES, max_moves_in_flight=1)
    (step,) = plan_replicas(cluster.nodes.values(), cluster.groups.values(), rules)
    group = cluster.groups[step.raft_group]
    cluster.groups[step.raft_group] = replace(group, is_led=False)
    (other,) = plan_replicas(cluster.nodes.values(), cluster.groups.values(), rules)
    assert other.raft_group != step.raft_group
    cluster.groups[step.raft_group] = replace(group, is_led=False, is_settled=False)

    assert plan_replicas(cluster.nodes.values(), cluster.groups.values(), rules) == []


def test_a_replica_that_is_lost_before_it_took_part_is_replaced() -> None:
    """Its raft group waits for it, so this is done although the group is in motion."""
    cluster = make_cluster([""] * 5, 1)
    group = cluster.groups[1]
    outside = [node_id for node_id in cluster.nodes if node_id not in group.node_ids]
    joining = ReplicaFacts(77, outside[0], is_voter=False, is_caught_up=False)
    cluster.groups[1] = replace(
        group,
        replicas=(*group.replicas[1:], joining),
        is_settled=False,
        leaving_node_ids=frozenset({group.replicas[0].node_id}),
    )
    cluster.nodes[outside[0]] = replace(cluster.nodes[outside[0]], state=DOWN, down_ms=5_000)
    steps = plan_replicas(cluster.nodes.values(), cluster.groups.values(), RULES)

    assert [(step.remove_replica_id, step.add_node_id) for step in steps] == [(77, outside[1])]


def test_a_lost_read_replica_is_replaced_by_one_that_only_reads() -> None:
    """A raft group never gets a further voter because a learner's node died."""
    cluster = make_cluster([""] * 5, 1)
    group = cluster.groups[1]
    lost, free = [node_id for node_id in cluster.nodes if node_id not in group.node_ids]
    learner = ReplicaFacts(77, lost, is_voter=False, is_learner=True)
    cluster.groups[1] = replace(group, replicas=(*group.replicas, learner))
    cluster.nodes[lost] = replace(cluster.nodes[lost], state=DOWN, down_ms=5_000)
    cluster.run()

    assert [(s.remove_replica_id, s.add_node_id, s.is_learner) for s in cluster.log] == [
        (77, free, True)
    ]
    assert [r.is_learner for r in cluster.groups[1].replicas] == [False] * 3 + [True]


def test_racks_are_used_when_they_come() -> None:
    """Two replicas in one rack: one of them moves to a rack that has none."""
    cluster = make_cluster(["a", "a", "b"], 2)
    cluster.nodes["n3"] = NodeFacts("n3", "c")
    cluster.run()

    for group in cluster.groups.values():
        racks = [cluster.nodes[node_id].rack for node_id in group.node_ids]
        assert sorted(racks) == ["a", "b", "c"]


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=150)
def test_any_history_comes_to_rest(seed: int) -> None:
    """No step is unsafe, and the end has no step, whatever is drained, lost, removed or joins."""
    chooser = random.Random(seed)
    cluster = make_cluster(
        [chooser.choice(["", "a", "b", "c"]) for _ in range(chooser.randint(3, 7))],
        chooser.randint(1, 10),
        PlacementRules(repair_delay_ms=1_000, max_moves_in_flight=chooser.randint(1, 4)),
    )
    for turn in range(6):
        node_id = chooser.choice(sorted(cluster.nodes))
        node = cluster.nodes[node_id]
        others_up = all(other.state == UP for other in cluster.nodes.values() if other is not node)
        match chooser.choice(["join", "drain", "undrain", "fail", "recover"]):
            case "join":
                joined = f"j{turn}"
                cluster.nodes[joined] = NodeFacts(joined, chooser.choice(["", "a", "d"]))
            case "drain":
                cluster.nodes[node_id] = replace(node, draining=True)
            case "undrain":
                cluster.nodes[node_id] = replace(node, draining=False)
            case "fail" if others_up:
                cluster.nodes[node_id] = replace(node, state=DOWN, down_ms=5_000)
            case "recover":
                cluster.nodes[node_id] = replace(
                    node, state=UP, down_ms=chooser.choice([0, node.down_ms])
                )
        for number, group in cluster.groups.items():
            able = [n for n in group.node_ids if cluster.is_up(n) and not cluster.nodes[n].draining]
            cluster.groups[number] = replace(group, leader_node_id=able[0] if able else "")
        cluster.run()

    for group in cluster.groups.values():
        assert len(group.replicas) == 3, f"seed {seed}"
        assert len(set(group.node_ids)) == 3, f"seed {seed}"


def machines_of(cluster: Cluster, group: GroupFacts) -> list[str]:
    return [cluster.nodes[node_id].place for node_id in group.node_ids]


def sharded(shards: list[int], group_count: int, rules: PlacementRules = RULES) -> Cluster:
    """A cluster of machines with so many storage nodes each."""
    nodes = [
        NodeFacts(f"m{machine}-{shard}", machine=f"m{machine}")
        for machine, count in enumerate(shards)
        for shard in range(count)
    ]
    layout = layout_of_new(nodes, group_count, rules)
    ids = iter(range(1, 10_000))
    groups = {
        number: GroupFacts(
            number,
            tuple(ReplicaFacts(next(ids), node_id) for node_id in node_ids),
            leader_node_id=node_ids[0],
        )
        for number, node_ids in enumerate(layout, start=1)
    }
    return Cluster({node.node_id: node for node in nodes}, groups, rules)


@given(shards=st.lists(st.integers(1, 4), min_size=1, max_size=6), group_count=st.integers(1, 24))
@settings(deadline=None, max_examples=60)
def test_replicas_of_a_raft_group_are_on_different_machines(
    shards: list[int], group_count: int
) -> None:
    """With fewer machines than the replication factor there are fewer replicas; nothing moves."""
    cluster = sharded(shards, group_count)
    cluster.run()

    for group in cluster.groups.values():
        machines = machines_of(cluster, group)
        assert len(set(machines)) == len(machines) == min(RULES.replication_factor, len(shards))


def test_a_machine_s_storage_nodes_share_its_replicas() -> None:
    """Three machines with four storage nodes each: every node has equally many replicas."""
    cluster = sharded([4, 4, 4], 24)

    assert set(cluster.counts().values()) == {6}
    assert len(cluster.counts()) == 12


def test_replicas_that_share_a_machine_part() -> None:
    """Nodes that were told later that they are on one machine: one replica goes to another."""
    cluster = make_cluster(["", "", "", ""], 4)
    for node_id in ("n0", "n1"):
        cluster.nodes[node_id] = replace(cluster.nodes[node_id], machine="m")
    reasons = plan_replicas(cluster.nodes.values(), cluster.groups.values(), RULES)
    cluster.run()

    assert "machine m has two replicas of the raft group" in {step.reason for step in reasons}
    for group in cluster.groups.values():
        assert len(set(machines_of(cluster, group))) == 3


def test_a_draining_machine_gives_its_replicas_to_other_machines() -> None:
    """All storage nodes of one machine drain: none of its raft groups loses a machine."""
    cluster = sharded([2, 2, 2, 2], 8)
    for node_id in ("m0-0", "m0-1"):
        cluster.nodes[node_id] = replace(cluster.nodes[node_id], draining=True)
    for number, group in cluster.groups.items():
        cluster.groups[number] = replace(group, leader_node_id="")
    cluster.run()

    for group in cluster.groups.values():
        assert set(machines_of(cluster, group)) == {"machine m1", "machine m2", "machine m3"}


def test_one_storage_node_of_a_machine_drains_to_its_neighbour() -> None:
    """With three machines, the replica of a node that drains stays on its machine."""
    cluster = sharded([2, 2, 2], 6)
    cluster.nodes["m0-0"] = replace(cluster.nodes["m0-0"], draining=True)
    for number, group in cluster.groups.items():
        cluster.groups[number] = replace(group, leader_node_id="")
    cluster.run()

    assert cluster.counts()["m0-0"] == 0
    for group in cluster.groups.values():
        assert len(set(machines_of(cluster, group))) == 3
