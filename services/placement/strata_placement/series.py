"""Loads over equal windows as columns: what forecasts are made from and back-tests run on.

Invariant: all columns of a `LoadSeries` have one length; the value at window `i` covers the time
from `start_ms + i * step_ms` for `step_ms`. It does not know where the values come from.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from strata_runtime.errors import StrataError

DAY_MS = 86_400_000


class PlacementError(StrataError):
    """Input of placement that cannot be used; the message is the one line an operator sees."""


@dataclass(frozen=True, slots=True)
class LoadSeries:
    """Loads of many subjects (queues, raft groups, nodes) over the same windows.

    Attributes:
        start_ms: wall time at which the first window begins.
        step_ms: length of a window.
        names: of the subjects.
        columns: per subject the mean load of each window, bytes per second.
    """

    start_ms: int
    step_ms: int
    names: tuple[str, ...]
    columns: tuple[Sequence[float], ...]

    @property
    def windows(self) -> int:
        """How many windows there are."""
        return len(self.columns[0]) if self.columns else 0

    @property
    def windows_per_day(self) -> int:
        """The length of a daily season."""
        return max(1, DAY_MS // self.step_ms)

    def at(self, window: int) -> list[float]:
        """Return the load of every subject in one window."""
        return [column[window] for column in self.columns]

    def part(self, first: int, end: int) -> LoadSeries:
        """Return the windows from `first` up to, not including, `end`."""
        columns = tuple(column[first:end] for column in self.columns)
        return LoadSeries(self.start_ms + first * self.step_ms, self.step_ms, self.names, columns)

    def coarser(self, factor: int) -> LoadSeries:
        """Return means over `factor` windows each; an incomplete last one is left out."""
        whole = self.windows // factor * factor
        columns = tuple(
            array("d", (sum(c[i : i + factor]) / factor for i in range(0, whole, factor)))
            for c in self.columns
        )
        return LoadSeries(self.start_ms, self.step_ms * factor, self.names, columns)


def load_series(
    start_ms: int, step_ms: int, named_columns: Iterable[tuple[str, Iterable[float]]]
) -> LoadSeries:
    """Put named columns together.

    Raises:
        PlacementError: they differ in length.
    """
    names, columns = [], []
    for name, values in named_columns:
        names.append(name)
        columns.append(array("d", values))
    if len({len(column) for column in columns}) > 1:
        raise PlacementError("the columns of a load series differ in length")
    return LoadSeries(start_ms, step_ms, tuple(names), tuple(columns))


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the values lie; 0.0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def summed(columns: Sequence[Sequence[float]], choose: Callable[[int], bool]) -> list[float]:
    """Return the sum, window by window, of the columns whose position is chosen."""
    chosen = [column for at, column in enumerate(columns) if choose(at)]
    return [sum(values) for values in zip(*chosen, strict=True)]
