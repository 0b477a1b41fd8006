"""Forecasters: exact where the future repeats the past, and no look at what has not happened."""

from __future__ import annotations

import math

import pytest

from strata_placement.forecast.accuracy import accuracy, interval_of, run
from strata_placement.forecast.learned import Learned, LearnedModel, SampleOptions, train_model
from strata_placement.forecast.ports import MakeForecaster
from strata_placement.forecast.simple import Ema, HoltWinters, Naive, SeasonalNaive
from strata_placement.forecast.trees import BoostedTrees, TreeOptions, train
from strata_placement.recipe import RecipeOptions, queue_loads
from strata_placement.series import LoadSeries, PlacementError, load_series
from strata_placement.traces import generated_trace

HALF_HOUR_MS = 1_800_000
SEASON = 48
SMALL = TreeOptions(trees=15, depth=3)


def wave(days: int, growth: float = 0.0) -> list[float]:
    return [
        (2 + math.sin(2 * math.pi * window / SEASON)) * (1 + growth * window / SEASON)
        for window in range(days * SEASON)
    ]


def series(*columns: list[float]) -> LoadSeries:
    return load_series(0, HALF_HOUR_MS, ((str(at), values) for at, values in enumerate(columns)))


def fed(make: MakeForecaster, values: list[float], steps: tuple[int, ...]) -> list[float]:
    forecaster = make()
    for value in values:
        forecaster.observe(value)
    return forecaster.predict(steps)


@pytest.fixture(scope="module")
def model() -> LearnedModel:
    """Trained on four days of waves of three sizes."""
    columns = [[value * size for value in wave(4)] for size in (1.0, 7.0, 50.0)]
    return train_model(series(*columns), 3, SampleOptions(rows=1_500), SMALL)


def test_the_simple_ones_repeat_what_they_know() -> None:
    """The last value, the moving average, and the day before at today's level."""
    values = wave(3)
    assert fed(Naive, values, (1, 9)) == [values[-1]] * 2
    assert fed(lambda: Ema(1.0), values, (5,)) == [values[-1]]
    assert fed(Ema, [4.0] * 9, (1,)) == [4.0]
    expected = [values[SEASON + step - 1] for step in (1, 5, 24, SEASON, SEASON + 3)]
    assert fed(lambda: SeasonalNaive(SEASON), values, (1, 5, 24, SEASON, SEASON + 3)) == (
        pytest.approx([*expected[:4], values[2]])
    )


def test_holt_winters_follows_a_season_with_a_level() -> None:
    """A wave that doubled stays a wave: within a few percent one and twelve windows ahead."""
    values = [*wave(3), *(2 * value for value in wave(6))]
    expected = [2 * wave(1)[step - 1] for step in (1, 12)]
    assert fed(lambda: HoltWinters(SEASON), values, (1, 12)) == pytest.approx(expected, rel=0.06)


def test_a_queue_that_stood_still_yesterday_is_no_queue_that_explodes() -> None:
    """The ratio of today's level to yesterday's has bounds."""
    values = [100.0] * SEASON + [0.001] * 6 + [100.0] * SEASON
    assert max(fed(lambda: SeasonalNaive(SEASON), values, (1, 2, 9))) <= 5 * 100.0


def test_holt_winters_has_bounds_where_the_queue_stood_still() -> None:
    """Nights of next to nothing, or of nothing, say little of the level once load comes by night.

    A ratio of 0.05 to the mean is the least, and 5 the most: a hundred times the load at worst.
    """
    for night in (0.0, 0.001):
        days = [*[night] * 24, *[100.0] * 24] * 3
        waking = fed(lambda: HoltWinters(SEASON), [*days, *[100.0] * 24], (1, 12, SEASON))
        assert 100.0 < max(waking) <= 100 * 100.0
    idle = [*wave(1), *[0.0] * 5 * SEASON, 100.0, 100.0]
    assert 1.0 < max(fed(lambda: HoltWinters(SEASON), idle, (1, 12, 40))) <= 100 * 100.0


@pytest.mark.parametrize("make", [Naive, Ema, lambda: SeasonalNaive(4), lambda: HoltWinters(4)])
def test_nothing_observed_is_nothing_expected(make: MakeForecaster) -> None:
    """Zeros before the first window, and no failure on zeros after."""
    assert make().predict((1, 2)) == [0.0, 0.0]
    assert fed(make, [0.0] * 20, (1, 2)) == [0.0, 0.0]


def test_the_learned_one_beats_naive_on_what_it_never_saw(model: LearnedModel) -> None:
    """A queue of another size and phase: a third of naive's error six hours ahead."""
    other = series([300 * value for value in wave(5)[13:]])
    learned = accuracy(run(other, lambda: Learned(model), (12,), 3 * SEASON))
    naive = accuracy(run(other, Naive, (12,), 3 * SEASON))
    assert learned.wape < naive.wape / 3


def test_a_model_survives_its_document(model: LearnedModel) -> None:
    """JSON and back evaluates the same; unknown formats, features and loops are refused."""
    document = model.to_json()
    again = LearnedModel.from_json(document)
    values = wave(4)
    assert fed(lambda: Learned(again), values, (1, 9)) == pytest.approx(
        fed(lambda: Learned(model), values, (1, 9))
    )
    with pytest.raises(PlacementError, match="format 2"):
        LearnedModel.from_json(document | {"format": 2})
    with pytest.raises(PlacementError, match="wants the features a"):
        LearnedModel.from_json(document | {"model": {"features": ["a"], "base": 0, "trees": []}})
    endless = {"feature": [0], "threshold": [1], "left": [0], "right": [0], "value": [0]}
    with pytest.raises(PlacementError, match="leads nowhere"):
        BoostedTrees.from_json({"features": ["a"], "base": 0, "trees": [endless]})


def test_trees_learn_a_step_and_the_product_of_two() -> None:
    """Trees learn what a sum of thresholds can say: errors are far below the target's spread."""
    columns = [
        [float(row % 10) for row in range(900)],
        [float(row // 10 % 9) for row in range(900)],
    ]
    target = [(a > 4) * 3.0 + (b > 2) * (a > 4) for a, b in zip(*columns, strict=True)]
    trees = train(("a", "b"), columns, target, TreeOptions(trees=60, min_leaf_rows=10))
    errors = [
        abs(trees.evaluate(row) - wanted)
        for row, wanted in zip(zip(*columns, strict=True), target, strict=True)
    ]
    assert max(errors) < 0.05
    with pytest.raises(PlacementError, match="too few"):
        train(("a",), [[1.0]], [1.0], SMALL)


def test_forecasts_do_not_see_the_future(model: LearnedModel) -> None:
    """Values after the last observed window change no forecast."""
    shape = generated_trace(3, days=4)
    loads = queue_loads(shape, RecipeOptions(queues=3, max_lag_windows=10))
    cut = loads.part(0, 900)
    changed = load_series(
        0, cut.step_ms, (("a", [*column[:800], *[9e9] * 100]) for column in cut.columns[:1])
    )
    same = load_series(0, cut.step_ms, [("a", cut.columns[0])])
    for make in (Naive, lambda: SeasonalNaive(288), lambda: HoltWinters(288)):
        outcomes = [run(each, make, (1,), 790, every=9) for each in (same, changed)]
        assert outcomes[0].pairs[0][0][0] == outcomes[1].pairs[0][0][0]


def test_intervals_hold_what_they_were_taken_from() -> None:
    """Nine of ten of the windows lie inside a 90 % interval, and the bounds lie around one."""
    noisy = [value * (1 + 0.2 * ((at * 7919) % 11 - 5) / 5) for at, value in enumerate(wave(6))]
    outcomes = run(series(noisy), Naive, (1, 6), SEASON)
    interval = interval_of(outcomes, 0.9)
    covered = accuracy(outcomes, interval).coverage
    assert covered is not None and 0.86 <= covered <= 0.94
    assert all(low < 1 < high for low, high in zip(interval.lower, interval.upper, strict=True))
