"""Per-queue functions of the jobs: plain Python over the windows of loads of one queue.

Windows that do not mention a queue count as zeros: an idle queue writes none.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from strata_placement.forecast.learned import FEATURES, LearnedModel, SampleOptions, samples_of
from strata_placement.outlook import AUTO, COARSE_MS, expect
from strata_placement.series import LoadSeries, PlacementError

FORECAST_SCHEMA = (
    "queue string, forecaster string, step int, at_ms bigint, expected double, lower double, "
    "upper double"
)
"""As Spark's DDL; loads in bytes per second, `lower` and `upper` null with too little history."""

SAMPLE_SCHEMA = ", ".join(["is_test boolean", *(f"{name} double" for name in FEATURES), "y double"])
"""As Spark's DDL: features, and the target `y`, of the learned forecaster."""


MAX_WINDOWS = 1_000_000
"""Most windows of one queue that a job looks at: 115 days of ten seconds, 8 MB for each queue."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The windows of all queues: the first and the last begin at these times."""

    first_ms: int
    last_ms: int
    step_ms: int

    @property
    def windows(self) -> int:
        """How many windows there are."""
        return (self.last_ms - self.first_ms) // self.step_ms + 1

    def newest(self, windows: int = MAX_WINDOWS) -> Bounds:
        """Return the bounds of the last so many windows: a clock that was behind makes no more."""
        if self.windows <= windows:
            return self
        first_ms = self.last_ms - (windows - 1) * self.step_ms
        return Bounds(first_ms, self.last_ms, self.step_ms)


class QueueWindow(NamedTuple):
    """Bytes per second of one queue in one window."""

    start_ms: int
    load: float


def series_of(queue: str, windows: Iterable[QueueWindow], bounds: Bounds) -> LoadSeries:
    """Return the loads of one queue over all windows; those outside of the bounds do not count.

    Raises:
        PlacementError: the bounds hold more than `MAX_WINDOWS`.
    """
    count = bounds.windows
    if count > MAX_WINDOWS:
        raise PlacementError(f"{count} windows are more than {MAX_WINDOWS}; look at a shorter time")
    column = array("d", bytes(8 * count))
    for start_ms, load in windows:
        at = (start_ms - bounds.first_ms) // bounds.step_ms
        if 0 <= at < count:
            column[at] += load
    return LoadSeries(bounds.first_ms, bounds.step_ms, (queue,), (column,))


def forecast_rows(
    series: LoadSeries, forecaster: str = AUTO, model: LearnedModel | None = None
) -> list[dict[str, Any]]:
    """Return rows of `FORECAST_SCHEMA` for a queue.

    Raises:
        PlacementError: as `expect`.
    """
    expected = expect(series, forecaster, model)
    interval = expected.interval
    end_ms = series.start_ms + series.windows * series.step_ms
    rows = []
    for number, (step, point) in enumerate(zip(expected.steps, expected.points, strict=True)):
        load = point[0]
        rows.append(
            {
                "queue": series.names[0],
                "forecaster": expected.forecaster,
                "step": step,
                "at_ms": end_ms + (step - 1) * expected.step_ms,
                "expected": load,
                "lower": load * interval.lower[number] if interval is not None else None,
                "upper": load * interval.upper[number] if interval is not None else None,
            }
        )
    return rows


def sample_columns(
    series: LoadSeries, samples: SampleOptions, test_share: float
) -> dict[str, list[Any]]:
    """Return columns of `SAMPLE_SCHEMA` for a queue: from its past, and to test from later.

    Args:
        series: of one queue; windows shorter than five minutes are put together.
        samples: how many are drawn of the queue; a fifth as many are to test.
        test_share: of the windows, the last ones, which training does not see.

    Raises:
        PlacementError: the history is too short.
    """
    coarse = series.coarser(COARSE_MS // series.step_ms) if series.step_ms < COARSE_MS else series
    cut = int(coarse.windows * (1 - test_share))
    # Features look back: the windows before the cut are the past of those behind it.
    past = coarse.windows_per_day + _LOOKBACK
    if cut <= past:
        raise PlacementError(f"{coarse.windows} windows of {COARSE_MS} ms are too few to train on")
    drawn = samples_of(coarse.part(0, cut), samples)
    tests = SampleOptions(max(1, samples.rows // 5), samples.max_step, samples.seed)
    tested = samples_of(coarse.part(cut - past, coarse.windows), tests)
    table: dict[str, list[Any]] = {"is_test": [], **{name: [] for name in FEATURES}, "y": []}
    for is_test, (columns, target) in ((False, drawn), (True, tested)):
        table["is_test"] += [is_test] * len(target)
        for name, values in zip(FEATURES, columns, strict=True):
            table[name] += values
        table["y"] += target
    return table


def errors_of(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return mean absolute errors of ratios: of the model, and of saying that the level stays.

    Args:
        rows: each with `prediction` and what came, `y`.
    """
    count, of_model, of_level = 0, 0.0, 0.0
    for row in rows:
        count += 1
        of_model += abs(row["prediction"] - row["y"])
        of_level += abs(1.0 - row["y"])
    return {"tests": count, "model": of_model / max(1, count), "level": of_level / max(1, count)}


# Three hours: what the features of the learned forecaster want before a whole season.
_LOOKBACK = 36
