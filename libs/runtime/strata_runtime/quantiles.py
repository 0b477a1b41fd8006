"""Quantiles of a time window, computed from a histogram that only grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strata_runtime.metrics import Histogram


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of the values of one window; zeros if there were none. In the histogram's unit."""

    count: int
    p50: float
    p95: float
    p99: float
    maximum: float


class HistogramWindow:
    """Values that a histogram received since the last call.

    Args:
        histogram: grows; None: there is none, all windows are empty.
        labels: which of its label sets.
    """

    def __init__(
        self, histogram: Histogram | None, labels: Mapping[str, str] | None = None
    ) -> None:
        self._histogram = histogram
        self._labels = labels
        self._before: Sequence[int] = self._counts()

    def take(self) -> Quantiles:
        """Return the quantiles of the values since the last call, as good as the buckets are."""
        after = self._counts()
        counts = [now - before for now, before in zip(after, self._before, strict=True)]
        self._before = after
        if self._histogram is None or not any(counts):
            return Quantiles(0, 0.0, 0.0, 0.0, 0.0)
        bounds = self._histogram.boundaries
        return Quantiles(
            sum(counts), *(quantile(bounds, counts, share) for share in (0.5, 0.95, 0.99, 1.0))
        )

    def _counts(self) -> Sequence[int]:
        return [] if self._histogram is None else self._histogram.bucket_counts(self._labels)


def quantile(boundaries: Sequence[float], counts: Sequence[int], share: float) -> float:
    """Return the value below which a share of what was counted lies, linear within its bucket.

    Args:
        boundaries: upper bounds of all buckets but the last.
        counts: per bucket, not all zero.
        share: 0 to 1.
    """
    wanted = share * sum(counts)
    below = 0
    for number, count in enumerate(counts):
        if count and below + count >= wanted:
            if number == len(boundaries):
                # The last bucket has no end.
                return boundaries[-1]
            lower = boundaries[number - 1] if number else 0.0
            return lower + (boundaries[number] - lower) * (wanted - below) / count
        below += count
    return boundaries[-1]
