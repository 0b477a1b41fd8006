"""A cluster under a load series: what moves of queues do to the nodes, window by window.

A move that is decided after window t holds from window t + 1 on. While the old epoch drains, for
one window, the old raft group still bears `drain_share` of the queue's load. A queue that moved is
held for `hold_windows`. Moving a queue copies no byte (that is what epochs are for), so
`bytes_moved` counts what is drained from the old place instead of the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from strata_placement.cluster import ClusterModel, GroupModel, NodeModel
from strata_placement.contestants import Contestant
from strata_placement.plan import MoveQueue
from strata_placement.series import LoadSeries, quantile


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The cluster and the pace of planning.

    Attributes:
        nodes: storage nodes, each in a rack of its own.
        groups_per_node: raft groups led by each; three voters.
        mean_utilisation: of the nodes over all windows; sets their capacity.
        round_windows: moves are decided each so many windows.
        max_moves_per_round: carried out at most.
        hold_windows: a queue that moved stays for so long.
        drain_share: see the module docstring.
        flap_windows: a queue that comes back to the raft group it left within so many has flapped.
        overload_above: utilisation that counts as above capacity.
        seed: of the first placement.
    """

    nodes: int = 10
    groups_per_node: int = 2
    mean_utilisation: float = 0.55
    round_windows: int = 3
    max_moves_per_round: int = 4
    hold_windows: int = 12
    drain_share: float = 0.5
    flap_windows: int = 12
    overload_above: float = 0.8
    seed: int = 1


@dataclass(slots=True)
class Outcome:
    """Result of a planner.

    Attributes:
        time_above_capacity_s: node-seconds above `overload_above`.
        moves: of queues.
        bytes_moved: drained from old places.
        max_over_mean: mean over windows of the busiest node / mean.
        max_over_mean_p95: its 95th percentile.
        peak: highest utilisation of a node in any window.
        flaps: moves that undid an earlier one soon.
        peaks: the busiest node's utilisation by window.
    """

    time_above_capacity_s: float = 0.0
    moves: int = 0
    bytes_moved: float = 0.0
    max_over_mean: float = 0.0
    max_over_mean_p95: float = 0.0
    peak: float = 0.0
    flaps: int = 0
    peaks: list[float] = field(default_factory=list)


def first_model(series: LoadSeries, options: SimulationOptions) -> ClusterModel:
    """Return the cluster with queues placed at random, by seed, and the loads of window 0."""
    names = [f"node-{number}" for number in range(options.nodes)]
    groups = tuple(
        GroupModel(
            number + 1,
            names[number % options.nodes],
            tuple(names[(number + step) % options.nodes] for step in _steps(options.nodes, number)),
        )
        for number in range(options.nodes * options.groups_per_node)
    )
    random = Random(options.seed)  # noqa: S311 (a placement to repeat, guards nothing)
    raft_group_of = [random.randrange(len(groups)) + 1 for _ in series.names]
    mean_load = sum(map(sum, series.columns)) / series.windows
    model = ClusterModel(
        tuple(NodeModel(name, 1.0, rack=name) for name in names),
        groups,
        series.names,
        raft_group_of,
        [series.at(0)],
    )
    replicas = 1 + 2 * model.follower_share
    capacity = mean_load * replicas / options.nodes / options.mean_utilisation
    nodes = tuple(NodeModel(name, capacity, rack=name) for name in names)
    return ClusterModel(nodes, groups, series.names, raft_group_of, model.points)


def simulate(
    series: LoadSeries, contestant: Contestant, first: int, end: int, options: SimulationOptions
) -> Outcome:
    """Run a contestant over the windows from `first` up to, not including, `end`."""
    start = first_model(series, options)
    group_of = list(start.raft_group_of)
    number_of = {name: at for at, name in enumerate(series.names)}
    moved_at: dict[str, int] = {}
    left_at: dict[tuple[str, int], int] = {}
    draining: list[tuple[int, int]] = []
    outcome = Outcome()
    ratios: list[float] = []
    step_s = series.step_ms / 1_000
    for window in range(first, end):
        point = series.at(window)
        held = frozenset(
            name for name, at in moved_at.items() if window - at < options.hold_windows
        )
        model = ClusterModel(start.nodes, start.groups, series.names, group_of, [point], held)
        used = _used(model, draining, options.drain_share)
        _count(outcome, ratios, used, options.overload_above, step_s)
        outcome.bytes_moved += sum(
            options.drain_share * point[queue] * step_s for queue, _ in draining
        )
        draining = []
        if (window - first) % options.round_windows:
            continue
        for move in contestant.propose(model, window, options.max_moves_per_round):
            queue = number_of[move.queue]
            group_of[queue] = move.to_raft_group
            draining.append((queue, move.from_raft_group))
            outcome.moves += 1
            came_back = left_at.get((move.queue, move.to_raft_group))
            outcome.flaps += came_back is not None and window - came_back <= options.flap_windows
            left_at[move.queue, move.from_raft_group] = moved_at[move.queue] = window
    outcome.max_over_mean = sum(ratios) / max(1, len(ratios))
    outcome.max_over_mean_p95 = quantile(ratios, 0.95)
    return outcome


class DoNothing:
    """A contestant that leaves everything where it is."""

    def propose(self, model: ClusterModel, window: int, max_moves: int) -> list[MoveQueue]:
        """See `Contestant`."""
        return []


def _steps(nodes: int, number: int) -> Sequence[int]:
    """Return how far from the leader the voters stand; different ones for different raft groups."""
    step = 1 + number // nodes
    return [0, step, 2 * step] if nodes > 2 * step else range(min(3, nodes))


def _used(
    model: ClusterModel, draining: Sequence[tuple[int, int]], drain_share: float
) -> list[float]:
    used = {node: line[0] for node, line in model.utilisation().items()}
    capacity = {node.node_id: node.capacity_bytes_per_s for node in model.nodes}
    for queue, raft_group in draining:
        leader = model.groups[model.number_of_group[raft_group]].leader
        used[leader] += drain_share * model.points[0][queue] / capacity[leader]
    return list(used.values())


def _count(
    outcome: Outcome, ratios: list[float], used: Sequence[float], above: float, step_s: float
) -> None:
    mean, most = sum(used) / len(used), max(used)
    outcome.time_above_capacity_s += step_s * sum(value > above for value in used)
    outcome.peak = max(outcome.peak, most)
    outcome.peaks.append(most)
    ratios.append(most / mean if mean > 0 else 1.0)
