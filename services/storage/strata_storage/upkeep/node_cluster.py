"""A storage node's view of the cluster around it: other nodes, topics' wishes, the cluster's id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from strata_mq.commands import OwnCommand
from strata_storage.leading.pending.forwarding import QueueForwarder
from strata_storage.rows.machine import GroupMachine
from strata_storage.upkeep.retention import RetentionSource


class NodePeers(Protocol):
    """A node's knowledge of the others (`app.Peers`)."""

    @property
    def node_of(self) -> Callable[[int], str | None]:
        """Tells which node hosts a replica."""

    @property
    def grants_of(self) -> Callable[[GroupMachine], OwnCommand | None]:
        """Tells what the metadata gives a raft group and it does not own yet."""

    @property
    def cluster_id(self) -> Callable[[], str]:
        """Tells the cluster that the node belongs to; empty: none."""


@dataclass(frozen=True, slots=True)
class NodeCluster:
    """See the module docstring.

    Attributes:
        node_id: the node's id among all nodes.
        peers: what the node knows of the others.
        retention: how long topics keep messages.
        forwarder: brings messages that waited to the raft group that has their queue now; None:
            they stay where they are.
    """

    node_id: str
    peers: NodePeers
    retention: RetentionSource
    forwarder: QueueForwarder | None = None
