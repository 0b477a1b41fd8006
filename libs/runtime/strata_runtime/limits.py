"""Named limits: the maximum held at once, the use, and the number of refusals.

A limit is a number that is taken and given back; it does not know what is counted. All limits of a
process appear under three metric names with the label `limit`.
"""

from __future__ import annotations

from strata_runtime.metrics import Metrics, MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_limit_used", "gauge", "1", "Amount of a limit that is in use now.", ("limit", "of")
    ),
    MetricSpec("strata_limit_maximum", "gauge", "1", "Most that a limit allows.", ("limit", "of")),
    MetricSpec(
        "strata_limit_refused_total",
        "counter",
        "1",
        "Requests that a limit refused.",
        ("limit", "of"),
    ),
)


class Limit:
    """A bounded amount, used from one thread (the event loop).

    Invariant: 0 <= used <= maximum.

    Args:
        name: label `limit` of its metrics, also for the error text of whoever is refused.
        maximum: how much may be held.
        unit: what is counted ("bytes", "calls"), label `of`.
        metrics: where its fullness is shown.
    """

    __slots__ = ("_gauges", "_labels", "_refused", "maximum", "name", "unit", "used")

    def __init__(self, name: str, maximum: int, unit: str, *, metrics: Metrics) -> None:
        if maximum <= 0:
            raise ValueError(f"limit {name} must be positive, got {maximum}")
        self.name = name
        self.maximum = maximum
        self.unit = unit
        self.used = 0
        self._labels = {"limit": name, "of": unit}
        metrics.declare(METRICS)
        self._refused = metrics.counter("strata_limit_refused_total")
        self._gauges = (
            metrics.gauge("strata_limit_used", lambda: [(self.used, self._labels)]),
            metrics.gauge("strata_limit_maximum", lambda: [(self.maximum, self._labels)]),
        )

    def try_take(self, n: int = 1) -> bool:
        """Take `n` if there is room; return whether it was taken."""
        if self.used + n > self.maximum:
            self._refused.add(1, self._labels)
            return False
        self.used += n
        return True

    def give_back(self, n: int = 1) -> None:
        """Return what `try_take` took."""
        assert 0 <= n <= self.used, f"limit {self.name}: {n} given back, {self.used} held"
        self.used -= n

    def close(self) -> None:
        """Take its gauges off the scrape."""
        for gauge in self._gauges:
            gauge.close()
