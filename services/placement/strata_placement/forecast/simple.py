"""Forecasts without training: the last value, a moving average, the last season, Holt-Winters."""

from __future__ import annotations

from collections.abc import Sequence

from strata_placement.forecast.history import History, bounded

_LEVEL_WINDOWS = 6


class Naive:
    """Things stay as they are in the last window."""

    def __init__(self) -> None:
        self._last = 0.0

    def observe(self, value: float) -> None:
        """See `Forecaster`."""
        self._last = value

    def predict(self, steps: Sequence[int]) -> list[float]:
        """See `Forecaster`."""
        return [self._last] * len(steps)


class Ema:
    """Things stay as an exponential moving average of the past says.

    Args:
        weight: of the newest window, above 0, at most 1.
    """

    def __init__(self, weight: float = 0.2) -> None:
        self._weight = weight
        self._mean: float | None = None

    def observe(self, value: float) -> None:
        """See `Forecaster`."""
        self._mean = (
            value if self._mean is None else self._mean + self._weight * (value - self._mean)
        )

    def predict(self, steps: Sequence[int]) -> list[float]:
        """See `Forecaster`."""
        return [self._mean or 0.0] * len(steps)


class SeasonalNaive:
    """Things go as a season ago, at today's level; as `Naive` before a season has passed.

    The level is the ratio of the last half hour or so to the same time a season ago; it counts
    fully for the next window and less for later ones, because a level comes back to normal.

    Args:
        season: windows of a season, usually those of a day.
        level_half_life: windows after which half of the level's deviation counts.
    """

    def __init__(self, season: int, level_half_life: float = 24.0) -> None:
        self._season = season
        self._half_life = level_half_life
        self._history = History(season + _LEVEL_WINDOWS)

    def observe(self, value: float) -> None:
        """See `Forecaster`."""
        self._history.append(value)

    def predict(self, steps: Sequence[int]) -> list[float]:
        """See `Forecaster`."""
        history, season = self._history, self._season
        if len(history) < season + _LEVEL_WINDOWS:
            return [history.ago(0) if len(history) else 0.0] * len(steps)
        before = history.mean(_LEVEL_WINDOWS, season)
        level = bounded(history.mean(_LEVEL_WINDOWS) / before) if before > 0 else 1.0
        return [
            history.ago(season - 1 - (step - 1) % season)
            * level ** (0.5 ** (step / self._half_life))
            for step in steps
        ]


class HoltWinters:
    """Level, damped trend and a multiplicative season, each smoothed exponentially.

    The season begins as the first day that is observed, divided by its mean; until then the level
    alone is known. The ratio of a time of the day to the mean of the day stays within bounds
    (`bounded`): one at which the queue stood still says nothing about the level once load comes.

    Args:
        season: windows of a season.
        level_weight: of the newest window in the level.
        trend_weight: of the newest change in the trend.
        season_weight: of the newest day in the season.
        damping: what is left of the trend after each window.
    """

    def __init__(
        self,
        season: int,
        level_weight: float = 0.2,
        trend_weight: float = 0.02,
        *,
        season_weight: float = 0.3,
        damping: float = 0.9,
    ) -> None:
        self._season = season
        self._weights = (level_weight, trend_weight, season_weight)
        self._damping = damping
        self._first: list[float] = []
        self._factors: list[float] = []
        self._level = self._trend = 0.0
        self._at = 0

    def observe(self, value: float) -> None:
        """See `Forecaster`."""
        if not self._factors:
            self._begin(value)
            return
        level_weight, trend_weight, season_weight = self._weights
        at = self._at % self._season
        factor = self._factors[at]
        before = self._level
        expected = before + self._damping * self._trend
        self._level = level_weight * value / factor + (1 - level_weight) * expected
        change = self._level - before
        self._trend = trend_weight * change + (1 - trend_weight) * self._damping * self._trend
        if self._level > 0:
            self._factors[at] += season_weight * (bounded(value / self._level) - factor)
        self._at += 1

    def predict(self, steps: Sequence[int]) -> list[float]:
        """See `Forecaster`."""
        if not self._factors:
            return [self._first[-1] if self._first else 0.0] * len(steps)
        damping = self._damping
        return [
            max(
                0.0,
                (self._level + self._trend * damping * (1 - damping**step) / (1 - damping))
                * self._factors[(self._at + step - 1) % self._season],
            )
            for step in steps
        ]

    def _begin(self, value: float) -> None:
        self._first.append(value)
        if len(self._first) < self._season:
            return
        mean = sum(self._first) / self._season
        # A day without any load has no shape.
        self._factors = [bounded(value / mean) if mean else 1.0 for value in self._first]
        self._level = mean
        self._at = self._season
