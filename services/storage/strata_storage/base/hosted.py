"""A storage node's record of a replica that it hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HostedGroup:
    """A replica that this node hosts, as the metadata says.

    Attributes:
        raft_group: the raft group's id.
        replica_id: of the replica here.
        nodes: replica id -> node id of all replicas of the raft group.
        initial_voters: voters that the raft group began with; empty: this replica was added
            later and learns who votes from the log or a snapshot; None: all of `nodes`.
    """

    raft_group: int
    replica_id: int
    nodes: Mapping[int, str] = field(default_factory=dict)
    initial_voters: frozenset[int] | None = None

    def voters(self) -> frozenset[int]:
        """Return the voters of the first configuration, as far as this replica knows them."""
        return frozenset(self.nodes) if self.initial_voters is None else self.initial_voters
