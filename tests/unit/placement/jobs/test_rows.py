"""Work of jobs on rows, without Spark: windows to a wide table, loads to forecasts and samples."""

from __future__ import annotations

import math

import pytest

from strata_placement.forecast.learned import FEATURES, SampleOptions
from strata_placement.jobs import series_rows, window_rows
from strata_placement.jobs.series_rows import Bounds, QueueWindow
from strata_placement.series import DAY_MS, PlacementError
from strata_placement.timely import LeftOut
from strata_runtime.windows import WindowKind, batches_of, encode

STEP_MS = 300_000
DAY = DAY_MS // STEP_MS


START_MS = 1_793_318_400_000


def body(
    kind: WindowKind,
    *rows: dict[str, int | float | str],
    start_ms: int = START_MS,
    length_ms: int = 10_000,
) -> bytes:
    """Return the body of a message with these windows."""
    (batch,) = batches_of(kind, "storage-1", start_ms, length_ms, rows)
    return encode(batch)


def test_windows_of_all_kinds_become_one_table() -> None:
    """Rows keep their values by column; what a kind lacks is null, rubbish is counted."""
    left_out = LeftOut()
    table = window_rows.rows_of(
        [
            body(WindowKind.QUEUE, {"topic": "a", "queue": 1, "bytes_in": 7}, {"topic": "b"}),
            b"no batch of windows",
            body(WindowKind.NODE, {"node_kind": "storage", "sync_p95_ms": 1.5}),
        ],
        left_out,
    )
    assert list(table) == list(window_rows.COLUMN_TYPES)
    assert {len(column) for column in table.values()} == {3}
    assert table["kind"] == ["queue", "queue", "node"]
    assert table["hour"] == ["2026-10-30T00"] * 3
    assert (table["topic"], table["bytes_in"]) == (["a", "b", None], [7, 0, 0])
    assert table["sync_p95_ms"] == [None, None, 1.5]
    assert str(left_out).endswith("do not count: 1 cannot be read by this version")


@pytest.mark.parametrize(
    ("start_ms", "length_ms"),
    [(10**15, 10_000), (2**63, 10_000), (2**64 - 1, 10_000), (START_MS, 0), (START_MS, 2**32 - 1)],
)
def test_a_batch_with_a_time_that_cannot_be_is_passed_over(start_ms: int, length_ms: int) -> None:
    """It would fail a stream each time that it goes on from its checkpoint."""
    left_out = LeftOut()
    flawed = body(WindowKind.QUEUE, {"topic": "a"}, start_ms=start_ms, length_ms=length_ms)
    table = window_rows.rows_of([flawed, body(WindowKind.QUEUE, {"topic": "b"})], left_out)
    assert (table["topic"], table["hour"]) == (["b"], ["2026-10-30T00"])
    assert left_out.total == 1
    assert "1 of storage-1 have a time or a length that cannot be" in str(left_out)


def daily(day: int) -> list[QueueWindow]:
    """Return days of windows whose load goes up and down once a day."""
    return [
        QueueWindow(window * STEP_MS, 100 + 50 * math.sin(2 * math.pi * window / DAY))
        for window in range(day * DAY)
    ]


def test_a_queue_is_forecast_by_itself() -> None:
    """Rows say when and how much, within bounds once there is history; gaps count as zeros."""
    bounds = Bounds(0, (3 * DAY - 1) * STEP_MS, STEP_MS)
    rows = series_rows.forecast_rows(series_rows.series_of("/t/0", daily(3), bounds))
    assert rows[0]["queue"] == "/t/0"
    assert rows[0]["forecaster"] == "seasonal_naive"
    assert rows[0]["at_ms"] == 3 * DAY_MS + (rows[0]["step"] - 1) * STEP_MS
    for row in rows:
        expected = 100 + 50 * math.sin(2 * math.pi * (row["at_ms"] / STEP_MS) / DAY)
        assert row["expected"] == pytest.approx(expected, abs=1)
        assert row["lower"] <= row["expected"] * 1.01
        assert row["upper"] >= row["expected"] * 0.99
    idle = series_rows.series_of("/t/1", [QueueWindow(0, 5.0), QueueWindow(0, 6.0)], bounds)
    assert (idle.columns[0][0], sum(idle.columns[0])) == (11.0, 11.0)


def test_one_clock_that_was_wrong_makes_no_endless_series() -> None:
    """Too many windows are refused; the newest ones remain, and older rows do not count."""
    endless = Bounds(0, 10_000 * 5_000_000, 10_000)
    with pytest.raises(PlacementError, match="5000001 windows are more than 1000000"):
        series_rows.series_of("/t/0", [QueueWindow(0, 1.0)], endless)
    newest = endless.newest(3)
    assert newest == Bounds(endless.last_ms - 20_000, endless.last_ms, 10_000)
    assert endless.newest().windows == series_rows.MAX_WINDOWS
    short = Bounds(0, 20_000, 10_000)
    assert short.newest(3) is short
    rows = [QueueWindow(0, 9.0), QueueWindow(newest.last_ms, 1.0), QueueWindow(1 << 60, 9.0)]
    assert list(series_rows.series_of("/t/0", rows, newest).columns[0]) == [0.0, 0.0, 1.0]


def test_samples_are_tested_on_what_came_later() -> None:
    """Every sample has all features; a part is to test; a short history is refused."""
    series = series_rows.series_of("/t/0", daily(8), Bounds(0, (8 * DAY - 1) * STEP_MS, STEP_MS))
    table = series_rows.sample_columns(series, SampleOptions(50), 0.2)
    assert list(table) == ["is_test", *FEATURES, "y"]
    assert {len(column) for column in table.values()} == {60}
    assert table["is_test"].count(True) == 10
    with pytest.raises(PlacementError, match="too few"):
        series_rows.sample_columns(series.part(0, DAY), SampleOptions(50), 0.2)


def test_errors_are_told_beside_those_of_knowing_nothing() -> None:
    """The mean absolute error of the model stands beside that of "the level stays"."""
    rows = [{"prediction": 1.5, "y": 2.0}, {"prediction": 0.5, "y": 1.0}]
    assert series_rows.errors_of(rows) == {"tests": 2, "model": 0.5, "level": 0.5}
