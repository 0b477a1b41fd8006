"""Moves bytes between a client's socket and the server's, both ways, without waiting for either.

One thread, epoll, non-blocking sockets, one read buffer for all connections: a chunk is received
into the buffer and sent from it at once; only the bytes that the other side does not take are
copied and kept. While a direction keeps bytes, its source is not read, so a slow reader costs at
most one buffer per direction and slows only its own peer.

TLS is invisible here: `ssl.SSLSocket` receives and sends like a socket, with other exceptions for
"not now". The end of one direction is passed on as a half-close; an error ends both. A relay can
insert its own frames between two frames of the server, to send the client elsewhere (HTTP/2's
GOAWAY). The client's guard (connection_guard.py) limits the client: the relay does not
read it for a while, or ends it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Callable
from functools import partial

from strata_edge.connection_guard import RelayGuard
from strata_edge.http2_frames import GOAWAY

_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

# TLS records that OpenSSL holds decrypted are invisible to epoll: they are read at once, so many
# rounds at most before other connections get their turn.
_MAX_ROUNDS = 8


class Poller:
    """epoll with a handler per descriptor."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}

    def add(self, descriptor: int, events: int, handler: Callable[[int], None]) -> None:
        """Call `handler(events)` whenever one of `events` holds."""
        self._epoll.register(descriptor, events)
        self._handlers[descriptor] = handler

    def change(self, descriptor: int, events: int) -> None:
        """Wait for other events; the handler stays."""
        self._epoll.modify(descriptor, events)

    def remove(self, descriptor: int) -> None:
        """Watch a descriptor no more; must precede its close. Unknown ones are ignored."""
        if self._handlers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def run_once(self, timeout_s: float) -> None:
        """Wait for events and handle them."""
        handlers = self._handlers
        for descriptor, events in self._epoll.poll(timeout_s):
            # An event may be stale when an earlier handler of this round closed the descriptor.
            handler = handlers.get(descriptor)
            if handler is not None:
                handler(events)


class _Flow:
    """One direction. Invariant: `kept` holds what was read and not yet sent."""

    __slots__ = ("ended", "kept", "sink", "source")

    def __init__(self, source: _End, sink: _End) -> None:
        self.source = source
        self.sink = sink
        self.kept: memoryview | None = None
        self.ended = False


class _End:
    """One socket of a relay with the events it is registered for."""

    __slots__ = ("descriptor", "events", "incoming", "outgoing", "socket")

    incoming: _Flow
    outgoing: _Flow

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.descriptor = end.fileno()
        self.events = 0


class Relay:
    """One client connection and its connection to the server.

    Args:
        poller: shared by all relays of the process.
        client: non-blocking, after the TLS handshake if there is TLS; not registered.
        server: non-blocking, connected; not registered.
        buffer: shared read buffer; its size bounds what a direction keeps.
        on_closed: told once, when both sockets are closed.
        guard: of this connection.
        first: bytes of the client that were read already; one byte at most.
        on_paused: told for how many seconds the client is not read; `resume` is called then.
    """

    __slots__ = (
        "_between",
        "_buffer",
        "_due",
        "_ends",
        "_on_closed",
        "_on_paused",
        "_paused",
        "_poller",
        "guard",
        "leaving",
        "received_bytes",
    )

    def __init__(
        self,
        poller: Poller,
        client: socket.socket,
        server: socket.socket,
        *,
        buffer: memoryview,
        on_closed: Callable[[], None],
        guard: RelayGuard,
        on_paused: Callable[[Relay, float], None],
        first: bytes = b"",
    ) -> None:
        self._poller = poller
        self._buffer = buffer
        self._on_closed = on_closed
        self._on_paused = on_paused
        self._paused = False
        self.guard = guard
        self.received_bytes = 0
        self.leaving = False
        # The server's bytes that the guard has seen have been passed on, too.
        self._between = True
        # Frames for the client that wait for a place between two of the server's.
        self._due = b""
        guard.insert_by(self._say)
        front, back = _End(client), _End(server)
        self._ends: tuple[_End, ...] = (front, back)
        front.incoming = back.outgoing = _Flow(front, back)
        back.incoming = front.outgoing = _Flow(back, front)
        if first:
            # The server has just been connected to: it has room for a byte.
            self._follow_client(memoryview(first))
            _send(server, memoryview(first))
        self._watch(back)
        self._watch(front)
        # The handshake may have left decrypted bytes that epoll cannot see.
        self._read(front.incoming)

    @property
    def closed(self) -> bool:
        """Whether both sockets are closed."""
        return not self._ends

    def send_away(self) -> None:
        """Tell the client to make its next calls over another connection, as soon as possible."""
        self._say(GOAWAY)

    def leave(self) -> None:
        """Send this client away, though the others stay."""
        self.leaving = True
        self.send_away()

    def peer(self) -> str:
        """Return the client's address, `host:port`; empty: it has gone."""
        try:
            host, port = self._ends[0].socket.getpeername()[:2]
        except (OSError, IndexError):
            return ""
        return f"{host}:{port}"

    def resume(self) -> None:
        """Read the client again after a pause."""
        self._paused = False
        if self._ends:
            self._watch(self._ends[0])
            if self._ends[0].incoming.kept is None:
                self._read(self._ends[0].incoming)

    def close(self) -> None:
        """Close both sockets."""
        if not self._ends:
            return
        ends, self._ends = self._ends, ()
        for end in ends:
            if end.events:
                self._poller.remove(end.descriptor)
            end.socket.close()
            del end.incoming, end.outgoing  # breaks the cycle: no work for the collector
        self.guard.close()
        self._on_closed()

    def _on_events(self, end: _End, events: int) -> None:
        reading = end.events & select.EPOLLIN
        if events & select.EPOLLOUT and end.events & select.EPOLLOUT:
            self._flush(end.outgoing)
        elif not reading:
            # Hung up while only writing was of interest, or not even that.
            self.close()
        if self._ends and reading and events & ~select.EPOLLOUT:
            self._read(end.incoming)

    def _read(self, flow: _Flow) -> None:
        """Receive what is there, send on what the sink takes, keep the rest."""
        source, sink, buffer = flow.source.socket, flow.sink.socket, self._buffer
        from_client = flow.source is self._ends[0]
        if from_client and self._paused:
            return
        for _ in range(_MAX_ROUNDS):
            try:
                received = source.recv_into(buffer)
                if not received:
                    flow.ended = True
                    self._finish(flow)
                    return
                data = buffer[:received]
                if from_client:
                    self._follow_client(data)
                else:
                    self._between = False
                    data = self.guard.from_server(data)
                    self._between = True
                sent = _send(sink, data) if data and self._ends else 0
            except _NOT_NOW:
                return
            except OSError:
                self.close()
                return
            if self.closed:
                return
            if sent < len(data):
                flow.kept = memoryview(bytes(data[sent:]))
                self._watch(flow.source)
                self._watch(flow.sink)
            if self._due:
                self._say(b"")
            if flow.kept is not None or self.closed or (from_client and self._paused):
                return
            if not (isinstance(source, ssl.SSLSocket) and source.pending()):
                return

    def _follow_client(self, data: memoryview) -> None:
        """Let the guard see what the client sent; what it may not ends or pauses it."""
        self.received_bytes += len(data)
        pause_s = self.guard.from_client(data)
        if self.guard.fault:
            self.close()
        elif pause_s and self._ends:
            self._paused = True
            self._watch(self._ends[0])
            self._on_paused(self, pause_s)

    def _say(self, frames: bytes) -> None:
        """Put frames behind what the server has sent, as soon as they may stand there."""
        self._due += frames
        if not (self._ends and self._between and self.guard.reached):
            return
        flow = self._ends[1].incoming
        left, self._due = memoryview(self._due), b""
        if flow.ended:
            return
        if flow.kept is None:
            try:
                left = left[_send(flow.sink.socket, left) :]
            except OSError:
                self.close()
                return
        if left:
            flow.kept = memoryview(bytes(flow.kept or b"") + bytes(left))
            self._watch(flow.source)
            self._watch(flow.sink)

    def _flush(self, flow: _Flow) -> None:
        """Send what was kept; when nothing is left, read the source again."""
        assert flow.kept is not None
        try:
            sent = _send(flow.sink.socket, flow.kept)
        except OSError:
            self.close()
            return
        if sent < len(flow.kept):
            flow.kept = flow.kept[sent:]
            return
        flow.kept = None
        if flow.ended:
            self._finish(flow)
            return
        self._watch(flow.source)
        self._watch(flow.sink)
        self._read(flow)

    def _finish(self, flow: _Flow) -> None:
        """The source sends no more: pass that on; close when both directions have ended."""
        if flow.source.outgoing.ended and flow.source.outgoing.kept is None:
            self.close()
            return
        try:
            _shut_down_writing(flow.sink.socket)
        except OSError:
            self.close()
            return
        self._watch(flow.source)
        self._watch(flow.sink)

    def _watch(self, end: _End) -> None:
        """Register an end for exactly what it can make progress with now."""
        events = 0
        paused = self._paused and end is self._ends[0]
        if not (end.incoming.ended or paused) and end.incoming.kept is None:
            events |= select.EPOLLIN
        if paused:
            events |= select.EPOLLRDHUP  # who leaves in debt need not be read to the end
        if end.outgoing.kept is not None:
            events |= select.EPOLLOUT
        if events == end.events:
            return
        if not end.events:
            self._poller.add(end.descriptor, events, partial(self._on_events, end))
        elif not events:
            # Not even a hang-up is of interest: registered for nothing it would be reported
            # forever.
            self._poller.remove(end.descriptor)
        else:
            self._poller.change(end.descriptor, events)
        end.events = events


def _send(sink: socket.socket, data: memoryview) -> int:
    """Send as much as the sink takes; return how much (TLS takes a record at a time)."""
    sent = 0
    try:
        sent = sink.send(data)
        while sent < len(data):
            sent += sink.send(data[sent:])
    except _NOT_NOW:
        return sent
    return sent


def _shut_down_writing(sink: socket.socket) -> None:
    if isinstance(sink, ssl.SSLSocket):
        # Sends close_notify; the peer's is read as the end of its direction, not waited for.
        with contextlib.suppress(*_NOT_NOW):
            sink.unwrap()
    # The base class's: SSLSocket's own would give up TLS for the direction that still lives.
    socket.socket.shutdown(sink, socket.SHUT_WR)
