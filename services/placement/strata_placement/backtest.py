"""The back-test: forecasters and planners against each other, honestly split in time.

Three parts of the series follow each other, with `embargo` windows left out between them (what one
tenant shows now another may show that much later, see `recipe`):

1. fit: the learned forecaster is trained on it, and sees nothing else in training;
2. tune: the best forecaster is chosen, intervals are taken, and every planner gets its settings out
   of a grid: the reactive one those with the least time above capacity, the others those with the
   least among the ones that moved no more queues on these days than the reactive one;
3. test: all is run once with what was chosen; only these numbers are reported.

A forecaster that is asked in the test has observed everything before, as it would in operation.
All is done for several clusters (series of other seeds) with one set of settings, and summed: a
single cluster has too few overloads to tell planners apart.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

from strata_placement.contestants import Contestant, GreedyReactive, LookingAhead, Points
from strata_placement.forecast import accuracy
from strata_placement.forecast.learned import Learned, LearnedModel, SampleOptions, train_model
from strata_placement.forecast.ports import MakeForecaster
from strata_placement.forecast.simple import Ema, HoltWinters, Naive, SeasonalNaive
from strata_placement.forecast.trees import TreeOptions
from strata_placement.planner import PlannerOptions
from strata_placement.series import LoadSeries, PlacementError
from strata_placement.simulation import DoNothing, Outcome, SimulationOptions, simulate

Progress = Callable[[str], None]

STEPS = (1, 4, 9, 15, 21)
_NEVER = 99.0
_ACT_ABOVE = (0.65, 0.7, 0.75)
_HYSTERESIS = 0.05
_GAINS = (2e-3, 1e-2, 2e-2, 4e-2)
# Days differ: who moved as often as the other on some moves more often on others.
_MOVES_MARGIN = 0.8
_GREEDY_ACT_ABOVE = (0.6, 0.7, 0.75, 0.8)
_GREEDY_IMBALANCES = (_NEVER, 1.3, 1.1)


@dataclass(frozen=True, slots=True)
class Split:
    """Windows of the three parts; each ends before the window named last."""

    fit: tuple[int, int]
    tune: tuple[int, int]
    test: tuple[int, int]


@dataclass(frozen=True, slots=True)
class BacktestOptions:
    """Settings of a run.

    Attributes:
        embargo: windows left out between the parts.
        simulation: cluster and pace.
        samples, trees: training of the learned forecaster.
        error_every: accuracy is taken each so many windows.
    """

    embargo: int = 144
    simulation: SimulationOptions = field(default_factory=SimulationOptions)
    samples: SampleOptions = field(default_factory=SampleOptions)
    trees: TreeOptions = field(default_factory=TreeOptions)
    error_every: int = 6


@dataclass(slots=True)
class BacktestResult:
    """Result of a run, from the test part only.

    Attributes:
        split: windows of the parts.
        outcomes: by planner, one per cluster.
        settings: what each planner got on the tuning days.
        errors: by forecaster, of all clusters together.
        best_forecaster: chosen on the tuning days; the one that `forecast` used.
        model: the learned one, whether it was used or not.
        interval: of the best forecaster.
    """

    split: Split
    outcomes: dict[str, list[Outcome]]
    settings: dict[str, str]
    errors: dict[str, accuracy.Accuracy]
    best_forecaster: str
    model: LearnedModel
    interval: accuracy.Interval

    def to_json(self) -> dict[str, Any]:
        """Return what `strata placement backtest -o json` prints."""
        return {
            "planners": {name: self._planner(name) for name in self.outcomes},
            "clusters": len(self.outcomes["forecast"]),
            "forecast_error": {name: asdict(error) for name, error in self.errors.items()},
            "best_forecaster": self.best_forecaster,
            "forecast_beats_greedy_reactive": self.forecast_wins,
            "split": asdict(self.split),
        }

    @property
    def forecast_wins(self) -> bool:
        """Whether looking ahead spent less time above capacity with no more moves."""
        ahead, greedy = self._planner("forecast"), self._planner("greedy_reactive")
        less = ahead["time_above_capacity"] < greedy["time_above_capacity"]
        return bool(less and ahead["moves"] <= greedy["moves"])

    def _planner(self, name: str) -> dict[str, Any]:
        each = self.outcomes[name]
        return {
            "time_above_capacity": sum(outcome.time_above_capacity_s for outcome in each),
            "moves": sum(outcome.moves for outcome in each),
            "bytes_moved": round(sum(outcome.bytes_moved for outcome in each)),
            "max_over_mean": mean(outcome.max_over_mean for outcome in each),
            "max_over_mean_p95": max(outcome.max_over_mean_p95 for outcome in each),
            "peak": max(outcome.peak for outcome in each),
            "flaps": sum(outcome.flaps for outcome in each),
            "settings": self.settings[name],
            "time_above_capacity_by_cluster": [outcome.time_above_capacity_s for outcome in each],
            "moves_by_cluster": [outcome.moves for outcome in each],
        }


def split_of(windows: int, embargo: int) -> Split:
    """Return the parts: 40 % to fit, 20 % to tune, 40 % to test, less the embargoes.

    Raises:
        PlacementError: there is too little.
    """
    usable = windows - 2 * embargo
    if usable < 100:
        raise PlacementError(f"{windows} windows are too few for a back-test")
    fit_end = usable * 2 // 5
    tune_end = fit_end + embargo + usable // 5
    return Split((0, fit_end), (fit_end + embargo, tune_end), (tune_end + embargo, windows))


def run_backtest(
    clusters: Sequence[LoadSeries],
    options: BacktestOptions,
    progress: Progress = lambda line: None,
) -> BacktestResult:
    """Train, tune and test.

    Args:
        clusters: loads of the queues of each cluster, over the same windows.
        options: see there.
        progress: told what is being done, one line each.

    Raises:
        PlacementError: the series are too short for three parts with a season in the first.
    """
    series = together(clusters)
    split = split_of(series.windows, options.embargo)
    progress(f"training on windows {split.fit[0]} to {split.fit[1]}")
    model = train_model(series.part(*split.fit), 1, options.samples, options.trees)
    makers = forecasters(series.windows_per_day, model)
    best, interval = _choose_forecaster(series, split, makers, options, progress)
    progress(f"testing forecasters; the best of the tuning days is {best}")
    errors = {
        name: accuracy.accuracy(
            _outcomes(series, make, split.test, options), interval if name == best else None
        )
        for name, make in makers.items()
    }
    contest = _Contest(clusters, split, options.simulation, progress=progress)
    contest.run("nothing", {"": lambda cluster: DoNothing()})
    contest.run("greedy_reactive", _greedy_grid())
    contest.limit_moves_to("greedy_reactive")
    for name, maker in (("naive", "naive"), ("ema", "ema"), ("forecast", best)):
        contest.run(name, _grid(contest.tables(makers[maker])))
    contest.run("oracle", _grid([_Future(cluster) for cluster in clusters]))
    return BacktestResult(split, contest.outcomes, contest.settings, errors, best, model, interval)


def forecasters(season: int, model: LearnedModel | None) -> dict[str, MakeForecaster]:
    """Return what there is to choose from, by name."""
    makers: dict[str, MakeForecaster] = {
        "naive": Naive,
        "ema": Ema,
        "seasonal_naive": lambda: SeasonalNaive(season),
        "holt_winters": lambda: HoltWinters(season),
    }
    if model is not None:
        makers["learned"] = lambda: Learned(model)
    return makers


def _choose_forecaster(
    series: LoadSeries,
    split: Split,
    makers: Mapping[str, MakeForecaster],
    options: BacktestOptions,
    progress: Progress,
) -> tuple[str, accuracy.Interval]:
    best, best_error, interval = "", float("inf"), None
    for name, make in makers.items():
        outcomes = _outcomes(series, make, split.tune, options)
        error = accuracy.accuracy(outcomes).wape
        progress(f"forecaster {name}: error {error:.3f} on the tuning days")
        if error < best_error:
            best, best_error, interval = name, error, accuracy.interval_of(outcomes)
    assert interval is not None, "there is at least one forecaster"
    return best, interval


def _outcomes(
    series: LoadSeries, make: MakeForecaster, part: tuple[int, int], options: BacktestOptions
) -> accuracy.Outcomes:
    return accuracy.run(series.part(0, part[1]), make, STEPS, part[0], options.error_every)


MakeContestant = Callable[[int], Contestant]
"""Gives the contestant for the cluster of a number."""


class _Contest:
    """Tunes and tests planners on the same clusters."""

    def __init__(
        self,
        clusters: Sequence[LoadSeries],
        split: Split,
        simulation: SimulationOptions,
        *,
        progress: Progress,
    ) -> None:
        self._clusters = clusters
        self._split = split
        self._simulation = simulation
        self._progress = progress
        self._max_moves: int | None = None
        self._tuning_moves: dict[str, int] = {}
        self.outcomes: dict[str, list[Outcome]] = {}
        self.settings: dict[str, str] = {}

    def limit_moves_to(self, planner: str) -> None:
        """Let the planners that follow move less than this one did on the tuning days."""
        self._max_moves = int(_MOVES_MARGIN * self._tuning_moves[planner])

    def run(self, planner: str, grid: Mapping[str, MakeContestant]) -> None:
        """Choose settings on the tuning days, then run the test with them."""
        self._progress(f"tuning {planner}: {len(grid)} settings")
        costs = {name: self._tuning_cost(make) for name, make in grid.items()}
        best = min(costs, key=lambda name: costs[name])
        self._tuning_moves[planner] = costs[best][2]
        self._progress(f"testing {planner}")
        self.settings[planner] = best
        self.outcomes[planner] = self._simulate(grid[best], self._split.test)

    def tables(self, make: MakeForecaster) -> list[Mapping[int, Points]]:
        """Return by cluster the expected loads for every window at which a planner is asked."""
        parts, pace = (self._split.tune, self._split.test), self._simulation.round_windows
        asked = {window for part in parts for window in range(*part, pace)}
        return [_table(cluster, make, asked) for cluster in self._clusters]

    def _tuning_cost(self, make: MakeContestant) -> tuple[int, float, int]:
        """Return (moves above the limit, time above capacity, moves)."""
        outcomes = self._simulate(make, self._split.tune)
        moves = sum(outcome.moves for outcome in outcomes)
        excess = max(0, moves - self._max_moves) if self._max_moves is not None else 0
        return excess, sum(outcome.time_above_capacity_s for outcome in outcomes), moves

    def _simulate(self, make: MakeContestant, part: tuple[int, int]) -> list[Outcome]:
        return [
            simulate(cluster, make(number), *part, replace(self._simulation, seed=number))
            for number, cluster in enumerate(self._clusters)
        ]


class _Future(Mapping[int, Points]):
    """The load that really comes after a window."""

    def __init__(self, series: LoadSeries) -> None:
        self._series = series

    def __getitem__(self, window: int) -> Points:
        series = self._series
        ahead = range(window + 1, window + STEPS[-1] + 3, 2)
        return [series.at(min(later, series.windows - 1)) for later in ahead]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return self._series.windows


def together(clusters: Sequence[LoadSeries]) -> LoadSeries:
    """Return the queues of several clusters as one series."""
    first = clusters[0]
    names = tuple(
        f"{number}/{name}" for number, cluster in enumerate(clusters) for name in cluster.names
    )
    columns = tuple(column for cluster in clusters for column in cluster.columns)
    return LoadSeries(first.start_ms, first.step_ms, names, columns)


def _table(series: LoadSeries, make: MakeForecaster, asked: Collection[int]) -> dict[int, Points]:
    table = {window: [array("d") for _ in STEPS] for window in asked}
    for column in series.columns:
        forecaster = make()
        for window, value in enumerate(column):
            forecaster.observe(value)
            if window in asked:
                for point, load in zip(table[window], forecaster.predict(STEPS), strict=True):
                    point.append(load)
    return dict(table)


def _grid(expected: Sequence[Mapping[int, Points]]) -> dict[str, MakeContestant]:
    grid: dict[str, MakeContestant] = {}
    for act_above, min_gain in product(_ACT_ABOVE, _GAINS):
        options = PlannerOptions(
            act_above=act_above,
            target=act_above - _HYSTERESIS,
            act_above_imbalance=_NEVER,
            min_gain=min_gain,
        )
        name = f"act above {act_above:.2f}, gain at least {min_gain}"
        grid[name] = partial(_looking_ahead, expected, options)
    return grid


def _looking_ahead(
    expected: Sequence[Mapping[int, Points]], options: PlannerOptions, cluster: int
) -> Contestant:
    return LookingAhead(expected[cluster].__getitem__, options)


def _greedy_grid() -> dict[str, MakeContestant]:
    grid: dict[str, MakeContestant] = {}
    for act_above, imbalance in product(_GREEDY_ACT_ABOVE, _GREEDY_IMBALANCES):
        name = f"act above {act_above:.2f}"
        name += f" or {imbalance:.2f} times the mean" if imbalance < _NEVER else ""
        grid[name] = partial(_greedy, act_above, imbalance)
    return grid


def _greedy(act_above: float, imbalance: float, cluster: int) -> Contestant:
    return GreedyReactive(act_above, imbalance)
