"""Serving side of the tcp transport.

Bounds: connections per server; calls and request bytes per connection and class of calls; stream
items by the caller's window. While the peer does not read its responses, the server reads nothing
more from it. A call is in `_calls` of its connection from its request to the end of its task.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from strata_angelia import frames
from strata_angelia.budgets import Budgets, Usage
from strata_angelia.cluster_id import ClusterId, own
from strata_angelia.codec import CODECS, Codec
from strata_angelia.connection import Connection
from strata_angelia.frames import FrameError, ReceivedFrame, WireFrameKind
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
    AngeliaError,
    CallContext,
)
from strata_angelia.refusals import WRONG_ROLE
from strata_angelia.roles import check_caller
from strata_angelia.stopping import MOMENT_S, end_calls
from strata_angelia.tls import PeerTls
from strata_angelia.tls_listener import TlsListener
from strata_runtime.errors import one_line
from strata_runtime.listening import endpoint_of, listening
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.roles import PeerRole
from strata_runtime.tasks import RequestTasks, Tasks
from strata_runtime.timeouts import Timeout

_STOPS = "the server stops"
# Turns of the event loop between the kernel's accept and `connection_made`.
_ACCEPT_TURNS = 3


class TcpServer:
    """See `ports.Server`.

    Args:
        host: address to listen on.
        port: 0 takes any free one; `start` returns the endpoint.
        options: limits.
        metrics: calls and connections.
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
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self.tls = tls
        self._listener: TlsListener | None = None
        self._log = get_logger("angelia")
        metrics = metrics or Metrics.disabled()
        metrics.declare(METRICS)
        self.options = options or AngeliaOptions()
        self.codecs = codecs
        self.cluster = own(cluster)
        self.table = MethodTable(self.options.class_of)
        self.methods: list[Method] = []
        self.connections: set[_ServerConnection] = set()
        self.draining = False
        self.all_gone = asyncio.Event()
        self.ended_calls = metrics.counter("strata_angelia_calls_total")
        self.refused = metrics.counter("strata_angelia_refused_connections_total")
        self._forbidden = metrics.counter("strata_angelia_forbidden_calls_total")
        # Calls are bounded per connection; the owner's own limit is only a last line.
        most = self.options.max_connections * sum(
            limits.max_calls for limits in self.options.classes.values()
        )
        self._mistakes = RequestTasks("angelia", metrics)
        self.calls = Tasks("angelia.call", self.call_failed, max_tasks=most)
        self.streams = Tasks("angelia.stream", self.call_failed, max_tasks=most)
        self.usage = Usage("tcp", metrics)
        self._gauge = metrics.gauge(
            "strata_angelia_connections", lambda: [(len(self.connections), {"transport": "tcp"})]
        )

    def register(self, service: ServiceDescriptor, handler: object) -> None:
        """See `ports.Server.register`; before `start`, since callers learn the table once."""
        if self._server is not None or self._listener is not None:
            raise RuntimeError("services are registered before the start")
        self.table.add(service, handler)

    async def start(self) -> str:
        """See `ports.Server.start`.

        Raises:
            ListenError: the address cannot be listened on.
        """
        self.methods = list(self.table.methods.values())
        loop = asyncio.get_running_loop()
        if self.tls is not None:
            self._listener = TlsListener(
                self.tls,
                lambda: _ServerConnection(self),
                max_handshakes=self.options.max_connections,
                on_refused=lambda: self.refused.add(1, {"reason": "tls"}),
            )
            return await self._listener.start(self._host, self._port)
        with listening(self._host, self._port, "for other nodes"):
            self._server = await loop.create_server(
                lambda: _ServerConnection(self), self._host, self._port
            )
        return endpoint_of(*self._server.sockets[0].getsockname()[:2])

    async def stop(self, grace_s: float) -> None:
        """See `ports.Server.stop`."""
        self.draining = True
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + grace_s
        try:
            await self._stop_accepting()
            await end_calls(self.streams, self.calls, ends_s)
            for connection in list(self.connections):
                connection.end(UNAVAILABLE, _STOPS)
            await asyncio.sleep(0)  # let the goodbyes out
            await self._wait_for_readers(max(MOMENT_S, ends_s - loop.time()))
        finally:
            # Also if this stop is cut short.
            for connection in list(self.connections):
                connection.abort(UNAVAILABLE, _STOPS)
            self._gauge.close()
            self.usage.close()
        if self._server is not None:
            await self._server.wait_closed()

    async def _stop_accepting(self) -> None:
        """Take no new connection; one that is just being made is refused.

        It needs the server open until it is made: asyncio loses it otherwise, with its socket.
        """
        if self._listener is not None:
            await self._listener.stop()
        if self._server is None:
            return
        for listener in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        try:
            for _ in range(_ACCEPT_TURNS):
                await asyncio.sleep(0)
        finally:
            self._server.close()

    async def _wait_for_readers(self, limit_s: float) -> None:
        """Return when callers took what was sent to them, or time is up."""
        if not self.connections:
            return
        self.all_gone.clear()
        with contextlib.suppress(TimeoutError):
            async with Timeout(limit_s):
                await self.all_gone.wait()

    def log_forbidden(self, peer: str, role: PeerRole | None, method: Method) -> None:
        """Tell that a caller of a wrong role was refused."""
        self._forbidden.add(1, {"method": method.path, "role": str(role or "none")})
        self._log.warning(
            "a call was refused: it is not for the caller's role",
            peer=peer,
            role=str(role or "none"),
            call=method.path,
        )
        if self.tls is not None:
            self.tls.refusals.tell(peer, WRONG_ROLE, role=str(role or ""), rpc=method.path)

    def call_failed(self, name: str, failure: BaseException) -> None:
        """Log and count what a handler did not expect."""
        self._mistakes.failed(name, failure)


class _Call:
    """A call under way."""

    __slots__ = ("credit", "method", "request_bytes", "task", "window_bytes")

    def __init__(self, method: Method, request_bytes: int, window_bytes: int) -> None:
        self.method = method
        self.request_bytes = request_bytes
        self.window_bytes = window_bytes  # of a stream: what may still be sent
        self.credit = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def wait_for_window(self) -> None:
        """Return when at least one byte may be sent."""
        while self.window_bytes <= 0:
            self.credit.clear()
            await self.credit.wait()


class _ServerConnection(Connection):
    """One caller."""

    def __init__(self, server: TcpServer) -> None:
        super().__init__(server.options)
        self._server = server
        self._codec: Codec | None = None
        self._window_bytes = 0
        self._max_response_bytes = 0
        self._calls: dict[int, _Call] = {}
        self._budgets = Budgets(server.options, server.usage)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._server.draining:
            self.end(UNAVAILABLE, _STOPS)
            return
        if len(self._server.connections) >= self.options.max_connections:
            self._server.refused.add(1, {"reason": OVERLOADED})
            self.end(OVERLOADED, f"{self.options.max_connections} connections")
            return
        self._server.connections.add(self)

    def on_lost(self, reason: AngeliaError) -> None:
        self._server.connections.discard(self)
        if not self._server.connections:
            self._server.all_gone.set()
        if reason.code == BAD_REQUEST:
            self._server.refused.add(1, {"reason": BAD_REQUEST})
        for call in list(self._calls.values()):
            if call.task is not None:
                call.task.cancel()

    def on_frame(self, frame: ReceivedFrame) -> None:
        if self._codec is None:
            self._shake_hands(frame)
        elif frame.kind is WireFrameKind.REQUEST:
            self._begin(frame, self._codec)
        elif frame.kind is WireFrameKind.CANCEL:
            call = self._calls.get(frame.call_id)
            if call is not None and call.task is not None:
                call.task.cancel()
        elif frame.kind is WireFrameKind.CREDIT:
            call = self._calls.get(frame.call_id)
            if call is not None:
                call.window_bytes += frames.decode_credit(frame.payload)
                call.credit.set()
        elif frame.kind is WireFrameKind.GOODBYE:
            self.abort(*frames.decode_error(frame.payload))
        else:
            raise FrameError(f"{frame.kind.name} from a caller")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._adjust_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._adjust_reading()

    def _shake_hands(self, frame: ReceivedFrame) -> None:
        if frame.kind is not WireFrameKind.HELLO:
            raise FrameError(f"{frame.kind.name} before HELLO")
        hello = frames.decode_hello(frame.payload)
        if hello.version != frames.VERSION:
            raise FrameError(f"unknown version {hello.version}, this is {frames.VERSION}")
        codec = self._server.codecs.get(hello.codec)
        if codec is None:
            raise FrameError(f"unknown codec {hello.codec!r}")
        try:
            self._server.cluster.check(hello.cluster, self.peer)
        except AngeliaError as error:
            # The caller is told which cluster this is; it says the rest itself.
            self.end(error.code, self._server.cluster.value)
            return
        self._codec = codec
        self._window_bytes = hello.stream_window_bytes
        self._max_response_bytes = min(hello.max_message_bytes, self.options.max_message_bytes)
        limit = self.options.max_message_bytes
        self.reader.max_payload_bytes = limit + frames.MAX_REQUEST_PREFIX_BYTES
        methods = tuple((method.streaming, method.path) for method in self._server.methods)
        welcome = frames.Welcome(frames.VERSION, limit, methods, self._server.cluster.value)
        self.send(WireFrameKind.WELCOME, welcome.encode())

    def _begin(self, frame: ReceivedFrame, codec: Codec) -> None:
        """Start the call of a REQUEST, or refuse it."""
        if frame.call_id in self._calls:
            raise FrameError(f"call id {frame.call_id} is in use")
        timeout_s, trace_parent, data = frames.decode_request(frame.payload)
        try:
            method = self._admit(frame)
            request = codec.decode(data, method.request_type)
        except AngeliaError as error:
            self._send_error(frame.call_id, error)
            return
        context = CallContext(timeout_s, trace_parent, self.peer, self.role)
        if method.is_immediate:
            self._answer(frame.call_id, method, request, context, codec)
            return
        call = _Call(method, len(data), self._window_bytes)
        self._calls[frame.call_id] = call
        self._budgets.take(method.call_class, call.request_bytes)
        if method.streaming:
            work = self._serve_stream(frame.call_id, call, request, context, codec)
            call.task = self._server.streams.spawn(method.path, work)
        else:
            work = self._serve_unary(frame.call_id, method, request, context, codec)
            call.task = self._server.calls.spawn(method.path, work)
        call.task.add_done_callback(partial(self._ended, frame.call_id))

    def _admit(self, frame: ReceivedFrame) -> Method:
        if self._server.draining:
            raise AngeliaError(UNAVAILABLE, _STOPS)
        if frame.method_id >= len(self._server.methods):
            raise AngeliaError(UNKNOWN_METHOD, f"method id {frame.method_id}")
        method = self._server.methods[frame.method_id]
        if self.is_tls:
            self._check_role(method)
        self._budgets.check_calls(method.call_class)
        self._budgets.check_bytes(method.call_class)
        return method

    def _check_role(self, method: Method) -> None:
        """Refuse a caller whose certificate is of a role that has no business here."""
        tls = self._server.tls
        assert tls is not None, "there is no TLS without certificates"
        try:
            check_caller(method.path, self.role, tls.role, self.options.access_of)
        except AngeliaError as error:
            self._count(method, error.code)
            self._server.log_forbidden(self.peer, self.role, method)
            raise

    def _answer(
        self, call_id: int, method: Method, request: Message, context: CallContext, codec: Codec
    ) -> None:
        """Carry an immediate call out; its failure ends this call only, as that of a task."""
        try:
            data = self._encode(codec, method.answer(request, context))
        except AngeliaError as error:
            self._send_error(call_id, error)
            self._count(method, error.code)
        except Exception as failure:  # noqa: BLE001 - it ends this call, not those beside it
            self._server.call_failed(method.path, failure)
            self._send_error(call_id, AngeliaError(INTERNAL, one_line(failure)))
            self._count(method, INTERNAL)
        else:
            self.send(WireFrameKind.RESPONSE, data, call_id=call_id)
            self._count(method, "ok")

    async def _serve_unary(
        self, call_id: int, method: Method, request: Message, context: CallContext, codec: Codec
    ) -> None:
        timeout = Timeout(context.timeout_s)
        try:
            try:
                async with timeout:
                    response = await method.unary(request, context)
            except TimeoutError:
                if not timeout.expired():
                    raise  # the handler's own
                raise AngeliaError(DEADLINE_EXCEEDED, method.path) from None
            data = self._encode(codec, response)
        except AngeliaError as error:
            self._send_error(call_id, error)
            self._count(method, error.code)
            return
        if not self.writable:
            await self.wait_writable()
        self.send(WireFrameKind.RESPONSE, data, call_id=call_id)
        self._count(method, "ok")

    async def _serve_stream(
        self, call_id: int, call: _Call, request: Message, context: CallContext, codec: Codec
    ) -> None:
        try:
            async for item in call.method.stream(request, context):
                data = self._encode(codec, item)
                await call.wait_for_window()
                await self.wait_writable()
                call.window_bytes -= len(data)
                self.send(WireFrameKind.ITEM, data, call_id=call_id)
        except AngeliaError as error:
            self._send_error(call_id, error)
            self._count(call.method, error.code)
            return
        self.send(WireFrameKind.END, call_id=call_id)
        self._count(call.method, "ok")

    def _ended(self, call_id: int, task: asyncio.Task[None]) -> None:
        """A call's task is over; one that ended without an answer gets it here."""
        call = self._calls.pop(call_id)
        self._budgets.give_back(call.method.call_class, call.request_bytes)
        error: AngeliaError | None = None
        if task.cancelled():
            # By the caller, who does not listen any more, or by the server's stop.
            error = AngeliaError(UNAVAILABLE, "the call was ended by the server")
        elif (failure := task.exception()) is not None:
            error = AngeliaError(INTERNAL, one_line(failure))
        if error is not None:
            self._send_error(call_id, error)
            self._count(call.method, error.code)

    def _encode(self, codec: Codec, message: Message) -> bytes:
        data = codec.encode(message)
        limit = self._max_response_bytes
        if len(data) > limit:
            raise AngeliaError(
                TOO_LARGE, f"the response has {len(data)} bytes, the limit is {limit}"
            )
        return data

    def _send_error(self, call_id: int, error: AngeliaError) -> None:
        self.send(
            WireFrameKind.ERROR, frames.encode_error(error.code, error.reason), call_id=call_id
        )

    def _count(self, method: Method, code: str) -> None:
        self._server.ended_calls.add(1, {"method": method.path, "code": code})

    def _adjust_reading(self) -> None:
        """Read from the caller only while it takes its responses."""
        self.pause(not self.writable)
