"""The port that KEDA calls: gRPC in plaintext, with gRPC's health service."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from strata.keda.v1 import externalscaler_pb2_grpc
from strata_placement.autoscaling.scaler import Scaler
from strata_placement.autoscaling.servicer import ScalerServicer
from strata_runtime.health import Health, Problem, Severity
from strata_runtime.listening import ListenError, check_free, endpoint_of
from strata_runtime.metrics import Metrics

_MAX_REQUEST_BYTES = 64 * 1024
_MAX_CALLS = 1_000


class AutoscalerServer:
    """Serves `ScalerServicer`; a `Service` of the runtime's lifecycle.

    Args:
        host: address to listen on.
        port: port to listen on; 0: any free one.
        scaler: knows the values.
        metrics: shows how many streams are open.
        max_streams: push triggers that are connected at once.

    Attributes:
        port: the real one once it serves.
    """

    name = "autoscaler"

    def __init__(
        self, host: str, port: int, scaler: Scaler, *, metrics: Metrics, max_streams: int
    ) -> None:
        self._host = host
        self.port = port
        self._scaler = scaler
        self._servicer = ScalerServicer(scaler, metrics, max_streams)
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            ListenError: the address cannot be listened on.
        """
        server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", _MAX_REQUEST_BYTES)],
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        externalscaler_pb2_grpc.add_ExternalScalerServicer_to_server(self._servicer, server)
        healthy = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
        endpoint = endpoint_of(self._host, self.port)
        check_free(self._host, self.port, "for KEDA")
        try:
            self.port = server.add_insecure_port(endpoint)
        except RuntimeError as error:
            raise ListenError(f"cannot listen on {endpoint}") from error
        await server.start()
        await healthy.set("", health_pb2.HealthCheckResponse.SERVING)
        self._server = server

    async def stop(self, grace_s: float) -> None:
        """End open streams and close the port."""
        if self._server is not None:
            await self._server.stop(0)
        self._servicer.close()

    def health(self) -> Health:
        """Return which triggers cannot be read at present; the port serves all the same."""
        problems = tuple(
            Problem("metadata", name, "UNREADABLE", Severity.DEGRADED, reason)
            for name, reason in sorted(self._scaler.failures.items())
        )
        return Health(problems=problems)
