"""A client's connection joined with a broker's: bytes flow both ways at the slower side's pace.

Bytes from one side are written to the other side at once; when that side's buffer is full, the
first side is not read. The end of one direction is forwarded as a half-close; the loss of a side
ends the other side once its bytes are written. But if a broker closes before it answered anything,
because it was just killed, its client is given back with the bytes that it sent, for another
broker. This module does not choose brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast


class Side(asyncio.Protocol):
    """One socket of a link; it is not read before it has a peer.

    Args:
        buffer_bytes: kept when the socket takes less than its peer sends.
        on_made: told when the socket is connected.
        on_closed: told when a connected socket was closed.
        on_unanswered: takes a client back that this side, a broker's, never answered; None: such a
            client is let go.

    Attributes:
        peer: the other side.
        link: told as well when the socket was closed.
        lost: it is closed, or must not be opened any more.
    """

    def __init__(
        self,
        buffer_bytes: int,
        on_made: Callable[[Side], None],
        on_closed: Callable[[Side], None],
        *,
        on_unanswered: Callable[[Side], None] | None = None,
    ) -> None:
        self.peer: Side | None = None
        self.link: Link | None = None
        self.lost = False
        self._on_made = on_made
        self._on_closed = on_closed
        self._on_unanswered = on_unanswered
        self._ended = False
        self._early: list[bytes] = []
        # Bytes passed on and not answered; None: they were answered, or are more than a buffer.
        self._unanswered: list[bytes] | None = []
        self._unanswered_bytes = 0
        self._buffer_bytes = buffer_bytes
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin without reading (asyncio's callback)."""
        # uvloop's transports do what asyncio's do and are no subclass of them.
        self._transport = made = cast(asyncio.Transport, transport)
        self._on_made(self)
        if self.lost:
            made.abort()
            return
        made.set_write_buffer_limits(self._buffer_bytes)
        made.pause_reading()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on (asyncio's callback)."""
        if self.peer is None:
            # A loop may begin to read before it is told to pause: at most one buffer comes.
            self._early.append(data)
        else:
            self.peer._unanswered = None
            self._pass_on(self.peer, data)

    def _pass_on(self, peer: Side, data: bytes) -> None:
        if self._unanswered is not None:
            self._unanswered.append(data)
            self._unanswered_bytes += len(data)
            if self._unanswered_bytes > self._buffer_bytes:
                self._unanswered = None
        peer.write(data)

    def eof_received(self) -> bool:
        """Pass the end of one direction on and keep the other (asyncio's callback)."""
        self._ended = True
        if self.peer is None:
            return True
        if self._may_give_back():
            return False
        self.peer.write_eof()
        # Open until the other direction has ended as well.
        return not self.peer._ended

    def join(self, peer: Side) -> None:
        """Pass everything to a peer from now on, what came early first."""
        self.peer = peer
        early, self._early = self._early, []
        for data in early:
            self._pass_on(peer, data)
        if self._ended:
            peer.write_eof()

    def write(self, data: bytes) -> None:
        """Send bytes, unless the socket is closed."""
        if self._transport is not None:
            self._transport.write(data)

    def write_eof(self) -> None:
        """Say that nothing more comes, unless the socket is closed."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def pause_writing(self) -> None:
        """Stop reading what this side cannot take (asyncio's callback)."""
        if self.peer is not None:
            self.peer.read(on=False)

    def resume_writing(self) -> None:
        """Read again (asyncio's callback)."""
        if self.peer is not None:
            self.peer.read(on=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the other side too (asyncio's callback)."""
        self.lost = True
        self._on_closed(self)
        if self.link is not None:
            self.link.ended()
        if self.peer is not None and self._on_unanswered is not None and self._may_give_back():
            client, self.peer = self.peer, None
            client._leave()
            self._on_unanswered(client)
        elif self.peer is not None:
            self.peer.close()

    def _may_give_back(self) -> bool:
        """Whether this is a broker's side that never answered a client, which still waits."""
        peer = self.peer
        return (
            self._on_unanswered is not None
            and peer is not None
            and peer._unanswered is not None
            and not (peer.lost or peer._ended)
        )

    def _leave(self) -> None:
        """Part from a peer that is gone, to be joined with another one."""
        self.read(on=False)
        self.peer = None
        self._early, self._unanswered = self._unanswered or [], []
        self._unanswered_bytes = 0

    def read(self, *, on: bool) -> None:
        """Take what the socket has, or leave it there."""
        if self._transport is None or self._transport.is_closing():
            return
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Close the socket once its bytes are out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the socket at once, or as soon as it is connected."""
        self.lost = True
        if self._transport is not None:
            self._transport.abort()


class Link:
    """A client's side and a broker's.

    Args:
        client: connected.
        server: connected before `join`.
        on_ended: told when the broker's side was closed.
    """

    __slots__ = ("_on_ended", "client", "server")

    def __init__(self, client: Side, server: Side, on_ended: Callable[[Link], None]) -> None:
        self.client = client
        self.server = server
        self._on_ended = on_ended

    def join(self) -> None:
        """Let bytes flow; a side that was lost meanwhile takes the other with it."""
        client, server = self.client, self.server
        server.link = self
        if client.lost or server.lost:
            self.abort()
            self.ended()
            return
        client.join(server)
        server.join(client)
        client.read(on=True)
        server.read(on=True)

    def abort(self) -> None:
        """Close both sides at once."""
        self.client.abort()
        self.server.abort()

    def ended(self) -> None:
        """Note that the broker's side is closed, once or more."""
        self._on_ended(self)
