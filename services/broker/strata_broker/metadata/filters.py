"""Filter expressions of clients: checked here, evaluated in storage.

The broker refuses a bad filter before it pops anything, with RocketMQ's code and, for SQL92, the
position of the error. Parsing a long expression takes tens of milliseconds, so the characters of
new expressions per second are limited.
"""

from __future__ import annotations

from apache.rocketmq.v2 import definition_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base.receive_config import ReceiveSection
from strata_broker.base.token_bucket import TokenBucket
from strata_mq.filters import EVERYTHING, FilterCache, FilterKind
from strata_mq.requests import Code, RequestError
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

# An idle broker parses two of the longest expressions at once.
_BURST_S = 1.0
_ALL = storage_pb2.Filter(kind=storage_pb2.FILTER_KIND_ALL)


class Filters:
    """Checks expressions; an expression that was checked lately costs a look-up."""

    def __init__(self, config: ReceiveSection, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._unread = TokenBucket(config.filter_characters_per_s, _BURST_S, clock.monotonic_s())
        self._refused = metrics.counter("strata_broker_unread_filters_total")
        self._known = FilterCache(config.max_cached_filters, config.max_cached_filter_characters)
        metrics.gauge(
            "strata_broker_cached_filters",
            lambda: [
                (float(len(self._known)), {"of": "filters"}),
                (float(self._known.characters), {"of": "characters"}),
            ],
        )

    def of(self, expression: definition_pb2.FilterExpression) -> storage_pb2.Filter:
        """Return the filter for storage.

        Raises:
            RequestError: ILLEGAL_FILTER_EXPRESSION; TOO_MANY_REQUESTS: too many new characters.
        """
        # As in RocketMQ: all filters but SQL92 are tag filters, also without type (old Go clients).
        kind = FilterKind.SQL if expression.type == definition_pb2.SQL else FilterKind.TAG
        text = expression.expression
        if kind is FilterKind.SQL and not text.strip():
            raise RequestError(Code.ILLEGAL_FILTER_EXPRESSION, "filter expression is empty")
        if kind is FilterKind.SQL and (kind, text) not in self._known:
            if not self._unread.in_credit(self._clock.monotonic_s()):
                self._refused.add()
                raise RequestError(
                    Code.TOO_MANY_REQUESTS,
                    "too many new filter expressions: try again (receive.filter_characters_per_s)",
                )
            self._unread.take(len(text))
        if self._known.of(kind, text) is EVERYTHING:
            return _ALL
        return storage_pb2.Filter(kind=storage_pb2.FilterKind.ValueType(kind), expression=text)
