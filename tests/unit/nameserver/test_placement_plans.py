"""Plans in the nameserver: kept, carried out step by step, measured, taken back when it gets worse.

The storage nodes of these tests bear what their queues bring: moving a queue moves its load.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from strata.meta.v1 import command_pb2, meta_pb2
from strata_metadata.errors import MetaRefused
from strata_state.metadata_keys import MetadataRowKind, kind_range
from tests.unit.nameserver.loaded_storage import (
    MIB,
    Loaded,
    apply,
    propose,
    queue_step,
    shown,
    states,
)
from tests.unit.nameserver.storage_nodes import NODES, storage

HOUR_MS = 3_600_000


async def test_a_proposed_plan_moves_nothing(loaded: Loaded) -> None:
    """Dry run is the default: it is kept, with an id, and no queue has a row."""
    plan = await propose(loaded, queue_step(loaded, 0, loaded.raft_group_of(1)))
    await loaded.run(5_000)

    assert shown(loaded, plan).state == meta_pb2.PLAN_STATE_PROPOSED
    assert loaded.override(0) is None


async def test_two_plans_do_not_run_at_once(loaded: Loaded) -> None:
    """The second is refused, though the first one is not committed when it is decided (rule 1)."""
    plans = [
        await propose(loaded, queue_step(loaded, queue, loaded.raft_group_of(1)))
        for queue in (0, 2)
    ]
    nameserver = loaded.nameserver
    nameserver.replica.commit_at_once = False
    calls = [asyncio.ensure_future(apply(loaded, plan)) for plan in plans]
    await asyncio.sleep(0)
    nameserver.replica.commit()
    first, second = await asyncio.gather(*calls, return_exceptions=True)

    assert first is None
    assert isinstance(second, MetaRefused)
    assert f"plan {plans[0].plan_id} is running" in second.reason
    running = meta_pb2.PLAN_STATE_RUNNING
    assert [shown(loaded, plan).state == running for plan in plans] == [True, False]


async def test_plans_in_flight_make_room_for_each_other(loaded: Loaded) -> None:
    """The newest `max_plans` of six plans at once are kept, one deletion for each."""
    nameserver = loaded.nameserver
    nameserver.replica.commit_at_once = False
    entries = len(nameserver.replica.entries)
    step = queue_step(loaded, 0, loaded.raft_group_of(1))
    calls = [asyncio.ensure_future(propose(loaded, step)) for _ in range(6)]
    await asyncio.sleep(0)
    nameserver.replica.commit()
    proposed = [plan.plan_id for plan in await asyncio.gather(*calls)]

    kept = [plan.plan_id for plan in nameserver.metadata.placement.plans()]
    assert kept == proposed[:-4:-1]
    commands = [
        command_pb2.Command.FromString(b"".join(entry.payload))
        for entry in nameserver.replica.entries[entries:]
    ]
    deleted = [
        change.placement_plan.plan_id
        for command in commands
        for change in command.changes
        if change.deleted
    ]
    assert deleted == proposed[:3]


async def test_a_step_leaves_a_node_alone_that_drains_by_now(loaded: Loaded) -> None:
    """The plan is older than the wish to drain: no replica is copied there and away again."""
    await loaded.nameserver.metadata.register_node(storage("late"))
    move = meta_pb2.MoveReplicaStep(raft_group=1, from_node_id=NODES[0], to_node_id="late")
    plan = await propose(loaded, meta_pb2.PlacementStep(move_replica=move, reason="test"))
    await loaded.nameserver.metadata.drain_node("late", draining=True)
    await apply(loaded, plan)
    await loaded.nameserver.metadata.placement.step()

    [step] = shown(loaded, plan).steps
    assert states(shown(loaded, plan)) == ["skipped"]
    assert "node late is draining" in step.note


async def test_steps_are_taken_one_after_another(loaded: Loaded) -> None:
    """The second begins only when the first is done and measured; the plan ends as DONE."""
    loaded.queue_bytes_per_s = [4 * MIB] * 12
    hot = loaded.node_of(0)
    loaded.queue_bytes_per_s = [
        (8 if loaded.node_of(queue) == hot else 2) * MIB for queue in range(12)
    ]
    calm = next(loaded.raft_group_of(q) for q in range(12) if loaded.node_of(q) != hot)
    on_hot = [queue for queue in range(12) if loaded.node_of(queue) == hot]
    await loaded.run(5_000)
    plan = await propose(loaded, *(queue_step(loaded, queue, calm) for queue in on_hot[:2]))
    await apply(loaded, plan)
    await loaded.run(3_000)

    assert states(shown(loaded, plan)) == ["settling", "pending"]
    await loaded.run(20_000)
    ended = shown(loaded, plan)
    assert ended.state == meta_pb2.PLAN_STATE_DONE
    assert states(ended) == ["done", "done"]
    assert [loaded.raft_group_of(queue) for queue in on_hot[:2]] == [calm, calm]
    assert ended.steps[0].measured_after < ended.steps[0].measured_before


async def test_what_makes_it_worse_is_undone(loaded: Loaded) -> None:
    """A queue that went to the busiest node comes back to where it was, and the plan is stopped."""
    hot = loaded.node_of(0)
    moved = next(queue for queue in range(12) if loaded.node_of(queue) != hot)
    home = loaded.raft_group_of(moved)
    loaded.queue_bytes_per_s = [8 * MIB if q in (0, moved) else MIB for q in range(12)]
    await loaded.run(5_000)
    plan = await propose(
        loaded,
        queue_step(loaded, moved, loaded.raft_group_of(0)),
        queue_step(loaded, 0, home),
    )
    await apply(loaded, plan)
    await loaded.run(14_000)
    assert states(shown(loaded, plan)) == ["settling", "pending"], "its first epoch still drains"
    await loaded.nameserver.metadata.queue_drained(
        meta_pb2.ReportQueueDrainedRequest(topic_id=loaded.topic.topic_id, queue=moved, epoch=0)
    )
    await loaded.run(5_000)

    ended = shown(loaded, plan)
    assert ended.state == meta_pb2.PLAN_STATE_STOPPED
    assert "made it worse and was undone" in ended.reason
    assert states(ended) == ["reverted", "pending"]
    assert loaded.raft_group_of(moved) == home


async def test_a_moment_of_other_load_is_not_the_steps_fault(loaded: Loaded) -> None:
    """A burst elsewhere when a step is measured first is gone at the next look: it stays."""
    hot = loaded.node_of(0)
    heavy = [queue for queue in range(12) if loaded.node_of(queue) == hot][:2]
    loaded.queue_bytes_per_s = [12 * MIB if q in heavy else 4 * MIB for q in range(12)]
    await loaded.run(5_000)
    calm = next(queue for queue in range(12) if loaded.node_of(queue) != loaded.node_of(0))
    plan = await propose(loaded, queue_step(loaded, 0, loaded.raft_group_of(calm)))
    await apply(loaded, plan)
    while states(shown(loaded, plan)) != ["settling"]:
        await loaded.run(500)
    await loaded.run(3_000)
    loaded.queue_bytes_per_s[calm] = 40 * MIB
    await loaded.run(4_000)
    assert states(shown(loaded, plan)) == ["settling"], "it looks worse now"
    loaded.queue_bytes_per_s[calm] = 4 * MIB
    await loaded.run(4_500)
    assert states(shown(loaded, plan)) == ["done"]


async def test_a_step_that_takes_too_long_ends_the_plan(loaded: Loaded) -> None:
    """Nobody carries the move out: after the time limit the plan is stopped and says so."""
    loaded.moves_queues = False
    plan = await propose(loaded, queue_step(loaded, 0, loaded.raft_group_of(1)))
    await apply(loaded, plan)
    await loaded.run(25_000)

    ended = shown(loaded, plan)
    assert ended.state == meta_pb2.PLAN_STATE_STOPPED
    assert states(ended) == ["failed"]
    assert ended.steps[0].note == "not done after 20 s"


async def test_a_refused_step_is_left_out(loaded: Loaded) -> None:
    """A raft group that does not exist is the step's problem, not the plan's."""
    good = queue_step(loaded, 0, loaded.raft_group_of(1))
    plan = await propose(loaded, queue_step(loaded, 0, 99), good)
    await apply(loaded, plan)
    await loaded.run(12_000)

    ended = shown(loaded, plan)
    assert states(ended) == ["skipped", "done"]
    assert ended.steps[0].note == "raft group 99 does not exist"
    assert ended.steps[1].note == "there was no load to measure"


async def test_no_step_begins_while_a_node_is_down(loaded: Loaded) -> None:
    """It waits, and after the time limit the plan is stopped with the node's name."""
    plan = await propose(loaded, queue_step(loaded, 0, loaded.raft_group_of(1)))
    loaded.alive.remove("c")
    await loaded.run(3_000)
    await apply(loaded, plan)
    await loaded.run(5_000)
    assert states(shown(loaded, plan)) == ["pending"]
    await loaded.run(20_000)

    ended = shown(loaded, plan)
    assert ended.reason == "no step can begin: storage node c is not up"
    assert loaded.override(0) is None


async def test_leaders_and_replicas_are_plan_steps(loaded: Loaded) -> None:
    """A leader goes by the preferred node, a read replica comes as a learner and goes again."""
    await loaded.nameserver.metadata.register_node(storage("d"))
    loaded.alive.add("d")
    await loaded.run(15_000)
    row = next(row for row in loaded.rows().values() if all(r.node_id != "d" for r in row.replicas))
    number, other = row.raft_group, loaded.leader_of(row)
    heir = next(replica.node_id for replica in row.replicas if replica.node_id != other)
    plan = await propose(
        loaded,
        meta_pb2.PlacementStep(
            transfer_leader=meta_pb2.TransferLeaderStep(
                raft_group=number, from_node_id=other, to_node_id=heir
            )
        ),
        meta_pb2.PlacementStep(
            add_read_replica=meta_pb2.AddReadReplicaStep(raft_group=number, to_node_id="d")
        ),
        meta_pb2.PlacementStep(
            remove_read_replica=meta_pb2.RemoveReadReplicaStep(raft_group=number, from_node_id="d")
        ),
        meta_pb2.PlacementStep(scale_brokers=meta_pb2.ScaleBrokersStep(from_count=1, to_count=2)),
    )
    await apply(loaded, plan)
    await loaded.run(40_000)

    ended = shown(loaded, plan)
    assert states(ended) == ["done", "done", "done", "skipped"]
    assert ended.state == meta_pb2.PLAN_STATE_DONE


async def test_a_new_leader_goes_on_with_the_plan(loaded: Loaded) -> None:
    """All that is known of a running plan stands in its row."""
    loaded.moves_queues = False
    plan = await propose(loaded, queue_step(loaded, 0, loaded.raft_group_of(1)))
    await apply(loaded, plan)
    await loaded.run(2_000)
    assert states(shown(loaded, plan)) == ["running"]
    successor = loaded.nameserver.restarted()
    successor.machine.on_leader(2)
    loaded.nameserver, loaded.moves_queues = successor, True
    await loaded.run(12_000)

    assert shown(loaded, plan).state == meta_pb2.PLAN_STATE_DONE


async def test_one_plan_runs_and_few_are_kept(loaded: Loaded) -> None:
    """A second one is refused while one runs; the oldest ended ones make room."""
    step = queue_step(loaded, 0, loaded.raft_group_of(1))
    plans = [await propose(loaded, step) for _ in range(3)]
    loaded.moves_queues = False
    await apply(loaded, plans[0])
    with pytest.raises(MetaRefused, match="is running"):
        await apply(loaded, plans[1])
    newest = [await propose(loaded, step) for _ in range(2)]
    kept = [plan.plan_id for plan in loaded.nameserver.metadata.placement.plans()]
    assert kept == [newest[1].plan_id, newest[0].plan_id, plans[2].plan_id, plans[0].plan_id]

    await loaded.nameserver.metadata.placement.apply(plans[0].plan_id, stop=True)
    assert shown(loaded, plans[0]).reason == "stopped by an operator"
    with pytest.raises(MetaRefused, match="has run"):
        await apply(loaded, plans[0])
    with pytest.raises(MetaRefused, match="max_plan_steps"):
        await propose(loaded, *[step] * 5)


async def test_new_queues_avoid_the_busiest_third(loaded: Loaded) -> None:
    """Not one queue of a new topic ends up on the node with the highest load."""
    hot = loaded.node_of(0)
    loaded.queue_bytes_per_s = [16 * MIB if q == 0 else MIB for q in range(12)]
    await loaded.run(5_000)
    metadata = loaded.nameserver.metadata
    topic = await metadata.create_topic(meta_pb2.Topic(name="new", queue_count=9))
    newcomer = Loaded(loaded.nameserver, topic)
    await newcomer.run(1_000)

    assert hot not in {newcomer.node_of(queue) for queue in range(9)}
    lines = await metadata.explain_queue("", "new", 0)
    assert lines[-1] == f"new queues avoid {hot}; measured loads count: there is no model"


async def test_idle_nodes_are_not_avoided(loaded: Loaded) -> None:
    """Below the floor nobody is busy: a new topic's queues stay at their slots."""
    await loaded.nameserver.metadata.create_topic(meta_pb2.Topic(name="new", queue_count=9))
    assert loaded.nameserver.machine.rows(*kind_range(MetadataRowKind.QUEUE_OVERRIDE)) == []


def table(**loads: float) -> str:
    """Return a model in which raft group N bears `gN` bytes per second all day."""
    raft_groups = {name.removeprefix("g"): [load] * 24 for name, load in loads.items()}
    return json.dumps({"format": 1, "slot_ms": HOUR_MS, "raft_groups": raft_groups})


@pytest.mark.parametrize(
    ("model_table", "age_ms", "rule"),
    [
        (table(g1=2e6, g2=2e6, g3=9e6), 0, "model 7 counts where it expects more"),
        (table(g1=2e6, g2=2e6, g3=9e6), HOUR_MS, "model 7 is out of date since 1.0 h"),
        (table(g1=1e9), 0, "model 7 puts 67% of it elsewhere"),
    ],
)
async def test_a_model_counts_only_while_it_is_right(
    loaded: Loaded, model_table: str, age_ms: int, rule: str
) -> None:
    """Fresh and near the truth it is used; stale or wrong it is not, and the rule says why."""
    each = {loaded.raft_group_of(queue): queue for queue in range(12)}
    loaded.queue_bytes_per_s = [2 * MIB if queue in each.values() else 0 for queue in range(12)]
    await loaded.run(6_000)
    now_ms = loaded.nameserver.clock.wall_ms()
    placement = loaded.nameserver.metadata.placement
    await placement.set_model(
        meta_pb2.PlacementModel(version=7, valid_until_ms=now_ms - age_ms, table=model_table)
    )

    view = placement.show()
    assert rule in view.rule
    assert view.model.version == 7
    expects = [load.expected_bytes_per_s for load in view.loads]
    assert (max(expects) == 9e6) is (age_ms == 0 and "counts where" in rule)


async def test_a_damaged_or_older_model_is_refused(loaded: Loaded) -> None:
    """A model that cannot be read never comes into use, nor does an earlier version."""
    placement = loaded.nameserver.metadata.placement
    whole_day = '{"format": 1, "slot_ms": 86400000, "raft_groups": {"1": [%s]}}'
    days = [whole_day % load for load in ("NaN", "Infinity", "1e999", "1" + "0" * 400)]
    days += [whole_day % ("[" * 100_000), whole_day.replace("%s]", '1e308], "2": [1e308]')]
    days += [whole_day.replace("86400000", "1e999") % 1]
    cut = '{"format": 1, "slot_ms": 7, "raft_groups": {}}'
    for damaged in ("", "{}", '{"format": 2}', cut, *days):
        with pytest.raises(MetaRefused, match="model 1"):
            await placement.set_model(meta_pb2.PlacementModel(version=1, table=damaged))
    large = meta_pb2.PlacementModel(version=1, table="x" * (256 * 1024 + 1))
    with pytest.raises(MetaRefused, match="262145 bytes"):
        await placement.set_model(large)
    await placement.set_model(meta_pb2.PlacementModel(version=3, table=table(g1=1.0)))
    with pytest.raises(MetaRefused, match="2 is older"):
        await placement.set_model(meta_pb2.PlacementModel(version=2, table=table(g1=1.0)))
    assert "there is no model" not in placement.show().rule
