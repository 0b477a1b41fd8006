"""Counters and gauges of the native edge, under the names that every edge has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata_edge.options import EdgeOptions
from strata_runtime.metrics import Metrics

if TYPE_CHECKING:
    import strata_edge_native

_REFUSED = {
    "RefusedCalls": "calls",
    "RefusedUnread": "unread",
    "RefusedSize": "size",
    "RefusedUpload": "upload",
}
_COUNTERS = {
    "NotTaken": "strata_edge_answers_not_taken_total",
    "RefusedConnections": "strata_edge_refused_connections_total",
    "TlsFailures": "strata_edge_tls_failures_total",
    "HandshakeTimeouts": "strata_edge_handshake_timeouts_total",
    "PlaintextRefused": "strata_edge_plaintext_refused_total",
    "Pauses": "strata_edge_connection_pauses_total",
    "Ended": "strata_edge_ended_connections_total",
    "SentAway": "strata_edge_sent_away_total",
    "HandedOver": "strata_edge_handed_over_total",
}
_GAUGES = {
    "HotCalls": "strata_edge_hot_calls",
    "RareCalls": "strata_edge_rare_calls",
    "UnreadBytes": "strata_edge_unread_bytes",
    "Connections": "strata_edge_connections",
    "Leaving": "strata_edge_leaving_connections",
    "Relayed": "strata_edge_relayed_connections",
    "LargeBytes": "strata_edge_large_request_bytes",
    "LargeWaiting": "strata_edge_large_requests_waiting",
}


class NativeNumbers:
    """Passes the extension's numbers on to the metrics.

    Args:
        server: counts.
        options: what it allows.
        metrics: where the numbers show.
    """

    def __init__(
        self, server: strata_edge_native.Server, options: EdgeOptions, metrics: Metrics
    ) -> None:
        self._server = server
        names = server.number_names()
        self._at = {name: at for at, name in enumerate(names)}
        refused = metrics.counter("strata_edge_refused_calls_total")
        self._counters = [
            (self._at[name], refused, {"limit": limit}) for name, limit in _REFUSED.items()
        ]
        self._counters += [
            (self._at[name], metrics.counter(metric), {}) for name, metric in _COUNTERS.items()
        ]
        failures = metrics.counter("strata_request_failures_total")
        self._counters.append((self._at["Panics"], failures, {"component": "edge"}))
        self._seen = server.numbers()
        self._gauges = [
            metrics.gauge(metric, lambda name=name: self.now(name))  # type: ignore[misc]
            for name, metric in _GAUGES.items()
        ]
        self._gauges.append(
            metrics.gauge("strata_edge_connections_maximum", lambda: options.max_connections)
        )

    def read(self) -> None:
        """Count what was counted since the last time."""
        numbers = self._server.numbers()
        seen, self._seen = self._seen, numbers
        if numbers == seen:
            return
        for at, counter, labels in self._counters:
            if numbers[at] != seen[at]:
                counter.add(numbers[at] - seen[at], labels)

    def now(self, name: str) -> int:
        """Return one of the numbers as it is now."""
        return self._server.numbers()[self._at[name]]

    def connections(self) -> int:
        """Return how many clients are connected."""
        return self.now("Connections")

    def staying(self) -> int:
        """Return how many clients of gRPC are connected and were not asked to go."""
        return self.now("Connections") - self.now("Leaving") - self.now("Relayed")

    def busy(self) -> bool:
        """Whether a call is under way, or an answer on its way."""
        return any(self.now(name) for name in ("HotCalls", "RareCalls", "UnreadBytes"))

    def close(self) -> None:
        """Take the gauges off the scrape."""
        for gauge in self._gauges:
            gauge.close()
