"""Calling end of a tcp connection: its calls under way and the responses that arrive for them.

Bounds: the budgets of the classes limit calls and request bytes; stream windows and the message
size limit arriving bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque

from strata_angelia import frames
from strata_angelia.budgets import Budgets
from strata_angelia.classes import CallClass, class_of
from strata_angelia.cluster_id import ClusterId
from strata_angelia.connection import Connection
from strata_angelia.frames import FrameError, ReceivedFrame, WireFrameKind
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import (
    BAD_REQUEST,
    UNAVAILABLE,
    UNKNOWN_METHOD,
    WRONG_CLUSTER,
    AngeliaError,
)
from strata_angelia.roles import check_server

_MAX_CALL_ID = 0xFFFFFFFF


class PendingCall:
    """A call that has not ended: its received responses and its waiting caller."""

    __slots__ = (
        *("_waiter", "arrived", "call_class", "call_id", "ended", "error", "request_bytes"),
        "taken_bytes",
    )

    def __init__(self, call_id: int, call_class: CallClass, request_bytes: int) -> None:
        self.call_id = call_id
        self.call_class = call_class
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

    def give_up(self, error: AngeliaError) -> None:
        """Fail the waiting caller of a call that has not ended at the server."""
        if not self.ended and self.error is None:
            self.error = error
            self.wake()

    def wake(self) -> None:
        """Wake the waiting caller."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ClientConnection(Connection):
    """The connection of a channel, from its handshake to its loss."""

    def __init__(
        self, options: AngeliaOptions, codec: str, cluster: ClusterId, *, endpoint: str
    ) -> None:
        super().__init__(options)
        self._codec_name = codec
        self._cluster = cluster
        self._endpoint = endpoint
        self._welcome = asyncio.Event()
        self._methods: dict[str, tuple[int, bool]] = {}
        self._pending: dict[int, PendingCall] = {}
        self._last_call_id = 0
        self._budgets = Budgets(options)
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

    async def wait_for_room(self, call_class: CallClass, request_bytes: int) -> None:
        """Wait until the request fits into the budget of its class; a single one always does.

        Raises:
            AngeliaError: connection lost meanwhile, or too many calls.
        """
        while not self._budgets.fits(call_class, request_bytes):
            self._room.clear()
            await self._room.wait()
        if not self.writable:
            await self.wait_writable()
        if self._lost is not None:
            raise self._lost
        self._budgets.check_calls(call_class)

    def has_room(self, call_class: CallClass, request_bytes: int) -> bool:
        """Whether a request can be sent at once.

        Raises:
            AngeliaError: too many calls.
        """
        if not self.writable or not self._budgets.fits(call_class, request_bytes):
            return False
        self._budgets.check_calls(call_class)
        return True

    def begin(self, path: str, request: bytes, prefix: bytes, *, streaming: bool) -> PendingCall:
        """Send a request.

        Raises:
            AngeliaError: UNKNOWN_METHOD; FORBIDDEN: such a process does not serve this.
        """
        call_class = class_of(path, self.options.class_of)
        if self.is_tls:
            check_server(path, self.role, self._endpoint, self.options.access_of)
        method_id, is_stream = self._methods.get(path, (0, not streaming))
        if is_stream != streaming:
            raise AngeliaError(UNKNOWN_METHOD, path)
        call_id = self._next_call_id()
        pending = self._pending[call_id] = PendingCall(call_id, call_class, len(request))
        self._budgets.take(call_class, len(request))
        self.send(WireFrameKind.REQUEST, prefix, request, method_id=method_id, call_id=call_id)
        return pending

    def finish(self, pending: PendingCall) -> None:
        """The caller is done with a call; one that still runs is cancelled at the server."""
        if self._pending.pop(pending.call_id, None) is None:
            return
        self._budgets.give_back(pending.call_class, pending.request_bytes)
        self._room.set()
        if not pending.ended:
            self.send(WireFrameKind.CANCEL, call_id=pending.call_id)

    def give_credit(self, pending: PendingCall, taken_bytes: int) -> None:
        """The consumer took an item; tell the server in portions of half a window."""
        pending.taken_bytes += taken_bytes
        if pending.taken_bytes * 2 >= self.options.stream_window_bytes and not pending.ended:
            credit = frames.encode_credit(pending.taken_bytes)
            self.send(WireFrameKind.CREDIT, credit, call_id=pending.call_id)
            pending.taken_bytes = 0

    def fail_all(self, error: AngeliaError) -> None:
        """End every call under way."""
        self._lost = self._lost or error
        for pending in self._pending.values():
            pending.end(error)
        self._welcome.set()
        self._room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Shake hands."""
        super().connection_made(transport)
        options = self.options
        hello = frames.Hello(
            frames.VERSION,
            options.stream_window_bytes,
            options.max_message_bytes,
            self._codec_name,
            self._cluster.value,
        )
        self.send(WireFrameKind.HELLO, hello.encode())

    def on_lost(self, reason: AngeliaError) -> None:
        """See `Connection.on_lost`."""
        self.fail_all(reason)

    def on_frame(self, frame: ReceivedFrame) -> None:
        """See `Connection.on_frame`."""
        if frame.kind is WireFrameKind.GOODBYE:
            code, reason = frames.decode_error(frame.payload)
            if code == WRONG_CLUSTER and self._is_of_another(reason):
                return
            # A frame that the peer could not read is this side's mistake; a retry does not help.
            self.abort(code if code == BAD_REQUEST else UNAVAILABLE, reason)
        elif not self._methods and self.max_message_bytes == 0:
            self._take_welcome(frame)
        else:
            self._take_answer(frame)

    def _take_welcome(self, frame: ReceivedFrame) -> None:
        if frame.kind is not WireFrameKind.WELCOME:
            raise FrameError(f"{frame.kind.name} before WELCOME")
        welcome = frames.decode_welcome(frame.payload)
        if welcome.version != frames.VERSION:
            raise FrameError(f"unknown version {welcome.version}, this is {frames.VERSION}")
        if self._is_of_another(welcome.cluster):
            return
        self.max_message_bytes = welcome.max_message_bytes
        self.reader.max_payload_bytes = self.options.max_message_bytes
        self._methods = {
            path: (number, streaming) for number, (streaming, path) in enumerate(welcome.methods)
        }
        self._welcome.set()

    def _is_of_another(self, cluster: str) -> bool:
        """Leave a server of another cluster."""
        try:
            self._cluster.check(cluster, self._endpoint)
        except AngeliaError as error:
            self.abort(error.code, error.reason)
            return True
        return False

    def _take_answer(self, frame: ReceivedFrame) -> None:
        pending = self._pending.get(frame.call_id)
        if frame.kind not in (
            WireFrameKind.RESPONSE,
            WireFrameKind.ITEM,
            WireFrameKind.END,
            WireFrameKind.ERROR,
        ):
            raise FrameError(f"{frame.kind.name} from a server")
        if pending is None:
            return  # the caller has gone meanwhile
        if frame.kind is WireFrameKind.RESPONSE:
            pending.take(frame.payload)
            pending.end()
        elif frame.kind is WireFrameKind.ITEM:
            pending.take(frame.payload)
        elif frame.kind is WireFrameKind.END:
            pending.end()
        else:
            pending.end(AngeliaError(*frames.decode_error(frame.payload)))

    def _next_call_id(self) -> int:
        while True:
            self._last_call_id = self._last_call_id % _MAX_CALL_ID + 1
            if self._last_call_id not in self._pending:
                return self._last_call_id
