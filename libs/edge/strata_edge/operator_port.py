"""Two ports of a broker as one edge: one for clients, one for operators.

The services of operators are served on a port of their own. Where only processes of the same
machine reach the port for clients, they are served there too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from strata_edge.handover import Handover
from strata_edge.passes import NativePasses
from strata_edge.ports import (
    Edge,
    HotHandler,
    ServerStreamHandler,
    StreamHandler,
    UnaryHandler,
)
from strata_runtime.health import Health


class OperatorPort:
    """See the module docstring; an `Edge`.

    Args:
        clients: the port for clients.
        operators: the port for operators.
        services: of operators, as `package.Service`; those whose RPCs are only for operators.
        shared_rpcs: of these services, by `/package.Service/Rpc`: RPCs that clients need too.
        on_client_port: whether all services of operators are on the port for clients too.
    """

    name = "edge"

    def __init__(
        self,
        clients: Edge,
        operators: Edge,
        *,
        services: Collection[str],
        shared_rpcs: Collection[str] = (),
        on_client_port: bool,
    ) -> None:
        self._clients = clients
        self._operators = operators
        self._services = frozenset(services)
        self._shared = frozenset(shared_rpcs)
        self._on_client_port = on_client_port
        self.operator_port = 0

    @property
    def passes(self) -> NativePasses | None:
        """See `ports.Edge.passes`."""
        return self._clients.passes

    @property
    def handover(self) -> Handover | None:
        """See `ports.Edge.handover`: on the port for clients."""
        return self._clients.handover

    def add_unary(self, path: str, handler: UnaryHandler) -> None:
        """See `ports.Edge.add_unary`."""
        for edge in self.edges_of(path):
            edge.add_unary(path, handler)

    def add_server_stream(self, path: str, handler: ServerStreamHandler) -> None:
        """See `ports.Edge.add_server_stream`."""
        for edge in self.edges_of(path):
            edge.add_server_stream(path, handler)

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """See `ports.Edge.add_stream`."""
        for edge in self.edges_of(path):
            edge.add_stream(path, handler)

    def set_hot_handler(self, service: str, handler: HotHandler) -> None:
        """See `ports.Edge.set_hot_handler`: hot calls are of clients."""
        self._clients.set_hot_handler(service, handler)

    async def start(self) -> int:
        """See `ports.Edge.start`; return the port for clients."""
        self.operator_port = await self._operators.start()
        try:
            return await self._clients.start()
        except BaseException:
            await self._operators.stop(0)
            raise

    def health(self) -> Health:
        """See `ports.Edge.health`."""
        return self._clients.health()

    def connections(self) -> int | None:
        """See `ports.Edge.connections`: those of clients."""
        return self._clients.connections()

    async def send_away(self, most: int) -> Sequence[str]:
        """See `ports.Edge.send_away`."""
        return await self._clients.send_away(most)

    async def drain(self, timeout_s: float) -> None:
        """See `ports.Edge.drain`; operators keep their port until the stop."""
        await self._clients.drain(timeout_s)

    async def stop(self, grace_s: float) -> None:
        """See `ports.Edge.stop`."""
        await asyncio.gather(self._clients.stop(grace_s), self._operators.stop(grace_s))

    def edges_of(self, path: str) -> tuple[Edge, ...]:
        """Return the ports that serve an RPC."""
        service = path[1:].rpartition("/")[0]
        if service == _HEALTH:
            return (self._clients, self._operators)
        if service not in self._services:
            return (self._clients,)
        if self._on_client_port or path in self._shared:
            return (self._clients, self._operators)
        return (self._operators,)


_HEALTH = "grpc.health.v1.Health"
