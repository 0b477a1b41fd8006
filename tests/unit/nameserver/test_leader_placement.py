"""Placement of leaders: even, away from draining nodes, and steady."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from strata.meta.v1 import meta_pb2
from strata_nameserver.policies.facts import (
    GroupFacts,
    NodeFacts,
    PlacementRules,
    ReplicaFacts,
)
from strata_nameserver.policies.leaders import plan_leaders
from strata_nameserver.policies.replicas import layout_of_new
from tests.unit.nameserver.counted_ids import CountedId

RULES = PlacementRules(leader_balance_delay_ms=1_000)


def nodes_of(count: int) -> dict[str, NodeFacts]:
    return {f"n{i}": NodeFacts(f"n{i}", state_ms=10_000) for i in range(count)}


def group(number: int, node_ids: list[str], leader: str, preferred: str = "") -> GroupFacts:
    replicas = tuple(ReplicaFacts(100 * number + i, node_id) for i, node_id in enumerate(node_ids))
    return GroupFacts(number, replicas, leader_node_id=leader, preferred_node_id=preferred)


def settle(nodes: dict[str, NodeFacts], groups: dict[int, GroupFacts]) -> int:
    """Carry out wishes, as leaders would, until there are none; return how many there were."""
    wishes = 0
    for _ in range(200):
        steps = plan_leaders(nodes.values(), groups.values(), RULES)
        if not steps:
            return wishes
        for step in steps:
            wishes += 1
            old = groups[step.raft_group]
            able = {r.node_id for r in old.replicas if r.is_voter and r.is_caught_up}
            assert not step.node_id or step.node_id in able
            leader = step.node_id or old.leader_node_id
            groups[step.raft_group] = replace(
                old, preferred_node_id=step.node_id, leader_node_id=leader
            )
    raise AssertionError("leaders never come to rest")


def leads(nodes: dict[str, NodeFacts], groups: dict[int, GroupFacts]) -> Counter[str]:
    counts = Counter(dict.fromkeys(nodes, 0))
    counts.update(each.leader_node_id for each in groups.values())
    return counts


@given(st.integers(3, 8), st.integers(1, 24), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=80)
def test_leaders_end_up_even(node_count: int, group_count: int, seed: int) -> None:
    """From any distribution: no node leads two more than another one."""
    chooser = random.Random(seed)
    nodes = nodes_of(node_count)
    layout = layout_of_new(nodes.values(), group_count, RULES)
    groups = {
        number: group(number, node_ids, chooser.choice(node_ids))
        for number, node_ids in enumerate(layout, start=1)
    }
    settle(nodes, groups)
    counts = leads(nodes, groups)
    able = [n for n in nodes if any(n in each.node_ids for each in groups.values())]

    values = [counts[node_id] for node_id in able]
    assert max(values) - min(values) <= 1, f"seed {seed}: {counts}"


def test_a_node_that_was_down_again_and_again_leads_nothing_until_it_is_steady() -> None:
    """Each of its ends costs elections. One below the limit, or all of them, stay as they are."""
    nodes = nodes_of(3)
    groups = {number: group(number, list(nodes), f"n{number % 3}") for number in range(1, 7)}
    nodes["n0"] = replace(nodes["n0"], down_ms=RULES.repair_delay_ms - 1)
    assert settle(nodes, groups) == 0
    nodes["n0"] = replace(nodes["n0"], down_ms=RULES.repair_delay_ms)
    settle(nodes, groups)
    assert leads(nodes, groups) == {"n0": 0, "n1": 3, "n2": 3}
    nodes["n0"] = replace(nodes["n0"], down_ms=0)
    settle(nodes, groups)
    assert leads(nodes, groups) == {"n0": 2, "n1": 2, "n2": 2}
    for node_id, node in list(nodes.items()):
        nodes[node_id] = replace(node, down_ms=RULES.repair_delay_ms)
    settle(nodes, groups)
    assert leads(nodes, groups) == {"n0": 2, "n1": 2, "n2": 2}


def test_an_even_distribution_is_left_alone() -> None:
    """A difference of one is no reason to move anything."""
    nodes = nodes_of(3)
    names = list(nodes)
    groups = {n: group(n, names, names[n % 3]) for n in range(1, 8)}

    assert plan_leaders(nodes.values(), groups.values(), RULES) == []


def test_leaders_leave_a_draining_node_at_once() -> None:
    """Every one of them, spread over the others, whatever the wishes were."""
    nodes = nodes_of(3)
    nodes["n0"] = replace(nodes["n0"], draining=True)
    groups = {n: group(n, list(nodes), "n0", preferred="n0") for n in range(1, 7)}
    steps = plan_leaders(nodes.values(), groups.values(), RULES)

    assert Counter(step.node_id for step in steps) == {"n1": 3, "n2": 3}
    assert all("draining" in step.reason for step in steps)


def test_leaders_leave_a_slow_node_and_none_comes() -> None:
    """It keeps its replicas; where nobody else could lead, it leads on."""
    nodes = nodes_of(3)
    nodes["n0"] = replace(nodes["n0"], is_slow=True)
    groups = {n: group(n, list(nodes), "n0") for n in range(1, 5)}
    groups[9] = group(9, ["n0"], "n0")
    settle(nodes, groups)

    assert leads(nodes, groups) == {"n0": 1, "n1": 2, "n2": 2}


def test_a_node_with_a_wrong_clock_gets_no_leader() -> None:
    """Its leaders leave, wishes for it go, and balance passes it over until its clock is right."""
    nodes = nodes_of(3)
    nodes["n0"] = replace(nodes["n0"], clock_is_off=True)
    groups = {n: group(n, list(nodes), "n1", preferred="n0") for n in range(1, 5)}
    groups[5] = group(5, list(nodes), "n0")
    settle(nodes, groups)
    assert leads(nodes, groups) == {"n0": 0, "n1": 3, "n2": 2}
    assert all(each.preferred_node_id != "n0" for each in groups.values())

    nodes["n0"] = replace(nodes["n0"], clock_is_off=False)
    settle(nodes, groups)
    assert leads(nodes, groups) == {"n0": 1, "n1": 2, "n2": 2}


def test_a_chain_helps_where_no_single_move_does() -> None:
    """n0 leads two, n2 none, and no raft group is on both: n1 passes one on."""
    nodes = nodes_of(3)
    groups = {
        1: group(1, ["n0", "n1"], "n0"),
        2: group(2, ["n0", "n1"], "n0"),
        3: group(3, ["n1", "n2"], "n1"),
    }
    steps = plan_leaders(nodes.values(), groups.values(), RULES)

    assert {(step.raft_group, step.node_id) for step in steps} == {(1, "n1"), (3, "n2")}


def test_a_node_that_just_came_up_gets_nothing_yet() -> None:
    """It must be UP for a while, and its replicas caught up."""
    nodes = nodes_of(2)
    nodes["n1"] = replace(nodes["n1"], state_ms=999)
    groups = {n: group(n, list(nodes), "n0") for n in range(1, 5)}
    assert plan_leaders(nodes.values(), groups.values(), RULES) == []

    nodes["n1"] = replace(nodes["n1"], state_ms=1_000)
    behind = {
        number: replace(
            each, replicas=(each.replicas[0], replace(each.replicas[1], is_caught_up=False))
        )
        for number, each in groups.items()
    }
    assert plan_leaders(nodes.values(), behind.values(), RULES) == []
    assert len(plan_leaders(nodes.values(), groups.values(), RULES)) == 2


def test_a_wish_outlives_its_node_but_not_its_replica() -> None:
    """A node that is DOWN gets its leaders back; one that lost the replica does not."""
    nodes = nodes_of(3)
    nodes["n2"] = replace(nodes["n2"], state=meta_pb2.NODE_STATE_DOWN)
    kept = {1: group(1, ["n0", "n1", "n2"], "n0", preferred="n2")}
    moved = {1: group(1, ["n0", "n1"], "n0", preferred="n2")}

    assert plan_leaders(nodes.values(), kept.values(), RULES) == []
    steps = plan_leaders(nodes.values(), moved.values(), RULES)
    assert [(step.raft_group, step.node_id) for step in steps] == [(1, "")]


def plain_chain(
    nodes: Collection[NodeFacts], groups: Collection[GroupFacts], leads: dict[int, str]
) -> list[tuple[int, str]]:
    """Return the moves of one chain: a walk from every node, fullest first, over all raft groups.

    As the rule says it, and as slow: nothing is remembered from one walk to the next.
    """
    able = {node.node_id: node for node in nodes if node.can_take}
    counts = Counter(leads.values())
    for source in sorted(able, key=lambda node_id: (-counts[node_id], node_id)):
        paths: dict[str, list[tuple[int, str]]] = {source: []}
        queue = deque([source])
        while queue:
            node_id = queue.popleft()
            if counts[source] - counts[node_id] >= 2:
                return paths[node_id]
            for each in sorted(groups, key=lambda each: each.raft_group):
                if leads[each.raft_group] != node_id or not each.may_change:
                    continue
                for replica in each.replicas:
                    target = replica.node_id
                    is_fit = replica.is_voter and replica.is_caught_up
                    is_steady = target in able and able[target].state_ms >= 1_000
                    if is_fit and is_steady and target not in paths:
                        paths[target] = [*paths[node_id], (each.raft_group, target)]
                        queue.append(target)
    return []


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=300)
def test_chains_are_those_of_the_plain_rule(seed: int) -> None:
    """The walk that remembers what it saw decides as the one that does not."""
    chooser = random.Random(seed)
    nodes = {
        node_id: replace(
            node,
            state=chooser.choice([meta_pb2.NODE_STATE_UP] * 5 + [meta_pb2.NODE_STATE_DOWN]),
            state_ms=chooser.choice([10_000] * 4 + [500]),
        )
        for node_id, node in nodes_of(chooser.randint(2, 9)).items()
    }
    groups = {}
    for number in range(1, chooser.randint(2, 24)):
        hosts = chooser.sample(sorted(nodes), min(len(nodes), chooser.randint(1, 3)))
        leader = chooser.choice([*hosts, hosts[0], hosts[0], ""])
        made = group(number, hosts, leader)
        replicas = tuple(
            replace(replica, is_voter=chooser.random() < 0.9, is_caught_up=chooser.random() < 0.9)
            for replica in made.replicas
        )
        groups[number] = replace(made, replicas=replicas, is_settled=chooser.random() < 0.9)
    leads = {number: each.leader_node_id for number, each in groups.items()}
    expected: dict[int, str] = {}
    for _ in range(RULES.max_moves_in_flight):
        for number, node_id in plain_chain(nodes.values(), groups.values(), leads):
            leads[number] = expected[number] = node_id
    steps = plan_leaders(nodes.values(), groups.values(), RULES)

    assert {step.raft_group: step.node_id for step in steps} == expected, f"seed {seed}"


def looks_at(node_count: int) -> int:
    """Return the work of one turn: full nodes, none of which shares a raft group with the others.

    The full ones lead two each, the others none: no walk from a full one comes to one of those.
    """
    names = [CountedId(f"n{number:03}") for number in range(node_count)]
    full, others = names[: node_count // 2], names[node_count // 2 :]
    groups = []
    for number in range(2 * len(full)):
        hosts = [full[(number + step) % len(full)] for step in (0, 1, 5)]
        groups.append(group(number + 1, [*hosts], hosts[0], hosts[0]))
    nodes = [NodeFacts(name, state_ms=10_000) for name in [*full, *others]]
    CountedId.looks = 0
    assert plan_leaders(nodes, groups, RULES) == []
    return CountedId.looks


def test_the_work_of_a_turn_grows_with_the_cluster_and_no_faster() -> None:
    """Four times the nodes and raft groups take about four times the work, also where all is well.

    A walk from every full node over all others would take sixteen times.
    """
    small, large = looks_at(20), looks_at(80)
    assert small > 100
    assert large <= 5 * small
