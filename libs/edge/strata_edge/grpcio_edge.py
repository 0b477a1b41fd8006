"""The edge on grpcio: a `grpc.aio` server over raw bytes behind the front process.

What a call costs here is what limits a broker, so a hot call is a future in a list: no
(de)serialiser, no metadata and no deadline is touched unless the broker asks. Hot calls of one
turn of the loop reach the broker as one batch.

With a front, the server listens on a unix socket in a private folder and the front owns the
advertised port (front.py); it knows nothing of TLS. Without one it listens itself, plaintext.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import grpc

from strata_edge.front_process import FrontProcess
from strata_edge.metrics import METRICS
from strata_edge.options import EdgeOptions
from strata_edge.ports import (
    HOT_METHODS,
    CallError,
    HotHandler,
    ServerStreamHandler,
    StreamHandler,
    UnaryHandler,
)
from strata_edge.socket_folder import FOLDER_PREFIX, SOCKET_NAME
from strata_runtime.metrics import Metrics

_STREAMING_HOT_METHODS = frozenset({"ReceiveMessage"})

Context = grpc.aio.ServicerContext[bytes, bytes]


class GrpcioEdge:
    """See `ports.Edge`; a `Service` of the runtime's lifecycle too.

    Args:
        options: address and limits.
        metrics: where calls and connections are counted.
    """

    name = "edge"

    def __init__(self, options: EdgeOptions, metrics: Metrics | None = None) -> None:
        if options.front and options.certificate is None:
            raise ValueError("an edge with a front needs a certificate")
        self._options = options
        self._metrics = metrics or Metrics.disabled()
        self._metrics.declare(METRICS)
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

        async def serve(request: bytes, context: Context) -> bytes:
            try:
                return await handler(request, _CallInfo(context))
            except CallError as error:
                await _abort(context, error)

        self._add(path, grpc.unary_unary_rpc_method_handler(serve))

    def add_server_stream(self, path: str, handler: ServerStreamHandler) -> None:
        """See `ports.Edge.add_server_stream`."""

        async def serve(request: bytes, context: Context) -> AsyncIterator[bytes]:
            try:
                async for response in handler(request, _CallInfo(context)):
                    yield response
            except CallError as error:
                await _abort(context, error)

        self._add(path, grpc.unary_stream_rpc_method_handler(serve))

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """See `ports.Edge.add_stream`."""

        async def serve(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            try:
                async for response in handler(requests, _CallInfo(context)):
                    yield response
            except CallError as error:
                await _abort(context, error)

        self._add(path, grpc.stream_stream_rpc_method_handler(serve))

    def set_hot_handler(self, service: str, handler: HotHandler) -> None:
        """See `ports.Edge.set_hot_handler`; `service` is `package.Service`."""
        hot = _HotCalls(handler, self._options, self._metrics)
        for method in HOT_METHODS:
            self._add(f"/{service}/{method}", hot.method_handler(method))

    async def start(self) -> int:
        """Listen; return the port.

        Raises:
            OSError: the port is taken.
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
                raise OSError(f"cannot listen on {host}:{options.port}") from error
            await self._server.start()
            return self.port
        self._folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=options.socket_folder))
        backend = self._folder / SOCKET_NAME
        self._front = FrontProcess(options, backend, self._metrics)
        try:
            self.port = self._front.listen()
            self._server.add_insecure_port(f"unix:{backend}")
            await self._server.start()
            await self._front.start()
        except BaseException:
            await self.stop(0)
            raise
        return self.port

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
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _add(self, path: str, handler: grpc.RpcMethodHandler[bytes, bytes]) -> None:
        if self._server is not None:
            raise RuntimeError("methods are added before the start")
        self._methods[path] = handler

    def _channel_arguments(self) -> list[tuple[str, int]]:
        options = self._options
        ping_interval_ms = int(options.min_client_ping_interval_s * 1_000)
        return [
            ("grpc.max_concurrent_streams", options.max_streams_per_connection),
            ("grpc.max_receive_message_length", options.max_receive_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", options.max_metadata_bytes),
            ("grpc.absolute_max_metadata_size", 2 * options.max_metadata_bytes),
            ("grpc.max_allowed_incoming_connections", options.max_connections),
            # Official clients ping idle connections; grpc's default policy would close them.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", ping_interval_ms),
            ("grpc.http2.max_ping_strikes", 0),
            # Two servers on one port would each get half of the clients.
            ("grpc.so_reuseport", 0),
        ]


class _HotCall:
    """One call of a hot method; see `ports.HotCall`."""

    __slots__ = ("_context", "_future", "method", "request")

    def __init__(
        self, method: str, request: bytes, context: Context, future: asyncio.Future[Sequence[bytes]]
    ) -> None:
        self.method = method
        self.request = request
        self._context = context
        self._future = future

    @property
    def metadata(self) -> Mapping[str, str]:
        return _metadata(self._context)

    @property
    def peer(self) -> str:
        return _peer(self._context)

    def time_left_s(self) -> float | None:
        return _time_left_s(self._context)

    def done(self) -> bool:
        return self._future.done()

    def on_gone(self, callback: Callable[[], None]) -> None:
        # grpc.aio cancels the servicer's coroutine when the client cancels, its deadline passes
        # or its connection ends, and with it the future it waits for.
        def check(future: asyncio.Future[Sequence[bytes]]) -> None:
            if future.cancelled():
                callback()

        self._future.add_done_callback(check)

    def complete(self, responses: Sequence[bytes]) -> None:
        if not self._future.done():
            self._future.set_result(responses)


class _HotCalls:
    """Collects the hot calls of one turn of the loop and hands them over together."""

    def __init__(self, handler: HotHandler, options: EdgeOptions, metrics: Metrics) -> None:
        self._handler = handler
        self._max_calls = options.max_hot_calls
        self._max_unread_bytes = options.max_unread_bytes
        self._waiting = 0
        # Answers of streams that gRPC has not taken: their clients read slowly.
        self._unread_bytes = 0
        self._arrived: list[_HotCall] = []
        self._calls = metrics.counter("strata_edge_calls_total")
        self._refused = metrics.counter("strata_edge_refused_calls_total")
        self._batches = metrics.histogram("strata_edge_batch_calls")
        self._labels = {method: {"method": method} for method in HOT_METHODS}
        metrics.gauge("strata_edge_hot_calls", lambda: self._waiting)
        metrics.gauge("strata_edge_unread_bytes", lambda: self._unread_bytes)

    def method_handler(self, method: str) -> grpc.RpcMethodHandler[bytes, bytes]:
        """What grpc calls for `method`."""

        async def unary(request: bytes, context: Context) -> bytes:
            responses = await self._answer(method, request, context)
            return responses[0]

        async def stream(request: bytes, context: Context) -> AsyncIterator[bytes]:
            if self._unread_bytes >= self._max_unread_bytes:
                self._refused.add()
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, "clients have not read what they received"
                )
            responses = await self._answer(method, request, context)
            size_bytes = sum(map(len, responses))
            self._unread_bytes += size_bytes
            try:
                for response in responses:
                    yield response
            finally:
                self._unread_bytes -= size_bytes

        if method in _STREAMING_HOT_METHODS:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    async def _answer(self, method: str, request: bytes, context: Context) -> Sequence[bytes]:
        if self._waiting >= self._max_calls:
            self._refused.add()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls under way")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[bytes]] = loop.create_future()
        if not self._arrived:
            loop.call_soon(self._hand_over)
        self._arrived.append(_HotCall(method, request, context, future))
        self._waiting += 1
        try:
            return await future
        finally:
            self._waiting -= 1

    def _hand_over(self) -> None:
        calls, self._arrived = self._arrived, []
        self._batches.record(len(calls))
        for call in calls:
            self._calls.add(1, self._labels[call.method])
        self._handler.handle(calls)


class _CallInfo:
    """What a rare RPC's handler sees of its call; see `ports.CallInfo`."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def metadata(self) -> Mapping[str, str]:
        return _metadata(self._context)

    @property
    def peer(self) -> str:
        return _peer(self._context)

    def time_left_s(self) -> float | None:
        return _time_left_s(self._context)


class _Router(grpc.GenericRpcHandler):
    """Finds the handler of a path; an unknown one is UNIMPLEMENTED."""

    def __init__(self, methods: Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]) -> None:
        self._methods = methods

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._methods.get(handler_call_details.method)


async def _abort(context: Context, error: CallError) -> NoReturn:
    await context.abort(grpc.StatusCode[error.status], error.reason)


def _metadata(context: Context) -> Mapping[str, str]:
    # Binary headers (`-bin`) carry bytes and are nobody's business here.
    return {
        str(key): value
        for key, value in context.invocation_metadata() or ()
        if isinstance(value, str)
    }


def _peer(context: Context) -> str:
    """`host:port`; the front puts it at the end of its socket's name (relay.py)."""
    peer: str = context.peer()
    if peer.startswith("unix"):
        return peer.rpartition("/")[2]
    return peer.partition(":")[2]


def _time_left_s(context: Context) -> float | None:
    left_s: float | None = context.time_remaining()
    return left_s
