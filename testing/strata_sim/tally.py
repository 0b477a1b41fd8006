"""Amount of each kind of work in a run, from the counters of all incarnations of all services."""

from __future__ import annotations

from collections.abc import Iterable

from strata_runtime.metric_kinds import BoundCounter, Counter, Labels, MetricSpec
from strata_runtime.metrics import Metrics

WORK = {
    "strata_storage_checkpoints_total": "checkpoints",
    "strata_storage_freed_segments_total": "freed_segments",
    "strata_storage_relocated_bytes_total": "relocated_bytes",
    "strata_raft_snapshots_installed_total": "snapshots",
    "strata_storage_dead_letters_total": "dead_letters",
    "strata_storage_queue_moves_total": "queue_moves",
    "strata_storage_slot_moves_total": "slot_moves",
    "strata_storage_resolved_total": "resolved",
    "strata_storage_released_total": "released",
    "strata_storage_tier_uploaded_bytes_total": "uploaded_bytes",
    "strata_storage_tier_read_bytes_total": "read_from_tier_bytes",
    "strata_lite_topics_expired_total": "lite_topics_ended",
}
"""Counter -> the kind of work it counts."""


class TallyMetrics(Metrics):
    """Metrics of which some counters count, whatever their labels; summed up over all owners."""

    def __init__(self) -> None:
        super().__init__()
        self._tallies = {name: _Tally(name) for name in WORK}
        nothing = Metrics.disabled()
        self._nothing = nothing
        # Everything else is as if there were no metrics.
        self.histogram = nothing.histogram  # type: ignore[method-assign]
        self.gauge = nothing.gauge  # type: ignore[method-assign]

    def declare(self, specs: Iterable[MetricSpec]) -> None:
        """Nothing to make known."""

    def counter(self, name: str) -> Counter:
        """Return the one counter of this name, or one that counts nothing."""
        return self._tallies.get(name) or self._nothing.counter(name)

    def work(self) -> dict[str, int]:
        """Return kind of work -> how much of it was done."""
        return {WORK[name]: int(tally.value()) for name, tally in self._tallies.items()}


class _Tally(Counter):
    """One number, whatever the labels."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(MetricSpec(name, "counter", "1", ""), 1)
        self._values[()] = 0.0

    def add(self, n: float = 1, labels: Labels | None = None) -> None:
        """Add."""
        self._values[()] += n

    def bound(self, labels: Labels) -> BoundCounter:
        """Return the same number."""
        return BoundCounter(self._values, ())
