"""Common part of both ends of a tcp connection: frames in and out, pings, the end with a reason.

Invariant: `on_lost` is called exactly once, with the reason, for every connection that was made.
"""

from __future__ import annotations

import asyncio
from typing import cast

from strata_angelia.frames import (
    FrameError,
    FrameReader,
    ReceivedFrame,
    WireFrameKind,
    encode_error,
    header,
)
from strata_angelia.options import MIB, AngeliaOptions
from strata_angelia.ports import BAD_REQUEST, UNAVAILABLE, AngeliaError
from strata_angelia.tls import role_of_peer, tls_reason
from strata_runtime.roles import PeerRole

_WRITE_BUFFER_BYTES = 2 * MIB


class Connection(asyncio.Protocol):
    """Base of both ends; a subclass gives `on_frame` and `on_lost`."""

    def __init__(self, options: AngeliaOptions) -> None:
        self.options = options
        self.peer = ""
        # In the other end's certificate, over TLS.
        self.is_tls = False
        self.role: PeerRole | None = None
        self.reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._heard = True
        self._silent_pings = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reason: AngeliaError | None = None

    def on_frame(self, frame: ReceivedFrame) -> None:
        """Take one frame; raises FrameError when it is out of place."""
        raise AssertionError(f"{type(self).__name__} takes no {frame.kind.name}")

    def on_lost(self, reason: AngeliaError) -> None:
        """The connection has ended."""

    @property
    def was_cut(self) -> bool:
        """Whether it ended without a reason from either end."""
        return self._transport is None and self._reason is None

    @property
    def writable(self) -> bool:
        """Whether the peer takes what is sent."""
        return self._writable.is_set()

    async def wait_writable(self) -> None:
        """Return when the peer takes what is sent, or has gone."""
        await self._writable.wait()

    def send(
        self, kind: WireFrameKind, *payload: bytes, method_id: int = 0, call_id: int = 0
    ) -> None:
        """Send a frame; nothing happens when the connection has ended."""
        if self._transport is None or self._transport.is_closing():
            return
        length = sum(map(len, payload))
        head = header(kind, length, method_id=method_id, call_id=call_id)
        try:
            self._transport.writelines((head, *payload))
        except RuntimeError as error:
            # uvloop: a handle may be closed already while it does not say so (`is_closing`).
            self._found_closed(error)

    def end(self, code: str, reason: str) -> None:
        """Say goodbye with a reason and close; what was sent before still goes out."""
        if self._transport is None:
            return
        if self._reason is None:
            self._reason = AngeliaError(code, reason)
            self.send(WireFrameKind.GOODBYE, encode_error(code, reason))
        self._transport.close()

    def abort(self, code: str, reason: str) -> None:
        """Close without waiting for the peer to take what was sent."""
        if self._transport is None:
            return
        self._reason = self._reason or AngeliaError(code, reason)
        self._transport.abort()

    def pause(self, paused: bool) -> None:
        """Read no further from the peer, or again."""
        transport = self._transport
        if transport is None or transport.is_closing() or transport.is_reading() != paused:
            return
        try:
            if paused:
                transport.pause_reading()
            else:
                transport.resume_reading()
        except RuntimeError as error:
            self._found_closed(error)  # as in `send`

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; pings start at once."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if address else ""
        ssl_object = transport.get_extra_info("ssl_object")
        if ssl_object is not None:
            self.is_tls = True
            self.role = role_of_peer(ssl_object)
        self._writable.set()
        self._schedule_ping()

    def data_received(self, data: bytes) -> None:
        """Cut into frames and take them; bad bytes end the connection with the reason."""
        self._heard = True
        try:
            for frame in self.reader.feed(data):
                if frame.kind is WireFrameKind.PING:
                    self.send(WireFrameKind.PONG)
                elif frame.kind is not WireFrameKind.PONG:
                    self.on_frame(frame)
        except FrameError as error:
            self.end(BAD_REQUEST, str(error))

    def pause_writing(self) -> None:
        """The peer does not take what is sent."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The peer takes again."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, whoever closed it; the first call counts."""
        if self._transport is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._writable.set()  # whoever waits to send finds the connection ended
        text = f"connection to {self.peer} lost" + (f": {tls_reason(exc)}" if exc else "")
        self.on_lost(self._reason or AngeliaError(UNAVAILABLE, text))

    def _found_closed(self, error: RuntimeError) -> None:
        """The socket was closed behind our back: end as after any loss, whoever notices first.

        Not at once: whoever sends does not expect to be called back meanwhile.
        """
        if self._transport is not None:
            self._transport.abort()
            asyncio.get_running_loop().call_soon(self.connection_lost, error)

    def _schedule_ping(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.options.ping_interval_s, self._ping)

    def _ping(self) -> None:
        # Silence is counted in pings that had their chance of an answer, not in elapsed time:
        # after a long stall of this loop the answers are still in the socket (rule 14).
        self._silent_pings = 0 if self._heard else self._silent_pings + 1
        self._heard = False
        if self._silent_pings * self.options.ping_interval_s >= self.options.silence_timeout_s:
            self.abort(UNAVAILABLE, f"{self.peer} is silent")
            return
        self.send(WireFrameKind.PING)
        self._schedule_ping()
