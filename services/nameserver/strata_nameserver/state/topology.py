"""Nodes, raft groups and slots of the speculative state: small, so kept in memory.

Rows are never changed in place: a change is a new row, so whoever holds one may keep it.
"""

from __future__ import annotations

from array import array
from collections import defaultdict

from strata.meta.v1 import meta_pb2
from strata_metadata.view import NO_RAFT_GROUP
from strata_mq.slots import SLOT_COUNT, slot_runs
from strata_state.metadata import MetadataStore
from strata_state.metadata_keys import MetadataRowKind, kind_range


class Topology:
    """The places of slots, queues and replicas.

    Attributes:
        slot_owners: raft group of each slot.
        slots_since: revision at which each slot's row was written.
        slot_moves: rows by the raft group that gives up slots.
        raft_groups: rows by number.
        nodes: rows by node id.
    """

    def __init__(self) -> None:
        self.slot_owners = array("I", [NO_RAFT_GROUP]) * SLOT_COUNT
        self.slots_since = array("Q", [0]) * SLOT_COUNT
        self.slot_moves: dict[int, meta_pb2.SlotMove] = {}
        self.raft_groups: dict[int, meta_pb2.RaftGroup] = {}
        self.nodes: dict[str, meta_pb2.Node] = {}

    @classmethod
    def load(cls, store: MetadataStore) -> Topology:
        """Read the rows of a store."""
        topology = cls()
        for _, value in store.scan(*kind_range(MetadataRowKind.RAFT_GROUP)):
            row = meta_pb2.RaftGroup.FromString(value)
            topology.raft_groups[row.raft_group] = row
        for _, value in store.scan(*kind_range(MetadataRowKind.SLOTS)):
            topology._take_slots(meta_pb2.SlotRange.FromString(value))
        for _, value in store.scan(*kind_range(MetadataRowKind.SLOT_MOVE)):
            move = meta_pb2.SlotMove.FromString(value)
            topology.slot_moves[move.from_raft_group] = move
        for _, value in store.scan(*kind_range(MetadataRowKind.NODE)):
            node = meta_pb2.Node.FromString(value)
            topology.nodes[node.node_id] = node
        return topology

    def take(self, change: meta_pb2.Change) -> None:
        """Take in a change; those of other rows do not matter here."""
        match change.WhichOneof("row"):
            case "raft_group":
                self.raft_groups.pop(change.raft_group.raft_group, None)
                if not change.deleted:
                    self.raft_groups[change.raft_group.raft_group] = change.raft_group
            case "node":
                self.nodes.pop(change.node.node_id, None)
                if not change.deleted:
                    self.nodes[change.node.node_id] = change.node
            case "slots":
                self._take_slots(change.slots)
            case "slot_move":
                self.slot_moves.pop(change.slot_move.from_raft_group, None)
                if not change.deleted:
                    self.slot_moves[change.slot_move.from_raft_group] = change.slot_move

    def nodes_of(self, kind: meta_pb2.NodeKind.ValueType) -> list[meta_pb2.Node]:
        """Return the nodes of a kind by id."""
        return [node for _, node in sorted(self.nodes.items()) if node.kind == kind]

    def replicas_on(self, node_id: str) -> list[int]:
        """Return the raft groups that have, or are to give up, a replica on a node."""
        return [
            number
            for number, row in sorted(self.raft_groups.items())
            if any(replica.node_id == node_id for replica in (*row.replicas, *row.leaving))
        ]

    def hosted_replicas(self, node_id: str) -> list[meta_pb2.HostedReplica]:
        """Return what a storage node should host, by raft group, with the slots of each."""
        slots: defaultdict[int, list[meta_pb2.SlotRange]] = defaultdict(list)
        for first, count, owner in slot_runs(self.slot_owners):
            slots[owner].append(
                meta_pb2.SlotRange(first_slot=first, slot_count=count, raft_group=owner)
            )
        return [
            meta_pb2.HostedReplica(
                raft_group=row, replica_id=replica.replica_id, slots=slots[number]
            )
            for number, row in sorted(self.raft_groups.items())
            for replica in row.replicas
            if replica.node_id == node_id
        ]

    def _take_slots(self, row: meta_pb2.SlotRange) -> None:
        # The row of a run that was joined to another one is deleted: it has no slots any more.
        first, end = row.first_slot, row.first_slot + row.slot_count
        self.slot_owners[first:end] = array("I", [row.raft_group]) * row.slot_count
        self.slots_since[first:end] = array("Q", [row.revision]) * row.slot_count
