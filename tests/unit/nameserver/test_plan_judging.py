"""A step is to blame for what got worse because of it, and for nothing else that happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import meta_pb2
from strata_nameserver.plans.judging import Beginning, Sight, judge
from strata_nameserver.state.draft import Draft
from tests.unit.nameserver.loaded_storage import (
    MIB,
    PLANNED,
    Loaded,
    apply,
    hosts,
    moved_replica,
    propose,
    queue_step,
    shown,
    states,
    three_loaded,
    with_spare_node,
)
from tests.unit.nameserver.storage_nodes import NODES, storage

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver


async def settling(cluster: Loaded, *steps: meta_pb2.PlacementStep) -> meta_pb2.PlacementPlan:
    """Apply a plan of these steps and wait until the first one settles; it can be undone."""
    plan = await propose(cluster, *steps)
    await apply(cluster, plan)
    for _ in range(20):
        await cluster.run(500)
        if states(shown(cluster, plan))[0] == "settling":
            break
    assert states(shown(cluster, plan))[0] == "settling"
    await cluster.nameserver.metadata.queue_drained(
        meta_pb2.ReportQueueDrainedRequest(
            topic_id=cluster.topic.topic_id, queue=steps[0].move_queue.queue, epoch=0
        )
    )
    return plan


async def judged(cluster: Loaded, plan: meta_pb2.PlacementPlan) -> meta_pb2.PlacementStep:
    """Wait until the first step of a plan has ended, or is being undone; return it."""
    for _ in range(60):
        await cluster.run(500)
        if states(shown(cluster, plan))[0] != "settling":
            break
    return shown(cluster, plan).steps[0]


def to_another_node(cluster: Loaded, queue: int) -> meta_pb2.PlacementStep:
    """Move a queue to a raft group that another node leads."""
    other = next(q for q in range(12) if cluster.node_of(q) != cluster.node_of(queue))
    return queue_step(cluster, queue, cluster.raft_group_of(other))


@pytest.mark.parametrize("joins", [False, True])
async def test_a_node_that_joins_makes_no_step_worse(loaded: Loaded, joins: bool) -> None:
    """It bears nothing yet, so the mean of all nodes is lower: the step did not do that."""
    loaded.queue_bytes_per_s = [(2 if queue == 0 else 6) * MIB for queue in range(12)]
    await loaded.run(5_000)
    plan = await settling(loaded, to_another_node(loaded, 0))
    if joins:
        await loaded.nameserver.metadata.register_node(storage("d"))
        loaded.alive.add("d")
    step = await judged(loaded, plan)

    assert states(shown(loaded, plan)) == ["done"], step.note
    assert step.note.startswith("busiest node 1.0"), "it is judged"
    assert step.measured_after < 1.2


STEP = meta_pb2.PlacementStep(
    transfer_leader=meta_pb2.TransferLeaderStep(raft_group=1, from_node_id="a", to_node_id="b")
)


@pytest.mark.parametrize(
    ("loads", "leaders", "expected"),
    [
        ({"a": 0, "b": 20, "c": 10}, {1: "b", 2: "b", 3: "c"}, "worse"),
        # A node that joined took half of it off c.
        ({"a": 0, "b": 20, "c": 5, "d": 5}, {1: "b", 2: "b", 3: "c", 4: "d"}, "worse"),
        # The burst is elsewhere.
        ({"a": 9, "b": 11, "c": 30}, {1: "b", 2: "b", 3: "c"}, "not worse"),
        # A third raft group came to b.
        ({"a": 0, "b": 30, "c": 0}, {1: "b", 2: "b", 3: "b"}, "raft group 3 came to b meanwhile"),
        # One that b led left it.
        ({"a": 10, "b": 10, "c": 10}, {1: "b", 2: "a", 3: "c"}, "not worse"),
        # Below the floor there is no load to speak of.
        ({"a": 0, "b": 0, "c": 0}, {1: "b", 2: "b", 3: "c"}, "not worse"),
    ],
)
async def test_a_step_is_to_blame_for_the_node_that_it_gave_load_to(
    loaded: Loaded, loads: dict[str, int], leaders: dict[int, str], expected: str
) -> None:
    """Each node led one raft group with 10 MiB/s; the step hands raft group 1 from a to b."""
    up = dict.fromkeys("abc", meta_pb2.NODE_STATE_UP)
    then = Sight(dict.fromkeys("abc", 10.0 * MIB), {1: "a", 2: "b", 3: "c"}, up)
    now = Sight({node: load * float(MIB) for node, load in loads.items()}, leaders, up)
    draft = Draft(loaded.nameserver.machine.speculative, 0)
    verdict = judge(draft, STEP, Beginning(then), now, PLANNED)

    assert (verdict.unknown or ("worse" if verdict.is_worse else "not worse")) == expected
    assert verdict.before == 1.0


async def swap_leaders(cluster: Loaded, first: int, second: int) -> None:
    """Let two raft groups change leaders with each other: each node leads as many as before."""
    nodes = [cluster.leader_of(cluster.row(number)) for number in (first, second)]
    metadata = cluster.nameserver.metadata
    await metadata.prefer_leader(first, nodes[1])
    await metadata.prefer_leader(second, nodes[0])


@pytest.mark.parametrize("receives", [False, True])
async def test_a_leader_that_changes_meanwhile_is_not_the_steps_fault(
    make_nameserver: MakeNameserver, receives: bool
) -> None:
    """A busy raft group comes to another node, or to the one that the step gave load to."""
    cluster = await three_loaded(make_nameserver, groups_per_node=2)
    led = {number: cluster.leader_of(row) for number, row in cluster.rows().items()}
    groups = {node: [g for g, leader in led.items() if leader == node] for node in led.values()}
    first, second, third = groups
    queue_of = {cluster.raft_group_of(queue): queue for queue in range(12)}
    # 20 MiB/s by each node; the first has all of it in one raft group.
    for node in groups:
        shares = (18, 2) if node == first else (10, 10)
        for number, share in zip(groups[node], shares, strict=True):
            cluster.queue_bytes_per_s[queue_of[number]] = share * MIB
    light = next(
        queue
        for queue in range(12)
        if cluster.raft_group_of(queue) == groups[third][0] and queue != queue_of[groups[third][0]]
    )
    cluster.queue_bytes_per_s[light] = MIB // 2
    await cluster.run(5_000)
    plan = await settling(cluster, queue_step(cluster, light, groups[second][0]))
    # 18 + 10 MiB/s come together on one node.
    heavy, busier = groups[first][0], second if receives else third
    await swap_leaders(cluster, heavy, groups[busier][1])
    step = await judged(cluster, plan)

    assert states(shown(cluster, plan)) == ["done"]
    assert step.measured_after > 1.3 * step.measured_before
    assert step.note.startswith(
        f"not judged: raft group {heavy} came to {busier} meanwhile" if receives else "busiest"
    )
    assert cluster.raft_group_of(light) == groups[second][0]


async def test_nothing_is_undone_while_a_node_is_down(loaded: Loaded) -> None:
    """Others bear what it bore: nobody can tell whether the step made it worse, then or later."""
    loaded.queue_bytes_per_s = [6 * MIB] * 12
    await loaded.run(5_000)
    step = to_another_node(loaded, 0)
    source, target = loaded.node_of(0), loaded.leader_of(loaded.row(step.move_queue.to_raft_group))
    plan = await settling(loaded, step, to_another_node(loaded, 1))
    bystander = next(node for node in loaded.alive if node not in (source, target))
    loaded.alive.remove(bystander)
    await loaded.run(15_000)
    assert states(shown(loaded, plan)) == ["settling", "pending"]
    loaded.alive.add(bystander)
    ended = await judged(loaded, plan)

    assert states(shown(loaded, plan))[0] == "done"
    assert ended.note.startswith(f"not judged: storage node {bystander} was down meanwhile")
    assert loaded.raft_group_of(0) == step.move_queue.to_raft_group
    assert shown(loaded, plan).state == meta_pb2.PLAN_STATE_RUNNING


async def test_a_plan_stops_when_a_node_goes_down_that_got_load(loaded: Loaded) -> None:
    """The step may be why: it is not undone blindly, and no further one is taken."""
    loaded.queue_bytes_per_s = [6 * MIB] * 12
    await loaded.run(5_000)
    step = to_another_node(loaded, 0)
    target = loaded.leader_of(loaded.row(step.move_queue.to_raft_group))
    plan = await settling(loaded, step, to_another_node(loaded, 1))
    loaded.alive.remove(target)
    await loaded.run(3_000)
    number = step.move_queue.to_raft_group
    await loaded.nameserver.metadata.prefer_leader(number, loaded.leader_of(loaded.row(number)))
    loaded.alive.add(target)
    await judged(loaded, plan)

    ended = shown(loaded, plan)
    assert ended.state == meta_pb2.PLAN_STATE_STOPPED
    assert ended.reason == (
        f"storage node {target} was down meanwhile, and the step before had given it load"
    )
    assert states(ended) == ["done", "pending"]


async def test_a_plan_ends_when_a_node_stays_down(loaded: Loaded) -> None:
    """After the time for which a step waits to begin, with the node's name; nothing is undone."""
    plan = await settling(loaded, to_another_node(loaded, 0), to_another_node(loaded, 1))
    loaded.alive.remove("c")
    await loaded.run(32_000)

    ended = shown(loaded, plan)
    assert ended.reason == "no step can be judged: storage node c is not up"
    assert states(ended) == ["done", "pending"]
    assert ended.steps[0].note == "not judged: storage node c is not up"


async def test_a_new_metadata_leader_judges_no_step_of_before(loaded: Loaded) -> None:
    """Loads are soft state: at its first look it may have heard of one node only."""
    loaded.queue_bytes_per_s = [6 * MIB] * 12
    await loaded.run(5_000)
    step = to_another_node(loaded, 0)
    plan = await settling(loaded, step)
    loaded.nameserver.clock.advance(11.0)
    successor = loaded.nameserver.restarted()
    successor.machine.on_leader(2)
    loaded.nameserver = successor
    await loaded.run(2_000)

    ended = shown(loaded, plan)
    assert ended.state == meta_pb2.PLAN_STATE_DONE
    assert ended.steps[0].note.startswith("not judged: another nameserver led when it began")
    assert loaded.raft_group_of(0) == step.move_queue.to_raft_group


async def test_what_changes_while_a_copy_runs_is_not_the_steps_fault(loaded: Loaded) -> None:
    """A copy may take hours and has its effect at its end: it is held against the last look."""
    number = await with_spare_node(loaded)
    leader = loaded.leader_of(loaded.row(number))
    source = next(node for node in NODES if node != leader)
    loaded.queue_bytes_per_s = [6 * MIB] * 12
    await loaded.run(5_000)
    loaded.changes_members = False
    plan = await propose(loaded, moved_replica(number, source, "d", 64 * MIB))
    await apply(loaded, plan)
    await loaded.run(3_000)
    busier = next(q for q in range(12) if loaded.raft_group_of(q) == number)
    loaded.queue_bytes_per_s[busier] = 60 * MIB
    await loaded.run(10_000)
    assert states(shown(loaded, plan)) == ["running"]
    loaded.changes_members = True
    await loaded.run(15_000)

    [step] = shown(loaded, plan).steps
    assert states(shown(loaded, plan)) == ["done"]
    assert step.measured_before == pytest.approx(step.measured_after, rel=0.05)
    assert step.measured_before > 2.0
    assert hosts(loaded, number) == sorted({*NODES, "d"} - {source})
