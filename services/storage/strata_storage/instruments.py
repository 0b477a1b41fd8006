"""The node's counters, looked up once, and how full its limits are."""

from __future__ import annotations

from collections.abc import Sequence

from strata_mq.batch import PartKind
from strata_runtime.metrics import Metrics
from strata_storage.engine import GroupEngine


class Instruments:
    """Counters and histograms by what they count.

    Attributes:
        served_bytes_total: bytes of messages handed out.
    """

    __slots__ = (
        "_append_ms",
        "_appends",
        "acked",
        "checkpoints",
        "corrupt",
        "dead_letters",
        "filtered",
        "flush_ms",
        "freed_segments",
        "popped",
        "refused",
        "released",
        "relocated_bytes",
        "served_bytes_total",
        "trimmed_leases",
    )

    def __init__(self, metrics: Metrics) -> None:
        self.acked = metrics.counter("strata_storage_acked_total")
        self.checkpoints = metrics.counter("strata_storage_checkpoints_total")
        self.corrupt = metrics.counter("strata_storage_corrupt_total")
        self.dead_letters = metrics.counter("strata_storage_dead_letters_total")
        self.filtered = metrics.counter("strata_storage_filtered_total")
        self.flush_ms = metrics.histogram("strata_storage_flush_ms")
        self.freed_segments = metrics.counter("strata_storage_freed_segments_total")
        self.popped = metrics.counter("strata_storage_popped_total")
        self.refused = metrics.counter("strata_storage_refused_total")
        self.released = metrics.counter("strata_storage_released_total")
        self.relocated_bytes = metrics.counter("strata_storage_relocated_bytes_total")
        self.trimmed_leases = metrics.counter("strata_storage_trimmed_leases_total")
        self.served_bytes_total = 0
        self._appends = 0
        self._append_ms = 0.0

    def appended(self, took_ms: float) -> None:
        """Take in how long a call of Append took, from its arrival to its answer."""
        self._appends += 1
        self._append_ms += took_ms

    def take_append_latency_ms(self) -> float:
        """Return the mean of the appends since the last call; 0: there were none."""
        mean_ms = self._append_ms / self._appends if self._appends else 0.0
        self._appends, self._append_ms = 0, 0.0
        return mean_ms


def used_by(engines: Sequence[GroupEngine]) -> dict[str, int]:
    """Return how full the limits of raft groups are, all together, by limit."""
    leaders = [engine.leader for engine in engines if engine.leader is not None]
    machines = [engine.machine for engine in engines]
    return {
        "waiters_max": sum(len(leader.waiters) for leader in leaders),
        "waiting_fetches": sum(len(leader.arrivals) for leader in leaders),
        "client_names_max": sum(len(leader.client_names) for leader in leaders),
        "lease_sets_max": sum(len(leader.sets) for leader in leaders),
        "dedupe_max_ids": sum(len(leader.appends.window) for leader in leaders),
        "proposals_in_flight": sum(len(leader.proposer) for leader in leaders),
        "cq_cache_bytes": sum(machine.consume_queues.size_bytes for machine in machines),
        "queue_rows_max": sum(len(machine.queues) for machine in machines),
        "pending_window": sum(len(leader.pending.timers) for leader in leaders),
        "resolves_max": sum(len(leader.pending.resolver) for leader in leaders),
        "forwards_max": sum(leader.pending.timers.forwards_in_flight for leader in leaders),
        "checks_in_flight_max": sum(
            leader.pending.transactions.checks_in_flight for leader in leaders
        ),
    }


def pending_by_kind(engines: Sequence[GroupEngine]) -> list[tuple[float, dict[str, str]]]:
    """Return how many messages wait in the raft groups led here, by kind."""
    counts = [engine.leader.pending.timers.counts for engine in engines if engine.leader]
    return [
        (float(sum(count.of(kind) for count in counts)), {"kind": kind.name.lower()})
        for kind in (PartKind.DELAYED, PartKind.HALF)
    ]
