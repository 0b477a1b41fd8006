"""From what was measured of a live cluster to the loads that a plan is made for.

With less than a day of history only the level is known, so a moving average stands for the future;
from a day on the day before says how the coming hours go; a learned model, if there is one of the
same window length, is preferred.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from strata_placement.backtest import STEPS, forecasters
from strata_placement.forecast.accuracy import Interval, interval_of, run
from strata_placement.forecast.learned import LearnedModel
from strata_placement.forecast.ports import MakeForecaster
from strata_placement.series import LoadSeries, PlacementError

COARSE_MS = 300_000
"""Windows of this length are what a day's forecast works on."""

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Expectation:
    """Loads to come.

    Attributes:
        forecaster: who expects them.
        step_ms: length of a window.
        steps: windows ahead, one per point.
        points: per step, the load of every queue of the series.
        interval: bounds of actual / expected by step; None: history is too short to tell.
    """

    forecaster: str
    step_ms: int
    steps: tuple[int, ...]
    points: tuple[Sequence[float], ...]
    interval: Interval | None

    @property
    def horizon_ms(self) -> int:
        """How far it looks ahead."""
        return self.steps[-1] * self.step_ms


def expect(
    series: LoadSeries, forecaster: str = AUTO, model: LearnedModel | None = None
) -> Expectation:
    """Return what is to be expected after the last window of a series.

    Args:
        series: loads of queues.
        forecaster: a name, or `auto`: the best that the history allows.
        model: the learned one, if there is one.

    Raises:
        PlacementError: the forecaster is not known, or needs a model that fits.
    """
    factor = COARSE_MS // series.step_ms if series.step_ms < COARSE_MS else 1
    if series.windows >= 12 * factor:
        series = series.coarser(factor)
    makers = forecasters(series.windows_per_day, _fitting(model, series))
    name = _best(series, makers.keys() >= {"learned"}) if forecaster == AUTO else forecaster
    if name not in makers:
        raise PlacementError(
            f"there is no forecaster {name}; here are {', '.join(makers)} and {AUTO}"
        )
    make = makers[name]
    return Expectation(name, series.step_ms, STEPS, _points(series, make), _interval(series, make))


def _fitting(model: LearnedModel | None, series: LoadSeries) -> LearnedModel | None:
    if model is not None and model.step_ms != series.step_ms:
        return None
    return model


def _best(series: LoadSeries, has_model: bool) -> str:
    if series.windows < series.windows_per_day * 9 // 8:
        return "ema"
    return "learned" if has_model else "seasonal_naive"


def _points(series: LoadSeries, make: MakeForecaster) -> tuple[Sequence[float], ...]:
    points = tuple(array("d") for _ in STEPS)
    for column in series.columns:
        follower = make()
        for value in column:
            follower.observe(value)
        for point, load in zip(points, follower.predict(STEPS), strict=True):
            point.append(load)
    return points


def _interval(series: LoadSeries, make: MakeForecaster) -> Interval | None:
    """Return bounds from how the last half of the history would have been forecast."""
    if series.windows < 4 * STEPS[-1]:
        return None
    return interval_of(run(series, make, STEPS, series.windows // 2, every=3))
