"""Producer groups of the clients that are connected here, as their heartbeats name them.

StrataMQ keeps no producer groups; operators find an application's producers by them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from strata_broker.remoting.exchange import Exchange, Handler, RemotingPeer
from strata_broker.remoting.heartbeats import read_heartbeat
from strata_remoting import RemotingCommand, RequestCode
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
        heartbeat: takes a client's heartbeat, and checks its limits.
        clock: wall time.
        max_json_bytes: of a heartbeat's body.
    """

    def __init__(self, heartbeat: Handler, clock: Clock, *, max_json_bytes: int) -> None:
        self._heartbeat = heartbeat
        self._clock = clock
        self._max_json_bytes = max_json_bytes
        self._heard: WeakKeyDictionary[RemotingPeer, _Heard] = WeakKeyDictionary()

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.HEART_BEAT: self.heartbeat}

    async def heartbeat(self, exchange: Exchange) -> RemotingCommand | None:
        """Take a heartbeat as before, and note its producer groups.

        Raises:
            RemotingError: the body cannot be read.
            RequestError: the client is refused.
        """
        answer = await self._heartbeat(exchange)
        data = read_heartbeat(exchange.request.body, self._max_json_bytes)
        self._heard[exchange.client] = _Heard(
            data.producer_groups, exchange.request.version, self._clock.wall_ms()
        )
        return answer

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
