"""The plugin `kv` of one broker, put together."""

from __future__ import annotations

from collections.abc import Callable, Collection

from strata_broker.access.principals import Principal
from strata_broker.base.failures import Methods
from strata_broker.base.shares import CallShares, most_each
from strata_broker.kv.message_form import OPERATION_PROPERTY, MessageForm
from strata_broker.kv.metrics import METRICS
from strata_broker.kv.reads import Reads
from strata_broker.kv.servicer import SERVICE, KvServicer
from strata_broker.kv.streams import Streams
from strata_broker.kv.tables import Tables
from strata_broker.kv.writes import Writes
from strata_broker.servicers.plugins import PluginParts
from strata_edge.ports import HotCall


class KvBrokerPlugin:
    """`strata_broker.servicers.plugins.BrokerPlugin`."""

    service = SERVICE

    def __init__(self) -> None:
        self._streams: Streams | None = None
        self._form: MessageForm | None = None

    def register(self, edge: Methods, parts: PluginParts) -> None:
        """Serve tables on an edge."""
        config = parts.calls.config.kv
        parts.calls.metrics.declare(METRICS)
        tables = Tables(parts, config)
        writes = Writes(parts, tables, config)
        reads = Reads(parts, tables, config)
        streams = self._streams = Streams(parts, config)
        shares = CallShares(
            "table calls",
            most_each(
                config.max_calls_in_flight_per_client, config.max_calls_in_flight_per_address
            ),
            most_each(
                config.max_bytes_in_flight_per_client, config.max_bytes_in_flight_per_address
            ),
            metrics=parts.calls.metrics,
        )
        self._form = MessageForm(parts, tables, writes, shares=shares, config=config)
        servicer = KvServicer(
            parts, tables, writes, reads=reads, streams=streams, shares=shares, config=config
        )
        servicer.register(edge)
        used: dict[str, Callable[[], int]] = {
            "max_bytes_in_flight": lambda: writes.bytes_in_flight,
            "max_reads_in_flight": lambda: reads.in_flight,
            "max_watches": lambda: streams.watches,
            "max_exports": lambda: streams.exports,
        }
        parts.calls.metrics.gauge(
            "strata_kv_broker_used",
            lambda: [(float(count()), {"limit": limit}) for limit, count in used.items()],
        )

    @property
    def marks(self) -> Collection[str]:
        """The property that makes a message a write."""
        return (OPERATION_PROPERTY,)

    def takes_send(self, call: HotCall, principal: Principal) -> bool:
        """Take a message that is a write."""
        return self._form is not None and self._form.takes_send(call, principal)

    def end_all(self) -> None:
        """End all watches."""
        if self._streams is not None:
            self._streams.end_all()
