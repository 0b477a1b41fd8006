"""The planner: hard goals always hold, what it promises comes true, and nothing flaps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from strata_placement.cluster import BrokerModel, ClusterModel, applied, balance_of
from strata_placement.plan import (
    AddReadReplica,
    Balance,
    MoveQueue,
    MoveReplica,
    Plan,
    RemoveReadReplica,
    ScaleBrokers,
    TransferLeader,
)
from strata_placement.planner import PlannerOptions, Source, make_plan
from tests.unit.placement.clusters import CAPACITY, GIB, node, random_cluster

SOURCE = Source("forecast", "test", 1_000, 60_000)
OPTIONS = PlannerOptions()


def plan_for(model: ClusterModel, options: PlannerOptions = OPTIONS) -> Plan:
    return make_plan(model, options, SOURCE)


def after(model: ClusterModel, plan: Plan) -> ClusterModel:
    return applied(model, [step.action for step in plan.steps])


def leads(model: ClusterModel) -> Counter[str]:
    return Counter(group.leader for group in model.groups)


def conflicts(model: ClusterModel) -> int:
    racks = {node.node_id: node.rack for node in model.nodes}
    return sum(
        len(group.voters) - len({racks[voter] for voter in group.voters}) for group in model.groups
    )


def near(balance: Balance) -> object:
    return _Near(balance)


class _Near:
    """Equal to a balance that differs by rounding only."""

    def __init__(self, balance: Balance) -> None:
        self._balance = balance

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Balance)
        mine = (self._balance.max_over_mean, self._balance.peak)
        return (other.max_over_mean, other.peak) == pytest.approx(mine, rel=1e-9)

    def __repr__(self) -> str:
        return repr(self._balance)

    __hash__ = None  # type: ignore[assignment]


clusters = st.builds(
    random_cluster,
    st.integers(0, 10_000),
    nodes=st.integers(3, 8),
    groups=st.integers(3, 16),
    queues=st.integers(1, 80),
    points=st.integers(1, 4),
    utilisation=st.sampled_from([0.05, 0.4, 0.6, 0.9]),
)


@given(clusters)
@settings(max_examples=60, deadline=None)
def test_hard_goals_hold_after_every_step(model: ClusterModel) -> None:
    """Replica counts stay, racks get no worse, leaders stay even, nobody is pushed over."""
    plan = plan_for(model)
    state = model
    for step in plan.steps:
        before = {name: max(line) for name, line in state.utilisation().items()}
        state = applied(state, [step.action])
        note(f"{step.action}")
        assert all(len(group.voters) == 3 == len(set(group.voters)) for group in state.groups)
        assert all(group.leader in group.voters for group in state.groups)
        assert conflicts(state) <= conflicts(model)
        for name, line in state.utilisation().items():
            assert max(line) <= max(OPTIONS.capacity_limit, before[name]) + 1e-9
    spread = max(leads(model).values()) - min(leads(model)[node.node_id] for node in model.nodes)
    counts = [leads(state)[node.node_id] for node in state.nodes]
    assert max(counts) - min(counts) <= max(1, spread)


@given(clusters)
@settings(max_examples=60, deadline=None)
def test_a_plan_keeps_its_promise(model: ClusterModel) -> None:
    """Applied to the model, by code of its own, it has the effect that each step says."""
    plan = plan_for(model)
    state = model
    for step in plan.steps:
        assert step.before == near(balance_of(state.utilisation()))
        state = applied(state, [step.action])
        assert step.after == near(balance_of(state.utilisation()))
    assert plan.after == near(balance_of(state.utilisation()))


@given(clusters)
@settings(max_examples=60, deadline=None)
def test_constant_load_is_left_alone(model: ClusterModel) -> None:
    """Once a plan is carried out, the next one for the same loads is empty: no flapping."""
    unlimited = replace(OPTIONS, max_steps=10_000)
    moved = after(model, plan_for(model, unlimited))

    assert plan_for(moved, unlimited).steps == ()


@given(clusters)
@settings(max_examples=30, deadline=None)
def test_the_same_model_gives_the_same_plan(model: ClusterModel) -> None:
    """Planning draws no chance and reads no clock."""
    assert plan_for(model) == plan_for(model)


def test_a_skewed_cluster_is_levelled() -> None:
    """All load on one node: the peak falls below the target, by queues and leaders alone."""
    model = random_cluster(3, utilisation=0.4)
    first = model.groups[0].raft_group
    skewed = replace(model, raft_group_of=[first] * len(model.queues))
    plan = plan_for(skewed)

    assert plan.before.peak > 1.4
    assert plan.after.peak <= OPTIONS.target
    assert {type(step.action) for step in plan.steps} <= {MoveQueue, TransferLeader}
    assert plan.cost_bytes == 0


def test_held_queues_stay() -> None:
    """A queue that moved lately, or whose earlier epoch drains, is in no step."""
    model = random_cluster(3, utilisation=0.4)
    skewed = replace(model, raft_group_of=[1] * len(model.queues))
    moved = [step.action for step in plan_for(skewed).steps]
    held = frozenset(action.queue for action in moved if isinstance(action, MoveQueue))
    again = plan_for(replace(skewed, held=held))

    assert held
    assert not held & {s.action.queue for s in again.steps if isinstance(s.action, MoveQueue)}


def test_no_step_goes_to_a_node_that_cannot_take() -> None:
    """Slow and draining nodes get nothing."""
    model = random_cluster(5, utilisation=0.4)
    skewed = replace(
        model,
        nodes=(*model.nodes[:3], replace(model.nodes[3], can_take=False), *model.nodes[4:]),
        raft_group_of=[1] * len(model.queues),
    )
    leaders = {group.raft_group: group.leader for group in skewed.groups}
    for step in plan_for(skewed).steps:
        match step.action:
            case MoveQueue(_, _, to_raft_group):
                assert leaders[to_raft_group] != "node-3"
            case TransferLeader(raft_group, _, to_node):
                assert to_node != "node-3"
                leaders[raft_group] = to_node


def test_a_draining_node_is_emptied_leaders_first() -> None:
    """Every replica leaves it, other racks are kept apart, and the copies are counted."""
    model = random_cluster(1, utilisation=0.02)
    drained = replace(
        model, nodes=(replace(model.nodes[0], must_go=True, can_take=False), *model.nodes[1:])
    )
    plan = plan_for(drained)
    state = after(drained, plan)

    assert all("node-0" not in group.voters for group in state.groups)
    assert conflicts(state) == 0
    moves = [step for step in plan.steps if isinstance(step.action, MoveReplica)]
    assert plan.cost_bytes == len(moves) * GIB
    led = [group.raft_group for group in model.groups if group.leader == "node-0"]
    for number in led:
        steps = [type(s.action) for s in plan.steps if getattr(s.action, "raft_group", 0) == number]
        assert steps[:2] == [TransferLeader, MoveReplica]


def test_nobody_hands_over_to_a_node_that_may_take_nothing() -> None:
    """One that is down or slow is the calmest of all."""
    model = random_cluster(1, utilisation=0.02)
    out, *others = model.nodes
    for group in model.groups:
        if group.leader == out.node_id:
            first, second = [voter for voter in group.voters if voter != out.node_id]
            break
    nodes = [replace(out, must_go=True, can_take=False)]
    nodes += [replace(each, can_take=each.node_id != first) for each in others]
    plan = plan_for(replace(model, nodes=tuple(nodes)))
    handed = [step.action for step in plan.steps if isinstance(step.action, TransferLeader)]
    assert TransferLeader(group.raft_group, out.node_id, second) in handed
    assert first not in {action.to_node for action in handed}


def test_nobody_hands_over_to_a_node_that_is_not_known() -> None:
    """A voter of which no facts came is no heir, and no failure of the plan."""
    model = random_cluster(1, utilisation=0.02)
    group = model.groups[0]
    out, other = group.leader, next(voter for voter in group.voters if voter != group.leader)
    nodes = [
        replace(each, must_go=True, can_take=False) if each.node_id == out else each
        for each in model.nodes
        if each.node_id != other
    ]
    actions = [step.action for step in plan_for(replace(model, nodes=tuple(nodes))).steps]
    assert other not in {step.to_node for step in actions if isinstance(step, TransferLeader)}


def test_voters_of_one_rack_are_spread() -> None:
    """As far as there are racks; the reason names the rack."""
    model = random_cluster(1, utilisation=0.02)
    crowded = replace(model.groups[0], voters=("node-0", "node-3", "node-1"))
    plan = plan_for(replace(model, groups=(crowded, *model.groups[1:])))

    assert [step.reason for step in plan.steps] == ["rack-0 has two replicas of raft group 1"]
    assert isinstance(plan.steps[0].action, MoveReplica)
    assert plan.steps[0].action.from_node == "node-3"


def on_machines(model: ClusterModel, shards: int) -> ClusterModel:
    """The same nodes without racks, so many of them on each machine."""
    nodes = tuple(
        replace(node, rack="", machine=f"m{number // shards}")
        for number, node in enumerate(model.nodes)
    )
    return replace(model, nodes=nodes)


def test_a_replica_never_goes_to_a_machine_that_has_one() -> None:
    """The disk of one storage node is full; the only host is the other one of its machine."""
    model = on_machines(random_cluster(1, utilisation=0.02), 2)
    groups = tuple(
        replace(group, leader=voters[0], voters=voters)
        for group, voters in zip(
            model.groups, [("node-0", "node-2", "node-4")] * len(model.groups), strict=True
        )
    )
    full = replace(model.nodes[2], disk_free_bytes=14 * GIB)
    nodes = (*model.nodes[:2], full, *model.nodes[3:])
    plan = plan_for(replace(model, nodes=nodes, groups=groups))

    moves = [step.action for step in plan.steps if isinstance(step.action, MoveReplica)]
    assert moves
    assert {(move.from_node, move.to_node) for move in moves} == {("node-2", "node-3")}


def test_voters_of_one_machine_are_spread() -> None:
    """The reason names the machine."""
    model = on_machines(random_cluster(1, nodes=8, utilisation=0.02), 2)
    spread = tuple(
        replace(group, leader="node-0", voters=("node-0", "node-2", "node-4"))
        for group in model.groups
    )
    crowded = replace(spread[0], voters=("node-0", "node-1", "node-2"))
    plan = plan_for(replace(model, groups=(crowded, *spread[1:])))
    moved = [step for step in plan.steps if isinstance(step.action, MoveReplica)]

    assert [step.reason for step in moved] == ["machine m0 has two replicas of raft group 1"]
    assert isinstance(moved[0].action, MoveReplica)
    assert moved[0].action.to_node in {"node-4", "node-5", "node-6", "node-7"}


def test_a_full_disk_gives_replicas_away() -> None:
    """Only followers move, only to where there is room, until the disk is below its limit."""
    model = random_cluster(1, utilisation=0.02)
    crowded = node(2, disk_free_bytes=14 * GIB)
    full = replace(model, nodes=(*model.nodes[:2], crowded, *model.nodes[3:]))
    plan = plan_for(full)

    assert [type(step.action) for step in plan.steps] == [MoveReplica]
    assert plan.steps[0].reason == "the disk of node-2 is 86% full"

    unknown = tuple(replace(group, stored_bytes=0) for group in full.groups)
    assert plan_for(replace(full, groups=unknown)).steps == ()


def test_what_cannot_be_helped_is_said() -> None:
    """A cluster that is too small gets a note, and no step pushes anybody over the limit."""
    plan = plan_for(random_cluster(2, utilisation=1.2))

    assert any("add storage nodes" in line for line in plan.notes)


def test_much_read_raft_groups_get_read_replicas_and_lose_them() -> None:
    """Added above one mark, removed below a lower one, untouched between."""
    model = random_cluster(1, groups=1, queues=1, points=1, utilisation=0.01)
    group = replace(model.groups[0], read_share=0.9)

    def planned(load: float, readers: tuple[str, ...]) -> list[type]:
        loaded = replace(group, readers=readers)
        plan = plan_for(replace(model, groups=(loaded,), points=[[load]]))
        return [type(step.action) for step in plan.steps]

    assert planned(0.4 * CAPACITY, ()) == [AddReadReplica]
    assert planned(0.2 * CAPACITY, ()) == []
    assert planned(0.2 * CAPACITY, ("node-4",)) == []
    assert planned(0.05 * CAPACITY, ("node-4",)) == [RemoveReadReplica]


@pytest.mark.parametrize("load", [0.0, 0.05 * CAPACITY, 0.4 * CAPACITY])
def test_read_replicas_stay_where_no_reads_were_seen(load: float) -> None:
    """Loads by the growth of queues know of no reads, and consumers may stand still."""
    model = random_cluster(1, groups=1, queues=1, points=1, utilisation=0.01)
    read = replace(model.groups[0], readers=("node-4", "node-5"))

    assert read.read_share == 0.0
    assert plan_for(replace(model, groups=(read,), points=[[load]])).steps == ()


@pytest.mark.parametrize(("peak", "wanted"), [(170e6, 3), (110e6, None), (60e6, None), (40e6, 1)])
def test_brokers_scale_with_a_gap_between_up_and_down(peak: float, wanted: int | None) -> None:
    """More when the target would be passed, fewer only with a fifth to spare."""
    brokers = BrokerModel(2, CAPACITY, peak)
    model = replace(random_cluster(1, utilisation=0.02), brokers=brokers)
    actions = [step.action for step in plan_for(model).steps]

    assert actions == ([ScaleBrokers(2, wanted)] if wanted else [])
