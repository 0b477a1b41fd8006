"""The learned forecaster: boosted trees over ratios of a queue's own past, one model for all.

The model learns how the load of a window relates to the level of the last half hour, from ratios
that have no unit; so one model serves queues of any size, also those it has never seen. Features
look at the queue's own past only. Before a whole season has passed it returns the forecast of
`Ema`.

The model is a versioned JSON document (`LearnedModel.to_json`) that names its features; an
evaluator that does not know one of them refuses the document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from strata_placement.forecast.history import History, bounded
from strata_placement.forecast.trees import BoostedTrees, TreeOptions, train
from strata_placement.series import LoadSeries, PlacementError

FORMAT = 1
FEATURES = (
    "last_to_level",
    "quarter_hour_to_hour",
    "hour_to_three_hours",
    "level_to_day",
    "season_to_its_level",
    "hour_of_season_to_its_level",
    "two_seasons_to_their_level",
    "step",
)

_LEVEL, _HOUR, _THREE_HOURS = 6, 12, 36


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """Trees and what must be known to use them.

    Attributes:
        version: grows with every training; set by whoever stores the model.
        season: windows of a season.
        step_ms: length of a window.
        trees: expects the ratio of a later window to the level.
    """

    version: int
    season: int
    step_ms: int
    trees: BoostedTrees

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        return {
            "format": FORMAT,
            "version": self.version,
            "season": self.season,
            "step_ms": self.step_ms,
            "model": self.trees.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LearnedModel:
        """Return what a document holds.

        Raises:
            PlacementError: it is damaged, of another format, or wants features not known here.
        """
        if document.get("format") != FORMAT:
            raise PlacementError(f"model format {document.get('format')}, known is {FORMAT}")
        try:
            trees = BoostedTrees.from_json(document["model"])
            model = cls(
                int(document["version"]), int(document["season"]), int(document["step_ms"]), trees
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PlacementError(f"damaged model: {error}") from None
        if trees.features != FEATURES:
            raise PlacementError(f"the model wants the features {', '.join(trees.features)}")
        return model


class Learned:
    """A `Forecaster` that evaluates a model."""

    def __init__(self, model: LearnedModel) -> None:
        self._model = model
        self._history = History(_needed(model.season))

    def observe(self, value: float) -> None:
        """See `Forecaster`."""
        self._history.append(value)

    def predict(self, steps: Sequence[int]) -> list[float]:
        """See `Forecaster`."""
        history, season = self._history, self._model.season
        if len(history) < season + _THREE_HOURS:
            known = min(len(history), _LEVEL)
            return [history.mean(known) if known else 0.0] * len(steps)
        level = history.mean(_LEVEL)
        common = _common_features(history, season, level)
        trees = self._model.trees
        return [
            level * max(0.0, trees.evaluate((*common, *_step_features(history, season, step))))
            for step in steps
        ]


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """Settings of the training.

    Attributes:
        rows: samples drawn, each of a queue, a window and a step.
        max_step: farthest window forecast.
        seed: of the draw.
    """

    rows: int = 8_000
    max_step: int = 24
    seed: int = 1


def train_model(
    series: LoadSeries, version: int, samples: SampleOptions, options: TreeOptions
) -> LearnedModel:
    """Train on a part of history; nothing outside of `series` is seen.

    Raises:
        PlacementError: the series is shorter than two seasons.
    """
    season = series.windows_per_day
    columns, target = samples_of(series, samples)
    return LearnedModel(version, season, series.step_ms, train(FEATURES, columns, target, options))


def samples_of(series: LoadSeries, samples: SampleOptions) -> tuple[list[list[float]], list[float]]:
    """Return columns of features, and the targets, of samples drawn by seed.

    Raises:
        PlacementError: the series is too short.
    """
    season = series.windows_per_day
    first = season + _THREE_HOURS
    last = series.windows - samples.max_step - 1
    if last <= first:
        raise PlacementError(
            f"{series.windows} windows are too few to train on, {first + samples.max_step + 2} "
            "are needed"
        )
    random = Random(samples.seed)  # noqa: S311 (a sample to repeat, guards nothing)
    columns: list[list[float]] = [[] for _ in FEATURES]
    target: list[float] = []
    for _ in range(samples.rows):
        column = series.columns[random.randrange(len(series.columns))]
        at, step = random.randint(first, last), random.randint(1, samples.max_step)
        needed = _needed(season)
        history = History(needed, column[max(0, at + 1 - needed) : at + 1])
        level = history.mean(_LEVEL)
        if level <= 0:
            continue
        row = (
            *_common_features(history, season, level),
            *_step_features(history, season, step),
        )
        for values, value in zip(columns, row, strict=True):
            values.append(value)
        target.append(bounded(column[at + step] / level))
    return columns, target


def _needed(season: int) -> int:
    return 2 * season + _THREE_HOURS


def _common_features(history: History, season: int, level: float) -> tuple[float, ...]:
    """Return the features that do not depend on the step."""
    hour = history.mean(_HOUR)
    return (
        _ratio(history.ago(0), level),
        _ratio(history.mean(3), hour),
        _ratio(hour, history.mean(_THREE_HOURS)),
        _ratio(level, history.mean(season)),
    )


def _step_features(history: History, season: int, step: int) -> tuple[float, ...]:
    """Return what happened at the same time of earlier seasons, against the level then."""
    ago = season - step
    level = history.mean(_LEVEL, season)
    seasonal = _ratio(history.mean(3, ago - 1), level)
    around = _ratio(history.mean(_HOUR, max(0, ago - _HOUR // 2)), level)
    two = seasonal
    if len(history) >= _needed(season):
        two = _ratio(history.mean(3, ago + season - 1), history.mean(_LEVEL, 2 * season))
    return seasonal, around, two, float(step)


def _ratio(value: float, to: float) -> float:
    return bounded(value / to) if to > 0 else 1.0
