"""Fill of the disks of this node and its peers, and the writes that a raft group still accepts.

Marks (rule 11): 0 room, 1 refuse appends, 2 refuse all but acks, trims and membership, 3 refuse
everything. Followers report their marks; a leader obeys the worst mark that its quorum needs.
"""

from __future__ import annotations

from collections.abc import Mapping

from strata_multiraft.base.ports import NodeOf
from strata_raft import Configuration

MARK_FULL = 3


class DiskMarks:
    """Marks by node.

    Args:
        node_of: node id of a replica id.
    """

    def __init__(self, node_of: NodeOf) -> None:
        self._node_of = node_of
        self.own = 0
        self._peers: dict[str, int] = {}
        self.worst = 0

    def set_own(self, mark: int) -> None:
        """Note how full the disk of this node is."""
        self.own = mark
        self.worst = max(mark, *self._peers.values(), 0)

    def set_peers(self, marks: Mapping[str, int]) -> None:
        """Note how full the other disks are, by node id; a node that is not named has room."""
        self._peers = dict(marks)
        self.set_own(self.own)

    def of_replica(self, replica_id: int) -> int:
        """Return the mark of the node that hosts another node's replica."""
        node_id = self._node_of(replica_id)
        return 0 if node_id is None else self._peers.get(node_id, 0)

    def of_quorum(self, configuration: Configuration, own_replica_id: int) -> int:
        """Return the worst mark among the nodes of the best quorum."""
        if not self.worst:
            return 0
        return max(
            self._of_majority(configuration.voters, own_replica_id),
            self._of_majority(configuration.outgoing, own_replica_id),
        )

    def _of_majority(self, voters: frozenset[int], own_replica_id: int) -> int:
        marks = sorted(
            self.own if voter == own_replica_id else self.of_replica(voter) for voter in voters
        )
        return marks[len(marks) // 2] if marks else 0
