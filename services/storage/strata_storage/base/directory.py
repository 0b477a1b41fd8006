"""Where replicas and nodes are, from the metadata rows: asked anew each time, for rows change."""

from __future__ import annotations

from collections.abc import Callable

from strata.meta.v1 import meta_pb2 as meta
from strata_metadata import ClusterView


class Directory:
    """Looks up replicas and endpoints.

    Args:
        view: of the metadata.
        endpoint_index: which of a node's endpoints is the one that is spoken here.
    """

    def __init__(self, view: ClusterView, endpoint_index: int = 0) -> None:
        self._view = view
        self._endpoint_index = endpoint_index
        self._version = -1
        self._nodes: dict[int, str] = {}

    def node_of(self, replica_id: int) -> str | None:
        """Return the node that hosts a replica, also one that is leaving; None: unknown."""
        if self._version != self._view.version:
            self._version = self._view.version
            self._nodes = {
                replica.replica_id: replica.node_id
                for row in self._view.raft_groups()
                for replica in (*row.leaving, *row.replicas)
            }
        return self._nodes.get(replica_id)

    def endpoint_of(self, node_id: str) -> str | None:
        """Return where a node is reached; None: unknown."""
        node = self._view.node(node_id)
        if node is None or len(node.endpoints) <= self._endpoint_index:
            return None
        return node.endpoints[self._endpoint_index]

    def machine_of(self, node_id: str) -> str:
        """Return the machine of a node; a node without one is a machine of its own."""
        node = self._view.node(node_id)
        return f"machine {node.machine}" if node is not None and node.machine else node_id

    def is_draining(self, node_id: str) -> bool:
        """Whether a node is being taken out of service."""
        node = self._view.node(node_id)
        return node is not None and node.draining

    def endpoints_of_group(self, raft_group: int) -> list[str]:
        """Return where the replicas of a raft group are reached."""
        row = self._view.raft_group(raft_group)
        if row is None:
            return []
        found = (self.endpoint_of(replica.node_id) for replica in row.replicas)
        return [endpoint for endpoint in found if endpoint is not None]

    def storage_endpoints(self, but: str) -> list[str]:
        """Return where all storage nodes are reached, except the node `but`."""
        nodes = self._view.nodes(meta.NODE_KIND_STORAGE)
        found = (self.endpoint_of(node.node_id) for node in nodes if node.node_id != but)
        return [endpoint for endpoint in found if endpoint is not None]


NodeOf = Callable[[int], "str | None"]
