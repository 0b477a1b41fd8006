"""Rates from growing counts, and windows of rates for a forecast. Pure: time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from strata_placement.outlook import Expectation, expect
from strata_placement.series import load_series


class GrowthRate:
    """Measures how fast a count grows.

    Args:
        window_ms: time over which the rate is measured.
    """

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._samples: deque[tuple[float, float]] = deque()

    def observe(self, now_ms: float, count: float) -> float | None:
        """Take in a count; return the rate per second, None after the first one.

        A count that falls (a topic was deleted) begins the measurement anew.
        """
        samples = self._samples
        if samples and count < samples[-1][1]:
            samples.clear()
        samples.append((now_ms, count))
        # The oldest sample that is kept is the last one outside of the window, or the first.
        while len(samples) > 2 and samples[1][0] <= now_ms - self._window_ms:
            samples.popleft()
        (then_ms, before), elapsed_ms = samples[0], now_ms - samples[0][0]
        if elapsed_ms <= 0:
            return None
        return max(0.0, count - before) * 1_000 / (now_ms - then_ms)


class RateHistory:
    """Means of a rate over windows of equal length, the newest `max_windows` of them.

    Args:
        step_ms: length of a window.
        max_windows: that are remembered.
    """

    def __init__(self, step_ms: int, max_windows: int) -> None:
        self._step_ms = step_ms
        self._windows: deque[float] = deque(maxlen=max_windows)
        self._open: int | None = None
        self._sum, self._count = 0.0, 0

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def highest(self) -> float:
        """The highest rate that is remembered; 0.0 before the first window has ended."""
        return max(self._windows, default=0.0)

    def begin(self, start_ms: int, values: Sequence[float]) -> None:
        """Take over what was measured before; it counts if nothing was observed yet."""
        if self._open is None and values:
            self._windows.extend(values)
            self._open = start_ms // self._step_ms + len(values)

    def observe(self, wall_ms: int, rate: float) -> bool:
        """Take in a rate; return whether a window ended by it.

        Windows in which nothing was observed repeat the one before. A clock that was set back adds
        to the window that is open, and that window goes on by the new time: else no window would
        end until the old time comes again.
        """
        at = wall_ms // self._step_ms
        if self._open is None or at < self._open:
            self._open = at
        ended = at > self._open
        if ended:
            before = self._windows[-1] if self._windows else rate
            mean = self._sum / self._count if self._count else before
            passed = min(at - self._open, self._windows.maxlen or 1)
            self._windows.extend([mean] * passed)
            self._open, self._sum, self._count = at, 0.0, 0
        self._sum += rate
        self._count += 1
        return ended

    def expectation(self) -> Expectation | None:
        """Return the rates to come; None before the first window has ended."""
        if not self._windows:
            return None
        return expect(load_series(0, self._step_ms, [("rate", self._windows)]))


def expected_peak(expected: Expectation, horizon_ms: int) -> float:
    """Return the highest rate within a horizon; the first step counts in any case."""
    points = zip(expected.steps, expected.points, strict=True)
    within = [
        point[0]
        for at, (step, point) in enumerate(points)
        if at == 0 or step * expected.step_ms <= horizon_ms
    ]
    return max(within)
