"""The edge on grpcio: a `grpc.aio` server over raw bytes behind the front process.

The cost of a call here limits a broker, so a hot call is a future in a list: no (de)serialiser, no
metadata and no deadline is touched unless the broker asks. Hot calls of one turn of the loop reach
the broker as one batch.

With a front, the server listens on a unix socket in a private folder and the front owns the
advertised port (front.py); it knows nothing of TLS. Without one it listens itself, plaintext.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc

from strata_edge.front_process import FrontProcess
from strata_edge.grpcio_gate import Gate
from strata_edge.grpcio_handover import HandoverSocket
from strata_edge.grpcio_hot import GrpcioHotCalls
from strata_edge.grpcio_rare import GrpcioRareCalls
from strata_edge.handover import Handover
from strata_edge.metrics import METRICS
from strata_edge.options import EdgeOptions
from strata_edge.ports import (
    HOT_METHODS,
    HotHandler,
    ServerStreamHandler,
    StreamHandler,
    UnaryHandler,
)
from strata_edge.socket_folder import FOLDER_PREFIX, OTHER_SOCKET_NAME, SOCKET_NAME
from strata_runtime.health import Health
from strata_runtime.listening import ListenError, check_free
from strata_runtime.metrics import Metrics

_MAX_REQUESTS_PER_READ = 32  # so that a flood of requests on one connection lets others in


class GrpcioEdge:
    """See `ports.Edge`; a `Service` of the runtime's lifecycle too.

    Args:
        options: address and limits.
        metrics: where calls and connections are counted.
    """

    name = "edge"
    kind = "grpcio"
    passes = None

    def __init__(self, options: EdgeOptions, metrics: Metrics | None = None) -> None:
        if options.front and options.certificate is None:
            raise ValueError("an edge with a front needs a certificate")
        self._options = options
        self._metrics = metrics or Metrics.disabled()
        self._metrics.declare(METRICS)
        # Without a front, grpcio itself has the port and looks at no byte for others.
        self.handover = Handover(is_port_shared=options.is_port_shared) if options.front else None
        self._handover_socket: HandoverSocket | None = None
        self._gate = Gate(options, self._metrics, self._end_connection if options.front else None)
        self._rare = GrpcioRareCalls(self._gate, options, self._metrics)
        self._methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        self._server: grpc.aio.Server | None = None
        self._front: FrontProcess | None = None
        self._folder: Path | None = None
        self.port = 0

    @property
    def front_pid(self) -> int | None:
        """Process id of the front; None without one or while it is restarted."""
        return self._front.pid if self._front is not None else None

    def add_unary(self, path: str, handler: UnaryHandler) -> None:
        """See `ports.Edge.add_unary`. A `CallError` ends the call with its status."""
        self._add(path, self._rare.unary(path, handler))

    def add_server_stream(self, path: str, handler: ServerStreamHandler) -> None:
        """See `ports.Edge.add_server_stream`."""
        self._add(path, self._rare.server_stream(path, handler))

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """See `ports.Edge.add_stream`."""
        self._add(path, self._rare.stream(path, handler))

    def set_hot_handler(self, service: str, handler: HotHandler) -> None:
        """See `ports.Edge.set_hot_handler`; `service` is `package.Service`."""
        hot = GrpcioHotCalls(handler, self._gate, self._options, metrics=self._metrics)
        for method in HOT_METHODS:
            path = f"/{service}/{method}"
            self._add(path, hot.method_handler(path, method))

    async def start(self) -> int:
        """Listen; return the port.

        Raises:
            ListenError: the address cannot be listened on.
            FrontError: the front did not come up.
        """
        self._server = grpc.aio.server(options=self._channel_arguments())
        self._server.add_generic_rpc_handlers((_Router(self._methods),))
        options = self._options
        if not options.front:
            # An IPv6 address stands in brackets.
            host = f"[{options.host}]" if ":" in options.host else options.host
            try:
                self.port = self._server.add_insecure_port(f"{host}:{options.port}")
            except RuntimeError as error:
                if not options.is_port_shared:
                    check_free(options.host, options.port, "for clients")
                raise ListenError(f"cannot listen on {host}:{options.port}") from error
            await self._server.start()
            return self.port
        self._folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=options.socket_folder))
        backend = self._folder / SOCKET_NAME
        other = self._open_handover(self._folder)
        self._front = FrontProcess(options, backend, self._metrics, other_socket=other)
        try:
            self.port = self._front.listen()
            self._server.add_insecure_port(f"unix:{backend}")
            await self._server.start()
            await self._front.start()
        except BaseException:
            await self.stop(0)
            raise
        return self.port

    def health(self) -> Health:
        """See `ports.Edge.health`."""
        return self._front.health() if self._front is not None else Health()

    def connections(self) -> int | None:
        """See `ports.Edge.connections`; without a front grpcio does not tell."""
        return self._front.connections() if self._front is not None else None

    async def send_away(self, most: int) -> Sequence[str]:
        """See `ports.Edge.send_away`; without a front nobody is sent away."""
        return await self._front.send_away(most) if self._front is not None else ()

    async def drain(self, timeout_s: float) -> None:
        """See `ports.Edge.drain`. Without a front nobody can be sent away before the stop."""
        if self._front is not None:
            self._front.drain()
            await self._front.drained(timeout_s)

    async def stop(self, grace_s: float) -> None:
        """See `ports.Edge.stop`."""
        if self._front is not None:
            self._front.drain()
        if self._server is not None:
            await self._server.stop(grace_s)
        if self._front is not None:
            await self._front.stop()
        if self._handover_socket is not None:
            self._handover_socket.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _end_connection(self, peer: str) -> None:
        if self._front is not None:
            self._front.end_connection(peer)

    def _add(self, path: str, handler: grpc.RpcMethodHandler[bytes, bytes]) -> None:
        if self._server is not None:
            raise RuntimeError("methods are added before the start")
        self._methods[path] = handler

    def _open_handover(self, folder: Path) -> Path | None:
        """Take connections of another protocol from the front, if somebody wants them."""
        if self.handover is None or not self.handover.is_wanted:
            return None
        path = folder / OTHER_SOCKET_NAME
        self._handover_socket = HandoverSocket(path, self.handover)
        return path

    def _channel_arguments(self) -> list[tuple[str, int]]:
        options = self._options
        ping_interval_ms = int(options.min_client_ping_interval_s * 1_000)
        methods = [options.default_limits, *options.method_limits.values()]
        largest_bytes = max(limits.max_request_bytes for limits in methods)
        return [
            ("grpc.max_concurrent_streams", options.max_streams_per_connection),
            # gRPC's own protection counts streams that have ended and that it has not cleared away
            # yet: it refuses calls of clients that keep to the limit.
            ("grpc.http.overload_protection", 0),
            # The window of a stream stays what it is until somebody wants its message, so that a
            # front can let large ones wait.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.max_requests_per_read", _MAX_REQUESTS_PER_READ),
            ("grpc.max_receive_message_length", min(largest_bytes, options.max_receive_bytes)),
            ("grpc.max_send_message_length", -1),
            # Not compressed: gRPC inflates a message without any limit before anybody sees it.
            ("grpc.compression_enabled_algorithms_bitset", 1),
            ("grpc.max_metadata_size", options.max_metadata_bytes),
            ("grpc.absolute_max_metadata_size", 2 * options.max_metadata_bytes),
            # gRPC withholds refusals of headers for 100 to 1,000 ms; the front paces who floods.
            ("grpc.http.tarpit", 0),
            ("grpc.max_allowed_incoming_connections", options.max_connections),
            # Official clients ping idle connections; grpc's default policy would close them.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", ping_interval_ms),
            ("grpc.http2.max_ping_strikes", 0),
            # Two servers on one port would each get half of the clients: only if they are to.
            ("grpc.so_reuseport", int(options.is_port_shared)),
        ]


class _Router(grpc.GenericRpcHandler):
    """Finds the handler of a path; an unknown one is UNIMPLEMENTED."""

    def __init__(self, methods: Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]) -> None:
        self._methods = methods

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._methods.get(handler_call_details.method)
