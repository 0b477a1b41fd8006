"""Connections of the remoting protocol: where they come from, and how many of them there may be.

They come by a port of their own, by the port for gRPC clients (`take`), or by both.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from strata_broker.access.call_runtime import CallRuntime
from strata_broker.remoting.connection import ConnectionPort, RemotingConnection
from strata_broker.remoting.dispatcher import RemotingDispatcher
from strata_broker.remoting.exchange import RemotingPeer
from strata_broker.remoting.server_tls import ServerTls
from strata_broker.remoting.unfinished_frames import UnfinishedFrames
from strata_broker.remoting.unread_answers import UnreadAnswers
from strata_edge.addresses import network_of_peer
from strata_edge.handover import HandedConnection
from strata_runtime.limits import Limit
from strata_runtime.listening import endpoint_of, listening
from strata_runtime.tasks import TooManyTasksError
from strata_runtime.timeouts import Timeout


class RemotingListener:
    """See the module docstring.

    Args:
        host: to listen on.
        port: of it; 0: any free one; None: there is no port of its own.
        dispatcher: carries requests out.
        runtime: configuration and counters.
        disconnected: called with a client whose connection ended.
    """

    def __init__(
        self,
        host: str,
        port: int | None,
        dispatcher: RemotingDispatcher,
        *,
        runtime: CallRuntime,
        disconnected: Callable[[RemotingPeer], None],
    ) -> None:
        self._host = host
        self._port = port
        self._config = config = runtime.config.remoting
        self._disconnected = disconnected
        self._requests = runtime.requests
        self._server: asyncio.Server | None = None
        self._is_open = False
        self._connections: set[RemotingConnection] = set()
        # Set while there is no connection.
        self._empty = asyncio.Event()
        self._empty.set()
        self._addresses: Counter[str] = Counter()
        self._limit = Limit(
            "remoting connections", config.max_connections, "connections", metrics=runtime.metrics
        )
        self._tls: ServerTls | None = None
        if config.certificate_file:
            self._tls = ServerTls(
                config.certificate_file,
                config.key_file,
                runtime.requests,
                clock=runtime.clock,
                policy=config.tls_policy(),
            )
        self._shared = ConnectionPort(
            dispatcher,
            config,
            runtime.requests,
            UnfinishedFrames(config, runtime.metrics),
            UnreadAnswers(config, runtime.metrics),
            self._take,
            self._leave,
            self._tls,
        )

    async def start(self) -> int | None:
        """Take connections; return the port of its own, if there is one.

        Raises:
            ListenError: the address cannot be listened on.
            ConfigError: the certificate cannot be used.
        """
        if self._tls is not None:
            await self._tls.start()
        self._is_open = True
        if self._port is None:
            return None
        loop = asyncio.get_running_loop()
        with listening(self._host, self._port, "for remoting clients"):
            self._server = await loop.create_server(
                lambda: RemotingConnection(self._shared), self._host, self._port
            )
        return int(self._server.sockets[0].getsockname()[1])

    def take(self, given: HandedConnection) -> None:
        """Take a connection that came by another port.

        It is closed at once before the start and after the stop, when there is no room, and where
        the broker carries out too many requests.
        """
        if not self._is_open:
            given.socket.close()
            return
        try:
            self._requests.spawn("remoting connection", self._begin(given))
        except TooManyTasksError:
            given.socket.close()

    async def _begin(self, given: HandedConnection) -> None:
        host, _, port = given.peer.rpartition(":")
        peer = endpoint_of(host.strip("[]"), int(port))
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: RemotingConnection(self._shared, peer, is_secured=given.is_secured),
            given.socket,
        )

    async def stop(self, grace_s: float) -> None:
        """Close the port, answer what is under way, end all connections.

        Args:
            grace_s: how long answers may take; their clients go to another broker in any case.
        """
        self._is_open = False
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.drain()
        with suppress(TimeoutError):
            async with Timeout(grace_s):
                await self._empty.wait()
        for connection in tuple(self._connections):
            connection.abort()

    def _take(self, connection: RemotingConnection) -> bool:
        # One that was accepted before the stop may be made behind it.
        if not self._is_open:
            return False
        address = network_of_peer(connection.peer)
        if self._addresses[address] >= self._config.max_connections_per_address:
            return False
        if not self._limit.try_take():
            return False
        self._addresses[address] += 1
        self._connections.add(connection)
        self._empty.clear()
        return True

    def _leave(self, connection: RemotingConnection) -> None:
        address = network_of_peer(connection.peer)
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()
        self._limit.give_back()
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
        self._disconnected(connection)
