"""Just enough of HTTP/2 to say GOAWAY on a server's behalf: where a frame may stand.

That is where a frame has ended (RFC 9113, 4.1), but not in the midst of a block of headers: nothing
may come between HEADERS and its CONTINUATIONs (6.10).

A server that drains has to tell its clients to take their next calls elsewhere while it still
serves the ones that are on their way. grpcio says so only when it has stopped serving.
"""

from __future__ import annotations

_HEADER_BYTES = 9
_WITH_HEADERS = frozenset({0x1, 0x5, 0x9})  # HEADERS, PUSH_PROMISE, CONTINUATION
_END_HEADERS = 0x4

GOAWAY = bytes.fromhex("000008 07 00 00000000" + "7fffffff 00000000")
"""Frame: no error, no stream is refused, but new ones belong on another connection (6.8)."""


class FrameBoundary:
    """Follows what one side sends, chunk by chunk, from its first byte on."""

    __slots__ = ("_begun", "_head", "_headers_open", "_left")

    def __init__(self) -> None:
        self._begun = False
        # A header of which only a part has come, or the bytes that the frame still lacks.
        self._head = b""
        self._left = 0
        # The last frame began or continued a block of headers that goes on in the next.
        self._headers_open = False

    @property
    def reached(self) -> bool:
        """Whether a frame has ended with the last chunk, and another kind may stand here."""
        return self._begun and not (self._left or self._head or self._headers_open)

    def pass_over(self, data: memoryview) -> None:
        """Take in the next chunk; it is not empty."""
        self._begun = True
        if self._head:
            data = memoryview(self._head + bytes(data))
        at, size = self._left, len(data)
        while at + _HEADER_BYTES <= size:
            if data[at + 3] in _WITH_HEADERS:
                self._headers_open = not data[at + 4] & _END_HEADERS
            at += _HEADER_BYTES + (data[at] << 16 | data[at + 1] << 8 | data[at + 2])
        self._left = max(0, at - size)
        self._head = bytes(data[at:])
