"""Steps of plans whose premise no longer holds, that others overtake, and that take their time."""

from __future__ import annotations

import pytest

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_nameserver.drafts.raft_groups import carry_out
from strata_nameserver.policies.replicas import ChangeReplica
from tests.unit.nameserver.loaded_storage import (
    MIB,
    Loaded,
    apply,
    hosts,
    moved_replica,
    propose,
    queue_step,
    shown,
    states,
    with_spare_node,
)
from tests.unit.nameserver.storage_nodes import NODES


def raft_groups(cluster: Loaded) -> list[int]:
    """Return three raft groups, that of queue 0 first."""
    first = cluster.raft_group_of(0)
    return [first, *sorted(cluster.rows().keys() - {first})]


def moved_leader(raft_group: int, from_node: str, to_node: str) -> meta_pb2.PlacementStep:
    step = meta_pb2.TransferLeaderStep(
        raft_group=raft_group, from_node_id=from_node, to_node_id=to_node
    )
    return meta_pb2.PlacementStep(transfer_leader=step)


def removed_reader(raft_group: int, from_node: str) -> meta_pb2.PlacementStep:
    step = meta_pb2.RemoveReadReplicaStep(raft_group=raft_group, from_node_id=from_node)
    return meta_pb2.PlacementStep(remove_read_replica=step)


async def test_a_queue_that_has_moved_since_stays_where_it_is(loaded: Loaded) -> None:
    """An operator was faster than the plan: the step is left out, and says where the queue is."""
    home, planned, chosen = raft_groups(loaded)
    plan = await propose(loaded, queue_step(loaded, 0, planned), queue_step(loaded, 1, chosen))
    wish = meta_pb2.MoveQueueRequest(topic="t", queue=0, to_raft_group=chosen)
    await loaded.nameserver.metadata.move_queue(wish)
    await loaded.run(2_000)
    await apply(loaded, plan)
    await loaded.run(15_000)

    ended = shown(loaded, plan)
    assert states(ended)[0] == "skipped"
    assert ended.steps[0].note == (
        f"made for another place: queue 0 of topic t is in raft group {chosen}, not {home}"
    )
    assert loaded.raft_group_of(0) == chosen
    assert ended.state == meta_pb2.PLAN_STATE_DONE


async def test_a_leader_that_is_another_by_now_stays(loaded: Loaded) -> None:
    """The step would take the raft group off a node that the plan knew nothing of."""
    leader = loaded.leader_of(loaded.row(1))
    second, third = [node for node in NODES if node != leader]
    plan = await propose(loaded, moved_leader(1, second, third))
    await apply(loaded, plan)
    await loaded.run(2_000)

    assert states(shown(loaded, plan)) == ["skipped"]
    assert shown(loaded, plan).steps[0].note == (
        f"made for another place: raft group 1 is led by {leader}, not {second}"
    )
    assert loaded.leader_of(loaded.row(1)) == leader


async def test_a_step_for_a_read_replica_takes_no_voter(loaded: Loaded) -> None:
    """Nor does one for a voter take a read replica: their numbers never change by mistake."""
    number = await with_spare_node(loaded)
    voter = hosts(loaded, number)[0]
    reader = meta_pb2.ChangeReplicasRequest(raft_group=number, add_node_ids=["d"], learners=True)
    await loaded.nameserver.metadata.change_replicas(reader)
    await loaded.run(2_000)
    plan = await propose(loaded, removed_reader(number, voter), moved_replica(number, "d", voter))
    await apply(loaded, plan)
    await loaded.run(2_000)

    ended = shown(loaded, plan)
    assert states(ended) == ["skipped", "skipped"]
    assert [step.note for step in ended.steps] == [
        f"made for another place: node {voter} has no read replica of raft group {number}",
        f"made for another place: node d has no voter of raft group {number}",
    ]
    assert hosts(loaded, number) == list(NODES)
    assert hosts(loaded, number, learners=True) == ["d"]


@pytest.mark.parametrize("comes_again", [False, True])
async def test_a_topic_that_is_deleted_under_a_step_ends_the_step_only(
    loaded: Loaded, comes_again: bool
) -> None:
    """Also when one of the same name is there at once: the step is left out, the next one taken."""
    metadata = loaded.nameserver.metadata
    other = await metadata.create_topic(meta_pb2.Topic(name="other", queue_count=1))
    home = loaded.nameserver.machine.speculative.topology.slot_owners[other.slot_base]
    elsewhere = next(number for number in loaded.rows() if number != home)
    doomed = meta_pb2.MoveQueueStep(
        topic="other", queue=0, from_raft_group=home, to_raft_group=elsewhere
    )
    loaded.moves_queues = False
    plan = await propose(
        loaded,
        meta_pb2.PlacementStep(move_queue=doomed),
        queue_step(loaded, 1, loaded.raft_group_of(0)),
    )
    await apply(loaded, plan)
    await loaded.run(2_000)
    assert states(shown(loaded, plan)) == ["running", "pending"]
    await metadata.delete_topic("", "other")
    if comes_again:
        await metadata.create_topic(meta_pb2.Topic(name="other", queue_count=1))
    loaded.moves_queues = True
    await loaded.run(10_000)

    ended = shown(loaded, plan)
    assert states(ended) == ["skipped", "done"]
    assert ended.steps[0].note == "queue 0 of topic other was deleted"
    assert ended.state == meta_pb2.PLAN_STATE_DONE


async def test_a_topic_that_is_deleted_while_a_step_settles_ends_the_step_only(
    loaded: Loaded,
) -> None:
    """There is nothing to judge any more, and nothing that could be undone."""
    home, other, _ = raft_groups(loaded)
    plan = await propose(loaded, queue_step(loaded, 0, other))
    await apply(loaded, plan)
    await loaded.run(2_000)
    assert states(shown(loaded, plan)) == ["settling"]
    await loaded.nameserver.metadata.delete_topic("", "t")
    await loaded.nameserver.metadata.placement.step()
    await loaded.nameserver.metadata.placement.step()

    ended = shown(loaded, plan)
    assert ended.state == meta_pb2.PLAN_STATE_DONE
    assert ended.steps[0].note == "not judged: queue 0 of topic t was deleted"
    assert home != other


async def test_another_wish_for_a_leader_overtakes_a_step(loaded: Loaded) -> None:
    """Nobody waits for a leader whom nobody wants any more, and the plan goes on."""
    leader = loaded.leader_of(loaded.row(1))
    second, third = [node for node in NODES if node != leader]
    loaded.changes_leaders = False
    plan = await propose(loaded, moved_leader(1, leader, second))
    await apply(loaded, plan)
    await loaded.nameserver.metadata.placement.step()
    assert states(shown(loaded, plan)) == ["running"]
    await loaded.nameserver.metadata.prefer_leader(1, third)
    await loaded.nameserver.metadata.placement.step()

    assert states(shown(loaded, plan)) == ["skipped"]
    assert shown(loaded, plan).steps[0].note == f"{third} should lead raft group 1 by now"


async def test_a_replica_that_others_moved_on_overtakes_a_step(loaded: Loaded) -> None:
    """The rules take it off the new host before it had everything: nobody waits for it."""
    number = await with_spare_node(loaded)
    leader = loaded.leader_of(loaded.row(number))
    source = next(node for node in NODES if node != leader)
    plan = await propose(loaded, moved_replica(number, source, "d"))
    loaded.changes_members = False
    await apply(loaded, plan)
    await loaded.run(1_000)
    assert states(shown(loaded, plan)) == ["running"]
    lost = next(r.replica_id for r in loaded.row(number).replicas if r.node_id == "d")
    instead = ChangeReplica(number, lost, "", "its node is gone")
    await loaded.nameserver.metadata.change(lambda draft: carry_out(draft, [instead], []))
    await loaded.nameserver.metadata.placement.step()

    assert states(shown(loaded, plan)) == ["skipped"]
    note = shown(loaded, plan).steps[0].note
    assert note == f"node d has no such replica of raft group {number} by now"


async def test_an_old_plan_is_not_applied(loaded: Loaded) -> None:
    """A day after it was proposed the loads are others; it says how old it is."""
    plan = await propose(loaded, queue_step(loaded, 0, raft_groups(loaded)[1]))
    loaded.nameserver.clock.advance(24 * 3_600 - 60)
    await apply(loaded, plan)
    await loaded.nameserver.metadata.placement.apply(plan.plan_id, stop=True)
    late = await propose(loaded, queue_step(loaded, 0, raft_groups(loaded)[1]))
    loaded.nameserver.clock.advance(30 * 24 * 3_600)

    with pytest.raises(MetaRefused, match=r"720.0 h old.* within 24.0 h .*max_plan_age_ms"):
        await apply(loaded, late)
    assert shown(loaded, late).state == meta_pb2.PLAN_STATE_PROPOSED


@pytest.mark.parametrize(("cost_bytes", "disk_bytes"), [(160 * MIB, 0), (0, 160 * MIB)])
async def test_a_copy_has_the_time_that_its_size_demands(
    loaded: Loaded, cost_bytes: int, disk_bytes: int
) -> None:
    """At 4 MiB/s 160 MiB take 40 s beside the 20 s of any step; of unknown size is a whole disk."""
    number = await with_spare_node(loaded)
    source = next(node for node in NODES if node != loaded.leader_of(loaded.row(number)))
    loaded.disk_used_bytes = disk_bytes
    loaded.changes_members = False
    plan = await propose(loaded, moved_replica(number, source, "d", cost_bytes))
    await apply(loaded, plan)
    await loaded.run(55_000)
    assert states(shown(loaded, plan)) == ["running"]
    await loaded.run(10_000)

    ended = shown(loaded, plan)
    assert states(ended) == ["failed"]
    assert ended.steps[0].note == "not done after 60 s"
    assert ended.reason == "a step took too long"


async def test_a_copy_that_is_done_in_time_is_done(loaded: Loaded) -> None:
    """Longer than a step that copies nothing may take, and no time is lost at its end."""
    number = await with_spare_node(loaded)
    source = next(node for node in NODES if node != loaded.leader_of(loaded.row(number)))
    loaded.changes_members = False
    plan = await propose(loaded, moved_replica(number, source, "d", 160 * MIB))
    await apply(loaded, plan)
    await loaded.run(40_000)
    loaded.changes_members = True
    await loaded.run(1_500)
    assert states(shown(loaded, plan)) == ["settling"]

    assert "d" in hosts(loaded, number)
    assert source not in hosts(loaded, number)
