"""How good a forecaster is, and the intervals that follow from how good it was.

Errors are taken over all queues together: sum of absolute errors / sum of loads (WAPE), so a large
queue counts for what it weighs. Intervals are quantiles of actual / forecast on windows that the
forecaster was not fitted to; whether they hold is measured on later windows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata_placement.forecast.ports import MakeForecaster
from strata_placement.series import LoadSeries, quantile


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of actual / forecast, by step.

    Attributes:
        steps: windows ahead, rising.
        lower, upper: factors, one per step.
        confidence: share of the windows that lie between them.
    """

    steps: tuple[int, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    confidence: float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of a forecaster on a part of history.

    Attributes:
        wape: sum of absolute errors / sum of loads.
        bias: (sum of forecasts - sum of loads) / sum of loads.
        wape_by_step: the same by step.
        coverage: share of windows inside the interval that was given; None: none was.
    """

    wape: float
    bias: float
    wape_by_step: tuple[float, ...]
    coverage: float | None = None


@dataclass(slots=True)
class Outcomes:
    """Forecasts and what came, per step: `pairs[i]` has (forecast, actual) of `steps[i]`."""

    steps: tuple[int, ...]
    pairs: tuple[list[tuple[float, float]], ...]


def run(
    series: LoadSeries, make: MakeForecaster, steps: Sequence[int], first: int, every: int = 1
) -> Outcomes:
    """Feed every queue to a forecaster of its own and compare, from window `first` on.

    Args:
        series: with what comes before `first`, which is only observed.
        make: gives a fresh forecaster.
        steps: windows ahead.
        first: window from which on forecasts are made.
        every: a forecast is made each so many windows.
    """
    pairs: tuple[list[tuple[float, float]], ...] = tuple([] for _ in steps)
    for column in series.columns:
        forecaster = make()
        for window, value in enumerate(column):
            forecaster.observe(value)
            if window < first or (window - first) % every or window + steps[-1] >= len(column):
                continue
            for at, forecast in enumerate(forecaster.predict(steps)):
                pairs[at].append((forecast, column[window + steps[at]]))
    return Outcomes(tuple(steps), pairs)


def accuracy(outcomes: Outcomes, interval: Interval | None = None) -> Accuracy:
    """Return the errors, and how often an interval held."""
    errors, sums, biases = [], [], []
    for pairs in outcomes.pairs:
        errors.append(sum(abs(forecast - actual) for forecast, actual in pairs))
        sums.append(sum(actual for _, actual in pairs))
        biases.append(sum(forecast - actual for forecast, actual in pairs))
    total = sum(sums) or 1.0
    return Accuracy(
        sum(errors) / total,
        sum(biases) / total,
        tuple(error / (actual or 1.0) for error, actual in zip(errors, sums, strict=True)),
        _coverage(outcomes, interval) if interval is not None else None,
    )


def interval_of(outcomes: Outcomes, confidence: float = 0.8) -> Interval:
    """Return bounds that held for a share `confidence` of these outcomes."""
    tail = (1 - confidence) / 2
    ratios = [
        [actual / forecast for forecast, actual in pairs if forecast > 0]
        for pairs in outcomes.pairs
    ]
    return Interval(
        outcomes.steps,
        tuple(quantile(each, tail) for each in ratios),
        tuple(quantile(each, 1 - tail) for each in ratios),
        confidence,
    )


def _coverage(outcomes: Outcomes, interval: Interval) -> float:
    inside = total = 0
    bounds = zip(outcomes.pairs, interval.lower, interval.upper, strict=True)
    for pairs, lower, upper in bounds:
        for forecast, actual in pairs:
            inside += forecast * lower <= actual <= forecast * upper
            total += 1
    return inside / total if total else 0.0
