"""Storage nodes' reports of themselves on their watch streams, and nodes that are not reached."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from strata.meta.v1 import meta_pb2


class NodeReports:
    """The last report of every storage node. Used on the event loop only.

    Attributes:
        version: raised with every change.
    """

    def __init__(self) -> None:
        self.version = 0
        self._told: dict[str, meta_pb2.StorageHealth] = {}
        self._unreached: set[str] = set()

    @property
    def told(self) -> Mapping[str, meta_pb2.StorageHealth]:
        """The last reports of nodes that are reached."""
        return self._told

    @property
    def unreached(self) -> AbstractSet[str]:
        """Nodes whose stream broke, or could not be opened, and was not opened again since."""
        return self._unreached

    def heard(self, node_id: str, health: meta_pb2.StorageHealth) -> None:
        """Keep a node's report of itself."""
        if node_id in self._unreached or self._told.get(node_id) != health:
            self.version += 1
        self._unreached.discard(node_id)
        self._told[node_id] = health

    def lost(self, node_id: str) -> None:
        """A node is not reached any more."""
        if node_id not in self._unreached:
            self.version += 1
        self._unreached.add(node_id)
        self._told.pop(node_id, None)

    def forget(self, node_id: str) -> None:
        """A node is no member any more."""
        self.version += 1
        self._unreached.discard(node_id)
        self._told.pop(node_id, None)
