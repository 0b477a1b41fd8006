"""The port of a forecaster.

A forecaster follows one series: it receives one value per window and returns its forecast for later
windows. It never sees a value before its window has passed; a back-test feeds it the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Forecaster(Protocol):
    """Expects the future of one series from its past."""

    def observe(self, value: float) -> None:
        """Take in the load of the window that has just passed."""

    def predict(self, steps: Sequence[int]) -> list[float]:
        """Return the expected loads.

        Args:
            steps: how many windows after the last one observed, each at least 1, rising.

        Returns:
            One value per step, never below 0; zeros before anything was observed.
        """


MakeForecaster = Callable[[], Forecaster]
"""Gives a forecaster that has seen nothing."""
