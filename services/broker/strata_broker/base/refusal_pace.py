"""How fast the calls of one connection may be refused (rule 34).

A refusal takes nearly as long as an answer. A client that repeats a refused call without pause
would take the event loop from all other clients, so its connection has a pace. Every error of a
client counts; the answer that there is no message does not.
"""

from __future__ import annotations

from collections.abc import Iterable

from strata_broker.base.receive_config import RefusalsSection
from strata_broker.base.token_bucket import TokenBucket
from strata_mq.requests import Code
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

_FIRST_CLIENT_ERROR, _FIRST_SERVER_ERROR = 40_000, 50_000
_BURST_S = 0.1


class RefusalPace:
    """Knows how long the next call of a connection has to wait. Must be used on the event loop.

    Args:
        config: the pace, and how many connections are remembered.
        clock: monotonic time.
        metrics: how many entries were refused.
    """

    def __init__(self, config: RefusalsSection, clock: Clock, metrics: Metrics) -> None:
        self._config = config
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}
        self._refused = metrics.counter("strata_broker_refused_entries_total")

    def refused(self, peer: str, codes: Iterable[Code]) -> None:
        """Count a call that was answered with these codes, one for each entry.

        Args:
            peer: the connection, `host:port`.
            codes: of the entries, or the one of the call; those of success count nothing.
        """
        # A range that is asked for a member of an enum walks through all its numbers.
        entries = sum(
            _FIRST_CLIENT_ERROR <= code < _FIRST_SERVER_ERROR and code is not Code.MESSAGE_NOT_FOUND
            for code in codes
        )
        if not entries:
            return
        self._refused.add(entries)
        bucket = self._buckets.get(peer)
        if bucket is None:
            bucket = self._new_bucket(peer)
        # The debt of time that has passed is paid first.
        bucket.in_credit(self._clock.monotonic_s())
        bucket.take(entries + self._config.entries_per_call)

    @property
    def is_idle(self) -> bool:
        """Whether no connection has refused calls to wait for: nearly always."""
        return not self._buckets

    def wait_s(self, peer: str) -> float:
        """Return how many seconds the next call of a connection has to wait, 0 for most."""
        bucket = self._buckets.get(peer)
        if bucket is None:
            return 0.0
        now_s = self._clock.monotonic_s()
        if bucket.in_credit(now_s):
            if bucket.used(now_s) <= 0:
                del self._buckets[peer]
            return 0.0
        return bucket.credit_in_s(now_s)

    def _new_bucket(self, peer: str) -> TokenBucket:
        now_s = self._clock.monotonic_s()
        if len(self._buckets) >= self._config.max_connections:
            # The oldest has had the longest time to pay.
            del self._buckets[next(iter(self._buckets))]
        bucket = TokenBucket(self._config.max_entries_per_s, _BURST_S, now_s)
        self._buckets[peer] = bucket
        return bucket
