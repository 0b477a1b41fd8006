"""Nodes, raft groups, queues, slots as the dicts that `-o json` prints; the keys are a contract."""

from __future__ import annotations

from collections.abc import Iterable

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.views import View


def node_view(node: meta_pb2.Node) -> View:
    """Return a node's row."""
    return {
        "node": node.node_id,
        "role": meta_pb2.NodeKind.Name(node.kind).removeprefix("NODE_KIND_").lower(),
        "state": meta_pb2.NodeState.Name(node.state).removeprefix("NODE_STATE_").lower(),
        "draining": node.draining,
        "endpoints": list(node.endpoints),
        "advertised_endpoint": node.advertised_endpoint,
        "rack": node.rack,
        "registered_at_ms": node.registered_at_ms,
        "state_since_ms": node.state_since_ms,
    }


def node_views(
    nodes: Iterable[meta_pb2.Node], placement: admin_pb2.GetPlacementResponse
) -> list[View]:
    """Return nodes' rows with what the metadata leader measures of them."""
    slow = {load.node_id: load.slow_reason or "slow" for load in placement.loads if load.is_slow}
    return [
        node_view(node) | {"slow": node.node_id in slow, "slow_reason": slow.get(node.node_id, "")}
        for node in nodes
    ]


def health_view(health: admin_pb2.GroupHealth) -> View:
    """Return how a raft group does."""
    return {
        "raft_group": health.raft_group,
        "broker_name": health.broker_name,
        "leader": health.leader_node_id,
        "term": health.term,
        "commit_index": health.commit_index,
        "applied_index": health.applied_index,
        "state": health.state,
        "reason": health.reason,
    }


def replica_view(replica: admin_pb2.ReplicaHealth) -> View:
    """Return how a replica does."""
    return {
        "replica_id": replica.replica_id,
        "node": replica.node_id,
        "role": replica.role,
        "leader": replica.leader,
        "state": replica.state,
        "last_index": replica.last_index,
        "applied_index": replica.applied_index,
        "match_index": replica.match_index,
        "reason": replica.reason,
    }


def raft_group_view(response: admin_pb2.GetRaftGroupResponse) -> View:
    """Return a raft group with all its replicas."""
    row = response.row
    return {
        **health_view(response.health),
        "preferred_leader": row.preferred_leader_node_id,
        "replicas": [replica_view(replica) for replica in response.replicas],
    }


def placement_view(row: meta_pb2.RaftGroup) -> View:
    """Return where the replicas of a raft group shall be, and which are on their way out."""
    return {
        "raft_group": row.raft_group,
        "replicas": [_placed_view(replica) for replica in row.replicas],
        "leaving": [_placed_view(replica) for replica in row.leaving],
    }


def epoch_view(epoch: meta_pb2.Epoch) -> View:
    """Return a run of offsets of a queue."""
    return {
        "epoch": epoch.epoch,
        "start_offset": epoch.start_offset,
        "raft_group": epoch.raft_group,
    }


def queue_view(topic: str, queue: int, response: admin_pb2.GetQueueResponse) -> View:
    """Return where a queue is."""
    return {
        "topic": topic,
        "queue": queue,
        "slot": response.slot,
        "slot_raft_group": response.slot_raft_group,
        "raft_group": response.raft_group,
        "leader": response.leader_node_id,
        "broker_name": response.broker_name,
        "epochs": [epoch_view(epoch) for epoch in response.epochs],
    }


def slots_view(response: admin_pb2.ListSlotsResponse, raft_group: int) -> View:
    """Return which raft group owns which slots; 0: of all raft groups."""
    ranges = [each for each in response.ranges if raft_group in (0, each.raft_group)]
    counts: dict[int, int] = {}
    for each in ranges:
        counts[each.raft_group] = counts.get(each.raft_group, 0) + each.slot_count
    return {
        "raft_groups": [
            {"raft_group": number, "slots": count} for number, count in sorted(counts.items())
        ],
        "moves": [
            {
                "from": move.from_raft_group,
                "to": move.to_raft_group,
                "slots": sorted((*move.slots, *move.revoked_slots)),
            }
            for move in response.moves
            if raft_group in (0, move.from_raft_group, move.to_raft_group)
        ],
        "ranges": [
            {
                "first_slot": each.first_slot,
                "slot_count": each.slot_count,
                "raft_group": each.raft_group,
            }
            for each in ranges
        ],
    }


def _placed_view(replica: meta_pb2.Replica) -> View:
    return {
        "replica_id": replica.replica_id,
        "node": replica.node_id,
        "learner": replica.learner,
    }
