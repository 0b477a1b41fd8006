"""The last values of one series, counted back from the newest."""

from __future__ import annotations

from collections.abc import Sequence

_LOWEST_RATIO, _HIGHEST_RATIO = 0.05, 5.0


def bounded(ratio: float) -> float:
    """Return the ratio of two loads within bounds: what stood still says little about the other."""
    return min(max(ratio, _LOWEST_RATIO), _HIGHEST_RATIO)


class History:
    """Keeps at least the last `capacity` values and at most twice as many.

    Args:
        capacity: how far back anybody asks.
        values: that it begins with, oldest first.
    """

    def __init__(self, capacity: int, values: Sequence[float] = ()) -> None:
        self._capacity = capacity
        self._values = list(values[-capacity:])

    def __len__(self) -> int:
        """Return how many values can be asked for."""
        return min(len(self._values), self._capacity)

    def append(self, value: float) -> None:
        """Take in the newest value."""
        self._values.append(value)
        if len(self._values) >= 2 * self._capacity:
            del self._values[: -self._capacity]

    def ago(self, windows: int) -> float:
        """Return the value so many windows before the newest (0: the newest)."""
        return self._values[-1 - windows]

    def mean(self, count: int, ago: int = 0) -> float:
        """Return the mean of `count` values, the last of them `ago` windows before the newest."""
        return sum(self.last(count, ago)) / count

    def last(self, count: int, ago: int = 0) -> Sequence[float]:
        """Return `count` values, the last of them `ago` windows before the newest."""
        end = len(self._values) - ago
        return self._values[end - count : end]
