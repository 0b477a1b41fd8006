"""The desired leader of each raft group: plain rules, each with its reason as text.

Pure, like `replicas`. A raft group is counted for its desired leader, or for its actual leader
where none is desired. Leaders leave at once: draining and slow nodes, those with a wrong clock, and
those that were DOWN for so long lately that their replicas counted as lost. Otherwise one moves
only when a node would lead two more than another, along a chain of raft groups if no single one can
go from the one node to the other. The desired leader stays recorded, so leaders return after a
restart of their node; a node that just came up gets no further ones until it has been UP for
`leader_balance_delay_ms`.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from strata_nameserver.policies.facts import GroupFacts, NodeFacts, PlacementRules


@dataclass(frozen=True, slots=True)
class PreferLeader:
    """A node should lead a raft group; empty: any may."""

    raft_group: int
    node_id: str
    reason: str


def plan_leaders(
    nodes: Collection[NodeFacts], groups: Collection[GroupFacts], rules: PlacementRules
) -> list[PreferLeader]:
    """Return the wishes to write down now; at most one per raft group."""
    board = _LeaderBoard(nodes, groups, rules)
    board.leave_unfit_nodes()
    board.balance()
    return board.steps()


class _LeaderBoard:
    """The leaders after the wishes chosen so far."""

    def __init__(
        self,
        nodes: Collection[NodeFacts],
        groups: Collection[GroupFacts],
        rules: PlacementRules,
    ) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._groups = {group.raft_group: group for group in groups}
        self._rules = rules
        self._able = {
            node.node_id
            for node in nodes
            if node.can_take
            and not node.is_slow
            and not node.clock_is_off
            and node.is_steady(rules)
        }
        self._steps: dict[int, PreferLeader] = {}
        self._leads = {group.raft_group: self._leader_of(group) for group in self._groups.values()}
        # How many raft groups each node leads, as `_leads` says.
        self._counts = Counter(self._leads.values())

    def steps(self) -> list[PreferLeader]:
        """Return the wishes that differ from those written down."""
        return [
            step
            for number, step in sorted(self._steps.items())
            if step.node_id != self._groups[number].preferred_node_id
        ]

    def leave_unfit_nodes(self) -> None:
        """Take leaders off unfit nodes, and wishes that cannot come true off any."""
        for number, group in sorted(self._groups.items()):
            leader = self._leads[number]
            why = self._why_unfit(leader)
            if why:
                fit = [node_id for node_id in self._voters(group) if node_id in self._able]
                if fit:
                    best = min(fit, key=lambda node_id: (self._counts[node_id], node_id))
                    self._prefer(number, best, f"{leader} is {why}")
                    continue
            wish = group.preferred_node_id
            if wish and (wish not in group.node_ids or self._why_unfit(wish)):
                self._prefer(number, "", f"{wish} cannot lead it")
                self._lead(number, group.leader_node_id)

    def balance(self) -> None:
        """Move leaders until no node leads two more than another that could have one of them."""
        for _ in range(self._rules.max_moves_in_flight):
            chain = self._chain()
            if not chain:
                return
            first, last = self._leads[chain[0][0]], chain[-1][1]
            reason = (
                f"{first} would lead {self._counts[first]} raft groups, {last} {self._counts[last]}"
            )
            for number, node_id in chain:
                self._prefer(number, node_id, reason)

    def _prefer(self, raft_group: int, node_id: str, reason: str) -> None:
        self._steps[raft_group] = PreferLeader(raft_group, node_id, reason)
        self._lead(raft_group, node_id)

    def _lead(self, raft_group: int, node_id: str) -> None:
        self._counts[self._leads[raft_group]] -= 1
        self._counts[node_id] += 1
        self._leads[raft_group] = node_id

    def _leader_of(self, group: GroupFacts) -> str:
        """Return who leads a raft group, or soon will."""
        wish = group.preferred_node_id
        return wish if wish in self._able and wish in self._voters(group) else group.leader_node_id

    def _voters(self, group: GroupFacts) -> list[str]:
        """Return the nodes whose replica could lead now."""
        return [
            replica.node_id
            for replica in group.replicas
            if replica.is_voter
            and replica.is_caught_up
            and not replica.is_damaged
            and not replica.is_learner
        ]

    def _why_unfit(self, node_id: str) -> str:
        """Return why a node should not lead, even though it could; empty: it may."""
        node = self._nodes.get(node_id)
        if node is None:
            return "gone" if node_id else ""
        if node.draining:
            return "draining"
        if node.clock_is_off:
            return "off the time of the others"
        if not node.is_steady(self._rules):
            return "DOWN again and again"
        return "slow" if node.is_slow else ""

    def _chain(self) -> list[tuple[int, str]]:
        """Return moves (raft group, new leader) that take one leader off the fullest node.

        Breadth first over "a raft group led from here could be led from there": the shortest
        chain to a node that leads at least two fewer. The work grows with the number of replicas:
        what was reached from a fuller node is not walked again, since all that can be reached from
        there was seen then, and led too many raft groups already.
        """
        passes_on = self._passes_on()
        seen: set[str] = set()
        for source in sorted(self._able, key=lambda node_id: (-self._counts[node_id], node_id)):
            came_by: dict[str, tuple[int, str]] = {source: (0, "")}
            queue = deque([source])
            while queue:
                node_id = queue.popleft()
                if node_id in seen:
                    continue
                if self._counts[source] - self._counts[node_id] >= 2:
                    return self._path(came_by, node_id)
                for number, voter in passes_on.get(node_id, ()):
                    if voter not in came_by:
                        came_by[voter] = (number, node_id)
                        queue.append(voter)
            seen.update(came_by)
        return []

    def _passes_on(self) -> Mapping[str, list[tuple[int, str]]]:
        """Return by node the raft groups that it leads, each with a node that could instead."""
        steady = {
            node_id
            for node_id in self._able
            if self._nodes[node_id].state_ms >= self._rules.leader_balance_delay_ms
        }
        passes_on: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        for number, group in sorted(self._groups.items()):
            if group.may_change:
                passes_on[self._leads[number]].extend(
                    (number, voter) for voter in self._voters(group) if voter in steady
                )
        return passes_on

    def _path(self, came_by: Mapping[str, tuple[int, str]], target: str) -> list[tuple[int, str]]:
        path: list[tuple[int, str]] = []
        raft_group, node_id = came_by[target]
        while raft_group:
            path.append((raft_group, target))
            target = node_id
            raft_group, node_id = came_by[target]
        path.reverse()
        return path
