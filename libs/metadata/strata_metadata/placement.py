"""The mirror of placement in memory: nodes, raft groups, slots. Every view is built on it.

`ClusterView` adds what storage needs of topics; a broker's view adds whole topics, consumer groups,
quotas, users and the epochs that it learns from storage. Storage nodes do not keep those rows in
memory, so there are two views; what both keep is here once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Self, TypeVar

from strata.meta.v1 import meta_pb2
from strata_metadata.tables import NO_RAFT_GROUP, TablesReader, put_row
from strata_mq.slots import SLOT_COUNT


class PlacementRows:
    """Rows of placement at one revision, or those of a snapshot that have come so far.

    Attributes:
        nodes, raft_groups: by their keys.
        slots: raft group of each slot.
        slot_moves: by the raft group that gives up slots.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, meta_pb2.Node] = {}
        self.raft_groups: dict[int, meta_pb2.RaftGroup] = {}
        self.slots = [NO_RAFT_GROUP] * SLOT_COUNT
        self.slot_moves: dict[int, meta_pb2.SlotMove] = {}

    def take_placement(self, change: meta_pb2.Change) -> bool:
        """Take in a row of placement; return whether it is one."""
        match change.WhichOneof("row"):
            case "node":
                put_row(self.nodes, change.node.node_id, change.node, deleted=change.deleted)
            case "raft_group":
                row = change.raft_group
                put_row(self.raft_groups, row.raft_group, row, deleted=change.deleted)
            case "slots":
                owner = NO_RAFT_GROUP if change.deleted else change.slots.raft_group
                first, count = change.slots.first_slot, change.slots.slot_count
                self.slots[first : first + count] = [owner] * count
            case "slot_move":
                move = change.slot_move
                put_row(self.slot_moves, move.from_raft_group, move, deleted=change.deleted)
            case _:
                return False
        return True


class PlacementTables(PlacementRows, ABC):
    """Rows of placement and those that one view has beside them (see `tables.RowTables`)."""

    @abstractmethod
    def take(self, change: meta_pb2.Change) -> None:
        """Take in one row."""

    @abstractmethod
    def replaces(self, others: Self) -> None:
        """Take the place of other tables: these are a whole snapshot."""


Tables = TypeVar("Tables", bound=PlacementTables)


class PlacementView(Generic[Tables]):
    """A view of the metadata; rows are handed out as they are, nobody changes one.

    Args:
        make: makes empty tables.

    Attributes:
        revision: of what was taken in; 0: nothing yet.
    """

    def __init__(self, make: Callable[[], Tables]) -> None:
        self.revision = 0
        self._reader = TablesReader(make)
        self._tables = self._reader.tables

    @property
    def responses(self) -> int:
        """Number of responses that were taken in, parts of snapshots included."""
        return self._reader.responses

    def node(self, node_id: str) -> meta_pb2.Node | None:
        """Find a node."""
        return self._tables.nodes.get(node_id)

    def nodes(self, kind: meta_pb2.NodeKind.ValueType | None = None) -> list[meta_pb2.Node]:
        """Return the nodes of a kind (None: all) by id."""
        return [
            node
            for _, node in sorted(self._tables.nodes.items())
            if kind is None or node.kind == kind
        ]

    def raft_group(self, raft_group: int) -> meta_pb2.RaftGroup | None:
        """Find a raft group."""
        return self._tables.raft_groups.get(raft_group)

    def raft_groups(self) -> list[meta_pb2.RaftGroup]:
        """Return all raft groups by number."""
        return [row for _, row in sorted(self._tables.raft_groups.items())]

    def slots(self) -> Sequence[int]:
        """Return the raft group of each slot, or NO_RAFT_GROUP."""
        return self._tables.slots

    def slot_moves(self) -> list[meta_pb2.SlotMove]:
        """Return the slots that are moving, by the raft group that gives them up."""
        return [row for _, row in sorted(self._tables.slot_moves.items())]

    def _take_in(self, response: meta_pb2.WatchResponse) -> bool:
        """Take in changes; return whether all up to a revision are here (see `TablesReader`)."""
        if not self._reader.apply(response):
            return False
        self._tables, self.revision = self._reader.tables, self._reader.revision
        return True
