"""Transport http2: the same services as gRPC, so that any language can call them.

The server adds health checking (grpc.health.v1) and reflection; an `AngeliaError`'s code travels as
a trailer beside the gRPC status, which foreign callers read. A caller names its codec in the header
`angelia-codec`; without one, as from foreign callers, it is protobuf. A caller that belongs to a
cluster says so with every call, in `angelia-cluster`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import NoReturn

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as aio_health
from grpc_reflection.v1alpha import reflection

from strata_angelia.budgets import Budgets, Usage
from strata_angelia.cluster_id import CLUSTER_HEADER, ClusterId, own
from strata_angelia.codec import CODECS, Codec, ProtobufCodec
from strata_angelia.http2_codes import (
    CODE_TRAILER,
    CODEC_HEADER,
    STATUS_OF,
    TRACE_HEADER,
    encode,
    message_limits,
)
from strata_angelia.http2_tls import LOOPBACK, TwoWayPort, role_of_caller, server_credentials
from strata_angelia.methods import Method, MethodTable
from strata_angelia.metrics import METRICS
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import BAD_REQUEST, INTERNAL, AngeliaError, CallContext
from strata_angelia.refusals import WRONG_ROLE
from strata_angelia.roles import check_caller
from strata_angelia.tls import PeerTls
from strata_runtime.errors import one_line
from strata_runtime.listening import ListenError, check_free, endpoint_of
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks

Context = grpc.aio.ServicerContext[bytes, bytes]


class Http2Server:
    """See `ports.Server`.

    Args:
        host: address to listen on.
        port: 0 takes any free one; `start` returns the endpoint.
        options: limits.
        metrics: calls.
        codecs: encodings a caller may choose.
        cluster: of this process; None: it belongs to none.
        tls: certificates of this process; None: plaintext.
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
        tls: PeerTls | None = None,
    ) -> None:
        self._tls = tls
        self._two_way: TwoWayPort | None = None
        self._log = get_logger("angelia")
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
        self._forbidden = metrics.counter("strata_angelia_forbidden_calls_total")
        self._mistakes = RequestTasks("angelia", metrics)
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
                *message_limits(options),
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", streams),
            ]
        )
        handlers = {path: self._serve(method) for path, method in self._table.methods.items()}
        server.add_generic_rpc_handlers((_Router(handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = [*self._services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name]
        reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)
        endpoint = await self._listen(server)
        await server.start()
        self._server = server
        for name in ("", *self._services):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return endpoint

    async def _listen(self, server: grpc.aio.Server) -> str:
        """Listen for what the server takes; return the endpoint."""
        tls, host = self._tls, self._host
        if tls is None or tls.mode == "required":
            try:
                address = endpoint_of(host, self._port)
                if tls is None:
                    port = server.add_insecure_port(address)
                else:
                    port = server.add_secure_port(address, server_credentials(tls))
            except RuntimeError as error:
                check_free(host, self._port, "for other nodes")
                raise ListenError(f"cannot listen on {host}:{self._port}") from error
            return endpoint_of(host, port)
        self._two_way = TwoWayPort(
            server.add_secure_port(f"{LOOPBACK}:0", server_credentials(tls)),
            server.add_insecure_port(f"{LOOPBACK}:0"),
            self._options.max_connections,
        )
        return await self._two_way.start(host, self._port)

    async def stop(self, grace_s: float) -> None:
        """See `ports.Server.stop`."""
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(grace_s)
        if self._two_way is not None:
            await self._two_way.stop()
        self._usage.close()

    def _serve(self, method: Method) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def unary(data: bytes, context: Context) -> bytes:
            try:
                with self._admitted(method, data, context):
                    codec = self._codec(context)
                    request = codec.decode(data, method.request_type)
                    response = await method.unary(request, self._call_context(context))
                    encoded = encode(codec, response, self._options)
            except AngeliaError as error:
                self._count(method, error.code)
                await _abort(context, error)
            except Exception as failure:  # noqa: BLE001 - it ends this call, not those beside it
                await _abort(context, self._failed(method, failure))
            self._count(method, "ok")
            return encoded

        async def stream(data: bytes, context: Context) -> AsyncIterator[bytes]:
            try:
                with self._admitted(method, data, context):
                    codec = self._codec(context)
                    request = codec.decode(data, method.request_type)
                    async for item in method.stream(request, self._call_context(context)):
                        yield encode(codec, item, self._options)
            except AngeliaError as error:
                self._count(method, error.code)
                await _abort(context, error)
            except Exception as failure:  # noqa: BLE001 - it ends this call, not those beside it
                await _abort(context, self._failed(method, failure))
            self._count(method, "ok")

        if method.streaming:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    @contextlib.contextmanager
    def _admitted(self, method: Method, data: bytes, context: Context) -> Iterator[None]:
        """Hold a call's share of its class's budget of this connection.

        Raises:
            AngeliaError: OVERLOADED; WRONG_CLUSTER; FORBIDDEN.
        """
        self._check_cluster(context)
        self._check_role(method, context)
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

    def _check_role(self, method: Method, context: Context) -> None:
        """Refuse a caller whose certificate is of a role that has no business here."""
        if self._tls is None:
            return
        is_tls, role = role_of_caller(context.auth_context())
        if not is_tls:
            return
        try:
            check_caller(method.path, role, self._tls.role, self._options.access_of)
        except AngeliaError:
            self._forbidden.add(1, {"method": method.path, "role": str(role or "none")})
            self._log.warning(
                "a call was refused: it is not for the caller's role",
                peer=context.peer(),
                role=str(role or "none"),
                call=method.path,
            )
            self._tls.refusals.tell(
                context.peer(), WRONG_ROLE, role=str(role or ""), rpc=method.path
            )
            raise

    def _call_context(self, context: Context) -> CallContext:
        trace_parent = _header(context, TRACE_HEADER)
        role = role_of_caller(context.auth_context())[1] if self._tls is not None else None
        return CallContext(context.time_remaining(), trace_parent, context.peer(), role)

    def _codec(self, context: Context) -> Codec:
        name = _header(context, CODEC_HEADER) or ProtobufCodec.name
        codec = self._codecs.get(name)
        if codec is None:
            raise AngeliaError(BAD_REQUEST, f"unknown codec {name!r}")
        return codec

    def _failed(self, method: Method, failure: Exception) -> AngeliaError:
        """Log and count what a handler did not expect; return what its caller is told."""
        self._mistakes.failed(method.path, failure)
        self._count(method, INTERNAL)
        return AngeliaError(INTERNAL, one_line(failure))

    def _count(self, method: Method, code: str) -> None:
        self._ended_calls.add(1, {"method": method.path, "code": code})


class _Router(grpc.GenericRpcHandler):
    def __init__(self, handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]]) -> None:
        self._handlers = handlers

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._handlers.get(handler_call_details.method)


def _header(context: Context, name: str) -> str:
    metadata = context.invocation_metadata() or ()
    return next((str(value) for key, value in metadata if key == name), "")


async def _abort(context: Context, error: AngeliaError) -> NoReturn:
    status = STATUS_OF.get(error.code, grpc.StatusCode.INTERNAL)
    await context.abort(status, error.reason, ((CODE_TRAILER, error.code),))
