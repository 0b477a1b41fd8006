"""Producer groups of the clients that are connected here, as their heartbeats name them.

StrataMQ keeps no producer groups; operators find an application's producers by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from strata_broker.remoting.exchange import Exchange, RemotingPeer
from strata_broker.remoting.heartbeats import HeartbeatData
from strata_runtime.clock import Clock


class ConnectedProducer(NamedTuple):
    """A client with one of its producer groups.

    Attributes:
        group: of producers.
        client: the connection.
        version: number of the client's version.
        heard_ms: wall time of its last heartbeat.
    """

    group: str
    client: RemotingPeer
    version: int
    heard_ms: int


class _Heard(NamedTuple):
    groups: frozenset[str]
    version: int
    heard_ms: int


class ConnectedProducers:
    """See the module docstring. A connection that ended is forgotten with its object.

    Args:
        clock: wall time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: WeakKeyDictionary[RemotingPeer, _Heard] = WeakKeyDictionary()

    async def heard(self, exchange: Exchange, data: HeartbeatData) -> None:
        """Note the producer groups of a heartbeat."""
        self._heard[exchange.client] = _Heard(
            data.producer_groups, exchange.request.version, self._clock.wall_ms()
        )

    def every(self) -> Iterator[ConnectedProducer]:
        """Yield the clients that are connected, once for each producer group."""
        for client, heard in list(self._heard.items()):
            if not client.is_gone:
                for group in sorted(heard.groups):
                    yield ConnectedProducer(group, client, heard.version, heard.heard_ms)

    def versions(self) -> dict[str, int]:
        """Return the versions of connected clients, of consumers too, by client id."""
        return {
            client.client_id: heard.version
            for client, heard in list(self._heard.items())
            if not client.is_gone
        }
