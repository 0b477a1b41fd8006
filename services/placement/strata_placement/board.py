"""The planner's working copy of a cluster: loads after the steps chosen so far.

Costs are what the planner lowers: per node and point, `overload_weight` times the square of what
is above the target, plus the square of the distance from the mean. Squares make it better to take
a little from the busiest node than much from any other, and every accepted step lowers their sum,
so no sequence of steps comes back to where it began. The target of a point is never below
`1 + slack` times the mean of the nodes then: no move makes all of them better than their mean.

Only sums per raft group and per node are kept; a step changes those of the few nodes it touches.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from strata_placement.cluster import ClusterModel, GroupModel, NodeModel, balance_of, changed_group
from strata_placement.plan import (
    Action,
    AddReadReplica,
    Balance,
    MoveQueue,
    MoveReplica,
    RemoveReadReplica,
    TransferLeader,
)

Line = list[float]
"""One value per point."""


class Board:
    """See the module docstring.

    Args:
        model: the cluster to begin with.
        target: utilisation above which a node counts as overloaded.
        overload_weight: of overload against unevenness.
        slack: see the module docstring.
    """

    def __init__(
        self, model: ClusterModel, target: float, overload_weight: float, *, slack: float = 0.0
    ) -> None:
        self.model = model
        self.nodes: Mapping[str, NodeModel] = {node.node_id: node for node in model.nodes}
        self.groups: dict[int, GroupModel] = {group.raft_group: group for group in model.groups}
        self.raft_group_of = list(model.raft_group_of)
        self.used: dict[str, Line] = model.utilisation()
        self._weight = overload_weight
        self._number_of = {name: at for at, name in enumerate(model.queues)}
        loads = model.group_loads()
        self.loads: dict[int, Line] = {
            group.raft_group: load for group, load in zip(model.groups, loads, strict=True)
        }
        self._members: dict[int, set[int]] = {number: set() for number in self.groups}
        for queue, raft_group in enumerate(self.raft_group_of):
            self._members[raft_group].add(queue)
        self._free = {node.node_id: node.disk_free_bytes for node in model.nodes}
        points = len(model.points)
        self._mean = [
            sum(line[at] for line in self.used.values()) / max(1, len(self.used))
            for at in range(points)
        ]
        self._slack = slack
        self._targets = self._thresholds(target)
        self._costs = {node: self._cost(line) for node, line in self.used.items()}

    def balance(self) -> Balance:
        """Return the balance as it stands."""
        return balance_of(self.used)

    def peak(self, node_id: str) -> float:
        """Return the largest utilisation of a node over the points."""
        return max(self.used[node_id], default=0.0)

    def is_overloaded(self, threshold: float) -> bool:
        """Tell whether a node is above a utilisation, and above its peers, at any point."""
        thresholds = self._thresholds(threshold)
        return any(
            value > most
            for line in self.used.values()
            for value, most in zip(line, thresholds, strict=True)
        )

    def busiest(self) -> list[str]:
        """Return the nodes, the one with the highest cost first."""
        return sorted(self._costs, key=lambda node: (-self._costs[node], node))

    def led_by(self, node_id: str) -> list[GroupModel]:
        """Return the raft groups that a node leads, by number."""
        return [group for _, group in sorted(self.groups.items()) if group.leader == node_id]

    def leader_counts(self) -> dict[str, int]:
        """Return how many raft groups each node leads."""
        counts = dict.fromkeys(self.nodes, 0)
        for group in self.groups.values():
            if group.leader in counts:
                counts[group.leader] += 1
        return counts

    def largest_queues(self, raft_group: int, point: int, below: float, count: int) -> list[int]:
        """Return the numbers of queues that may move, the largest first.

        Args:
            raft_group: that they are in.
            point: at which they are compared.
            below: load that they must not exceed.
            count: at most so many.
        """
        loads, names, held = self.model.points[point], self.model.queues, self.model.held
        fitting = (
            queue
            for queue in self._members[raft_group]
            if 0.0 < loads[queue] <= below and names[queue] not in held
        )
        return heapq.nsmallest(count, fitting, key=lambda queue: (-loads[queue], queue))

    def shift_of(self, source: GroupModel, target: GroupModel) -> dict[str, float]:
        """Return by node what utilisation one byte per second brings that goes to `target`."""
        shift: dict[str, float] = {}
        for group, sign in ((source, -1.0), (target, 1.0)):
            for node, share in group.shares(self.model.follower_share):
                if node in self.nodes:
                    capacity = self.nodes[node].capacity_bytes_per_s
                    shift[node] = shift.get(node, 0.0) + sign * share / capacity
        # Those that get more come first: they are the ones that a limit stops at.
        ordered = sorted(shift.items(), key=lambda item: -item[1])
        return {node: share for node, share in ordered if share}

    def queue_line(self, queue: int) -> Line:
        """Return a queue's load at every point."""
        return [point[queue] for point in self.model.points]

    def gain(self, shift: Mapping[str, float], loads: Sequence[float], limit: float) -> float:
        """Return how far the cost falls when loads shift between nodes.

        Args:
            shift: by node, what one byte per second brings (see `shift_of`).
            loads: that shift, per point.
            limit: hard: no node may come above it, or go further above it.

        Returns:
            The gain; minus infinity when the limit forbids the shift.
        """
        gain, weight = 0.0, self._weight
        for node, share in shift.items():
            gain += self._costs[node]
            points = zip(self.used[node], loads, self._mean, self._targets, strict=True)
            for before, load, mean, target in points:
                value = before + share * load
                if share > 0 and value > limit:
                    return float("-inf")
                gain -= (value - mean) ** 2
                if value > target:
                    gain -= weight * (value - target) ** 2
        return gain

    def bears(self, node_id: str, raft_group: int, share: float, limit: float) -> bool:
        """Tell whether a node stays within a utilisation with a share of a raft group's load."""
        node = self.nodes.get(node_id)
        if node is None:
            return False
        scale = share / node.capacity_bytes_per_s
        lines = zip(self.used[node_id], self.loads[raft_group], strict=True)
        return all(used + scale * load <= limit for used, load in lines)

    def hosts(
        self, group: GroupModel, leaving: str, disk_limit: float, capacity_limit: float
    ) -> list[str]:
        """Return the nodes that may get a replica in place of the one on `leaving`, best first.

        Hard: it can take one, its machine has none of this raft group, it bears it, has room on
        its disk, and stands in a rack of its own as far as any such node does. Among those the
        least busy.
        """
        share = self.model.follower_share + (0.0 if leaving else group.read_share)
        staying = [node for node in (*group.voters, *group.readers) if node != leaving]
        machines = set(map(self.machine, staying))
        racks = {self.rack(node) for node in group.voters if node != leaving}
        fit = [
            node.node_id
            for node in self.nodes.values()
            if node.can_take
            and not node.must_go
            and node.node_id != leaving
            and node.place not in machines
            and self.bears(node.node_id, group.raft_group, share, capacity_limit)
            and self._has_room(node, group.stored_bytes, disk_limit)
        ]
        return sorted(fit, key=lambda node: (self.rack(node) in racks, self.peak(node), node))

    def disk_used(self, node_id: str, more_bytes: int = 0) -> float:
        """Return what share of a node's disk is used, with so many more bytes; 0: not known."""
        node = self.nodes[node_id]
        free = self._free[node_id] - more_bytes
        return 1 - free / node.disk_total_bytes if node.disk_total_bytes else 0.0

    def machine(self, node_id: str) -> str:
        """Return a node's machine; a node without one is a machine of its own."""
        node = self.nodes.get(node_id)
        return node.place if node is not None else f"node {node_id}"

    def rack(self, node_id: str) -> str:
        """Return a node's rack; the machine of a node without one is a rack of its own."""
        node = self.nodes.get(node_id)
        return node.rack if node is not None and node.rack else self.machine(node_id)

    def conflicts(self, voters: Sequence[str]) -> tuple[int, int]:
        """Return how many of these nodes share a machine, and a rack, with an earlier one."""
        return _repeats(map(self.machine, voters)), _repeats(map(self.rack, voters))

    def apply(self, action: Action) -> None:
        """Change the board as an action changes the cluster."""
        match action:
            case MoveQueue(queue, from_raft_group, to_raft_group):
                number = self._number_of[queue]
                self._members[from_raft_group].remove(number)
                self._members[to_raft_group].add(number)
                self.raft_group_of[number] = to_raft_group
                source, target = self.groups[from_raft_group], self.groups[to_raft_group]
                line = self.queue_line(number)
                for at, load in enumerate(line):
                    self.loads[from_raft_group][at] -= load
                    self.loads[to_raft_group][at] += load
                self._shift(self.shift_of(source, target), line)
            case TransferLeader() | MoveReplica() | AddReadReplica() | RemoveReadReplica():
                before = self.groups[action.raft_group]
                after = self.groups[action.raft_group] = changed_group(before, action)
                self._shift(self.shift_of(before, after), self.loads[action.raft_group])
                for node in (*before.voters, *before.readers):
                    self._free[node] = self._free.get(node, 0) + before.stored_bytes
                for node in (*after.voters, *after.readers):
                    self._free[node] = self._free.get(node, 0) - after.stored_bytes

    def _has_room(self, node: NodeModel, stored_bytes: int, disk_limit: float) -> bool:
        if not node.disk_total_bytes:
            return True
        free = self._free[node.node_id] - stored_bytes
        return free >= (1 - disk_limit) * node.disk_total_bytes

    def _shift(self, shift: Mapping[str, float], loads: Sequence[float]) -> None:
        for node, share in shift.items():
            line = self.used[node]
            for at, load in enumerate(loads):
                line[at] += share * load
            self._costs[node] = self._cost(line)

    def _cost(self, line: Sequence[float]) -> float:
        cost = 0.0
        for value, mean, target in zip(line, self._mean, self._targets, strict=True):
            cost += (value - mean) ** 2
            if value > target:
                cost += self._weight * (value - target) ** 2
        return cost

    def _thresholds(self, utilisation: float) -> Line:
        return [max(utilisation, mean * (1 + self._slack)) for mean in self._mean]


def _repeats(names: Iterable[str]) -> int:
    every = list(names)
    return len(every) - len(set(every))
