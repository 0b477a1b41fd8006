"""Calling side of the tcp transport: one connection, many calls in flight.

It connects at the first call and again at the first call after a loss; after a failed attempt,
calls fail at once for `reconnect_pause_s`. It never repeats a call: whether that is safe is the
caller's knowledge. It always reads, since what may arrive is bounded by calls and windows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from google.protobuf.message import Message

from strata_angelia import frames
from strata_angelia.codec import Codec, ProtobufCodec
from strata_angelia.connection import Connection
from strata_angelia.frames import Frame, FrameError, Kind
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
)
from strata_runtime.logs import get_logger
from strata_runtime.tasks import Tasks

Response = TypeVar("Response", bound=Message)

_MAX_CALL_ID = 0xFFFFFFFF


class TcpChannel:
    """See `ports.Channel`.

    Args:
        endpoint: `host:port`.
        codec: encoding of all messages.
        options: limits.
        trace_parent: gives the W3C `traceparent` of the running context, or "".
    """

    def __init__(
        self,
        endpoint: str,
        *,
        codec: Codec | None = None,
        options: AngeliaOptions | None = None,
        trace_parent: Callable[[], str] = str,
    ) -> None:
        host, _, port = endpoint.rpartition(":")
        self._host = host.strip("[]")
        self._port = int(port)
        self._endpoint = endpoint
        self._codec = codec or ProtobufCodec()
        self._options = options or AngeliaOptions()
        self._trace_parent = trace_parent
        self._tasks = Tasks("angelia.channel", self._connect_failed)
        self._connecting: asyncio.Task[_ClientConnection] | None = None
        self._connection: _ClientConnection | None = None
        self._retry_at_s = 0.0
        self._closed = False

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Response],
        *,
        timeout_s: float | None = None,
    ) -> Response:
        """See `ports.Channel.call`."""
        timeout = asyncio.timeout(timeout_s)
        try:
            async with timeout:
                connection = await self._connected()
                payload = self._encode(connection, request)
                await connection.wait_for_room(len(payload))
                pending = connection.begin(method, payload, self._prefix(timeout), streaming=False)
                try:
                    data = await pending.next()
                finally:
                    connection.finish(pending)
        except TimeoutError:
            raise AngeliaError(DEADLINE_EXCEEDED, f"{method} at {self._endpoint}") from None
        if data is None:
            raise AngeliaError(INTERNAL, f"{method} answered with a stream")
        return self._decode(data, response_type)

    async def stream(
        self, method: str, request: Message, response_type: type[Response]
    ) -> AsyncIterator[Response]:
        """See `ports.Channel.stream`. Leaving early cancels the call (`contextlib.aclosing`)."""
        connection = await self._connected()
        payload = self._encode(connection, request)
        await connection.wait_for_room(len(payload))
        prefix = frames.encode_request_prefix(None, self._trace_parent())
        pending = connection.begin(method, payload, prefix, streaming=True)
        try:
            while (data := await pending.next()) is not None:
                connection.give_credit(pending, len(data))
                yield self._decode(data, response_type)
        finally:
            connection.finish(pending)

    async def close(self) -> None:
        """See `ports.Channel.close`."""
        self._closed = True
        await self._tasks.stop()
        if self._connection is not None:
            self._connection.end(UNAVAILABLE, "the caller closes")
            # The peer gets the goodbye, but nobody here waits for it.
            self._connection.fail_all(AngeliaError(UNAVAILABLE, "the channel was closed"))
            self._connection = None

    async def _connected(self) -> _ClientConnection:
        if self._closed:
            raise AngeliaError(UNAVAILABLE, "the channel was closed")
        if self._connection is not None and self._connection.usable:
            return self._connection
        if self._connecting is None:
            if asyncio.get_running_loop().time() < self._retry_at_s:
                raise AngeliaError(UNAVAILABLE, f"{self._endpoint} could not be reached just now")
            self._connecting = self._tasks.spawn("connect", self._connect())
        try:
            # Shielded: the caller's deadline must not end the attempt that others wait for.
            return await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            # Closing the channel cancels the attempt; a caller that is cancelled stays so.
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise
            raise AngeliaError(UNAVAILABLE, "the channel was closed") from None

    async def _connect(self) -> _ClientConnection:
        loop = asyncio.get_running_loop()
        connection = _ClientConnection(self._options, self._codec.name)
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                await loop.create_connection(lambda: connection, self._host, self._port)
                await connection.wait_welcome()
            self._connection = connection
        except (OSError, TimeoutError, AngeliaError) as error:
            self._retry_at_s = loop.time() + self._options.reconnect_pause_s
            if isinstance(error, AngeliaError) and error.code != UNAVAILABLE:
                raise
            text = f"{self._endpoint} cannot be reached: {str(error) or 'timeout'}"
            raise AngeliaError(UNAVAILABLE, text) from None
        finally:
            self._connecting = None
            if self._connection is not connection:
                # Refused, too late, or the channel closes: nobody else will end it.
                connection.abort(UNAVAILABLE, "no handshake")
        return connection

    def _connect_failed(self, name: str, failure: BaseException) -> None:
        # The callers that wait get the failure; what is not one of ours is a mistake in here.
        if not isinstance(failure, AngeliaError):
            get_logger("angelia").error("connect failed", task=name, exc_info=failure)

    def _prefix(self, timeout: asyncio.Timeout) -> bytes:
        deadline_s = timeout.when()
        left_s = None
        if deadline_s is not None:
            left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
        return frames.encode_request_prefix(left_s, self._trace_parent())

    def _encode(self, connection: _ClientConnection, request: Message) -> bytes:
        data = self._codec.encode(request)
        limit = min(connection.max_message_bytes, self._options.max_message_bytes)
        if len(data) > limit:
            raise AngeliaError(TOO_LARGE, f"request of {len(data)} bytes, limit {limit}")
        return data

    def _decode(self, data: bytes, response_type: type[Response]) -> Response:
        try:
            return self._codec.decode(data, response_type)
        except AngeliaError as error:
            raise AngeliaError(INTERNAL, f"bad response: {error.reason}") from None


class _Pending:
    """A call that has not ended: what arrived for it and whoever waits."""

    __slots__ = ("_waiter", "arrived", "call_id", "ended", "error", "request_bytes", "taken_bytes")

    def __init__(self, call_id: int, request_bytes: int) -> None:
        self.call_id = call_id
        self.request_bytes = request_bytes
        self.arrived: deque[bytes] = deque()
        self.taken_bytes = 0  # taken by the consumer, credit not yet given
        self.ended = False
        self.error: AngeliaError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> bytes | None:
        """The next payload, None at the end of the stream.

        Raises:
            AngeliaError: the call failed.
        """
        while not self.arrived:
            if self.error is not None:
                raise self.error
            if self.ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.arrived.popleft()

    def take(self, payload: bytes) -> None:
        """Something arrived."""
        self.arrived.append(payload)
        self.wake()

    def end(self, error: AngeliaError | None = None) -> None:
        """Nothing more will arrive."""
        if not self.ended:
            self.ended = True
            self.error = error
            self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _ClientConnection(Connection):
    """The connection of a channel, from its handshake to its loss."""

    def __init__(self, options: AngeliaOptions, codec: str) -> None:
        super().__init__(options)
        self._codec_name = codec
        self._welcome = asyncio.Event()
        self._methods: dict[str, tuple[int, bool]] = {}
        self._pending: dict[int, _Pending] = {}
        self._last_call_id = 0
        self._in_flight_bytes = 0
        self._room = asyncio.Event()
        self._lost: AngeliaError | None = None
        self.max_message_bytes = 0

    @property
    def usable(self) -> bool:
        """Whether a call may be begun on it."""
        return self._lost is None

    async def wait_welcome(self) -> None:
        """Return after the handshake; raises AngeliaError if it was refused."""
        await self._welcome.wait()
        if self._lost is not None:
            raise self._lost

    async def wait_for_room(self, request_bytes: int) -> None:
        """Wait until the request fits; a single one may exceed the limit.

        Raises:
            AngeliaError: connection lost meanwhile, or too many calls.
        """
        limit = self.options.max_in_flight_bytes
        while self._in_flight_bytes and self._in_flight_bytes + request_bytes > limit:
            self._room.clear()
            await self._room.wait()
        if not self.writable:
            await self.wait_writable()
        if self._lost is not None:
            raise self._lost
        if len(self._pending) >= self.options.max_calls:
            raise AngeliaError(OVERLOADED, f"{self.options.max_calls} calls under way")

    def begin(self, path: str, request: bytes, prefix: bytes, *, streaming: bool) -> _Pending:
        """Send a request.

        Raises:
            AngeliaError: UNKNOWN_METHOD.
        """
        method_id, is_stream = self._methods.get(path, (0, not streaming))
        if is_stream != streaming:
            raise AngeliaError(UNKNOWN_METHOD, path)
        call_id = self._next_call_id()
        pending = self._pending[call_id] = _Pending(call_id, len(request))
        self._in_flight_bytes += len(request)
        self.send(Kind.REQUEST, prefix, request, method_id=method_id, call_id=call_id)
        return pending

    def finish(self, pending: _Pending) -> None:
        """The caller is done with a call; one that still runs is cancelled at the server."""
        if self._pending.pop(pending.call_id, None) is None:
            return
        self._in_flight_bytes -= pending.request_bytes
        self._room.set()
        if not pending.ended:
            self.send(Kind.CANCEL, call_id=pending.call_id)

    def give_credit(self, pending: _Pending, taken_bytes: int) -> None:
        """The consumer took an item; tell the server in portions of half a window."""
        pending.taken_bytes += taken_bytes
        if pending.taken_bytes * 2 >= self.options.stream_window_bytes and not pending.ended:
            credit = frames.encode_credit(pending.taken_bytes)
            self.send(Kind.CREDIT, credit, call_id=pending.call_id)
            pending.taken_bytes = 0

    def fail_all(self, error: AngeliaError) -> None:
        """End every call under way."""
        self._lost = self._lost or error
        for pending in self._pending.values():
            pending.end(error)
        self._welcome.set()
        self._room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        options = self.options
        hello = frames.Hello(
            frames.VERSION,
            options.stream_window_bytes,
            options.max_message_bytes,
            self._codec_name,
        )
        self.send(Kind.HELLO, hello.encode())

    def on_lost(self, reason: AngeliaError) -> None:
        self.fail_all(reason)

    def on_frame(self, frame: Frame) -> None:
        if frame.kind is Kind.GOODBYE:
            code, reason = frames.decode_error(frame.payload)
            # What the peer could not read is this side's mistake, not a matter of a retry.
            self.abort(code if code == BAD_REQUEST else UNAVAILABLE, reason)
        elif not self._methods and self.max_message_bytes == 0:
            self._take_welcome(frame)
        else:
            self._take_answer(frame)

    def _take_welcome(self, frame: Frame) -> None:
        if frame.kind is not Kind.WELCOME:
            raise FrameError(f"{frame.kind.name} before WELCOME")
        welcome = frames.decode_welcome(frame.payload)
        if welcome.version != frames.VERSION:
            raise FrameError(f"unknown version {welcome.version}, this is {frames.VERSION}")
        self.max_message_bytes = welcome.max_message_bytes
        self.reader.max_payload_bytes = self.options.max_message_bytes
        self._methods = {
            path: (number, streaming) for number, (streaming, path) in enumerate(welcome.methods)
        }
        self._welcome.set()

    def _take_answer(self, frame: Frame) -> None:
        pending = self._pending.get(frame.call_id)
        if frame.kind not in (Kind.RESPONSE, Kind.ITEM, Kind.END, Kind.ERROR):
            raise FrameError(f"{frame.kind.name} from a server")
        if pending is None:
            return  # the caller has gone meanwhile
        if frame.kind is Kind.RESPONSE:
            pending.take(frame.payload)
            pending.end()
        elif frame.kind is Kind.ITEM:
            pending.take(frame.payload)
        elif frame.kind is Kind.END:
            pending.end()
        else:
            pending.end(AngeliaError(*frames.decode_error(frame.payload)))

    def _next_call_id(self) -> int:
        while True:
            self._last_call_id = self._last_call_id % _MAX_CALL_ID + 1
            if self._last_call_id not in self._pending:
                return self._last_call_id
