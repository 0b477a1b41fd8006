"""The desired places of replicas and leaders: plain rules, each with its reason as text.

Pure: `plan` looks at facts and returns steps; it neither waits nor writes. Called again and again
with current facts, its steps lead to a state in which it returns none.

Rules, most important first:

1. lost replicas are replaced: on nodes that were removed, or DOWN for too long, or damaged;
2. raft groups with too few replicas get one more;
3. draining nodes lose their leaders, then their replicas;
4. replicas of a raft group stand in different racks as far as there are racks, and those that
   share a machine part as soon as another machine can take one;
5. nodes have equally many replicas, give or take one; a node whose disk is rather full gets none
   for the sake of that;
6. nodes lead equally many raft groups, give or take one.

Invariants: a raft group changes by one replica at a time, and by the next one only when its
configuration is the desired one and all replicas have everything; a replica that is lost before
it ever took part is the only exception. At most `max_moves_in_flight` raft groups change at once;
one that has no leader and cannot elect one does not count, so that it stops no repair of others.
A machine, and so a node, is never given two replicas of one raft group: with fewer machines than
the replication factor a raft group has fewer replicas. A node whose disk is fuller than
`full_above` is given a replica only where no other node of as good a rack can take it, and never
for rule 5: a plan that takes replicas off a full disk counts on that (docs/placement.md). Leaders:
see `leaders`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from strata.meta.v1 import meta_pb2


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """Numbers that placement goes by.

    Attributes:
        replication_factor: voters of a raft group.
        max_moves_in_flight: raft groups whose replicas change at the same time.
        repair_delay_ms: a replica on a node that is DOWN for so long is lost.
        leader_balance_delay_ms: a node must be UP for so long before leaders are moved to it.
        full_above: share of a disk that is used, above which its node gets no replica for evenness.
            It is as far below the share at which a plan takes replicas off a disk as the largest
            replica should be.
    """

    replication_factor: int = 3
    max_moves_in_flight: int = 2
    repair_delay_ms: int = 600_000
    leader_balance_delay_ms: int = 5_000
    full_above: float = 0.7


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A storage node.

    Attributes:
        rack: failure domain; empty: its machine is one.
        machine: what it shares with other nodes; empty: it is a machine of its own.
        state_ms: how long it is in its state.
        load_bytes: what it appends and serves; the less loaded of equal nodes is taken.
        is_slow: its appends take much longer than those of others; it should not lead.
        clock_is_off: it gives leaderships away itself (rule 4); it should not get any.
        disk_used: share of the disk of its log that is used; 0: not known.
    """

    node_id: str
    rack: str = ""
    machine: str = ""
    state: meta_pb2.NodeState.ValueType = meta_pb2.NODE_STATE_UP
    state_ms: int = 0
    draining: bool = False
    load_bytes: float = 0.0
    is_slow: bool = False
    clock_is_off: bool = False
    disk_used: float = 0.0

    @property
    def can_take(self) -> bool:
        """Whether something may be placed there."""
        return self.state == meta_pb2.NODE_STATE_UP and not self.draining

    @property
    def place(self) -> str:
        """Name of the machine that it is on, for comparison with other nodes."""
        return f"machine {self.machine}" if self.machine else f"node {self.node_id}"


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """A desired replica of a raft group.

    Attributes:
        is_voter: it votes in the raft group's configuration now.
        is_caught_up: it has everything committed, as its leader says.
        is_damaged: it takes no part any more (rule 8).
        is_learner: it should only read.
    """

    replica_id: int
    node_id: str
    is_voter: bool = True
    is_caught_up: bool = True
    is_damaged: bool = False
    is_learner: bool = False


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A raft group.

    Attributes:
        is_settled: its configuration is the desired one, as its leader said last.
        is_led: it has a leader.
        leaving_node_ids: nodes that still have a replica which is to go.
        leader_node_id: node that leads it; empty: not known.
        preferred_node_id: node that should lead it; empty: any.
    """

    raft_group: int
    replicas: tuple[ReplicaFacts, ...]
    is_settled: bool = True
    is_led: bool = True
    leaving_node_ids: frozenset[str] = frozenset()
    leader_node_id: str = ""
    preferred_node_id: str = ""

    @property
    def node_ids(self) -> list[str]:
        """Nodes of the desired replicas."""
        return [replica.node_id for replica in self.replicas]

    @property
    def may_change(self) -> bool:
        """Whether its replicas may begin to change: nothing is under way, and a leader does it."""
        return self.is_settled and self.is_led


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

        As far as there is such a node, it is of another rack, has room on its disk, is not slow,
        and has few replicas and little load, in this order of weight. It is on a machine that has
        none of the other replicas.

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
        if node.state_ms >= board.rules.repair_delay_ms:
            return f"the node is DOWN for {node.state_ms // 1000} s"
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
    for group in board.settled():
        if not board.has_budget():
            return
        conflicts = board.conflicts(group.node_ids)
        for replica in group.replicas if any(conflicts) else ():
            if not board.others_are_up(group, 0):
                break
            staying = [other.node_id for other in group.replicas if other is not replica]
            target = board.best_target(group.raft_group, staying, {replica.node_id})
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
    able = [node_id for node_id, node in sorted(board.nodes.items()) if node.can_take]
    sources = sorted(able, key=lambda node_id: -board.counts[node_id])
    roomy = [node_id for node_id in able if not board.is_full(node_id)]
    targets = sorted(roomy, key=lambda node_id: board.counts[node_id])
    for source in sources:
        for target in targets:
            if board.counts[source] - board.counts[target] < 2:
                break
            for group in board.settled():
                replica = next((r for r in group.replicas if r.node_id == source), None)
                if replica is None or not _may_move(board, group, replica, target):
                    continue
                reason = (
                    f"{source} has {board.counts[source]} replicas, "
                    f"{target} has {board.counts[target]}"
                )
                board.change(group, replica, target, reason)
                return True
    return False


def _may_move(board: _Board, group: GroupFacts, replica: ReplicaFacts, target: str) -> bool:
    if target in group.node_ids or not board.others_are_up(group, 0):
        return False
    staying = [other.node_id for other in group.replicas if other is not replica]
    if board.machine(target) in map(board.machine, staying):
        return False
    return board.conflicts([*staying, target]) <= board.conflicts(group.node_ids)


def _repeats(names: Iterable[str]) -> int:
    every = list(names)
    return len(every) - len(set(every))


def _spread(raft_group: int, node_id: str) -> int:
    """Return a number that orders equal nodes differently for every raft group."""
    return crc32(f"{raft_group}/{node_id}".encode())
