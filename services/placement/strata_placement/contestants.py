"""The planners that a back-test compares; all see the same past, the oracle also the future.

- `naive`, `ema`, `forecast`: the planner of `planner`, on loads expected by the last value, by a
  moving average, and by the best forecaster of the tuning days;
- `oracle`: the same planner on what will really come: what no forecast can beat;
- `greedy_reactive`: what brokers on the market do: when the busiest node is too busy, or too far
  above the mean, queues go from it to the least busy one, by the loads of the last window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from strata_placement.board import Board
from strata_placement.cluster import ClusterModel
from strata_placement.plan import MoveQueue
from strata_placement.planner import PlannerOptions, Source, make_plan

Points = Sequence[Sequence[float]]
"""Loads of all queues, one column per time."""


class Contestant(Protocol):
    """Proposes moves of queues, round after round."""

    def propose(self, model: ClusterModel, window: int, max_moves: int) -> list[MoveQueue]:
        """Return moves.

        Args:
            model: the cluster with the loads of the last window as its only point.
            window: number of that window.
            max_moves: how many are carried out at most.
        """


@dataclass(frozen=True, slots=True)
class LookingAhead:
    """The planner on expected loads.

    Attributes:
        expected: gives the points ahead of a window.
        options: goals and limits.
    """

    expected: Callable[[int], Points]
    options: PlannerOptions

    def propose(self, model: ClusterModel, window: int, max_moves: int) -> list[MoveQueue]:
        """See `Contestant`."""
        ahead = replace(model, points=self.expected(window))
        options = replace(self.options, max_steps=max_moves)
        plan = make_plan(ahead, options, Source("back-test", "", 0, 0))
        return [step.action for step in plan.steps if isinstance(step.action, MoveQueue)]


@dataclass(frozen=True, slots=True)
class GreedyReactive:
    """Moves from the busiest node to the least busy one, by the present.

    Attributes:
        act_above: utilisation of the busiest node from which on it acts.
        act_above_imbalance: load of the busiest node / mean, likewise.
        capacity_limit: the least busy node is not brought above it.
        max_queues_compared: of the largest ones on the busiest node.
    """

    act_above: float = 0.7
    act_above_imbalance: float = 1.1
    capacity_limit: float = 0.8
    max_queues_compared: int = 24

    def propose(self, model: ClusterModel, window: int, max_moves: int) -> list[MoveQueue]:
        """See `Contestant`."""
        board = Board(model, self.act_above, 0.0)
        moves: list[MoveQueue] = []
        while len(moves) < max_moves:
            balance = board.balance()
            if balance.peak <= self.act_above and balance.max_over_mean <= self.act_above_imbalance:
                break
            move = self._best(board)
            if move is None:
                break
            board.apply(move)
            moves.append(move)
        return moves

    def _best(self, board: Board) -> MoveQueue | None:
        order = sorted(board.nodes, key=board.peak)
        busiest, calmest = order[-1], order[0]
        width = board.peak(busiest) - board.peak(calmest)
        below = width * board.nodes[busiest].capacity_bytes_per_s
        best: tuple[float, MoveQueue] | None = None
        for source in board.led_by(busiest):
            queues = board.largest_queues(source.raft_group, 0, below, self.max_queues_compared)
            for target in board.led_by(calmest):
                shift = board.shift_of(source, target)
                for queue in queues:
                    gain = board.gain(shift, board.queue_line(queue), self.capacity_limit)
                    if gain > 0 and (best is None or gain > best[0]):
                        name = board.model.queues[queue]
                        best = gain, MoveQueue(name, source.raft_group, target.raft_group)
        return best[1] if best is not None else None
