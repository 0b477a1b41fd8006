"""Transport http2: the same services as gRPC, so that any language can call them.

The server adds health checking (grpc.health.v1) and reflection; an `AngeliaError`'s code travels as
a trailer beside the gRPC status, which foreign callers read. A caller names its codec in the header
`angelia-codec`; without one, as from foreign callers, it is protobuf. A caller that belongs to a
cluster says so with every call, in `angelia-cluster`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import NoReturn, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as aio_health
from grpc_reflection.v1alpha import reflection

from strata_angelia.budgets import Budgets, Usage
from strata_angelia.classes import LANE_OF, Lane, class_of
from strata_angelia.cluster_id import CLUSTER_HEADER, ClusterId, own
from strata_angelia.codec import CODECS, Codec, ProtobufCodec
from strata_angelia.methods import Method, MethodTable
from strata_angelia.metrics import METRICS
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import (
    BAD_REQUEST,
    DEADLINE_EXCEEDED,
    INTERNAL,
    OVERLOADED,
    TOO_LARGE,
    UNAVAILABLE,
    UNKNOWN_METHOD,
    WRONG_CLUSTER,
    AngeliaError,
    CallContext,
)
from strata_runtime.listening import ListenError, check_free
from strata_runtime.metrics import Metrics

Response = TypeVar("Response", bound=Message)
Context = grpc.aio.ServicerContext[bytes, bytes]

_CODE_TRAILER = "angelia-code"
_CODEC_HEADER = "angelia-codec"
_TRACE_HEADER = "traceparent"
_TOO_LARGE_TEXT = "larger than max"  # grpc's words; it has no status of its own for this

_STATUS_OF = {
    UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    UNKNOWN_METHOD: grpc.StatusCode.UNIMPLEMENTED,
    OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    WRONG_CLUSTER: grpc.StatusCode.FAILED_PRECONDITION,
    INTERNAL: grpc.StatusCode.INTERNAL,
}
_CODE_OF = {
    grpc.StatusCode.UNAVAILABLE: UNAVAILABLE,
    grpc.StatusCode.CANCELLED: UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED: UNKNOWN_METHOD,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OVERLOADED,
    grpc.StatusCode.INVALID_ARGUMENT: BAD_REQUEST,
}


class Http2Server:
    """See `ports.Server`.

    Args:
        host: address to listen on.
        port: 0 takes any free one; `start` returns the endpoint.
        options: limits.
        metrics: calls.
        codecs: encodings a caller may choose.
        cluster: of this process; None: it belongs to none.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        options: AngeliaOptions | None = None,
        metrics: Metrics | None = None,
        codecs: Mapping[str, Codec] = CODECS,
        cluster: ClusterId | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._options = options or AngeliaOptions()
        self._codecs = codecs
        self._cluster = own(cluster)
        self._table = MethodTable(self._options.class_of)
        self._services: list[str] = []
        self._health = aio_health.HealthServicer()
        self._server: grpc.aio.Server | None = None
        metrics = metrics or Metrics.disabled()
        metrics.declare(METRICS)
        self._ended_calls = metrics.counter("strata_angelia_calls_total")
        self._usage = Usage("http2", metrics)
        # By the caller's address; one stays as long as it has calls under way.
        self._budgets: dict[str, Budgets] = {}

    def register(self, service: ServiceDescriptor, handler: object) -> None:
        """See `ports.Server.register`."""
        if self._server is not None:
            raise RuntimeError("services are registered before the start")
        self._table.add(service, handler)
        self._services.append(service.full_name)

    async def start(self) -> str:
        """See `ports.Server.start`.

        Raises:
            ListenError: the address cannot be listened on.
        """
        options = self._options
        # More streams than calls: what is above the budget of its class is told so.
        streams = 2 * sum(limits.max_calls for limits in options.classes.values())
        server = grpc.aio.server(
            options=[
                *_message_limits(options),
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", streams),
            ]
        )
        handlers = {path: self._serve(method) for path, method in self._table.methods.items()}
        server.add_generic_rpc_handlers((_Router(handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = [*self._services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name]
        reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)
        # An IPv6 address stands in brackets.
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            port = server.add_insecure_port(f"{host}:{self._port}")
        except RuntimeError as error:
            check_free(self._host, self._port, "for other nodes")
            raise ListenError(f"cannot listen on {host}:{self._port}") from error
        await server.start()
        self._server = server
        for name in ("", *self._services):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return f"{host}:{port}"

    async def stop(self, grace_s: float) -> None:
        """See `ports.Server.stop`."""
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(grace_s)
        self._usage.close()

    def _serve(self, method: Method) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def unary(data: bytes, context: Context) -> bytes:
            try:
                with self._admitted(method, data, context):
                    codec = self._codec(context)
                    request = codec.decode(data, method.request_type)
                    response = await method.unary(request, _call_context(context))
                    encoded = _encode(codec, response, self._options)
            except AngeliaError as error:
                self._count(method, error.code)
                await _abort(context, error)
            self._count(method, "ok")
            return encoded

        async def stream(data: bytes, context: Context) -> AsyncIterator[bytes]:
            try:
                with self._admitted(method, data, context):
                    codec = self._codec(context)
                    request = codec.decode(data, method.request_type)
                    async for item in method.stream(request, _call_context(context)):
                        yield _encode(codec, item, self._options)
            except AngeliaError as error:
                self._count(method, error.code)
                await _abort(context, error)
            self._count(method, "ok")

        if method.streaming:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    @contextlib.contextmanager
    def _admitted(self, method: Method, data: bytes, context: Context) -> Iterator[None]:
        """Hold a call's share of its class's budget of this connection.

        Raises:
            AngeliaError: OVERLOADED; WRONG_CLUSTER.
        """
        self._check_cluster(context)
        peer, call_class = context.peer(), method.call_class
        budgets = self._budgets.get(peer)
        if budgets is None:
            budgets = self._budgets[peer] = Budgets(self._options, self._usage)
        budgets.check_calls(call_class)
        budgets.check_bytes(call_class)
        budgets.take(call_class, len(data))
        try:
            yield
        finally:
            budgets.give_back(call_class, len(data))
            if budgets.empty:
                self._budgets.pop(peer, None)

    def _check_cluster(self, context: Context) -> None:
        """Refuse a caller of another cluster; it is told which one this is."""
        try:
            self._cluster.check(_header(context, CLUSTER_HEADER), context.peer())
        except AngeliaError as error:
            raise AngeliaError(error.code, self._cluster.value) from error

    def _codec(self, context: Context) -> Codec:
        name = _header(context, _CODEC_HEADER) or ProtobufCodec.name
        codec = self._codecs.get(name)
        if codec is None:
            raise AngeliaError(BAD_REQUEST, f"unknown codec {name!r}")
        return codec

    def _count(self, method: Method, code: str) -> None:
        self._ended_calls.add(1, {"method": method.path, "code": code})


class Http2Channel:
    """See `ports.Channel`.

    Args:
        endpoint: `host:port`.
        codec: encoding of all messages.
        options: limits.
        trace_parent: gives the W3C `traceparent` of the running context, or "".
        cluster: of this process; None: it belongs to none.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        codec: Codec | None = None,
        options: AngeliaOptions | None = None,
        trace_parent: Callable[[], str] = str,
        cluster: ClusterId | None = None,
    ) -> None:
        self._options = options or AngeliaOptions()
        self._codec = codec or ProtobufCodec()
        self._trace_parent = trace_parent
        self._cluster = own(cluster)
        self._endpoint = endpoint
        self._closed = False
        pause_ms = int(self._options.reconnect_pause_s * 1_000)
        ping_ms = int(self._options.ping_interval_s * 1_000)
        silence_ms = int(self._options.silence_timeout_s * 1_000)
        arguments = [
            *_message_limits(self._options),
            ("grpc.initial_reconnect_backoff_ms", pause_ms),
            ("grpc.min_reconnect_backoff_ms", pause_ms),
            ("grpc.keepalive_time_ms", ping_ms),
            ("grpc.keepalive_timeout_ms", silence_ms),
            # Each channel has connections of its own, like the other transports.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        # One connects at its first call; see `classes.Lane` for why there are several.
        self._channels = {lane: grpc.aio.insecure_channel(endpoint, arguments) for lane in Lane}

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Response],
        *,
        timeout_s: float | None = None,
    ) -> Response:
        """See `ports.Channel.call`."""
        data = _encode(self._codec, request, self._options)
        rpc: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(method).unary_unary(
            method
        )
        with self._failures():
            answer = await rpc(data, timeout=timeout_s, metadata=self._metadata())
        return self._decode(answer, response_type)

    async def stream(
        self, method: str, request: Message, response_type: type[Response]
    ) -> AsyncIterator[Response]:
        """See `ports.Channel.stream`."""
        data = _encode(self._codec, request, self._options)
        rpc: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel(method).unary_stream(
            method
        )
        with self._failures():
            call = rpc(data, metadata=self._metadata())
            try:
                async for answer in call:
                    yield self._decode(answer, response_type)
            finally:
                call.cancel()

    async def close(self) -> None:
        """See `ports.Channel.close`."""
        self._closed = True
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, method: str) -> grpc.aio.Channel:
        return self._channels[LANE_OF[class_of(method, self._options.class_of)]]

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn gRPC's ways to fail into AngeliaError."""
        closed = AngeliaError(UNAVAILABLE, "the channel was closed")
        try:
            yield
        except grpc.aio.AioRpcError as error:
            failure = _from_status(error)
            if failure.code == WRONG_CLUSTER:
                self._cluster.check(failure.reason, self._endpoint)
            raise failure from None
        except grpc.aio.UsageError:
            raise closed from None
        except asyncio.CancelledError:
            # Closing the channel cancels its calls; a caller that is cancelled stays so.
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise
            raise closed from None

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        found = [(_CODEC_HEADER, self._codec.name)]
        if self._cluster.value:
            found.append((CLUSTER_HEADER, self._cluster.value))
        if trace_parent := self._trace_parent():
            found.append((_TRACE_HEADER, trace_parent))
        return tuple(found)

    def _decode(self, data: bytes, response_type: type[Response]) -> Response:
        try:
            return self._codec.decode(data, response_type)
        except AngeliaError as error:
            raise AngeliaError(INTERNAL, f"bad response: {error.reason}") from None


class _Router(grpc.GenericRpcHandler):
    def __init__(self, handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]]) -> None:
        self._handlers = handlers

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._handlers.get(handler_call_details.method)


def _message_limits(options: AngeliaOptions) -> list[tuple[str, int]]:
    limit = options.max_message_bytes
    return [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        # Not compressed: gRPC inflates a message without any limit before anybody sees it.
        ("grpc.compression_enabled_algorithms_bitset", 1),
    ]


def _encode(codec: Codec, message: Message, options: AngeliaOptions) -> bytes:
    data = codec.encode(message)
    if len(data) > options.max_message_bytes:
        raise AngeliaError(TOO_LARGE, f"{len(data)} bytes, limit {options.max_message_bytes}")
    return data


def _call_context(context: Context) -> CallContext:
    trace_parent = _header(context, _TRACE_HEADER)
    return CallContext(context.time_remaining(), trace_parent, context.peer())


def _header(context: Context, name: str) -> str:
    metadata = context.invocation_metadata() or ()
    return next((str(value) for key, value in metadata if key == name), "")


async def _abort(context: Context, error: AngeliaError) -> NoReturn:
    status = _STATUS_OF.get(error.code, grpc.StatusCode.INTERNAL)
    await context.abort(status, error.reason, ((_CODE_TRAILER, error.code),))


def _from_status(error: grpc.aio.AioRpcError) -> AngeliaError:
    details = error.details() or ""
    for key, value in error.trailing_metadata() or ():
        if key == _CODE_TRAILER:
            return AngeliaError(str(value), details)
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE_TEXT in details:
        return AngeliaError(TOO_LARGE, details)
    return AngeliaError(_CODE_OF.get(error.code(), INTERNAL), details)
