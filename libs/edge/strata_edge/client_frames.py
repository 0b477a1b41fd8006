"""Cost of a client's frames for the server, read from the frame headers chunk by chunk.

Most calls are HEADERS and one DATA frame that ends the request: nothing is kept for them. A request
of several frames is followed through its messages, since each message begins with its length.
"""

from __future__ import annotations

from strata_edge.guard_limits import GuardLimits
from strata_edge.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER_BYTES,
    HEADERS,
    RST_STREAM,
    WINDOW_UPDATE,
    unpack_header,
)

PREFACE_BYTES = 24
_PREFIX_BYTES = 5  # of a gRPC message: whether it is compressed, and its length
_SMALL_HEADERS_BYTES = 1 << 10
_SMALL_MESSAGE_BYTES = 1 << 10


class _Message:
    """Where a stream stands in its messages."""

    __slots__ = ("count", "is_large", "left", "prefix")

    def __init__(self) -> None:
        self.count = 0
        self.is_large = False
        self.left = 0
        self.prefix = b""


class ClientFrames:
    """Follows what a client sends, from its first byte on.

    Args:
        limits: what the connection may ask.

    Attributes:
        cost_s: of frames that are no requests; whoever takes it in sets it back.
        begun: streams with the length of a large message that has begun, cleared so, too.
        reset: streams that the client has reset, cleared so, too.
        large_bytes: that have come of large messages.
        fault: why the connection cannot go on; empty: it can.
    """

    __slots__ = (
        "_block_bytes",
        "_control_cost_s",
        "_current",
        "_ending",
        "_head",
        "_header_byte_cost_s",
        "_large_above_bytes",
        "_left",
        "_max_header_bytes",
        "_max_requests",
        "_opened",
        "_requests",
        "_reset_cost_s",
        "begun",
        "cost_s",
        "fault",
        "large_bytes",
        "reset",
    )

    def __init__(self, limits: GuardLimits) -> None:
        self._large_above_bytes = limits.large_request_bytes
        self._max_header_bytes = limits.max_header_bytes
        self._max_requests = limits.max_unfinished_requests
        self._reset_cost_s = limits.reset_cost_s
        self._control_cost_s = limits.control_cost_s
        self._header_byte_cost_s = limits.header_byte_cost_s
        self.cost_s = 0.0
        self.begun: list[tuple[int, int]] = []
        self.reset: list[int] = []
        self.large_bytes = 0
        self.fault = ""
        self._head = b""
        self._left = PREFACE_BYTES
        self._block_bytes = 0
        # Requests of several frames, and the one whose frame goes on in the next chunk.
        self._requests: dict[int, _Message] = {}
        self._current: tuple[int, _Message] | None = None
        # The stream whose last frame goes on in the next chunk.
        self._ending = 0
        # Calls without data so far; the server refuses those above its limit of streams, which ends
        # them here. Data of any other stream comes after its answer: it is no message.
        self._opened: set[int] = set()

    def left_bytes(self, stream: int) -> int:
        """Return how much of a large message has not come; 0: all of it, or there is none."""
        if stream == self._ending:
            return self._left
        message = self._requests.get(stream)
        return message.left if message is not None and message.is_large else 0

    @property
    def follows(self) -> bool:
        """Whether there is a request that has not ended: the answer may come before its end."""
        return bool(self._requests or self._opened)

    def forget(self, stream: int) -> None:
        """A stream has ended."""
        self._opened.discard(stream)
        self._requests.pop(stream, None)
        if self._current is not None and self._current[0] == stream:
            self._current = None

    def pass_over(self, data: memoryview) -> None:
        """Take in the next chunk; it is not empty."""
        if self._head:
            data = memoryview(self._head + bytes(data))
        at, size = self._left, len(data)
        if self._current is not None:
            self._read(*self._current, data[:at])
        while at + HEADER_BYTES <= size:
            high, low, kind, flags, stream = unpack_header(data, at)
            length = high << 8 | low
            at += HEADER_BYTES
            self._ending = 0
            if kind == DATA:
                if self._requests or not flags & END_STREAM or length > self._large_above_bytes:
                    self._data(stream, flags, length, data[at : at + length])
                else:
                    self._opened.discard(stream)
            elif kind == HEADERS and flags & END_HEADERS and length <= _SMALL_HEADERS_BYTES:
                self._open(stream, flags)
            elif kind != WINDOW_UPDATE:
                self._other(kind, flags, stream, length)
            at += length
        self._left = max(0, at - size)
        self._head = bytes(data[at:])
        if not self._left:
            self._current = None
            self._ending = 0

    def _open(self, stream: int, flags: int) -> None:
        """Take in the headers of a call, or what a call ends with."""
        if flags & END_STREAM:
            self.forget(stream)
        elif stream not in self._requests:
            self._opened.add(stream)

    def _data(self, stream: int, flags: int, length: int, piece: memoryview) -> None:
        self._current = None
        if not length and not flags & END_STREAM:
            self.cost_s += self._control_cost_s
        message = self._requests.get(stream)
        if message is None:
            if stream not in self._opened:
                return
            self._opened.discard(stream)
        if flags & END_STREAM:
            self._ending = stream
            if self._requests.pop(stream, None) is None and length > self._large_above_bytes:
                self.begun.append((stream, length))
            elif message is not None and message.is_large:
                self.large_bytes += min(message.left, length)
            return
        if message is None:
            message = self._requests[stream] = _Message()
            if len(self._requests) > self._max_requests:
                self.fault = "requests"
        self._current = stream, message
        self._read(stream, message, piece)

    def _read(self, stream: int, message: _Message, piece: memoryview) -> None:
        """Follow the messages of a stream through a piece of its data."""
        at, size = 0, len(piece)
        while at < size:
            if message.left:
                step = min(message.left, size - at)
                message.left -= step
                if message.is_large:
                    self.large_bytes += step
                at += step
                continue
            step = min(_PREFIX_BYTES - len(message.prefix), size - at)
            message.prefix += bytes(piece[at : at + step])
            at += step
            if len(message.prefix) == _PREFIX_BYTES:
                message.left = int.from_bytes(message.prefix[1:])
                message.prefix = b""
                if message.left < _SMALL_MESSAGE_BYTES:
                    # The first is the request of a call; others are a talk, or a flood.
                    self.cost_s += message.count and self._control_cost_s
                message.count += 1
                message.is_large = message.left > self._large_above_bytes
                if message.is_large:
                    self.begun.append((stream, message.left))

    def _other(self, kind: int, flags: int, stream: int, length: int) -> None:
        if kind in (HEADERS, CONTINUATION):
            if kind == HEADERS:
                self._open(stream, flags)
            self._block_bytes = length + (self._block_bytes if kind == CONTINUATION else 0)
            self.cost_s += length * self._header_byte_cost_s
            if self._block_bytes > self._max_header_bytes:
                self.fault = "headers"
            if not flags & END_HEADERS:
                self.cost_s += self._control_cost_s
        elif kind == RST_STREAM:
            self.cost_s += self._reset_cost_s
            self.reset.append(stream)
            # The guard takes in resets before beginnings.
            self.begun = [each for each in self.begun if each[0] != stream]
            self._requests.pop(stream, None)
            self._opened.discard(stream)
        elif not flags & ACK:
            self.cost_s += self._control_cost_s
