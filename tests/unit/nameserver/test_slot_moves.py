"""Moves of slots: wished for, revoked, granted; the rows follow what is reported."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_mq.slots import slot_of
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.state.topology import Topology
from tests.unit.nameserver.storage_nodes import CONFIG, NODES, Storage, storage

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver


@pytest.fixture
async def three(make_nameserver: MakeNameserver) -> Storage:
    """Three storage nodes that lead three raft groups, which own every third slot each."""
    return await made(make_nameserver, CONFIG)


async def made(make_nameserver: MakeNameserver, config: NameserverConfig) -> Storage:
    nameserver = make_nameserver(config)
    nameserver.machine.on_leader(1)
    for node_id in NODES:
        await nameserver.metadata.register_node(storage(node_id))
    nodes = Storage(nameserver, NODES)
    nodes.beat()
    return nodes


def topology_of(nameserver: Nameserver) -> Topology:
    return nameserver.machine.speculative.topology


def owners(nodes: Storage, *slots: int) -> list[int]:
    return [topology_of(nodes.nameserver).slot_owners[slot] for slot in slots]


async def move(nodes: Storage, first: int, count: int, to: int) -> tuple[list[list[int]], int]:
    """Ask for a move; return the slots of each one under way to the target, and what is left."""
    moving = await nodes.nameserver.metadata.move_slots(
        meta_pb2.MoveSlotsRequest(first_slot=first, slot_count=count, to_raft_group=to)
    )
    return [list(each.slots) for each in moving.moves], moving.left


async def revoke(
    nodes: Storage, source: int, slots: list[int], *kept: tuple[int, int], began: int = 0
) -> None:
    """Report that slots are revoked, and (topic id, queue) that stay."""
    move = topology_of(nodes.nameserver).slot_moves.get(source)
    await nodes.nameserver.metadata.slots_revoked(
        meta_pb2.ReportSlotsRevokedRequest(
            from_raft_group=source,
            began_at_revision=began or (move.began_at_revision if move else 0),
            slots=slots,
            kept=[meta_pb2.QueueRef(topic_id=topic_id, queue=queue) for topic_id, queue in kept],
        )
    )


async def grant(nodes: Storage, source: int, slots: list[int]) -> None:
    """Report that slots are granted."""
    move = topology_of(nodes.nameserver).slot_moves[source]
    await nodes.nameserver.metadata.slots_granted(
        meta_pb2.ReportSlotsGrantedRequest(
            from_raft_group=source, began_at_revision=move.began_at_revision, slots=slots
        )
    )


async def test_slots_change_hands_when_they_are_revoked(three: Storage) -> None:
    """A wish changes no owner; a report does; the row goes when all have arrived."""
    moves = topology_of(three.nameserver).slot_moves
    assert await move(three, 0, 4, 3) == ([[0, 3], [1]], 3)
    assert owners(three, 0, 1, 2, 3) == [1, 2, 3, 1]
    await revoke(three, 1, [0])
    assert owners(three, 0, 1, 2, 3) == [3, 2, 3, 1]
    assert (list(moves[1].slots), list(moves[1].revoked_slots)) == ([3], [0])
    await revoke(three, 1, [3])
    await grant(three, 1, [0])
    assert (list(moves[1].slots), list(moves[1].revoked_slots)) == ([], [3])
    await grant(three, 1, [3])
    assert list(moves) == [2]
    await revoke(three, 2, [1])
    await grant(three, 2, [1])
    assert not moves
    assert await move(three, 0, 4, 3) == ([], 0)


async def test_rows_say_what_memory_says(three: Storage) -> None:
    """After runs were split and joined, whoever reads the rows anew sees the same owners."""
    await move(three, 0, 9, 2)
    await revoke(three, 1, [0, 3, 6])
    await revoke(three, 3, [2, 5, 8])
    live = topology_of(three.nameserver)
    again = topology_of(three.nameserver.restarted())
    assert owners(three, *range(9)) == [2] * 9
    assert list(again.slot_owners) == list(live.slot_owners)
    assert list(again.slots_since) == list(live.slots_since)
    assert again.slot_moves == live.slot_moves
    _, rows = await three.nameserver.metadata.snapshot()
    runs = [(r.slots.first_slot, r.slots.slot_count) for r in rows if r.HasField("slots")]
    assert sum(count for _, count in runs) == 4_096
    # Slot 10 was the second raft group's before: it joined the run.
    assert sorted(runs)[:3] == [(0, 9), (9, 1), (10, 1)]


async def test_reports_may_be_repeated_and_late(three: Storage) -> None:
    """A repeat changes nothing; one of an earlier move of the same slots is refused."""
    await move(three, 0, 1, 2)
    began = topology_of(three.nameserver).slot_moves[1].began_at_revision
    await revoke(three, 1, [])
    assert owners(three, 0) == [1]
    await revoke(three, 1, [0])
    revision = three.nameserver.machine.revision
    await revoke(three, 1, [0])
    assert three.nameserver.machine.revision == revision
    await grant(three, 1, [0])
    with pytest.raises(MetaRefused, match="gives up no slots"):
        await revoke(three, 1, [0], began=began)
    await move(three, 0, 1, 1)
    await revoke(three, 2, [0])
    await grant(three, 2, [0])
    await move(three, 0, 1, 3)
    with pytest.raises(MetaRefused, match="gives up no slots"):
        await revoke(three, 1, [0], began=began)
    assert owners(three, 0) == [1]


async def test_queues_with_state_stay(three: Storage) -> None:
    """Each gets an epoch 0 where it is, unless it has moved before or its topic is gone."""
    metadata = three.nameserver.metadata
    topic = await metadata.create_topic(meta_pb2.Topic(name="t", queue_count=8))
    gone = await metadata.create_topic(meta_pb2.Topic(name="gone", queue_count=8))
    slot = slot_of(topic.slot_base, 0)
    source = owners(three, slot)[0]
    target = source % 3 + 1
    await metadata.move_queue(meta_pb2.MoveQueueRequest(topic="t", queue=3, to_raft_group=target))
    await metadata.delete_topic("", "gone")
    await move(three, slot, 1, target)
    kept = [(topic.topic_id, 0), (topic.topic_id, 3), (gone.topic_id, 1)]
    for _ in range(2):
        await revoke(three, source, [slot], *kept)
    _, rows = await metadata.snapshot()
    overrides = {
        r.queue_override.queue: r.queue_override for r in rows if r.HasField("queue_override")
    }

    assert sorted(overrides) == [0, 3]
    assert list(overrides[0].epochs) == [meta_pb2.Epoch(raft_group=source)]
    assert overrides[3].moving_to == target
    assert three.nameserver.machine.speculative.counters.queue_override_count == 2
    lines = await metadata.explain_queue("", "t", 0)
    assert f"it stayed behind when its slot left raft group {source}" in lines
    assert f"epoch 0 from offset 0 is in raft group {source}" in lines


async def test_a_move_that_cannot_be_is_refused(make_nameserver: MakeNameserver) -> None:
    """Unknown slots and raft groups; one that nobody leads; no room for queues that stay."""
    nodes = await made(make_nameserver, CONFIG.model_copy(update={"max_queue_overrides": 1}))
    for first, count in ((4_096, 1), (4_000, 97), (7, 0)):
        with pytest.raises(MetaRefused, match="are not a range within"):
            await move(nodes, first, count, 1)
    with pytest.raises(MetaRefused, match="raft group 9 does not exist"):
        await move(nodes, 0, 1, 9)
    topic = await nodes.nameserver.metadata.create_topic(meta_pb2.Topic(name="t", queue_count=1))
    source = owners(nodes, topic.slot_base)[0]
    await nodes.nameserver.metadata.move_queue(
        meta_pb2.MoveQueueRequest(topic="t", queue=0, to_raft_group=source % 3 + 1)
    )
    with pytest.raises(MetaRefused, match="max_queue_overrides"):
        await move(nodes, 0, 3, 1)
    nodes.nameserver.machine.on_follower(2, 9)
    nodes.nameserver.machine.on_leader(3)
    await nodes.nameserver.metadata.controller.step(0.0)
    with pytest.raises(MetaRefused, match="raft group 1 has no leader"):
        await move(nodes, 0, 3, 1)


async def test_moves_are_limited(make_nameserver: MakeNameserver) -> None:
    """Slots that find no room are left; a raft group gives up slots in one move at a time."""
    nodes = await made(make_nameserver, CONFIG.model_copy(update={"max_slot_moves_in_flight": 1}))
    assert await move(nodes, 0, 3, 3) == ([[0]], 2)
    assert await move(nodes, 0, 3, 3) == ([[0]], 2)
    await revoke(nodes, 1, [0])
    assert await move(nodes, 0, 3, 3) == ([[]], 2)
    await grant(nodes, 1, [0])
    assert await move(nodes, 0, 3, 3) == ([[1]], 1)
    assert await move(nodes, 1, 2, 1) == ([], 2)


async def test_moves_that_wait_for_a_leader_leave_room(make_nameserver: MakeNameserver) -> None:
    """The raft group that takes the slots lost its majority: an operator may move other slots."""
    nodes = await made(make_nameserver, CONFIG.model_copy(update={"max_slot_moves_in_flight": 1}))
    assert await move(nodes, 0, 1, 3) == ([[0]], 1)
    nodes.nameserver.metadata.reports.forget(nodes.nameserver.metadata.reports.leader_of(3))
    assert await move(nodes, 1, 1, 1) == ([[1]], 1)
    assert await move(nodes, 4, 1, 1) == ([[1]], 1), "one that goes on takes its place"


async def test_a_node_that_joins_gets_its_share_of_slots(three: Storage) -> None:
    """Its raft group is filled in small steps; moves that stopped half-way are not chosen anew."""
    three.alive.add("d")
    await three.nameserver.metadata.register_node(storage("d"))
    topology = topology_of(three.nameserver)
    await three.run(3_000)
    assert len(topology.slot_moves) == CONFIG.max_slot_moves_in_flight
    assert all(move.to_raft_group == 4 for move in topology.slot_moves.values())
    before = {number: list(each.slots) for number, each in topology.slot_moves.items()}
    await three.run(3_000)
    assert {number: list(each.slots) for number, each in topology.slot_moves.items()} == before

    for _ in range(100):
        for source, each in list(topology.slot_moves.items()):
            await revoke(three, source, list(each.slots))
            await grant(three, source, list(topology.slot_moves[source].revoked_slots))
        await three.run(1_000)
        if not topology.slot_moves:
            break
    assert sorted(Counter(topology.slot_owners).values()) == [1_024] * 4


async def test_slots_stay_when_a_node_is_drained(three: Storage) -> None:
    """Raft groups move as a whole; what they own does not change."""
    three.alive.add("d")
    await three.nameserver.metadata.register_node(storage("d"))
    await three.nameserver.metadata.drain_node("d", draining=True)
    await three.run(3_000)
    before = list(topology_of(three.nameserver).slot_owners)
    await three.nameserver.metadata.drain_node("d", draining=False)
    await three.nameserver.metadata.drain_node("a", draining=True)
    await three.run(10_000)
    rows = three.rows().values()

    assert len(rows) == 3
    assert all("a" not in [replica.node_id for replica in row.replicas] for row in rows)
    assert list(topology_of(three.nameserver).slot_owners) == before
    assert not topology_of(three.nameserver).slot_moves
