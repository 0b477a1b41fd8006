"""The identity of a nameserver; lives in its data folder (rule 8)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NameserverIdentity:
    """Ids of one nameserver.

    Attributes:
        node_id: its id among all nodes.
        replica_id: of its replica of the metadata raft group; never used again.
        voters: replica ids that the metadata raft group began with; empty: it is not formed yet.
        boot_id: drawn at random when the process starts.
        cluster_id: of the formed cluster.
    """

    node_id: str
    replica_id: int
    voters: frozenset[int]
    boot_id: int = 0
    cluster_id: str = ""
