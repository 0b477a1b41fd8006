"""The nameserver's rule of even counts, as a planner has to reckon with it.

The nameserver moves a replica from one node to another one that has at least two fewer, unless the
disk of that node is fuller than a mark (`strata_nameserver.policies.replicas`, rule 5). A move of a
replica that leaves two nodes so far apart is undone at once; the next plan makes it again, and each
turn copies a replica.
"""

from __future__ import annotations

from collections import Counter

from strata_placement.board import Board
from strata_placement.cluster import GroupModel, changed_group
from strata_placement.plan import MoveReplica


def is_left_alone(
    board: Board, group: GroupModel, leaving: str, host: str, full_above: float
) -> bool:
    """Tell whether the rule of even counts brings back nothing after a move of a replica.

    It must neither give the node that got rid of the replica another one, nor take one from the
    new host: what that one has too many would be copied twice.

    Args:
        board: the cluster before the move.
        group: the raft group.
        leaving: node that gives the replica away.
        host: node that takes it.
        full_above: the mark: share of a disk above which the rule gives a node nothing.
    """
    move = MoveReplica(group.raft_group, leaving, host)
    groups = [*(board.groups | {group.raft_group: changed_group(group, move)}).values()]
    counts = Counter(node for each in groups for node in (*each.voters, *each.readers))
    size = group.stored_bytes
    # A node that is down or slow now is level with the others once it is fit again.
    fit = [node for node in board.nodes.values() if not node.must_go]
    pairs = [(node.node_id, leaving) for node in fit]
    pairs += [(host, node.node_id) for node in fit if node.can_take]
    more_bytes = {leaving: -size, host: size}
    return not any(
        counts[source] - counts[target] >= 2
        and not board.nodes[target].must_go
        and board.disk_used(target, more_bytes.get(target, 0)) <= full_above
        and any(_may_move(board, each, source, target) for each in groups)
        for source, target in pairs
    )


def _may_move(board: Board, group: GroupModel, source: str, target: str) -> bool:
    nodes = (*group.voters, *group.readers)
    if source not in nodes or target in nodes:
        return False
    staying = [node for node in nodes if node != source]
    if board.machine(target) in map(board.machine, staying):
        return False
    return board.conflicts([*staying, target]) <= board.conflicts(nodes)
