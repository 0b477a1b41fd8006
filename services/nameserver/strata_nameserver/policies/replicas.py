"""The desired places of replicas and leaders: plain rules, each with its reason as text.

Pure: `plan` looks at facts and returns steps; it neither waits nor writes. Called again and again
with current facts, its steps lead to a state in which it returns none.

Rules, most important first:

1. lost replicas are replaced: on nodes that were removed, or are DOWN and were so for too long
   since they were last steadily UP (`down_times`), or damaged;
2. raft groups with too few replicas get one more;
3. draining nodes lose their leaders, then their replicas;
4. replicas of a raft group stand in different racks as far as there are racks, and those that
   share a machine part as soon as another machine can take one;
5. nodes have equally many replicas, give or take one; a node whose disk is rather full, or that
   is not steadily UP again, gets none for the sake of that;
6. nodes lead equally many raft groups, give or take one.

Invariants: a raft group changes by one replica at a time, and by the next one only when its
configuration is the desired one and all replicas have everything; a replica that is lost before
it ever took part is the only exception. At most `max_moves_in_flight` raft groups change at once;
one that has no leader and cannot elect one does not count, so that it stops no repair of others.
A machine, and so a node, is never given two replicas of one raft group: with fewer machines than
the replication factor a raft group has fewer replicas. A node whose disk is fuller than
`full_above` is given a replica only where no other node of as good a rack can take it, and never
for rule 5: a plan that takes replicas off a full disk counts on that (docs/placement.md). A node
that is UP again, but not steadily, is given one only where no other node can take it, and never for
rules 4 and 5: it would be copied to and lost again and again. Leaders: see `leaders`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from zlib import crc32

from strata.meta.v1 import meta_pb2
from strata_nameserver.policies.facts import (
    GroupFacts,
    NodeFacts,
    PlacementRules,
    ReplicaFacts,
)


@dataclass(frozen=True, slots=True)
class ChangeReplica:
    """A replica goes, or comes, or one is replaced by another.

    Attributes:
        remove_replica_id: 0: none goes.
        add_node_id: empty: none comes.
        is_learner: the new replica only reads, as the old one did.
    """

    raft_group: int
    remove_replica_id: int
    add_node_id: str
    reason: str
    is_learner: bool = False


def plan_replicas(
    nodes: Collection[NodeFacts], groups: Collection[GroupFacts], rules: PlacementRules
) -> list[ChangeReplica]:
    """Return the changes of replicas to make now; at most one per raft group."""
    board = _Board(nodes, groups, rules)
    _replace_lost(board)
    _complete(board)
    _empty_draining_nodes(board)
    _spread_over_racks(board)
    _level(board)
    return board.steps


def machine_count(nodes: Iterable[NodeFacts]) -> int:
    """Return on how many machines nodes are."""
    return len({node.place for node in nodes})


def layout_of_new(
    nodes: Collection[NodeFacts],
    group_count: int,
    rules: PlacementRules,
    groups: Collection[GroupFacts] = (),
) -> list[list[str]]:
    """Return the node ids of the replicas of each new raft group; the first of each should lead.

    Fewer replicas than the replication factor when there are fewer machines.

    Args:
        nodes: that may get replicas.
        group_count: how many raft groups are made.
        rules: numbers.
        groups: those that are there already.
    """
    board = _Board(nodes, groups, rules)
    leaders = Counter(group.preferred_node_id or group.leader_node_id for group in groups)
    layout: list[list[str]] = []
    for number in range(len(groups), len(groups) + group_count):
        chosen: list[str] = []
        for _ in range(min(rules.replication_factor, len(nodes))):
            target = board.best_target(number, chosen, ())
            if target is None:
                break
            chosen.append(target)
            board.counts[target] += 1
        chosen.sort(key=lambda node_id: (leaders[node_id], _spread(number, node_id)))
        leaders[chosen[0]] += 1
        layout.append(chosen)
    return layout


class _Board:
    """The facts as they stand after the steps chosen so far."""

    def __init__(
        self,
        nodes: Collection[NodeFacts],
        groups: Iterable[GroupFacts],
        rules: PlacementRules,
    ) -> None:
        self.rules = rules
        self.nodes = {node.node_id: node for node in nodes}
        self.groups = {group.raft_group: group for group in groups}
        self.counts = Counter(
            node_id for group in self.groups.values() for node_id in group.node_ids
        )
        self.steps: list[ChangeReplica] = []
        self._budget = rules.max_moves_in_flight - sum(map(self._moves, self.groups.values()))

    def has_budget(self) -> bool:
        """Tell whether one more raft group may begin to change."""
        return self._budget > 0

    def settled(self) -> list[GroupFacts]:
        """Return the raft groups that may be changed, by number."""
        return [group for _, group in sorted(self.groups.items()) if group.may_change]

    def able(self) -> list[str]:
        """Return the nodes on which something may be placed, sorted."""
        return [node_id for node_id, node in sorted(self.nodes.items()) if node.can_take]

    def is_up(self, node_id: str) -> bool:
        """Tell whether a node is there and serves."""
        node = self.nodes.get(node_id)
        return node is not None and node.state == meta_pb2.NODE_STATE_UP

    def _moves(self, group: GroupFacts) -> bool:
        """Tell whether a change of a raft group is under way and can go on."""
        if group.is_settled or group.is_led:
            return not group.is_settled
        voters = [replica for replica in group.replicas if replica.is_voter]
        alive = [not replica.is_damaged and self._is_there(replica.node_id) for replica in voters]
        # Those that leave still vote.
        alive += map(self._is_there, group.leaving_node_ids)
        return 2 * sum(alive) > len(alive)

    def _is_there(self, node_id: str) -> bool:
        node = self.nodes.get(node_id)
        return node is not None and node.state != meta_pb2.NODE_STATE_DOWN

    def is_full(self, node_id: str) -> bool:
        """Tell whether the disk of a node is too full for a replica that could be elsewhere."""
        return self.nodes[node_id].disk_used > self.rules.full_above

    def others_are_up(self, group: GroupFacts, replica_id: int) -> bool:
        """Tell whether all other replicas of a raft group serve."""
        return all(
            self.is_up(replica.node_id) and not replica.is_damaged
            for replica in group.replicas
            if replica.replica_id != replica_id
        )

    def machine(self, node_id: str) -> str:
        """Return a node's machine; a node without one is a machine of its own."""
        node = self.nodes.get(node_id)
        return node.place if node is not None else f"node {node_id}"

    def rack(self, node_id: str) -> str:
        """Return a node's rack; the machine of a node without one is a rack of its own."""
        node = self.nodes.get(node_id)
        return node.rack if node is not None and node.rack else self.machine(node_id)

    def conflicts(self, node_ids: Sequence[str]) -> tuple[int, int]:
        """Return how many of these nodes share a machine, and a rack, with an earlier one."""
        return _repeats(map(self.machine, node_ids)), _repeats(map(self.rack, node_ids))

    def best_target(
        self, raft_group: int, staying: Sequence[str], forbidden: Collection[str]
    ) -> str | None:
        """Return the node for one more replica.

        As far as there is such a node, it is steadily UP and of another rack, has room on its disk,
        is not slow, and has few replicas and little load, in this order of weight. It is on a
        machine that has none of the other replicas.

        Args:
            raft_group: spreads equal choices, so that neighbours get different nodes.
            staying: nodes of the other replicas.
            forbidden: further nodes that cannot take it.
        """
        machines = set(map(self.machine, staying))
        candidates = [
            node
            for node in self.nodes.values()
            if node.can_take and node.place not in machines and node.node_id not in forbidden
        ]
        if not candidates:
            return None
        racks = set(map(self.rack, staying))
        best = min(
            candidates,
            key=lambda node: (
                not node.is_steady(self.rules),
                (node.rack or node.place) in racks,
                self.is_full(node.node_id),
                node.is_slow,
                self.counts[node.node_id],
                node.load_bytes,
                _spread(raft_group, node.node_id),
            ),
        )
        return best.node_id

    def change(
        self, group: GroupFacts, remove: ReplicaFacts | None, add: str | None, reason: str
    ) -> None:
        """Note a step."""
        replicas = tuple(replica for replica in group.replicas if replica is not remove)
        is_learner = remove is not None and remove.is_learner
        if remove is not None:
            self.counts[remove.node_id] -= 1
        if add is not None:
            self.counts[add] += 1
            replicas += (
                ReplicaFacts(0, add, is_voter=False, is_caught_up=False, is_learner=is_learner),
            )
        if group.is_settled:
            self._budget -= 1
        self.groups[group.raft_group] = replace(group, replicas=replicas, is_settled=False)
        self.steps.append(
            ChangeReplica(
                group.raft_group,
                remove.replica_id if remove is not None else 0,
                add or "",
                reason,
                is_learner,
            )
        )


def _replace_lost(board: _Board) -> None:
    """Rule 1. A raft group in motion may only lose what never took part."""
    for group in list(board.groups.values()):
        if group.is_settled and not board.has_budget():
            continue
        for replica in group.replicas:
            why = _why_lost(board, replica)
            if not why or (not group.may_change and (replica.is_voter or replica.is_caught_up)):
                continue
            staying = [other.node_id for other in group.replicas if other is not replica]
            target = board.best_target(
                group.raft_group, staying, {*group.leaving_node_ids, replica.node_id}
            )
            if target is not None:
                board.change(group, replica, target, f"replaces {replica.node_id}: {why}")
                break
            if replica.is_damaged and len(staying) > 1 and board.is_up(replica.node_id):
                # Nobody else can take it: the node gets a fresh one once the damaged one is gone.
                board.change(group, replica, None, f"{replica.node_id} starts over: {why}")
                break


def _why_lost(board: _Board, replica: ReplicaFacts) -> str:
    """Return why a replica will not come back; empty: it may."""
    node = board.nodes.get(replica.node_id)
    if node is None:
        return "the node was removed"
    if replica.is_damaged:
        return "the replica is damaged"
    if node.state == meta_pb2.NODE_STATE_DOWN:
        if node.draining:
            return "the node is DOWN and draining"
        if node.down_ms >= board.rules.repair_delay_ms:
            return f"the node was DOWN for {node.down_ms // 1000} s since it was steadily UP"
    return ""


def _complete(board: _Board) -> None:
    """Rule 2."""
    for group in board.settled():
        voters = [replica for replica in group.replicas if not replica.is_learner]
        if len(voters) >= board.rules.replication_factor or not board.has_budget():
            continue
        target = board.best_target(group.raft_group, group.node_ids, group.leaving_node_ids)
        if target is not None:
            board.change(
                group,
                None,
                target,
                f"{len(voters)} of {board.rules.replication_factor} replicas",
            )


def _empty_draining_nodes(board: _Board) -> None:
    """Rule 3, the part about replicas: a leader goes first."""
    for group in board.settled():
        if not board.has_budget():
            return
        for replica in group.replicas:
            node = board.nodes.get(replica.node_id)
            if node is None or not node.draining or group.leader_node_id == replica.node_id:
                continue
            if not board.others_are_up(group, replica.replica_id):
                continue
            staying = [other.node_id for other in group.replicas if other is not replica]
            target = board.best_target(group.raft_group, staying, {replica.node_id})
            if target is not None:
                board.change(group, replica, target, f"replaces {replica.node_id}: it is draining")
                break


def _spread_over_racks(board: _Board) -> None:
    """Rule 4."""
    unsteady = {node.node_id for node in board.nodes.values() if not node.is_steady(board.rules)}
    racks = {board.rack(node_id) for node_id in board.able() if node_id not in unsteady}
    for group in board.settled():
        if not board.has_budget():
            return
        conflicts = board.conflicts(group.node_ids)
        if not any(conflicts) or not board.others_are_up(group, 0):
            continue
        if not conflicts[0] and racks <= set(map(board.rack, group.node_ids)):
            # Wherever a replica goes, as many share a rack: no node has to be looked at.
            continue
        for replica in group.replicas:
            staying = [other.node_id for other in group.replicas if other is not replica]
            target = board.best_target(group.raft_group, staying, {replica.node_id, *unsteady})
            if target is None or board.conflicts([*staying, target]) >= conflicts:
                continue
            shared = (board.machine if conflicts[0] else board.rack)(replica.node_id)
            board.change(group, replica, target, f"{shared} has two replicas of the raft group")
            break


def _level(board: _Board) -> None:
    """Rule 5. Every step brings the squares of the counts down, so it ends."""
    while board.has_budget() and _level_once(board):
        pass


def _level_once(board: _Board) -> bool:
    able = board.able()
    sources = sorted(able, key=lambda node_id: -board.counts[node_id])
    fit = [
        node_id
        for node_id in able
        if board.nodes[node_id].is_steady(board.rules) and not board.is_full(node_id)
    ]
    targets = sorted(fit, key=lambda node_id: board.counts[node_id])
    if not targets or board.counts[sources[0]] - board.counts[targets[0]] < 2:
        return False
    movable = _movable(board)
    for source in sources:
        # By rack: most replicas that may not go to a rack may not go to any node of it.
        by_rack: dict[str, list[_Movable]] = {}
        for target in targets:
            if board.counts[source] - board.counts[target] < 2:
                break
            rack, machine = board.rack(target), board.machine(target)
            if rack not in by_rack:
                by_rack[rack] = [each for each in movable[source] if each.may_go_to(rack)]
            for group, replica, machines, _, _ in by_rack[rack]:
                if target in group.node_ids or machine in machines:
                    continue
                reason = (
                    f"{source} has {board.counts[source]} replicas, "
                    f"{target} has {board.counts[target]}"
                )
                board.change(group, replica, target, reason)
                return True
    return False


class _Movable(NamedTuple):
    """A replica that may go elsewhere for evenness.

    Attributes:
        machines: of the replicas that stay.
        racks: of the replicas that stay.
        may_share_rack: the replicas would be spread no worse with the new one in one of `racks`.
    """

    group: GroupFacts
    replica: ReplicaFacts
    machines: frozenset[str]
    racks: frozenset[str]
    may_share_rack: bool

    def may_go_to(self, rack: str) -> bool:
        """Tell whether it may go to a rack, as far as racks are concerned."""
        return self.may_share_rack or rack not in self.racks


def _movable(board: _Board) -> Mapping[str, list[_Movable]]:
    """Return by node what may leave it for another machine, by raft group."""
    movable: defaultdict[str, list[_Movable]] = defaultdict(list)
    for group in board.settled():
        if not board.others_are_up(group, 0):
            continue
        limit = board.conflicts(group.node_ids)
        for replica in group.replicas:
            staying = [other.node_id for other in group.replicas if other is not replica]
            # No more than with the replica: another rack or machine is always as good.
            machines, racks = board.conflicts(staying)
            movable[replica.node_id].append(
                _Movable(
                    group,
                    replica,
                    frozenset(map(board.machine, staying)),
                    frozenset(map(board.rack, staying)),
                    may_share_rack=(machines, racks + 1) <= limit,
                )
            )
    return movable


def _repeats(names: Iterable[str]) -> int:
    every = list(names)
    return len(every) - len(set(every))


def _spread(raft_group: int, node_id: str) -> int:
    """Return a number that orders equal nodes differently for every raft group."""
    return crc32(f"{raft_group}/{node_id}".encode())
