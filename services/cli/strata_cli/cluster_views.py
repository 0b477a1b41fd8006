"""Nodes, raft groups, queues, slots as the dicts that `-o json` prints; the keys are a contract."""

from __future__ import annotations

import time

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.views import View


def wall_ms() -> int:
    """Return the time of this machine, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def node_view(node: meta_pb2.Node, condition: admin_pb2.NodeCondition | None = None) -> View:
    """Return a node's row, with the state that the broker sees if it reports one."""
    state = "unknown"
    if node.state != meta_pb2.NODE_STATE_UNSPECIFIED:
        state = meta_pb2.NodeState.Name(node.state).removeprefix("NODE_STATE_").lower()
    return {
        "node": node.node_id,
        "role": meta_pb2.NodeKind.Name(node.kind).removeprefix("NODE_KIND_").lower(),
        "state": condition.state if condition is not None else state,
        "draining": node.draining,
        "endpoints": list(node.endpoints),
        "advertised_endpoint": node.advertised_endpoint,
        "rack": node.rack,
        "machine": node.machine,
        "version": node.version,
        "started_at_ms": node.started_at_ms,
        "uptime_ms": max(0, wall_ms() - node.started_at_ms) if node.started_at_ms else None,
        "registered_at_ms": node.registered_at_ms,
        "state_since_ms": node.state_since_ms,
        "reason": condition.reason if condition is not None else "",
    }


def cluster_nodes(cluster: admin_pb2.GetClusterResponse) -> list[View]:
    """Return all nodes' rows as the broker sees them now."""
    conditions = {each.node_id: each for each in cluster.conditions}
    return [node_view(node, conditions.get(node.node_id)) for node in cluster.nodes]


def health_report(response: admin_pb2.GetHealthResponse) -> View:
    """Return whether the cluster is healthy, and the reasons if it is not."""
    return {
        "status": response.status,
        "reasons": [
            {
                "kind": each.kind,
                "name": each.name,
                "state": each.state,
                "severity": each.severity,
                "detail": each.detail,
            }
            for each in response.problems
        ],
        "raft_groups": {state.lower(): count for state, count in response.raft_groups.items()},
        "nodes": dict(response.nodes),
        "metadata_age_ms": response.metadata_age_ms,
        "checked_at_ms": response.looked_at_ms,
        "broker": response.broker_node_id,
    }


def node_views(
    cluster: admin_pb2.GetClusterResponse, placement: admin_pb2.GetPlacementResponse
) -> list[View]:
    """Return nodes' rows with the metadata leader's measurements of them."""
    loads = {load.node_id: load for load in placement.loads}
    conditions = {each.node_id: each for each in cluster.conditions}
    return [
        node | _measured(loads.get(node["node"]), conditions.get(node["node"]))
        for node in cluster_nodes(cluster)
    ]


def _measured(load: meta_pb2.NodeLoad | None, condition: admin_pb2.NodeCondition | None) -> View:
    """Return how a node does; null: nobody measures that of this node."""
    has_disk = load is not None and load.disk_total_bytes > 0
    is_slow = load is not None and load.is_slow
    return {
        "slow": is_slow,
        "slow_reason": (load.slow_reason or "slow") if load is not None and is_slow else "",
        "replicas": condition.replicas if condition is not None else 0,
        "leaders": condition.leaders if condition is not None else 0,
        "bytes_per_s": round(load.bytes_per_s) if load is not None else None,
        "disk_free_bytes": load.disk_free_bytes if load is not None and has_disk else None,
        "disk_total_bytes": load.disk_total_bytes if load is not None and has_disk else None,
    }


def health_view(health: admin_pb2.GroupHealth) -> View:
    """Return the health of a raft group."""
    return {
        "raft_group": health.raft_group,
        "broker_name": health.broker_name,
        "leader": health.leader_node_id,
        "term": health.term,
        "commit_index": health.commit_index,
        "applied_index": health.applied_index,
        "state": health.state,
        "replicas_live": health.replicas_live,
        "replicas_wanted": health.replicas_wanted,
        "reason": health.reason,
    }


def replica_view(replica: admin_pb2.ReplicaHealth) -> View:
    """Return the state of a replica."""
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
    """Return where the replicas of a raft group should be, and which are leaving."""
    return {
        "raft_group": row.raft_group,
        "replicas": [_placed_view(replica) for replica in row.replicas],
        "leaving": [_placed_view(replica) for replica in row.leaving],
    }


def epoch_view(epoch: meta_pb2.Epoch) -> View:
    """Return an epoch of a queue: a range of its offsets in one raft group."""
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
    """Return which raft group owns which slots; `raft_group` 0: the slots of all raft groups."""
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
