"""Registration of nodes: who is there, which replicas a storage node hosts, who owns the slots.

A storage node that registers first gets raft groups of its own with fresh replica ids; the first
of all storage nodes gets all slots, striped over its raft groups (rule 19). Registering again
gives the same replicas: the row of a node is found by its node id, which lives in its data folder
(rule 8), so an emptied folder comes as another node.
"""

from __future__ import annotations

import re

from strata.meta.v1 import meta_pb2
from strata_mq.slots import slot_runs, striped_slots
from strata_nameserver.config import NameserverConfig
from strata_nameserver.draft import NO_RAFT_GROUP, Draft, Placement
from strata_nameserver.errors import MetaError, invalid
from strata_state.metadata_keys import node_key

_NODE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MAX_ENDPOINTS = 8
_MAX_ENDPOINT_BYTES = 255
_KINDS = (
    meta_pb2.NODE_KIND_NAMESERVER,
    meta_pb2.NODE_KIND_STORAGE,
    meta_pb2.NODE_KIND_BROKER,
)


def register_node(draft: Draft, wanted: meta_pb2.Node, config: NameserverConfig) -> None:
    """Write the node's row, and the raft groups of a new storage node.

    A node that is known and tells nothing new leaves the draft empty.

    Raises:
        MetaError: INVALID or LIMIT_REACHED.
    """
    _check(wanted)
    value = draft.get(node_key(wanted.node_id))
    node = meta_pb2.Node()
    node.CopyFrom(wanted)
    node.revision = 0
    if value is None:
        if draft.counters.node_count >= config.max_nodes:
            raise MetaError(
                meta_pb2.META_OUTCOME_LIMIT_REACHED,
                f"there are {config.max_nodes} nodes already (nameserver.max_nodes)",
            )
        draft.counters.node_count += 1
        node.registered_at_ms = draft.now_ms
        draft.put(node)
        if node.kind == meta_pb2.NODE_KIND_STORAGE:
            _put_raft_groups(draft, node.node_id, config.raft_groups_per_storage_node)
        return
    known = meta_pb2.Node.FromString(value)
    if known.kind != node.kind:
        raise invalid(
            f"node {node.node_id} is registered as {meta_pb2.NodeKind.Name(known.kind)}, "
            f"not {meta_pb2.NodeKind.Name(node.kind)}"
        )
    node.registered_at_ms = known.registered_at_ms
    known.revision = 0
    if node != known:
        draft.put(node)


def hosted_replicas(placement: Placement, node_id: str) -> list[meta_pb2.HostedReplica]:
    """Return what a storage node hosts, by raft group, with the slots each raft group owns."""
    return [
        meta_pb2.HostedReplica(
            raft_group=row,
            replica_id=replica.replica_id,
            slots=owned_slots(placement, raft_group),
        )
        for raft_group, row in sorted(placement.raft_groups.items())
        for replica in row.replicas
        if replica.node_id == node_id
    ]


def owned_slots(placement: Placement, raft_group: int) -> list[meta_pb2.SlotRange]:
    """Return the runs of slots of a raft group."""
    return [
        meta_pb2.SlotRange(first_slot=first, slot_count=count, raft_group=owner)
        for first, count, owner in slot_runs(placement.slot_owners)
        if owner == raft_group
    ]


def _put_raft_groups(draft: Draft, node_id: str, count: int) -> None:
    counters = draft.counters
    raft_groups = range(counters.next_raft_group, counters.next_raft_group + count)
    for raft_group in raft_groups:
        replica = meta_pb2.Replica(replica_id=counters.next_replica_id, node_id=node_id)
        counters.next_replica_id += 1
        draft.put(
            meta_pb2.RaftGroup(
                raft_group=raft_group, replicas=[replica], broker_name=f"strata-{raft_group}"
            )
        )
    counters.next_raft_group += count
    if all(owner == NO_RAFT_GROUP for owner in draft.placement.slot_owners):
        for first, slot_count, raft_group in slot_runs(striped_slots(raft_groups)):
            draft.put(
                meta_pb2.SlotRange(first_slot=first, slot_count=slot_count, raft_group=raft_group)
            )


def _check(node: meta_pb2.Node) -> None:
    if not _NODE_ID.fullmatch(node.node_id):
        raise invalid("node_id must be 1 to 64 of A-Z a-z 0-9 . _ -")
    if node.kind not in _KINDS:
        raise invalid(f"node {node.node_id}: kind is missing")
    endpoints = [*node.endpoints, node.advertised_endpoint]
    if len(node.endpoints) > _MAX_ENDPOINTS or any(
        len(endpoint.encode()) > _MAX_ENDPOINT_BYTES for endpoint in endpoints
    ):
        raise invalid(
            f"node {node.node_id}: at most {_MAX_ENDPOINTS} endpoints of "
            f"{_MAX_ENDPOINT_BYTES} bytes"
        )
    if node.kind == meta_pb2.NODE_KIND_BROKER and ":" not in node.advertised_endpoint:
        raise invalid(f"broker {node.node_id}: advertised_endpoint must be host:port")
