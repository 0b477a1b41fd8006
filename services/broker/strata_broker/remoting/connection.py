"""One connection of a remoting client.

Requests are carried out side by side and answered as they end, each under its own number (opaque).
A connection with too many unanswered requests, with answers that its client does not read, or with
too many refused calls is not read until that has changed; requests that have arrived already wait
in the buffer. While the client is to answer a question of this broker, the connection is read all
the same: the answer is taken, and requests before it are set aside, up to a limit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

from strata_broker.base.remoting_config import RemotingSection
from strata_broker.remoting.asked import AskedRequests
from strata_broker.remoting.dispatcher import RemotingDispatcher
from strata_broker.remoting.exchange import Exchange
from strata_broker.remoting.server_tls import ServerTls
from strata_broker.remoting.tls_bytes import TlsBytes, begins_tls
from strata_broker.remoting.unfinished_frames import UnfinishedFrames
from strata_broker.remoting.unread_answers import UnreadAnswers
from strata_remoting import (
    ReadFrame,
    RemotingCommand,
    RemotingError,
    RemotingFrameReader,
    Serialization,
    encode_frame,
)
from strata_runtime.listening import endpoint_of
from strata_runtime.logs import get_logger
from strata_runtime.tasks import RequestTasks, TooManyTasksError
from strata_runtime.timeouts import Timeout

_LOG = get_logger("remoting")
_MOST_TOLD_BYTES = 65_536
_MOST_SET_ASIDE_BYTES = 1 << 20
"""Requests before an answer, by connection; with more it is not read until requests end."""


@dataclass(frozen=True, slots=True)
class ConnectionPort:
    """Parts that all connections share.

    Attributes:
        dispatcher: carries requests out.
        config: limits and times.
        requests: own the tasks of requests.
        unfinished: bytes of frames that still arrive.
        unread: bytes of answers that clients have not read.
        connected: called with a connection that begins; False: there is no room for it.
        disconnected: called with a connection that ended.
        tls: for connections that begin so; None: there is no TLS.
    """

    dispatcher: RemotingDispatcher
    config: RemotingSection
    requests: RequestTasks
    unfinished: UnfinishedFrames
    unread: UnreadAnswers
    connected: Callable[[RemotingConnection], bool]
    disconnected: Callable[[RemotingConnection], None]
    tls: ServerTls | None = None


class RemotingConnection(asyncio.Protocol):
    """See the module docstring; a `RemotingPeer`.

    Args:
        port: parts that all connections share.
        peer: address of the client, where the socket is not the client's own; empty: it is.
        is_secured: whether TLS ends before this connection.
    """

    def __init__(self, port: ConnectionPort, peer: str = "", *, is_secured: bool = False) -> None:
        self._port = port
        self._is_secured = is_secured
        self._reader = RemotingFrameReader(port.config.frame_limits())
        self._transport: asyncio.Transport | None = None
        self._tls: TlsBytes | None = None
        self._has_begun = False
        self._loop = asyncio.get_running_loop()
        self._unfinished_bytes = 0
        self._unfinished_since_s = 0.0
        self._in_flight = 0
        self._asked = AskedRequests()
        self._set_aside: deque[ReadFrame] = deque()
        self._set_aside_bytes = 0
        self._last_request_s = self._begun_s = self._loop.time()
        self._paused_until_s = 0.0
        self._is_draining = False
        self._drained = asyncio.Event()
        self._drained.set()
        self._timer: asyncio.TimerHandle | None = None
        self.peer = peer
        self.client_id = ""
        self.language = 0
        self.is_gone = False

    # Protocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        if not self.peer:
            address = transport.get_extra_info("peername") or ("", 0)
            self.peer = endpoint_of(str(address[0]), int(address[1]))
        self.client_id = self.peer
        if not self._port.connected(self):
            self.is_gone = True
            self._transport.abort()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._timer is not None:
            self._timer.cancel()
        self._set_unfinished(0)
        self._asked.end()
        self._drained.set()
        if not self.is_gone:
            self.is_gone = True
            self._port.disconnected(self)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self.is_gone:
            return
        try:
            self._reader.feed(self._plaintext(data))
            self._take_frames()
        except RemotingError as error:
            self._end(str(error))
            return
        if self._tls is not None and self._tls.has_ended:
            # Requests that came with the end are answered; questions will not be.
            self._asked.end()
            self.drain()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._drained.clear()
        self._pace()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._drained.set()
        self._go_on()

    # Peer ---------------------------------------------------------------------------------------

    async def answer(self, exchange: Exchange, command: RemotingCommand) -> None:
        """See `RemotingPeer.answer`."""
        self._require_client()
        frame = encode_frame(command, exchange.serialization)
        with self._port.unread.holding(self.peer, len(frame)):
            self._write(frame)
            if not self._drained.is_set():
                await self._until_read()

    def tell(self, command: RemotingCommand) -> None:
        """See `RemotingPeer.tell`."""
        if self.has_room:
            self.tell_frame(encode_frame(command, Serialization.JSON))

    def tell_frame(self, frame: bytes) -> None:
        """See `RemotingPeer.tell_frame`."""
        if self.has_room:
            # Nobody waits for it, and the connection ends.
            with suppress(ConnectionResetError):
                self._write(frame)

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        """See `RemotingPeer.ask`."""
        if self._is_draining:
            raise ConnectionResetError("the connection is about to end")
        self._require_client()
        try:
            with self._asked.asking() as (opaque, answer):
                request = replace(command, opaque=opaque)
                # Others that waited with this one may have filled the buffer again.
                while not self._drained.is_set():
                    await self._drained.wait()
                self._require_client()
                self._write(encode_frame(request, Serialization.JSON))
                self._pace()
                return await answer
        finally:
            self._pace()

    @property
    def has_room(self) -> bool:
        """See `RemotingPeer`."""
        if self._transport is None or self.is_gone:
            return False
        return self._transport.get_write_buffer_size() < _MOST_TOLD_BYTES

    def drain(self) -> None:
        """Begin no more requests, and end when those under way, of both sides, are answered."""
        self._is_draining = True
        self._set_aside.clear()
        self._set_aside_bytes = 0
        self._pace()

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    # Bytes --------------------------------------------------------------------------------------

    def _plaintext(self, data: bytes) -> bytes:
        """Return what a client sent, without TLS.

        Raises:
            RemotingError: TLS failed, or is missing.
        """
        if not self._has_begun and data and not self._is_secured:
            self._has_begun = True
            if self._port.tls is not None and begins_tls(data):
                self._tls = TlsBytes(self._port.tls.context())
            elif self._port.config.tls_only:
                raise RemotingError("it speaks plaintext (remoting.tls_only)")
        if self._tls is None:
            return data
        try:
            return self._tls.received(data)
        finally:
            if self._transport is not None and (answer := self._tls.to_write()):
                self._transport.write(answer)

    async def _until_read(self) -> None:
        """Wait until the transport has taken nearly all that was written.

        Raises:
            ConnectionResetError: the client is gone, or reads too slowly.
        """
        try:
            async with Timeout(self._port.config.max_unread_ms / 1000):
                await self._drained.wait()
        except TimeoutError:
            self._end("it does not read its answers")
            raise ConnectionResetError("the client does not read its answers") from None
        # The end of the connection wakes whoever waits, too.
        self._require_client()

    def _require_client(self) -> None:
        """Check that somebody may still read.

        Raises:
            ConnectionResetError: the connection has ended.
        """
        if self._is_ended:
            raise ConnectionResetError("the client is gone")

    def _write(self, data: bytes) -> None:
        """Write, or end a connection whose TLS has failed.

        Raises:
            ConnectionResetError: TLS has failed.
        """
        if self._transport is None:
            return
        try:
            self._transport.write(data if self._tls is None else self._tls.sealed(data))
        except ConnectionResetError as error:
            self._end(str(error))
            raise

    # Requests -----------------------------------------------------------------------------------

    def _take_frames(self) -> None:
        """Take the frames that are whole: begin as many as may be carried out side by side.

        Raises:
            RemotingError: see `RemotingFrameReader.frames`.
        """
        frames, now_s = self._reader.frames(), self._loop.time()
        if not self._unfinished_bytes:
            self._unfinished_since_s = now_s
        while self._set_aside and self._takes_requests:
            frame = self._set_aside.popleft()
            self._set_aside_bytes -= frame.size_bytes
            self._begin(frame)
        while self._is_read and (read := next(frames, None)) is not None:
            # The bytes behind it are those of another frame.
            self._last_request_s = self._unfinished_since_s = now_s
            if read.command.is_response:
                self._asked.answered(read.command)
            elif self._takes_requests:
                self._begin(read)
            elif not self._is_draining:
                self._set_aside.append(read)
                self._set_aside_bytes += read.size_bytes
        if full := self._set_unfinished(self._reader.waiting_bytes + self._set_aside_bytes):
            self._end(f"too many bytes of unfinished frames ({full})")
        self._pace()

    def _begin(self, frame: ReadFrame) -> None:
        exchange = Exchange(frame.command, self, frame.serialization, size_bytes=frame.size_bytes)
        try:
            task = self._port.requests.spawn("remoting request", self._serve(exchange))
        except TooManyTasksError:
            self._end("the broker carries out too many requests")
            return
        self._in_flight += 1
        task.add_done_callback(self._ended)

    async def _serve(self, exchange: Exchange) -> None:
        try:
            await self._port.dispatcher.serve(exchange)
        except ConnectionError:
            # Nobody is there to answer.
            return
        except RemotingError as error:
            self._end(f"an answer cannot be written: {error}")

    def _ended(self, _: object) -> None:
        self._in_flight -= 1
        self._go_on()

    # Limits -------------------------------------------------------------------------------------

    @property
    def _is_ended(self) -> bool:
        return self._transport is None or self.is_gone or self._transport.is_closing()

    @property
    def _is_full(self) -> bool:
        return self._in_flight >= self._port.config.max_requests_per_connection

    @property
    def _is_read(self) -> bool:
        """Whether frames are taken: requests, or those before an answer."""
        if self._is_ended:
            return False
        waits = bool(self._asked) and self._set_aside_bytes < _MOST_SET_ASIDE_BYTES
        return self._takes_requests or waits

    @property
    def _takes_requests(self) -> bool:
        if self._is_ended:
            return False
        is_paused = self._loop.time() < self._paused_until_s
        return self._drained.is_set() and not (is_paused or self._is_full or self._is_draining)

    def _go_on(self) -> None:
        """Begin requests for which there was no room, and read more if there is room for more."""
        self._pause_if_refused()
        if (self._set_aside or self._reader.waiting_bytes) and self._takes_requests:
            try:
                self._take_frames()
            except RemotingError as error:
                self._end(str(error))
        else:
            self._pace()

    def _pace(self) -> None:
        """Read, or do not read until there is room or the pause is over."""
        transport = self._transport
        if transport is None or self._is_ended:
            return
        self._pause_if_refused()
        if self._is_draining and not self._in_flight and not self._asked:
            transport.close()
        elif self._is_read:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _pause_if_refused(self) -> None:
        """Begin a pause if too much of the client was refused."""
        now_s, wait_s = self._loop.time(), self._port.dispatcher.wait_s(self.peer)
        if wait_s and now_s >= self._paused_until_s:
            self._paused_until_s = now_s + wait_s
            self._loop.call_later(wait_s, self._end_pause)

    def _end_pause(self) -> None:
        # A timer may come a moment before its time, and no other one would end the pause.
        self._paused_until_s = 0.0
        self._go_on()

    def _set_unfinished(self, size_bytes: int) -> str:
        """Note how many bytes wait; return the name of the limit that is exceeded, "": none."""
        more, unfinished = size_bytes - self._unfinished_bytes, self._port.unfinished
        if more > 0 and (full := unfinished.refused(self.peer, more)):
            return full
        if more < 0:
            unfinished.give_back(self.peer, -more)
        self._unfinished_bytes = size_bytes
        return ""

    def _watch(self) -> None:
        """End a connection that is idle, or whose frame arrives too slowly."""
        config, now_s = self._port.config, self._loop.time()
        idle_s, upload_s = config.idle_timeout_ms / 1000, config.max_upload_ms / 1000
        if not self._in_flight and now_s - self._last_request_s >= idle_s:
            self._end("it is idle")
            return
        if not self._takes_requests:
            # Requests that have arrived wait for this broker, not for their client.
            self._unfinished_since_s = now_s
        if self._tls is not None and not self._tls.is_open and now_s - self._begun_s >= upload_s:
            self._end("its TLS handshake is too slow")
            return
        if self._unfinished_bytes and now_s - self._unfinished_since_s >= upload_s:
            self._end("a frame arrives too slowly")
            return
        self._timer = self._loop.call_later(min(idle_s, upload_s) / 4, self._watch)

    def _end(self, reason: str) -> None:
        _LOG.info("remoting connection ended", peer=self.peer, reason=reason)
        self.abort()
