"""A servicer's view of a node: its raft groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strata.storage.v1 import storage_pb2 as pb
from strata_storage.group.engine import GroupEngine


class Engines(Protocol):
    """The raft groups of a node, as its servicers see them."""

    def engine(self, raft_group: int) -> GroupEngine:
        """Return a hosted raft group's engine.

        Raises:
            Refused: OUTCOME_UNKNOWN_GROUP.
        """

    def engines(self) -> Sequence[GroupEngine]:
        """Return all engines."""

    def node_of(self, replica_id: int) -> str:
        """Return the node id that hosts a replica, "" if unknown."""

    def status(self) -> pb.GetStatusResponse:
        """Return how far load and recovery are."""

    async def transfer(self, raft_group: int, target_replica_id: int) -> None:
        """Hand the leadership of a raft group over; 0: to the most advanced voter.

        Raises:
            Refused: not the leader, or nobody can take over.
        """

    def synced_position(self) -> int:
        """Return the log position up to which everything is durable."""
