"""Evenness of replicas: decided by a search that skips much, as by one that tries everything."""

from __future__ import annotations

import random
from dataclasses import replace

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
from tests.unit.nameserver.counted_ids import CountedId
from tests.unit.nameserver.test_placement import RULES, Cluster, make_cluster


def plain_level(cluster: Cluster) -> tuple[int, int, str] | None:
    """Return the move that rule 5 makes first: every pair of nodes and every raft group is tried.

    From the node with most replicas to that with fewest; never to a machine that has one already,
    nor so that more replicas share a rack.
    """
    counts, names = cluster.counts(), sorted(cluster.nodes)
    place = {name: node.place for name, node in cluster.nodes.items()}
    rack = {name: node.rack or node.place for name, node in cluster.nodes.items()}

    def spread(hosts: list[str]) -> tuple[int, int]:
        return len({place[name] for name in hosts}), len({rack[name] for name in hosts})

    for source in sorted(names, key=lambda name: -counts[name]):
        for target in sorted(names, key=lambda name: counts[name]):
            if counts[source] - counts[target] < 2:
                break
            for number, group in sorted(cluster.groups.items()):
                hosts = group.node_ids
                if source not in hosts or target in hosts:
                    continue
                staying = [name for name in hosts if name != source]
                is_free = place[target] not in {place[name] for name in staying}
                if is_free and spread([*staying, target]) >= spread(hosts):
                    replica = group.replicas[hosts.index(source)]
                    return number, replica.replica_id, target
    return None


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=200)
def test_replicas_move_for_evenness_by_the_plain_rule(seed: int) -> None:
    """The search that skips what cannot go to a rack decides as the one that tries everything."""
    chooser = random.Random(seed)
    rules = PlacementRules(max_moves_in_flight=1)
    cluster = make_cluster(
        [chooser.choice(["a", "b", "c", "c"]) for _ in range(chooser.randint(3, 8))],
        chooser.randint(1, 12),
        rules,
    )
    for node_id, node in cluster.nodes.items():
        cluster.nodes[node_id] = replace(node, machine=chooser.choice(["", "", "", "m1", "m2"]))
    for _ in range(chooser.randint(0, 3)):
        joined = f"j{len(cluster.nodes)}"
        cluster.nodes[joined] = NodeFacts(joined, chooser.choice(["a", "b", "c", ""]))
    for _ in range(40):
        steps = plan_replicas(cluster.nodes.values(), cluster.groups.values(), rules)
        for step in steps:
            if "replicas, " in step.reason:
                found = step.raft_group, step.remove_replica_id, step.add_node_id
                assert found == plain_level(cluster), f"seed {seed}"
            cluster.carry_out(step)
        if not steps:
            assert plain_level(cluster) is None, f"seed {seed}"
            return
    pytest.fail(f"not at rest; seed {seed}")


def looks_at(sizes: list[int]) -> int:
    """Return the work of one turn over racks of these sizes, when nothing can be bettered."""
    racks = [
        [CountedId(f"{rack}{number:03}") for number in range(size)]
        for rack, size in enumerate(sizes)
    ]
    nodes = [NodeFacts(name, f"rack-{at}") for at, rack in enumerate(racks) for name in rack]
    # With two racks, the first has two of the three replicas.
    hosting = [*racks, racks[0]][:3]
    groups = [
        GroupFacts(
            number + 1,
            tuple(
                ReplicaFacts(3 * number + at, rack[(number + (at == 2)) % len(rack)])
                for at, rack in enumerate(hosting)
            ),
        )
        for number in range(2 * len(nodes))
    ]
    CountedId.looks = 0
    assert plan_replicas(nodes, groups, RULES) == []
    return CountedId.looks


@pytest.mark.parametrize("sizes", [[8, 8, 2], [10, 5]], ids=["uneven racks", "two racks"])
def test_the_work_of_a_turn_grows_with_the_cluster_and_no_faster(sizes: list[int]) -> None:
    """Where racks keep replicas from being even, or from being apart, that is found at once."""
    small, large = looks_at(sizes), looks_at([4 * size for size in sizes])
    assert small > 100
    assert large <= 6 * small
