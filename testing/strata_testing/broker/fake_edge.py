"""An edge without sockets: it holds the handlers and lets a test make calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from google.protobuf.message import Message

from strata_angelia.ports import UNAVAILABLE, UNKNOWN_METHOD, AngeliaError
from strata_edge.choice import installed_passes
from strata_edge.ports import (
    HOT_METHODS,
    CallError,
    CallInfo,
    HotHandler,
    ServerStreamHandler,
    StreamHandler,
    UnaryHandler,
)
from strata_runtime.health import Health

MESSAGING = "/apache.rocketmq.v2.MessagingService/"
ADMIN = "/strata.admin.v1.AdminService/"
METADATA = {"x-mq-client-id": "client-1", "x-mq-language": "JAVA"}

Response = TypeVar("Response", bound=Message)


class FakeCall:
    """A hot call and a call's information in one; a call takes one answer."""

    def __init__(
        self,
        method: str,
        request: bytes,
        metadata: Mapping[str, str] = METADATA,
        *,
        time_left_s: float | None = 25.0,
    ) -> None:
        self.method = method
        self.request = request
        self.metadata = metadata
        self.peer = "127.0.0.1:5555"
        self._time_left_s = time_left_s
        self._gone = False
        self._on_gone: list[Callable[[], None]] = []
        self._on_not_taken: Callable[[], None] | None = None
        self.answer: asyncio.Future[Sequence[bytes]] = asyncio.get_running_loop().create_future()

    def time_left_s(self) -> float | None:
        return self._time_left_s

    def done(self) -> bool:
        return self._gone or self.answer.done()

    def on_gone(self, callback: Callable[[], None]) -> None:
        self._on_gone.append(callback)

    def complete(
        self, responses: Sequence[bytes], on_not_taken: Callable[[], None] | None = None
    ) -> None:
        if not self.done():
            assert responses, "a call is answered with something"
            self.answer.set_result(responses)
            self._on_not_taken = on_not_taken
        elif on_not_taken is not None:
            asyncio.get_running_loop().call_soon(on_not_taken)

    def fail(self, status: str, reason: str) -> None:
        if not self.done():
            self.answer.set_exception(CallError(status, reason))

    def refuse_answer(self) -> None:
        """The client resets the call before the transport has taken its answer."""
        if self._on_not_taken is not None:
            self._on_not_taken()

    def leave(self) -> None:
        """The client goes away."""
        self._gone = True
        for callback in self._on_gone:
            callback()


class FakeEdge:
    """See `strata_edge.ports.Edge`; with the native passes, if they are installed."""

    def __init__(self) -> None:
        self.passes = installed_passes()
        # Clients of another protocol come by a port of their own.
        self.handover = None
        self.unary: dict[str, UnaryHandler] = {}
        self.server_streams: dict[str, Callable[[bytes, CallInfo], AsyncIterator[bytes]]] = {}
        self.streams: dict[str, StreamHandler] = {}
        self.hot: HotHandler | None = None
        self.running = False
        self.draining = False
        # Addresses of the clients that are connected, and of those that were sent away.
        self.clients: list[str] = []
        self.sent_away: list[str] = []
        self.told = Health()
        # Clients go at once unless a test wants it otherwise.
        self.drained = asyncio.Event()
        self.drained.set()

    def add_unary(self, path: str, handler: UnaryHandler) -> None:
        assert path not in self.unary
        self.unary[path] = handler

    def add_server_stream(self, path: str, handler: ServerStreamHandler) -> None:
        async def one_by_one(data: bytes, info: CallInfo) -> AsyncIterator[bytes]:
            async for together in handler(data, info):
                for response in [together] if isinstance(together, bytes) else together:
                    yield response

        self.server_streams[path] = one_by_one

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        self.streams[path] = handler

    def set_hot_handler(self, service: str, handler: HotHandler) -> None:
        assert service == "apache.rocketmq.v2.MessagingService"
        self.hot = handler

    async def start(self) -> int:
        self.running = True
        return 18081

    def health(self) -> Health:
        return self.told

    def connections(self) -> int | None:
        return len(self.clients)

    async def send_away(self, most: int) -> Sequence[str]:
        peers, self.clients = self.clients[:most], self.clients[most:]
        self.sent_away += peers
        return peers

    async def drain(self, timeout_s: float) -> None:
        self.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.drained.wait()

    async def stop(self, grace_s: float) -> None:
        self.running = False

    async def call(
        self,
        path: str,
        request: Message | bytes,
        response_type: type[Response],
        metadata: Mapping[str, str] = METADATA,
    ) -> Response:
        """Make a unary call."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        method = path.removeprefix(MESSAGING)
        if method in HOT_METHODS:
            [response] = await self.begin(method, data, metadata).answer
        else:
            response = await self.unary[path](data, FakeCall("", b"", metadata))
        return response_type.FromString(response)

    def begin(
        self,
        method: str,
        request: Message | bytes,
        metadata: Mapping[str, str] = METADATA,
        time_left_s: float | None = 25.0,
    ) -> FakeCall:
        """Hand a hot call to the broker."""
        [call] = self.begin_turn((method, request), metadata=metadata, time_left_s=time_left_s)
        return call

    def begin_turn(
        self,
        *requests: tuple[str, Message | bytes],
        metadata: Mapping[str, str] = METADATA,
        time_left_s: float | None = 25.0,
    ) -> list[FakeCall]:
        """Hand hot calls, (method, request) each, to the broker as those of one turn."""
        calls = [
            FakeCall(
                method,
                request if isinstance(request, bytes) else request.SerializeToString(),
                metadata,
                time_left_s=time_left_s,
            )
            for method, request in requests
        ]
        assert self.hot is not None
        self.hot.handle(calls)
        return calls

    def open_stream(
        self, path: str, requests: AsyncIterator[bytes], metadata: Mapping[str, str] = METADATA
    ) -> AsyncIterator[bytes]:
        """Open a bidirectional stream."""
        return self.streams[path](requests, FakeCall("", b"", metadata))


class EdgeChannel:
    """See `strata_angelia.ports.Channel`: the way from one broker to another one's edge."""

    def __init__(
        self,
        edges: Mapping[str, FakeEdge],
        endpoint: str,
        headers: Callable[[], Sequence[tuple[str, str]]] = tuple,
    ) -> None:
        self._edges = edges
        self._headers = headers
        self._endpoint = endpoint

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Response],
        *,
        timeout_s: float | None = None,
    ) -> Response:
        edge = self._edges.get(self._endpoint)
        if edge is None or not edge.running:
            raise AngeliaError(UNAVAILABLE, f"nobody listens at {self._endpoint}")
        return await edge.call(method, request, response_type, METADATA | dict(self._headers()))

    async def stream(
        self, method: str, request: Message, response_type: type[Response]
    ) -> AsyncIterator[Response]:
        raise AngeliaError(UNKNOWN_METHOD, method)
        yield

    async def close(self) -> None:
        """Nothing is open."""
