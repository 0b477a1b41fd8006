"""grpc.health.v1 over an edge, as bytes handlers.

Load balancers and orchestrators ask `Check`; an unknown service gets NOT_FOUND, as the health
protocol says. The broker sets the services; "" is the process as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from strata_edge.ports import CallError, CallInfo, Edge

_SERVICE = "grpc.health.v1.Health"


class ServiceHealth:
    """The health of a process's services.

    Args:
        edge: where the health service is added; before its start.
    """

    def __init__(self, edge: Edge) -> None:
        self._serving: dict[str, bool] = {}
        self._changed = asyncio.Event()
        edge.add_unary(f"/{_SERVICE}/Check", self._check)
        edge.add_server_stream(f"/{_SERVICE}/Watch", self._watch)

    def set(self, service: str, *, serving: bool) -> None:
        """Say whether `service` (full name, or "" for the process) is served."""
        self._serving[service] = serving
        # Every watcher waits on the event of its round; the next round gets a new one.
        self._changed.set()
        self._changed = asyncio.Event()

    async def _check(self, request: bytes, _: CallInfo) -> bytes:
        service = _service_of(request)
        if service not in self._serving:
            raise CallError("NOT_FOUND", f"unknown service {service}")
        return self._status_of(service)

    async def _watch(self, request: bytes, _: CallInfo) -> AsyncIterator[bytes]:
        service = _service_of(request)
        told: bytes | None = None
        while True:
            changed = self._changed
            status = self._status_of(service)
            if status != told:
                told = status
                yield status
            await changed.wait()

    def _status_of(self, service: str) -> bytes:
        response = health_pb2.HealthCheckResponse
        serving = self._serving.get(service)
        if serving is None:
            status = response.SERVICE_UNKNOWN
        else:
            status = response.SERVING if serving else response.NOT_SERVING
        encoded: bytes = response(status=status).SerializeToString()
        return encoded


def _service_of(request: bytes) -> str:
    try:
        service: str = health_pb2.HealthCheckRequest.FromString(request).service
    except DecodeError:
        raise CallError("INVALID_ARGUMENT", "not a HealthCheckRequest") from None
    return service
