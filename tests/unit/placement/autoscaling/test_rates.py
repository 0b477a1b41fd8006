"""Rates from counts, and forecasts from rates."""

from __future__ import annotations

import pytest

from strata_placement.autoscaling.rates import GrowthRate, RateHistory, expected_peak
from strata_placement.outlook import Expectation

DAY = 288
STEP_MS = 300_000


def test_a_rate_is_the_growth_over_the_window() -> None:
    """The first count says nothing; older ones than the window no longer count."""
    rate = GrowthRate(window_ms=10_000)
    assert rate.observe(0, 1_000) is None
    assert rate.observe(5_000, 1_500) == pytest.approx(100)
    assert rate.observe(10_000, 2_000) == pytest.approx(100)
    assert [rate.observe(10_000 + 5_000 * n, 2_000) for n in (1, 2, 3)][-1] == pytest.approx(0)


def test_a_count_that_falls_begins_anew() -> None:
    """A deleted topic is no negative rate."""
    rate = GrowthRate(window_ms=10_000)
    rate.observe(0, 1_000)
    assert rate.observe(1_000, 10) is None
    assert rate.observe(2_000, 20) == pytest.approx(10)


def test_windows_are_means_and_gaps_repeat_the_last_one() -> None:
    """A pause of the autoscaler does not look like a pause of the senders."""
    history = RateHistory(1_000, max_windows=4)
    assert [history.observe(at, rate) for at, rate in ((0, 10.0), (500, 20.0), (1_000, 40.0))] == [
        *(False, False, True)
    ]
    assert history.observe(4_100, 0.0)
    assert len(history) == 4
    assert history.highest == 40.0
    # A clock that was set back breaks nothing.
    assert not history.observe(100, 5.0)


def test_a_clock_that_was_set_back_ends_windows_at_once() -> None:
    """Not only when the time comes again that it had before: a forecast would stand still."""
    history = RateHistory(STEP_MS, max_windows=4)
    history.observe(72 * STEP_MS, 10.0)
    assert not history.observe(0, 30.0)
    assert history.observe(STEP_MS, 50.0)
    assert history.highest == 20.0
    assert history.observe(2 * STEP_MS, 50.0)
    assert history.highest == 50.0


def test_a_daily_peak_is_expected_before_it_comes() -> None:
    """With more than a day behind it, the forecast knows that noon is busy."""
    history = RateHistory(STEP_MS, max_windows=2 * DAY)
    values = [1_000.0 if 140 <= at % DAY < 160 else 100.0 for at in range(DAY + 135)]
    history.begin(0, values)
    expected = history.expectation()
    assert expected is not None
    assert expected.forecaster == "seasonal_naive"
    assert expected_peak(expected, STEP_MS) < 150
    assert expected_peak(expected, 10 * STEP_MS) > 900


def test_the_first_step_counts_however_short_the_horizon_is() -> None:
    """Else a short horizon would expect nothing at all."""
    expected = Expectation("ema", 60_000, (1, 4), ([7.0], [9.0]), None)
    assert expected_peak(expected, 1_000) == 7.0
    assert expected_peak(expected, 240_000) == 9.0
