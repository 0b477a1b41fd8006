"""The cluster's half of `strata.admin.v1`: nodes, raft groups, replicas, leaders, queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base.config import BrokerConfig
from strata_edge.ports import CallError
from strata_testing import until
from strata_testing.broker import broker_under_test, network_of
from strata_testing.broker.fake_cluster import NODES, FakeCluster
from strata_testing.broker.fake_edge import ADMIN, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta


@pytest.fixture
def meta() -> FakeMeta:
    """The nameserver, with raft groups of three replicas."""
    fake = FakeMeta(NODES)
    fake.add_topic("orders")
    return fake


@pytest.fixture
async def cluster(meta: FakeMeta) -> FakeCluster:
    """The storage nodes; the first one leads everything."""
    return FakeCluster(meta.slots)


@pytest.fixture
async def edge(
    config: BrokerConfig, meta: FakeMeta, cluster: FakeCluster
) -> AsyncIterator[FakeEdge]:
    """The edge of a broker that has heard from every node."""
    network = network_of(meta, cluster.channel)
    async with broker_under_test(FakeEdge(), network, config=config) as broker:
        yield broker.edge


async def test_nodes_are_shown_with_their_states(edge: FakeEdge, meta: FakeMeta) -> None:
    """Every node of the metadata, whatever state it is in."""
    node = meta_pb2.Node(
        node_id="broker-z", kind=meta_pb2.NODE_KIND_BROKER, state=meta_pb2.NODE_STATE_DOWN
    )
    meta.put(meta_pb2.Change(node=node))
    await asyncio.sleep(0)
    response = await edge.call(
        ADMIN + "GetCluster", admin_pb2.GetClusterRequest(), admin_pb2.GetClusterResponse
    )
    states = {one.node_id: one.state for one in response.nodes}
    assert states["broker-z"] == meta_pb2.NODE_STATE_DOWN
    assert set(NODES) < set(states)
    assert response.version


async def test_a_raft_group_is_shown_with_its_replicas(
    edge: FakeEdge, cluster: FakeCluster
) -> None:
    """Roles come from the metadata, the rest from the nodes; a silent node is unreachable."""
    cluster.nodes["storage-c"].die()
    request = admin_pb2.GetRaftGroupRequest(raft_group=1)
    response = await edge.call(ADMIN + "GetRaftGroup", request, admin_pb2.GetRaftGroupResponse)
    assert [(one.node_id, one.role, one.leader, one.state) for one in response.replicas] == [
        ("storage-a", "voter", True, "serving"),
        ("storage-b", "voter", False, "serving"),
        ("storage-c", "voter", False, "unreachable"),
    ]
    assert response.health.leader_node_id == "storage-a"
    assert [one.match_index for one in response.replicas] == [20, 18, 0]
    with pytest.raises(CallError) as failure:
        request.raft_group = 99
        await edge.call(ADMIN + "GetRaftGroup", request, admin_pb2.GetRaftGroupResponse)
    assert failure.value.status == "NOT_FOUND"


async def test_a_raft_group_that_nobody_answers_for_is_leaderless(
    edge: FakeEdge, cluster: FakeCluster
) -> None:
    """It is shown, with a reason."""
    for node in cluster.nodes.values():
        node.die()
    response = await edge.call(
        ADMIN + "GetCluster", admin_pb2.GetClusterRequest(), admin_pb2.GetClusterResponse
    )
    assert [(row.state, bool(row.reason)) for row in response.raft_groups] == [
        ("LEADERLESS", True),
        ("LEADERLESS", True),
    ]


async def test_a_node_is_drained_and_removed(edge: FakeEdge, meta: FakeMeta) -> None:
    """The nameserver decides; this broker shows it when the call returns."""
    request = admin_pb2.DrainNodeRequest(node_id="storage-b", draining=True)
    drained = await edge.call(ADMIN + "DrainNode", request, admin_pb2.DrainNodeResponse)
    assert drained.node.draining
    await edge.call(
        ADMIN + "RemoveNode",
        admin_pb2.RemoveNodeRequest(node_id="storage-b"),
        admin_pb2.RemoveNodeResponse,
    )
    assert meta.calls.count("DrainNode") == meta.calls.count("RemoveNode") == 1


async def test_replicas_are_asked_for(edge: FakeEdge) -> None:
    """The answer is the raft group as it should be."""
    request = admin_pb2.ChangeReplicasRequest(
        raft_group=1, add_node_ids=["storage-d"], learners=True
    )
    response = await edge.call(ADMIN + "ChangeReplicas", request, admin_pb2.ChangeReplicasResponse)
    (added,) = [one for one in response.raft_group.replicas if one.node_id == "storage-d"]
    assert added.learner


async def test_leadership_is_handed_to_a_node(
    edge: FakeEdge, meta: FakeMeta, cluster: FakeCluster
) -> None:
    """The wish is kept in the metadata, the leader is told, and the answer says who leads."""

    def transfer(request: storage_pb2.TransferLeadershipRequest) -> None:
        assert request.target_replica_id == 11
        cluster.elect(1, "storage-b")

    cluster.state.on_transfer = transfer
    request = admin_pb2.TransferLeaderRequest(raft_group=1, to_node_id="storage-b")
    response = await edge.call(ADMIN + "TransferLeader", request, admin_pb2.TransferLeaderResponse)
    assert response.leader_node_id == "storage-b"
    assert "PreferLeader" in meta.calls
    again = await edge.call(ADMIN + "TransferLeader", request, admin_pb2.TransferLeaderResponse)
    assert again.leader_node_id == "storage-b"
    with pytest.raises(CallError) as failure:
        request.to_node_id = "storage-x"
        await edge.call(ADMIN + "TransferLeader", request, admin_pb2.TransferLeaderResponse)
    assert failure.value.status == "NOT_FOUND"
    with pytest.raises(CallError) as failure:
        request = admin_pb2.TransferLeaderRequest(raft_group=99)
        await edge.call(ADMIN + "TransferLeader", request, admin_pb2.TransferLeaderResponse)
    assert (failure.value.status, failure.value.reason) == ("NOT_FOUND", "no raft group 99")


async def test_a_queue_says_where_it_is_and_why(edge: FakeEdge, meta: FakeMeta) -> None:
    """Slot, raft group, leader, public name and epochs; reasons come from the nameserver."""
    request = admin_pb2.GetQueueRequest(topic="orders", queue=1)
    response = await edge.call(ADMIN + "GetQueue", request, admin_pb2.GetQueueResponse)
    assert response.slot_raft_group == response.raft_group == meta.slots[response.slot]
    assert response.leader_node_id == "storage-a"
    assert response.broker_name == f"strata-{response.raft_group}"
    assert [epoch.raft_group for epoch in response.epochs] == [response.raft_group]
    assert list(response.reasons) == ["queue 1 is new"]
    meta.down = True
    response = await edge.call(ADMIN + "GetQueue", request, admin_pb2.GetQueueResponse)
    assert "no nameserver gives a reason" in response.reasons[0]
    with pytest.raises(CallError) as failure:
        request.queue = 4
        await edge.call(ADMIN + "GetQueue", request, admin_pb2.GetQueueResponse)
    assert failure.value.status == "NOT_FOUND"


async def test_slots_are_shown_and_moved(edge: FakeEdge, meta: FakeMeta) -> None:
    """Runs of one owner; what is on its way; a move that only begins."""
    request = admin_pb2.MoveSlotsRequest(first_slot=5, slot_count=1, to_raft_group=1)
    moving = await edge.call(ADMIN + "MoveSlots", request, admin_pb2.MoveSlotsResponse)
    assert moving.left == 1
    shown = await edge.call(
        ADMIN + "ListSlots", admin_pb2.ListSlotsRequest(), admin_pb2.ListSlotsResponse
    )
    owners = [row.raft_group for row in shown.ranges for _ in range(row.slot_count)]
    assert owners == meta.slots
    assert [(list(move.slots), move.to_raft_group) for move in shown.moves] == [([5], 1)]
    assert list(shown.moves) == list(moving.moves)


async def test_a_move_of_a_queue_is_begun(edge: FakeEdge, meta: FakeMeta) -> None:
    """The override row is answered; the raft groups do the rest."""
    request = admin_pb2.MoveQueueRequest(topic="orders", queue=1, to_raft_group=2)
    response = await edge.call(ADMIN + "MoveQueue", request, admin_pb2.MoveQueueResponse)
    assert response.queue_override.moving_to == 2
    await until(lambda: "MoveQueue" in meta.calls)
