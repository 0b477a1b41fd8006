"""The node's counters, looked up once, and how full its limits are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from strata_mq.layout import PartKind
from strata_runtime.metrics import Histogram, Labels, Metrics
from strata_runtime.quantiles import HistogramWindow
from strata_runtime.turns import Turns
from strata_storage.base.disk_guard import DiskGuard, DiskMark
from strata_storage.group.engine import GroupEngine
from strata_storage.leading.leader import GroupLeader

_LOCAL: Labels = {"storage_type": "local", "storage_medium": "disk"}
_TIERED: Labels = {"storage_type": "tiered", "storage_medium": "blob"}
# RocketMQ's bits: 4 read, 2 write. With other marks leases cannot be written either.
_PERMISSIONS = {DiskMark.NORMAL: 6, DiskMark.REFUSE_APPENDS: 4}


class Instruments:
    """Counters and histograms by what they count.

    Attributes:
        led_bytes_total: bytes of batches that brokers appended to raft groups led here.
        served_bytes_total: bytes of messages handed out.
    """

    __slots__ = (
        "_append_ms",
        "_appends",
        "_served",
        "_syncs",
        "acked",
        "append_ms",
        "checkpoints",
        "corrupt",
        "dead_letters",
        "dead_letters_sent",
        "filter_limited",
        "filter_steps",
        "filter_waits",
        "filtered",
        "flush_ms",
        "freed_segments",
        "led_bytes_total",
        "popped",
        "reads_failed",
        "refused",
        "released",
        "relocated_bytes",
        "served_bytes_total",
        "trimmed_leases",
    )

    def __init__(self, metrics: Metrics) -> None:
        self.acked = metrics.counter("strata_storage_acked_total")
        self.append_ms = metrics.histogram("strata_storage_append_ms")
        self.checkpoints = metrics.counter("strata_storage_checkpoints_total")
        self.corrupt = metrics.counter("strata_storage_corrupt_total")
        self.dead_letters = metrics.counter("strata_storage_dead_letters_total")
        self.dead_letters_sent = metrics.counter("rocketmq_send_to_dlq_messages_total")
        self.filter_limited = metrics.counter("strata_storage_filter_limited_total")
        self.filter_steps = metrics.counter("strata_storage_filter_steps_total")
        self.filter_waits = metrics.counter("strata_storage_filter_waits_total")
        self.filtered = metrics.counter("strata_storage_filtered_total")
        self.flush_ms = metrics.histogram("strata_storage_flush_ms")
        self.freed_segments = metrics.counter("strata_storage_freed_segments_total")
        self.popped = metrics.counter("strata_storage_popped_total")
        self.reads_failed = metrics.counter("strata_storage_reads_failed_total")
        self.refused = metrics.counter("strata_storage_refused_total")
        self.released = metrics.counter("strata_storage_released_total")
        self.relocated_bytes = metrics.counter("strata_storage_relocated_bytes_total")
        self.trimmed_leases = metrics.counter("strata_storage_trimmed_leases_total")
        self.led_bytes_total = 0
        self.served_bytes_total = 0
        self._served = metrics.counter("strata_storage_served_bytes_total")
        self._appends = 0
        self._append_ms = 0.0
        self._syncs = HistogramWindow(_histogram(metrics, "strata_log_sync_ms"), {"log": "storage"})

    def turns(self, filter_steps: int) -> Turns:
        """Return the slices of the filters' work, each of so many steps, counted here."""
        return Turns(filter_steps, self.filter_steps, self.filter_waits)

    def served(self, size_bytes: int) -> None:
        """Take in how many bytes of messages an answer has."""
        self.served_bytes_total += size_bytes
        self._served.add(size_bytes)

    def appended(self, took_ms: float) -> None:
        """Take in how long a call of Append took, from its arrival to its answer."""
        self.append_ms.record(took_ms)
        self._appends += 1
        self._append_ms += took_ms

    def take_append_latency_ms(self) -> float:
        """Return the mean of the appends since the last call; 0: there were none."""
        mean_ms = self._append_ms / self._appends if self._appends else 0.0
        self._appends, self._append_ms = 0, 0.0
        return mean_ms

    def take_sync_latency_ms(self) -> float:
        """Return the median time of the log's fdatasync since the last call; 0: there was none."""
        return self._syncs.take().p50


def _histogram(metrics: Metrics, name: str) -> Histogram | None:
    """Return a histogram that another part of the process declares; None: no part did."""
    try:
        return metrics.histogram(name)
    except KeyError:
        return None


def used_by(engines: Sequence[GroupEngine]) -> dict[str, int]:
    """Return how full the limits of raft groups are, all together, by limit."""
    leaders = _leaders(engines)
    machines = [engine.machine for engine in engines]
    return {
        "max_waiters": sum(len(leader.waiters) for leader in leaders),
        "max_waiter_bytes": sum(
            leader.waiters.parked_bytes + leader.arrivals.waiting_bytes for leader in leaders
        ),
        "waiting_fetches": sum(len(leader.arrivals) for leader in leaders),
        "client_names_max": sum(len(leader.client_names) for leader in leaders),
        "lease_sets_max": sum(len(leader.sets) for leader in leaders),
        "max_dedupe_ids": sum(len(leader.appends.window) for leader in leaders),
        "proposals_in_flight": sum(len(leader.proposer) for leader in leaders),
        "cq_cache_bytes": sum(machine.consume_queues.size_bytes for machine in machines),
        "parsed_max_bytes": sum(machine.parsed.size_bytes for machine in machines),
        "queue_rows_max": sum(len(machine.queues) for machine in machines),
        "pending_window": sum(len(leader.pending.timers) for leader in leaders),
        "resolves_max": sum(len(leader.pending.resolver) for leader in leaders),
        "forwards_max": sum(leader.pending.timers.forwards_in_flight for leader in leaders),
        "forward_bytes_max": sum(leader.pending.timers.forward_bytes for leader in leaders),
        "forwards_unanswered_max": sum(
            leader.pending.timers.forwards_unanswered for leader in leaders
        ),
        "checks_in_flight_max": sum(
            leader.pending.transactions.checks_in_flight for leader in leaders
        ),
    }


class ObservedNode(Protocol):
    """The part of a storage node that gauges need; each answer is from memory.

    Attributes:
        disk_guard: how full the disk is.
    """

    disk_guard: DiskGuard

    def engines(self) -> Sequence[GroupEngine]:
        """Return the hosted raft groups."""

    def log_bytes(self) -> tuple[int, int]:
        """Return (bytes on disk, bytes ever appended) of the log."""

    def unsynced_bytes(self) -> int:
        """Return the bytes that wait for the log's sync."""

    def unapplied_bytes(self) -> int:
        """Return the bytes that are committed and not applied."""


def observe_as_rocketmq(metrics: Metrics, node: ObservedNode) -> None:
    """Show under RocketMQ's names what there is to show of a storage node."""
    engines = node.engines
    for name, size_bytes in (
        ("rocketmq_storage_size", lambda: node.log_bytes()[0]),
        ("rocketmq_storage_flush_behind_bytes", node.unsynced_bytes),
        ("rocketmq_storage_dispatch_behind_bytes", node.unapplied_bytes),
    ):
        metrics.gauge(name, partial(_local, size_bytes))
    metrics.gauge("rocketmq_storage_message_reserve_time", lambda: _reserve_times(engines()))
    metrics.gauge("rocketmq_broker_permission", lambda: _PERMISSIONS.get(node.disk_guard.mark, 0))
    metrics.gauge(
        "rocketmq_timer_dequeue_lag",
        lambda: sum(leader.pending.timers.due() for leader in _leaders(engines())),
    )
    metrics.gauge(
        "rocketmq_timer_dequeue_latency",
        lambda: max(
            (leader.pending.timers.overdue_ms() for leader in _leaders(engines())), default=0
        ),
    )
    for name, kind in (
        ("rocketmq_half_messages", "half"),
        ("rocketmq_timing_messages", "delayed"),
    ):
        metrics.gauge(name, partial(_pending_of, engines, kind))


def _local(size_bytes: Callable[[], int]) -> list[tuple[float, Labels]]:
    return [(size_bytes(), _LOCAL)]


def _leaders(engines: Sequence[GroupEngine]) -> list[GroupLeader]:
    return [engine.leader for engine in engines if engine.leader is not None]


def _reserve_times(engines: Sequence[GroupEngine]) -> list[tuple[float, Labels]]:
    """Return the age in ms of the oldest message in the log and in the tier, where there is one."""
    local: list[int] = []
    tiered: list[int] = []
    for leader in _leaders(engines):
        now_ms, oldest = leader.proposer.now_ms(), leader.oldest
        if oldest.local_ms is not None:
            local.append(now_ms - oldest.local_ms)
        if oldest.tiered_ms is not None:
            tiered.append(now_ms - oldest.tiered_ms)
    return [(max(ages), labels) for ages, labels in ((local, _LOCAL), (tiered, _TIERED)) if ages]


def _pending_of(engines: Callable[[], Sequence[GroupEngine]], kind: str) -> float:
    return sum(count for count, labels in pending_by_kind(engines()) if labels["kind"] == kind)


def pending_by_kind(engines: Sequence[GroupEngine]) -> list[tuple[float, dict[str, str]]]:
    """Return how many messages wait in the raft groups led here, by kind."""
    counts = [engine.leader.pending.timers.counts for engine in engines if engine.leader]
    return [
        (float(sum(count.of(kind) for count in counts)), {"kind": kind.name.lower()})
        for kind in (PartKind.DELAYED, PartKind.HALF)
    ]
