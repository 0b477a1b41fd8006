"""The part of HTTP/2 that a relay needs: where frames end, and a few kinds of frames.

A relay may insert its own frame after the end of a frame (RFC 9113, 4.1), but not inside a block of
headers: no frame may come between HEADERS and its CONTINUATIONs (6.10).

A draining server has to tell its clients to make their next calls elsewhere while it still serves
the calls that are on their way. grpcio does so only after it has stopped serving.
"""

from __future__ import annotations

import struct

DATA, HEADERS, RST_STREAM, PUSH_PROMISE, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 5, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
HEADER_BYTES = 9

# Length (24 bits, in two parts), kind, flags, stream.
unpack_header = struct.Struct(">HBBBI").unpack_from

_WITH_HEADERS = frozenset({HEADERS, PUSH_PROMISE, CONTINUATION})

GOAWAY = bytes.fromhex("000008 07 00 00000000" + "7fffffff 00000000")
"""Frame: no error, no stream is refused, but new ones belong on another connection (6.8)."""


def window_update(stream: int, increment: int) -> bytes:
    """Return the frame by which a receiver lets `increment` more bytes of a stream come (6.9)."""
    return struct.pack(">HBBBII", 0, 4, WINDOW_UPDATE, 0, stream, increment)


class ServerFrames:
    """Follows what a server sends, chunk by chunk, from its first byte on.

    Attributes:
        resets: streams that the server has reset; whoever takes them in sets it back.
        ended: streams that have ended, if `listening`; whoever takes them in clears it.
        answered: streams on which an answer has begun or gone on, if `listening`; cleared so, too.
        listening: whether answers and ends of streams are of interest.
    """

    __slots__ = (
        "_begun",
        "_head",
        "_headers_open",
        "_left",
        "_withheld",
        "answered",
        "ended",
        "listening",
        "resets",
    )

    def __init__(self) -> None:
        self.resets = 0
        self.ended: list[int] = []
        self.answered: set[int] = set()
        self.listening = False
        self._begun = False
        # A header of which only a part has come, or the bytes that the frame still lacks.
        self._head = b""
        self._left = 0
        # The beginning of a frame that nobody has been given yet.
        self._withheld = b""
        # The last frame began or continued a block of headers that goes on in the next.
        self._headers_open = False

    @property
    def reached(self) -> bool:
        """Whether a frame has ended with what was passed on, and another kind may stand here."""
        return self._begun and not (self._left or self._head or self._headers_open)

    @property
    def withholds(self) -> bool:
        """Whether something was taken in and not given: `sift` goes on."""
        return bool(self._withheld)

    def pass_over(self, data: memoryview) -> None:
        """Take in the next chunk; it is not empty, and all of it is passed on."""
        self._begun = True
        if self._head:
            data = memoryview(self._head + bytes(data))
        at, size = self._left, len(data)
        while at + HEADER_BYTES <= size:
            high, low, kind, flags, stream = unpack_header(data, at)
            if kind != DATA or self.listening:
                self._note(kind, flags, stream)
            at += HEADER_BYTES + (high << 8 | low)
        self._left = max(0, at - size)
        self._head = bytes(data[at:])

    def sift(self, data: memoryview, held: dict[int, int]) -> bytes:
        """Take in the next chunk and return it without what lets held streams go on.

        Args:
            data: not empty.
            held: streams, with the sum of what the server let them send.
        """
        self._begun = True
        start = len(self._head)  # passed on already: the frame that begins so stays whole
        passed_on = bool(start)
        data = memoryview(self._head + self._withheld + bytes(data))
        self._head = self._withheld = b""
        at, size = self._left, len(data)
        out: list[memoryview] = []
        while at + HEADER_BYTES <= size:
            high, low, kind, flags, stream = unpack_header(data, at)
            end = at + HEADER_BYTES + (high << 8 | low)
            if kind == WINDOW_UPDATE and stream in held and not passed_on:
                if end > size:
                    break
                held[stream] += int.from_bytes(data[at + HEADER_BYTES : end])
                out.append(data[start:at])
                start = end
            else:
                self._note(kind, flags, stream)
            passed_on = False
            at = end
        self._left = max(0, at - size)
        if passed_on:  # still not a whole header
            self._head = bytes(data)
            return bytes(data[start:])
        self._withheld = bytes(data[at:])
        out.append(data[start : min(at, size)])
        return b"".join(out)

    def _note(self, kind: int, flags: int, stream: int) -> None:
        if kind in _WITH_HEADERS:
            self._headers_open = not flags & END_HEADERS
        if kind == RST_STREAM:
            self.resets += 1
            if self.listening:
                self.ended.append(stream)
        elif kind <= HEADERS and self.listening:
            if flags & END_STREAM:
                self.ended.append(stream)
            else:
                self.answered.add(stream)
