"""Counters of messages that wait, looked up once; the same for all raft groups of a node."""

from __future__ import annotations

from strata_runtime.metrics import Metrics


class PendingInstruments:
    """Counters and histograms by what they count.

    Attributes:
        resolved: messages that stopped waiting, by how.
        late_ms: how long after its due time a message had its place.
        finish_s: how long after it was stored a half message was committed.
        checks: transaction checks, by what became of them.
        forwards: messages brought to another raft group, by result.
    """

    __slots__ = ("checks", "finish_s", "forwards", "late_ms", "resolved")

    def __init__(self, metrics: Metrics) -> None:
        self.resolved = metrics.counter("strata_storage_resolved_total")
        self.late_ms = metrics.histogram("strata_storage_late_ms")
        self.finish_s = metrics.histogram("rocketmq_finish_message_latency")
        self.checks = metrics.counter("strata_storage_transaction_checks_total")
        self.forwards = metrics.counter("strata_storage_forwarded_total")
