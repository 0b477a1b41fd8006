"""JSON of the cluster's commands: the keys that docs/cli.md promises are those printed."""

from __future__ import annotations

import re

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.cluster_views import (
    health_view,
    node_views,
    placement_view,
    queue_view,
    raft_group_view,
    slots_view,
)
from strata_cli.reference import JSON_KEYS


def promised(command: str) -> set[str]:
    """Return the keys that the page names for a command."""
    return set(re.findall(r"`([a-z0-9_]+)`", JSON_KEYS[command]))


def test_a_node_has_the_promised_keys() -> None:
    """Role and state come in small letters without their prefixes."""
    node = meta_pb2.Node(
        node_id="s1",
        kind=meta_pb2.NODE_KIND_STORAGE,
        state=meta_pb2.NODE_STATE_SUSPECT,
        endpoints=["a:1"],
    )
    placement = admin_pb2.GetPlacementResponse()
    placement.loads.add(
        node_id="s1",
        is_slow=True,
        slow_reason="syncs take 6 times as long",
        bytes_per_s=12.4,
        disk_free_bytes=5,
        disk_total_bytes=9,
    )
    placement.loads.add(node_id="s2")
    cluster = admin_pb2.GetClusterResponse(nodes=[node, meta_pb2.Node(node_id="s2")])
    cluster.conditions.add(node_id="s2", state="unreachable", reason="no answer from b:1")
    cluster.conditions.add(node_id="s1", state="suspect", replicas=4, leaders=2)
    view, fine = node_views(cluster, placement)
    assert {"nodes", *view} == promised("node list")
    assert (view["node"], view["role"], view["state"]) == ("s1", "storage", "suspect")
    assert (view["slow"], view["slow_reason"]) == (True, "syncs take 6 times as long")
    assert (view["replicas"], view["leaders"], view["bytes_per_s"]) == (4, 2, 12)
    assert (view["disk_free_bytes"], view["disk_total_bytes"]) == (5, 9)
    assert (fine["slow"], fine["slow_reason"], fine["disk_free_bytes"]) == (False, "", None)
    assert (fine["state"], fine["reason"]) == ("unreachable", "no answer from b:1")


def test_a_raft_group_has_the_promised_keys() -> None:
    """In a list it has its health, alone also its replicas."""
    health = admin_pb2.GroupHealth(raft_group=1, leader_node_id="s1", state="ready")
    assert {"raft_groups", *health_view(health)} == promised("raft-group list")
    response = admin_pb2.GetRaftGroupResponse(
        health=health,
        row=meta_pb2.RaftGroup(preferred_leader_node_id="s2"),
        replicas=[admin_pb2.ReplicaHealth(replica_id=7, node_id="s1", role="voter", leader=True)],
    )
    view = raft_group_view(response)
    assert {"preferred_leader", "replicas", *view["replicas"][0]} <= promised("raft-group show")
    assert (view["leader"], view["preferred_leader"]) == ("s1", "s2")
    assert view["replicas"][0]["role"] == "voter"


def test_a_placement_has_the_promised_keys() -> None:
    """Replicas that should be there are apart from those that leave."""
    row = meta_pb2.RaftGroup(
        raft_group=1,
        replicas=[meta_pb2.Replica(replica_id=7, node_id="s1", learner=True)],
        leaving=[meta_pb2.Replica(replica_id=8, node_id="s2")],
    )
    view = placement_view(row)
    assert {*view, *view["replicas"][0]} == promised("replica add")
    assert view["leaving"] == [{"replica_id": 8, "node": "s2", "learner": False}]


def test_a_queue_has_the_promised_keys() -> None:
    """Its epochs are listed oldest first."""
    response = admin_pb2.GetQueueResponse(
        slot=5,
        slot_raft_group=1,
        raft_group=2,
        epochs=[
            meta_pb2.Epoch(epoch=0, start_offset=0, raft_group=1),
            meta_pb2.Epoch(epoch=1, start_offset=9, raft_group=2),
        ],
    )
    view = queue_view("t", 3, response)
    assert {*view, *view["epochs"][0]} == promised("queue show")
    assert [epoch["raft_group"] for epoch in view["epochs"]] == [1, 2]


def test_slots_have_the_promised_keys() -> None:
    """Runs, counts and moves; of one raft group those that concern it."""
    response = admin_pb2.ListSlotsResponse(
        ranges=[
            meta_pb2.SlotRange(first_slot=0, slot_count=2, raft_group=1),
            meta_pb2.SlotRange(first_slot=2, slot_count=1, raft_group=2),
            meta_pb2.SlotRange(first_slot=3, slot_count=4, raft_group=1),
        ],
        moves=[
            meta_pb2.SlotMove(from_raft_group=1, to_raft_group=2, slots=[4], revoked_slots=[2]),
            meta_pb2.SlotMove(from_raft_group=3, to_raft_group=1, slots=[9]),
        ],
    )
    view = slots_view(response, 0)
    keys = {*view, *view["raft_groups"][0], *view["moves"][0], *view["ranges"][0]}
    assert keys == promised("slot list")
    assert view["raft_groups"] == [
        {"raft_group": 1, "slots": 6},
        {"raft_group": 2, "slots": 1},
    ]
    assert view["moves"][0]["slots"] == [2, 4]
    of_two = slots_view(response, 2)
    assert [each["first_slot"] for each in of_two["ranges"]] == [2]
    assert [each["from"] for each in of_two["moves"]] == [1]
