"""Filter expressions of clients: checked here, evaluated in storage.

The broker refuses a bad filter before it pops anything, with RocketMQ's code and, for SQL92, the
position of the error. Filters that were checked are remembered. The characters of others are read
at a limited pace, and a client and an address have a part of both: a client with ever new filters
neither makes the broker forget filters that others use, nor has those refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from apache.rocketmq.v2 import definition_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base.receive_config import ReceiveSection
from strata_broker.base.shares import Owner, all_owners_of
from strata_broker.metadata.filter_pace import FilterPace
from strata_mq.filters import (
    EVERYTHING,
    MAX_EXPRESSION_LENGTH,
    CachePart,
    FilterCache,
    FilterKind,
    wants_every_tag,
)
from strata_mq.requests import Code, RequestError
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

_ALL = storage_pb2.Filter(kind=storage_pb2.FILTER_KIND_ALL)


class Filters:
    """Checks expressions; an expression that was checked lately costs a look-up."""

    def __init__(self, config: ReceiveSection, clock: Clock, metrics: Metrics) -> None:
        self._pace = FilterPace(config, clock, metrics)
        self._known = FilterCache(
            config.max_cached_filters,
            config.max_cached_filter_characters,
            {
                "client": CachePart(
                    config.max_cached_filters_per_client,
                    config.max_cached_filter_characters_per_client,
                ),
                "address": CachePart(
                    config.max_cached_filters_per_address,
                    config.max_cached_filter_characters_per_address,
                ),
            },
        )
        metrics.gauge(
            "strata_broker_cached_filters",
            lambda: [
                (float(len(self._known)), {"of": "filters"}),
                (float(self._known.characters), {"of": "characters"}),
                (float(self._pace.owner_count), {"of": "owners"}),
            ],
        )

    def of(
        self, expression: definition_pb2.FilterExpression, client_id: str, peer: str
    ) -> storage_pb2.Filter:
        """Return the filter for storage.

        Args:
            expression: of the client.
            client_id: of the client.
            peer: address of its connection, `host:port`.

        Raises:
            RequestError: ILLEGAL_FILTER_EXPRESSION; TOO_MANY_REQUESTS: too many new characters.
        """
        # As in RocketMQ: all filters but SQL92 are tag filters, also without type (old Go clients).
        kind = FilterKind.SQL if expression.type == definition_pb2.SQL else FilterKind.TAG
        text = expression.expression
        if kind is FilterKind.TAG and wants_every_tag(text):
            return _ALL
        if kind is FilterKind.SQL and not text.strip():
            raise RequestError(Code.ILLEGAL_FILTER_EXPRESSION, "filter expression is empty")
        if self._known.find(kind, text) is None:
            self._read(kind, text, _owners_of(client_id, peer))
        return storage_pb2.Filter(kind=storage_pb2.FilterKind.ValueType(kind), expression=text)

    def _read(self, kind: FilterKind, text: str, owners: Sequence[Owner]) -> None:
        # A longer one is refused unread.
        if len(text) <= MAX_EXPRESSION_LENGTH:
            self._pace.take(len(text), owners)
        read = self._known.of(kind, text, owners)
        assert read is not EVERYTHING, "an expression that wants every message is not read"


def _owners_of(client_id: str, peer: str) -> Sequence[Owner]:
    """Return who has a new filter; a connection has no part, as its client has one."""
    return [owner for owner in all_owners_of(client_id, peer) if owner[0] != "connection"]
