"""Plans that relieve full disks, and the nameserver's rule of even counts, in turns: both rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_nameserver.policies.facts import (
    GroupFacts,
    NodeFacts,
    PlacementRules,
    ReplicaFacts,
)
from strata_nameserver.policies.replicas import plan_replicas
from strata_placement.cluster import ClusterModel, GroupModel
from strata_placement.plan import MoveReplica, Plan
from strata_placement.planner import PlannerOptions, Source, make_plan
from tests.unit.placement.clusters import GIB, node

SOURCE = Source("forecast", "test", 1_000, 60_000)
RULES = PlacementRules()
OPTIONS = PlannerOptions()
DISK_GIB = 100


@dataclass
class Cluster:
    """Nodes with disks of 100 GiB, and what both who move replicas make of them.

    Attributes:
        placed: raft group -> nodes of its voters, the leader first.
        sizes: GiB of a replica of each raft group.
        other: GiB on each node that no replica accounts for.
        racks: how many; nodes are in them in turn.
    """

    placed: dict[int, tuple[str, ...]]
    sizes: dict[int, int]
    other: dict[str, int]
    racks: int = 7
    copied: list[tuple[str, int, str, str]] = field(default_factory=list)

    def used(self, node_id: str) -> int:
        held = sum(self.sizes[number] for number, on in self.placed.items() if node_id in on)
        return held + self.other[node_id]

    def plan(self) -> Plan:
        nodes = tuple(
            node(
                int(node_id.removeprefix("node-")),
                racks=self.racks,
                disk_free_bytes=(DISK_GIB - self.used(node_id)) * GIB,
                disk_total_bytes=DISK_GIB * GIB,
            )
            for node_id in self.other
        )
        groups = tuple(
            GroupModel(number, on[0], on, stored_bytes=self.sizes[number] * GIB)
            for number, on in self.placed.items()
        )
        queues = [f"/t/{number}" for number in self.placed]
        model = ClusterModel(nodes, groups, queues, list(self.placed), [[1e5] * len(queues)])
        return make_plan(model, OPTIONS, SOURCE)

    def relieve(self) -> bool:
        """Carry a plan out; return whether it moved a replica."""
        moves = [step.action for step in self.plan().steps if isinstance(step.action, MoveReplica)]
        for move in moves:
            self._move("plan", move.raft_group, move.from_node, move.to_node)
        return bool(moves)

    def even_out(self) -> bool:
        """Let the nameserver's rules run until they rest; return whether they moved a replica."""
        before = len(self.copied)
        for _ in range(200):
            nodes = [
                NodeFacts(
                    node_id, f"rack-{at % self.racks}", disk_used=self.used(node_id) / DISK_GIB
                )
                for at, node_id in enumerate(self.other)
            ]
            groups = [
                GroupFacts(
                    number,
                    tuple(ReplicaFacts(10 * number + at, on[at]) for at in range(len(on))),
                    leader_node_id=on[0],
                )
                for number, on in self.placed.items()
            ]
            steps = plan_replicas(nodes, groups, RULES)
            if not steps:
                return len(self.copied) > before
            for step in steps:
                leaving = self.placed[step.raft_group][step.remove_replica_id % 10]
                self._move("rule", step.raft_group, leaving, step.add_node_id)
        pytest.fail("the nameserver's rules do not rest")

    def _move(self, by: str, number: int, leaving: str, host: str) -> None:
        self.copied.append((by, number, leaving, host))
        self.placed[number] = tuple(host if on == leaving else on for on in self.placed[number])


def in_turns(cluster: Cluster, turns: int = 20) -> None:
    """Plan and even out until neither moves anything."""
    for _ in range(turns):
        if not (cluster.relieve() | cluster.even_out()):
            return
    pytest.fail(f"no rest after {turns} turns; last: {cluster.copied[-6:]}")


def four_nodes(other_on_first: int) -> Cluster:
    """Four raft groups with three replicas of 5 GiB each, three replicas on every node."""
    first, second, third, last = (f"node-{number}" for number in range(4))
    placed: dict[int, tuple[str, ...]] = {
        1: (second, first, third),
        2: (third, last, first),
        3: (last, second, third),
        4: (first, second, last),
    }
    other = {first: other_on_first, second: 25, third: 25, last: 25}
    return Cluster(placed, dict.fromkeys(placed, 5), other)


def test_the_planner_knows_the_nameservers_mark() -> None:
    """The two packages may not import each other; the number is written in both."""
    assert OPTIONS.even_counts_below == RULES.full_above
    assert RULES.full_above < OPTIONS.disk_limit


def test_a_replica_that_left_a_full_disk_stays_away() -> None:
    """Counts were even; the rule of even counts does not fill the disk again."""
    cluster = four_nodes(other_on_first=72)
    assert not cluster.even_out()
    in_turns(cluster)

    assert [by for by, *_ in cluster.copied] == ["plan"]
    assert cluster.used("node-0") == 82
    assert not cluster.relieve()


def test_a_disk_that_fills_up_again_is_relieved_again() -> None:
    """By a host with few replicas: one that has the most already would have to pass it on."""
    cluster = four_nodes(other_on_first=72)
    in_turns(cluster)
    cluster.other["node-0"] += 5
    in_turns(cluster)

    assert [by for by, *_ in cluster.copied] == ["plan", "plan"]
    assert cluster.used("node-0") == 82
    counts = Counter(on for nodes in cluster.placed.values() for on in nodes)
    assert counts.pop("node-0") == 1
    assert sorted(counts.values()) == [3, 4, 4]


def test_a_move_that_would_be_undone_is_not_planned() -> None:
    """Without its replica of 20 GiB the disk would be so empty that the rule gave it another."""
    cluster = four_nodes(other_on_first=26)
    cluster.sizes = dict.fromkeys(cluster.sizes, 20)
    cluster.other |= dict.fromkeys(("node-1", "node-2", "node-3"), 0)
    plan = cluster.plan()

    assert cluster.used("node-0") == 86
    assert plan.steps == ()
    assert plan.notes == (
        "the disk of node-0 stays 86% full: no replica of known size can leave it for good; make "
        "it larger, shorten retention or add storage nodes",
    )


@given(
    seed=st.integers(0, 10_000),
    nodes=st.integers(3, 7),
    groups=st.integers(2, 12),
    largest=st.sampled_from([3, 10, 40]),
    racks=st.integers(1, 7),
)
@settings(max_examples=150, deadline=None)
def test_plans_and_even_counts_come_to_rest(
    seed: int, nodes: int, groups: int, largest: int, racks: int
) -> None:
    """However full disks are and however large replicas, no replica goes to and fro without end."""
    random = Random(seed)
    names = [f"node-{number}" for number in range(nodes)]
    cluster = Cluster(
        {number: tuple(random.sample(names, 3)) for number in range(1, groups + 1)},
        {number: random.randint(1, largest) for number in range(1, groups + 1)},
        dict.fromkeys(names, 0),
        racks,
    )
    cluster.even_out()
    for name in names:
        room = max(0, DISK_GIB - cluster.used(name))
        cluster.other[name] = random.randint(0, room)
    in_turns(cluster)
