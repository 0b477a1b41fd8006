"""Several servers as one: a node serves the same over each transport that it has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from google.protobuf.descriptor import ServiceDescriptor

from strata_angelia.ports import Server
from strata_runtime.closing import close_all


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
        """Stop all."""
        await close_all(
            "servers", *(partial(server.stop, grace_s) for server in reversed(self._servers))
        )
