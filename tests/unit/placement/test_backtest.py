"""Back-tests: honest splits, the keys that are a contract, and a page a person can open."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from strata_nameserver.policies.model import LoadModel
from strata_placement.backtest import BacktestOptions, run_backtest, split_of
from strata_placement.contestants import GreedyReactive
from strata_placement.forecast.learned import SampleOptions
from strata_placement.forecast.trees import TreeOptions
from strata_placement.load_table import load_table
from strata_placement.recipe import RecipeOptions, queue_loads
from strata_placement.report import render
from strata_placement.series import PlacementError, load_series
from strata_placement.simulation import DoNothing, SimulationOptions, simulate
from strata_placement.traces import generated_trace, read_trace

RECIPE = RecipeOptions(queues=40, max_lag_windows=24)
OPTIONS = BacktestOptions(
    embargo=24,
    simulation=SimulationOptions(nodes=5, round_windows=12),
    samples=SampleOptions(rows=600),
    trees=TreeOptions(trees=4, depth=2),
    error_every=48,
)


@pytest.mark.parametrize(("windows", "embargo"), [(2_099, 144), (500, 10), (388, 144)])
def test_parts_follow_each_other_with_gaps(windows: int, embargo: int) -> None:
    """Fit, tune and test never overlap; the embargo lies between them; the test reaches the end."""
    split = split_of(windows, embargo)
    assert split.fit[0] == 0 and split.test[1] == windows
    assert split.tune[0] - split.fit[1] == embargo == split.test[0] - split.tune[1]
    assert split.fit[1] > 0 and split.tune[1] > split.tune[0] and split.test[1] > split.test[0]
    with pytest.raises(PlacementError, match="too few"):
        split_of(99 + 2 * embargo, embargo)


def test_the_recipe_is_the_same_for_a_seed() -> None:
    """Loads repeat by seed, differ between seeds and add up to what was asked for."""
    trace = generated_trace(1, days=2)
    one, again = queue_loads(trace, RECIPE), queue_loads(trace, RECIPE)
    other = queue_loads(trace, RecipeOptions(seed=2, queues=40, max_lag_windows=24))
    assert one == again
    assert one.columns != other.columns
    total = sum(map(sum, one.columns)) / one.windows
    assert total == pytest.approx(RECIPE.total_bytes_per_s)
    assert one.windows == trace.windows - 24
    assert min(map(min, one.columns)) > 0


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The line says which file, or which traces there are."""
    with pytest.raises(PlacementError, match="known are alibaba-2018"):
        read_trace("lighthouse")
    with pytest.raises(PlacementError, match="machine_usage"):
        read_trace("azure-v2", tmp_path)
    folder = tmp_path / "azure_v2"
    folder.mkdir()
    (folder / "machine_usage_grouped_300_seconds.csv").write_text("cpu_usage,x\n5,1\n7,2\n")
    assert list(read_trace("azure-v2", tmp_path).columns["cpu_usage"]) == [5.0, 7.0]


def test_a_simulation_counts_what_happened() -> None:
    """One overloaded node of five, untouched: its windows above capacity are its time there."""
    trace = generated_trace(1, days=2)
    series = queue_loads(trace, RECIPE)
    still = simulate(series, DoNothing(), 0, 100, OPTIONS.simulation)
    greedy = simulate(series, GreedyReactive(), 0, 100, OPTIONS.simulation)
    assert still.moves == 0 and len(still.peaks) == 100
    assert still.time_above_capacity_s % 300 == 0
    assert sum(peak > 0.8 for peak in still.peaks) * 300 <= still.time_above_capacity_s
    assert 0 < greedy.moves <= 4 * 9
    assert greedy.max_over_mean < still.max_over_mean


@pytest.fixture(scope="module")
def result() -> Any:
    """A small back-test over two clusters."""
    trace = generated_trace(5, days=5)
    clusters = [
        queue_loads(trace, RecipeOptions(seed=seed, queues=40, max_lag_windows=24))
        for seed in (1, 2)
    ]
    return run_backtest(clusters, OPTIONS)


def test_the_keys_of_a_back_test(result: Any) -> None:
    """Planners with their outcomes and forecasters with their errors, as numbers."""
    document = json.loads(json.dumps(result.to_json()))
    planners = document["planners"]
    assert set(planners) == {"forecast", "greedy_reactive", "naive", "ema", "oracle", "nothing"}
    for row in planners.values():
        assert row["time_above_capacity"] >= 0 <= row["bytes_moved"]
        assert row["moves"] == sum(row["moves_by_cluster"])
        assert row["max_over_mean"] >= 1
    assert planners["oracle"]["time_above_capacity"] < planners["nothing"]["time_above_capacity"]
    assert set(document["forecast_error"]) >= {"naive", "ema", "seasonal_naive", "learned"}
    assert document["forecast_error"][document["best_forecaster"]]["coverage"] > 0.5


def test_the_report_is_one_page_with_plots(result: Any) -> None:
    """Every tag is closed, each planner is named, and nothing is loaded from anywhere."""
    page = render("generated", result, 0.8)
    checker = _Balanced()
    checker.feed(page)
    assert checker.open == [] and checker.count["svg"] == 3
    assert all(name in page for name in ("greedy_reactive", "oracle", "forecast"))
    assert "http" not in page and "<script" not in page


class _Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_nameserver_reads_the_table() -> None:
    """The nameserver finds the written loads: hour by hour, summed over a raft group's queues."""
    hour_ms = 3_600_000
    series = load_series(
        5 * hour_ms,
        hour_ms,
        [("/t/0", [10.0, 20.0, 30.0]), ("/t/1", [1.0, 2.0, 3.0]), ("/gone/0", [9.0, 9.0, 9.0])],
    )
    model = LoadModel.parse(load_table(series, {"/t/0": 1, "/t/1": 1}))
    assert list(model.loads) == [1]
    assert model.loads[1][5:8] == (11.0, 22.0, 33.0)
    assert model.expected(1, 5 * hour_ms) == 22.0, "this hour or the next"
    assert model.expected(1, 23 * hour_ms) == 33.0, "an hour that history does not cover"
    with pytest.raises(PlacementError, match="none of the queues"):
        load_table(series, {})
