"""The node's counters, looked up once."""

from __future__ import annotations

from strata_runtime.metrics import Metrics


class Instruments:
    """Counters and histograms by what they count."""

    __slots__ = (
        "acked",
        "checkpoints",
        "corrupt",
        "dead_letters",
        "flush_ms",
        "freed_segments",
        "popped",
        "refused",
        "released",
        "relocated_bytes",
        "trimmed_leases",
    )

    def __init__(self, metrics: Metrics) -> None:
        self.acked = metrics.counter("strata_storage_acked_total")
        self.checkpoints = metrics.counter("strata_storage_checkpoints_total")
        self.corrupt = metrics.counter("strata_storage_corrupt_total")
        self.dead_letters = metrics.counter("strata_storage_dead_letters_total")
        self.flush_ms = metrics.histogram("strata_storage_flush_ms")
        self.freed_segments = metrics.counter("strata_storage_freed_segments_total")
        self.popped = metrics.counter("strata_storage_popped_total")
        self.refused = metrics.counter("strata_storage_refused_total")
        self.released = metrics.counter("strata_storage_released_total")
        self.relocated_bytes = metrics.counter("strata_storage_relocated_bytes_total")
        self.trimmed_leases = metrics.counter("strata_storage_trimmed_leases_total")
