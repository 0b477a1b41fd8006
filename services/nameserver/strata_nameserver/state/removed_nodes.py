"""Processes of nodes that were removed for good: none of them comes back.

A removed storage node stays out until its process is started again (`strata_metadata.presence`),
and a broker that stops takes itself off. A request to register that the process sent before may
arrive later, and would make a row of a node that nobody runs. Each nameserver remembers what was
removed while it runs: the request is late by seconds.
"""

from __future__ import annotations

from collections import OrderedDict

from strata.meta.v1 import meta_pb2

_MOST = 1_000


class RemovedNodes:
    """See the module docstring. The oldest are forgotten beyond a number."""

    def __init__(self) -> None:
        # Node id -> boot id of the process that was in the row.
        self._boots: OrderedDict[str, int] = OrderedDict()

    def take(self, change: meta_pb2.Change) -> None:
        """Take in a change; only a deletion of a node with its boot id matters here."""
        node = change.node
        if not change.deleted or not node.boot_id:
            return
        self._boots[node.node_id] = node.boot_id
        self._boots.move_to_end(node.node_id)
        if len(self._boots) > _MOST:
            self._boots.popitem(last=False)

    def __contains__(self, node: meta_pb2.Node) -> bool:
        """Whether the process that a node registers with was removed."""
        return self._boots.get(node.node_id) == node.boot_id
