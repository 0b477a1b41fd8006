"""The planner: which changes bring a cluster within its goals, the hard ones first.

Hard goals, which no step violates and which alone are reason enough to move data:

1. what must leave a node leaves it, and voters of a raft group stand in different racks as far as
   there are racks, never on one machine; their number never changes;
2. no disk is fuller than `disk_limit`, as far as the nameserver's rule of even counts lets a move
   be (see `even_counts`);
3. no step brings a node above `capacity_limit`, or one that is above it further up.

Soft goals, by steps that copy nothing (queues, leaderships) or little (read replicas): no node is
expected above `target` at any point of the horizon, and the busiest node is near the mean. Nothing
is done about them before `act_above` or `act_above_imbalance` is expected, and then it is done down
to `target` and `settle_imbalance`: between the two marks nothing moves (hysteresis). Every step
lowers one sum of squares by at least `min_gain`, so on constant load no step is ever undone.

Leaders stay within one of each other in number, because the nameserver's own rule sees to that and
would undo anything else. Pure: the same model gives the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from strata_placement.board import Board
from strata_placement.cluster import BrokerModel, ClusterModel, GroupModel, changed_group
from strata_placement.even_counts import is_left_alone
from strata_placement.plan import (
    Action,
    AddReadReplica,
    MoveQueue,
    MoveReplica,
    Plan,
    RemoveReadReplica,
    ScaleBrokers,
    Step,
    TransferLeader,
)


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """Goals and limits; utilisations are shares of a node's capacity.

    Attributes:
        capacity_limit: hard: no step brings a node above it.
        disk_limit: hard: share of a disk that may be used.
        even_counts_below: share of a disk that is used, above which the nameserver's rule of even
            counts gives a node no replica (`PlacementRules.full_above`).
        act_above: expected utilisation of a node from which on something is done.
        target: utilisation that is aimed at then.
        act_above_imbalance: expected load of the busiest node / mean, likewise.
        settle_imbalance: the ratio that is aimed at then.
        idle_below: no balancing while no node is expected above it.
        slack: a node that is no more than this above the mean is not overloaded.
        min_gain: fall of the sum of squares that a step must bring.
        overload_weight: of overload against unevenness in that sum.
        max_steps: of one plan.
        max_queues_compared, max_groups_compared: how widely is searched for each step.
        read_replica_above: reads of one raft group, per serving replica, as a share of a node's
            capacity, from which on it gets one more read replica.
        read_replica_below: likewise, without the last one, to lose it again.
        max_read_replicas: of one raft group.
        broker_target: utilisation of brokers aimed at; fewer are wished for only when it would
            still be held with a fifth to spare.
    """

    capacity_limit: float = 0.8
    disk_limit: float = 0.85
    even_counts_below: float = 0.7
    act_above: float = 0.75
    target: float = 0.65
    act_above_imbalance: float = 1.25
    settle_imbalance: float = 1.1
    idle_below: float = 0.1
    slack: float = 0.1
    min_gain: float = 2e-3
    overload_weight: float = 10.0
    max_steps: int = 50
    max_queues_compared: int = 16
    max_groups_compared: int = 8
    read_replica_above: float = 0.3
    read_replica_below: float = 0.1
    max_read_replicas: int = 2
    broker_target: float = 0.6


class Source(NamedTuple):
    """Where a plan comes from.

    Attributes:
        planner: name of the way it is made.
        forecast: where the loads come from.
        made_at_ms: wall time.
        horizon_ms: how far the points reach.
    """

    planner: str
    forecast: str
    made_at_ms: int
    horizon_ms: int


class _Candidate(NamedTuple):
    gain: float
    action: Action
    reason: str


def make_plan(model: ClusterModel, options: PlannerOptions, source: Source) -> Plan:
    """Return the plan for a cluster; without steps when all goals are met."""
    maker = _Maker(model, options)
    before = maker.board.balance()
    maker.repair_and_level()
    maker.serve_reads()
    if model.brokers is not None:
        maker.scale(model.brokers)
    return Plan(
        source.made_at_ms,
        source.planner,
        source.forecast,
        source.horizon_ms,
        before,
        maker.board.balance(),
        tuple(maker.steps),
        tuple(maker.notes),
    )


class _Maker:
    """One plan in the making."""

    def __init__(self, model: ClusterModel, options: PlannerOptions) -> None:
        self.board = Board(model, options.target, options.overload_weight, slack=options.slack)
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self._options = options

    def repair_and_level(self) -> None:
        """Meet hard goals, then soft ones, until neither asks for anything.

        A node may be able to bear a replica only once its queues have moved. It ends: no step adds
        what hard goals complain about, and each soft step lowers the sum of squares.
        """
        steps = -1
        while steps < len(self.steps):
            steps = len(self.steps)
            self.notes.clear()
            self.repair()
            self.level()

    def repair(self) -> None:
        """Hard goals 1 and 2."""
        for number in sorted(self.board.groups):
            for leaving, reason in self._misplaced(self.board.groups[number]):
                self._move_replica(self.board.groups[number], leaving, reason)
        for node_id in sorted(self.board.nodes):
            self._empty_disk(node_id)

    def level(self) -> None:
        """Soft goals: peaks, then evenness."""
        options, board = self._options, self.board
        balance = board.balance()
        overloaded = board.is_overloaded(options.act_above)
        uneven = (
            balance.max_over_mean > options.act_above_imbalance
            and balance.peak > options.idle_below
        )
        while (overloaded or uneven) and self._has_room():
            candidate = self._best_of_busiest()
            if candidate is None:
                break
            self._take(candidate.action, candidate.reason, 0)
            balance = board.balance()
            overloaded = overloaded and board.is_overloaded(options.target)
            uneven = uneven and balance.max_over_mean > options.settle_imbalance
        if board.balance().peak > options.capacity_limit:
            busiest = max(board.nodes, key=board.peak)
            self.notes.append(
                f"{busiest} stays above {options.capacity_limit:.0%} of its capacity: no step "
                "within the limits helps; add storage nodes or raise max_steps"
            )

    def serve_reads(self) -> None:
        """Give read replicas to raft groups that are read much, take those hardly used.

        Those of a raft group of which no reads were seen stay: nobody knows whether they are used.
        """
        options, board = self._options, self.board
        for number in sorted(board.groups):
            group = board.groups[number]
            leader = board.nodes.get(group.leader)
            if leader is None or not group.is_settled or not self._has_room():
                continue
            if not group.read_share:
                continue
            reads = group.read_share * max(board.loads[number], default=0.0)
            used = reads / leader.capacity_bytes_per_s
            servers = group.read_servers
            fewer = replace(group, readers=group.readers[:-1]).read_servers
            if used / servers > options.read_replica_above:
                host = self._host(group, "")
                if host is not None and len(group.readers) < options.max_read_replicas:
                    reason = f"{used:.0%} of a node's capacity is read from raft group {number}"
                    self._take(AddReadReplica(number, host), reason, group.stored_bytes)
            elif group.readers and used / fewer < options.read_replica_below:
                reason = f"only {used:.0%} of a node's capacity is read from raft group {number}"
                self._take(RemoveReadReplica(number, group.readers[-1]), reason, 0)

    def scale(self, brokers: BrokerModel) -> None:
        """Wish for another number of brokers."""
        target = self._options.broker_target * brokers.capacity_bytes_per_s
        wanted = max(1, math.ceil(brokers.peak_bytes_per_s / target))
        fewest = max(1, math.ceil(brokers.peak_bytes_per_s / (0.8 * target)))
        count = wanted if wanted > brokers.count else min(brokers.count, fewest)
        if count != brokers.count and self._has_room():
            used = brokers.peak_bytes_per_s / brokers.capacity_bytes_per_s / brokers.count
            reason = f"{brokers.count} brokers would be used to {used:.0%}"
            self._take(ScaleBrokers(brokers.count, count), reason, 0)

    def _has_room(self) -> bool:
        return len(self.steps) < self._options.max_steps

    def _take(self, action: Action, reason: str, cost_bytes: int) -> None:
        before = self.board.balance()
        self.board.apply(action)
        self.steps.append(Step(action, reason, cost_bytes, before, self.board.balance()))

    def _misplaced(self, group: GroupModel) -> Iterator[tuple[str, str]]:
        """Give the voters that stand wrong, each judged after the one before it has moved."""
        for node_id in group.voters:
            node = self.board.nodes.get(node_id)
            if node is not None and node.must_go:
                yield node_id, f"{node_id} is draining"
        voters = self.board.groups[group.raft_group].voters
        for at, node_id in enumerate(voters):
            for domain in (self.board.machine, self.board.rack):
                if domain(node_id) in set(map(domain, voters[:at])):
                    reason = f"{domain(node_id)} has two replicas of raft group {group.raft_group}"
                    yield node_id, reason
                    break

    def _move_replica(self, group: GroupModel, leaving: str, reason: str) -> None:
        board, number = self.board, group.raft_group
        if not group.is_settled or leaving not in group.voters or not self._has_room():
            return
        host = self._host(group, leaving)
        if host is None:
            self.notes.append(f"{reason}: no node can take the replica")
            return
        staying = [node for node in group.voters if node != leaving]
        must_go = board.nodes[leaving].must_go if leaving in board.nodes else True
        before, after = board.conflicts(group.voters), board.conflicts([*staying, host])
        if after > before or (after == before and not must_go):
            if len(set(map(board.rack, board.nodes))) >= len(group.voters):
                self.notes.append(f"{reason}: no node of another rack can take the replica")
            return
        if group.leader == leaving:
            heir = self._heir(group, staying)
            if heir is None or len(self.steps) + 2 > self._options.max_steps:
                self.notes.append(f"{reason}: no other voter can lead raft group {number}")
                return
            self._take(TransferLeader(group.raft_group, leaving, heir), f"{reason}: leads it", 0)
        self._take(MoveReplica(group.raft_group, leaving, host), reason, group.stored_bytes)

    def _hosts(self, group: GroupModel, leaving: str) -> list[str]:
        options = self._options
        return self.board.hosts(group, leaving, options.disk_limit, options.capacity_limit)

    def _host(self, group: GroupModel, leaving: str) -> str | None:
        return next(iter(self._hosts(group, leaving)), None)

    def _heir(self, group: GroupModel, voters: Sequence[str]) -> str | None:
        """Return the calmest voter that bears what leading brings beside following."""
        board, more = self.board, 1.0 - self.board.model.follower_share
        limit = self._options.capacity_limit
        fit = [
            node
            for node in voters
            if board.bears(node, group.raft_group, more, limit) and board.nodes[node].can_take
        ]
        return min(fit, key=lambda node: (board.peak(node), node), default=None)

    def _empty_disk(self, node_id: str) -> None:
        board, limit = self.board, self._options.disk_limit
        hosted = sorted(
            (
                group
                for group in board.groups.values()
                if node_id in group.voters
                and group.leader != node_id
                and group.is_settled
                # Nobody knows what a replica of unknown size would give back.
                and group.stored_bytes
            ),
            key=lambda group: (-group.stored_bytes, group.raft_group),
        )
        for group in hosted:
            if board.disk_used(node_id) <= limit or not self._has_room():
                return
            host = self._relief(group, node_id)
            if host is not None:
                reason = f"the disk of {node_id} is {board.disk_used(node_id):.0%} full"
                action = MoveReplica(group.raft_group, node_id, host)
                self._take(action, reason, group.stored_bytes)
        if board.disk_used(node_id) > limit:
            self.notes.append(
                f"the disk of {node_id} stays {board.disk_used(node_id):.0%} full: no replica of "
                "known size can leave it for good; make it larger, shorten retention or add "
                "storage nodes"
            )

    def _relief(self, group: GroupModel, full: str) -> str | None:
        """Return the node that takes a replica off a full disk, and from which none comes back."""
        board, above = self.board, self._options.even_counts_below
        staying = [node for node in group.voters if node != full]
        for host in self._hosts(group, full):
            spread = board.conflicts([*staying, host]) <= board.conflicts(group.voters)
            if spread and is_left_alone(board, group, full, host, above):
                return host
        return None

    def _best_of_busiest(self) -> _Candidate | None:
        """Return the best step off the busiest node for which there is one at all."""
        for node_id in self.board.busiest()[:3]:
            why = self._why(node_id)
            candidates = [*self._transfers(node_id, why), *self._queue_moves(node_id, why)]
            best = max(candidates, key=lambda candidate: candidate.gain, default=None)
            if best is not None and best.gain >= self._options.min_gain:
                return best
        return None

    def _transfers(self, node_id: str, why: str) -> Iterator[_Candidate]:
        board, limit = self.board, self._options.capacity_limit
        counts = board.leader_counts()
        for group in board.led_by(node_id):
            for heir in group.voters if group.is_settled else ():
                node = board.nodes.get(heir)
                if node is None or not node.can_take or counts[heir] >= counts[node_id]:
                    continue
                action = TransferLeader(group.raft_group, node_id, heir)
                shift = board.shift_of(group, changed_group(group, action))
                gain = board.gain(shift, board.loads[group.raft_group], limit)
                yield _Candidate(gain, action, why)

    def _queue_moves(self, node_id: str, why: str) -> Iterator[_Candidate]:
        board, options = self.board, self._options
        line = board.used[node_id]
        point = line.index(max(line))
        calm = sorted(
            (group for group in board.groups.values() if self._can_take(group, node_id)),
            key=lambda group: (board.used[group.leader][point], group.raft_group),
        )[: options.max_groups_compared]
        if not calm:
            return
        width = line[point] - board.used[calm[0].leader][point]
        below = width * board.nodes[node_id].capacity_bytes_per_s
        for source in board.led_by(node_id):
            queues = board.largest_queues(
                source.raft_group, point, below, options.max_queues_compared
            )
            for target in calm:
                shift = board.shift_of(source, target)
                for queue in queues:
                    gain = board.gain(shift, board.queue_line(queue), options.capacity_limit)
                    name = board.model.queues[queue]
                    action = MoveQueue(name, source.raft_group, target.raft_group)
                    yield _Candidate(gain, action, why)

    def _can_take(self, group: GroupModel, source: str) -> bool:
        leader = self.board.nodes.get(group.leader)
        return leader is not None and leader.can_take and leader.node_id != source

    def _why(self, node_id: str) -> str:
        line = self.board.used[node_id]
        point = line.index(max(line))
        mean = sum(other[point] for other in self.board.used.values()) / len(self.board.used)
        return f"{node_id} is expected at {line[point]:.0%} of its capacity, the mean at {mean:.0%}"
