"""Several servers as one: a node serves the same over each transport that it has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from google.protobuf.descriptor import ServiceDescriptor

from strata_angelia.ports import Server


class Servers:
    """Several servers as one `strata_angelia.ports.Server`.

    Attributes:
        endpoints: where they listen, once started.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = tuple(servers)
        self.endpoints: list[str] = []

    def register(self, service: ServiceDescriptor, handler: object) -> None:
        """Serve a service on all of them."""
        for server in self._servers:
            server.register(service, handler)

    async def start(self) -> str:
        """Start all; return the first one's endpoint."""
        for server in self._servers:
            self.endpoints.append(await server.start())
        return self.endpoints[0]

    async def stop(self, grace_s: float) -> None:
        """Stop all at once, since they have one grace; one that fails holds none back."""
        stops = (server.stop(grace_s) for server in self._servers)
        ended = await asyncio.gather(*stops, return_exceptions=True)
        for failure in ended:
            if isinstance(failure, BaseException):
                raise failure
