r"""Bytes of the tcp transport: frames and their payloads.

A frame is a 12-byte header and a payload, integers big-endian:

    u32 payload length | u8 kind | u8 zero | u16 method id | u32 call id | payload

From the caller:
- HELLO, first: `ANGELIA\0`, u16 version, u32 stream window and u32 message limit in bytes, the
  codec's name, newline, the caller's cluster (empty: none)
- REQUEST: u32 timeout in ms (0: none), u8 length and trace parent, the request
- CANCEL: empty; the caller has gone
- CREDIT: u32 bytes of stream items that the consumer has taken

From the server:
- WELCOME, first: u16 version, u32 message limit in bytes, the server's cluster, then a line per
  method: `u` for unary or `s` for streaming, and its path
- RESPONSE: the response; the call has ended
- ITEM: one response of a stream
- END: empty; the stream has ended
- ERROR: code, newline, reason; the call has ended

From both: PING and PONG, empty; GOODBYE: code, newline, reason; the connection ends.

A method id is the method's line number in WELCOME. Call ids are the caller's, not reused while a
call runs. The module is pure: no socket, no clock.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import NamedTuple

from strata_angelia.ports import INTERNAL

VERSION = 2

_MAGIC = b"ANGELIA\0"
_HEADER = struct.Struct(">IBxHI")
_HELLO = struct.Struct(">8sHII")
_WELCOME = struct.Struct(">HI")
_REQUEST = struct.Struct(">IB")
_CREDIT = struct.Struct(">I")

MAX_HANDSHAKE_BYTES = 256 << 10
MAX_REQUEST_PREFIX_BYTES = _REQUEST.size + 255
_MAX_TIMEOUT_MS = 0xFFFFFFFF


class WireFrameKind(enum.IntEnum):
    """Kind of a frame."""

    HELLO = 1
    WELCOME = 2
    REQUEST = 3
    RESPONSE = 4
    ITEM = 5
    END = 6
    ERROR = 7
    CANCEL = 8
    CREDIT = 9
    PING = 10
    PONG = 11
    GOODBYE = 12


class FrameError(Exception):
    """Bytes that are no frame, or a frame out of place; the connection must be closed."""


_KINDS: tuple[WireFrameKind | None, ...] = (None, *WireFrameKind)
"""By number: making an enum's member costs more than the rest of a frame."""


class ReceivedFrame(NamedTuple):
    """One received frame."""

    kind: WireFrameKind
    method_id: int
    call_id: int
    payload: bytes


def header(
    kind: WireFrameKind, payload_bytes: int, *, method_id: int = 0, call_id: int = 0
) -> bytes:
    """A frame's header."""
    return _HEADER.pack(payload_bytes, kind, method_id, call_id)


class FrameReader:
    """Cuts a byte stream into frames; holds at most one unfinished frame.

    Attributes:
        max_payload_bytes: a longer frame is refused by its header, before its bytes are kept.
    """

    __slots__ = ("_chunks", "_needed_bytes", "_size_bytes", "max_payload_bytes")

    def __init__(self, max_payload_bytes: int = MAX_HANDSHAKE_BYTES) -> None:
        self.max_payload_bytes = max_payload_bytes
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._needed_bytes = 0

    def feed(self, data: bytes) -> list[ReceivedFrame]:
        """Take received bytes; return the frames they complete, in order.

        Raises:
            FrameError: unknown kind or oversize length.
        """
        if self._chunks:
            self._chunks.append(data)
            self._size_bytes += len(data)
            if self._size_bytes < self._needed_bytes:
                return []
            data = b"".join(self._chunks)
        frames: list[ReceivedFrame] = []
        start, end = 0, len(data)
        needed_bytes = _HEADER.size
        while end - start >= _HEADER.size:
            length, kind, method_id, call_id = _HEADER.unpack_from(data, start)
            known = _KINDS[kind] if kind < len(_KINDS) else None
            if known is None:
                raise FrameError(f"unknown frame kind {kind}")
            if length > self.max_payload_bytes:
                limit = self.max_payload_bytes
                raise FrameError(f"a frame has {length} bytes, the limit is {limit}")
            needed_bytes = _HEADER.size + length
            if end - start < needed_bytes:
                break
            payload = data[start + _HEADER.size : start + needed_bytes]
            frames.append(ReceivedFrame(known, method_id, call_id, payload))
            start += needed_bytes
            needed_bytes = _HEADER.size
        rest = data[start:]
        self._chunks = [rest] if rest else []
        self._size_bytes = len(rest)
        self._needed_bytes = needed_bytes
        return frames


@dataclass(frozen=True, slots=True)
class Hello:
    """The caller's side of the handshake."""

    version: int
    stream_window_bytes: int
    max_message_bytes: int
    codec: str
    cluster: str = ""

    def encode(self) -> bytes:
        """As payload."""
        limits = (self.stream_window_bytes, self.max_message_bytes)
        text = f"{self.codec}\n{self.cluster}"
        return _HELLO.pack(_MAGIC, self.version, *limits) + text.encode()


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server's side of the handshake; `methods` are `(streaming, path)` in order of ids."""

    version: int
    max_message_bytes: int
    methods: tuple[tuple[bool, str], ...]
    cluster: str = ""

    def encode(self) -> bytes:
        """As payload."""
        methods = [("s" if streaming else "u") + path for streaming, path in self.methods]
        lines = "\n".join((self.cluster, *methods))
        return _WELCOME.pack(self.version, self.max_message_bytes) + lines.encode()


def decode_hello(payload: bytes) -> Hello:
    """Parse; raises FrameError when it is something else."""
    if len(payload) < _HELLO.size or not payload.startswith(_MAGIC):
        raise FrameError("not an Angelia handshake")
    _, version, stream_window_bytes, max_message_bytes = _HELLO.unpack_from(payload)
    codec, _, cluster = _text(payload[_HELLO.size :]).partition("\n")
    return Hello(version, stream_window_bytes, max_message_bytes, codec, cluster)


def decode_welcome(payload: bytes) -> Welcome:
    """Parse; raises FrameError when it is too short."""
    if len(payload) < _WELCOME.size:
        raise FrameError("not an Angelia handshake")
    version, max_message_bytes = _WELCOME.unpack_from(payload)
    cluster, *lines = _text(payload[_WELCOME.size :]).split("\n")
    methods = tuple((line[0] == "s", line[1:]) for line in lines if line)
    return Welcome(version, max_message_bytes, methods, cluster)


def encode_request_prefix(timeout_s: float | None, trace_parent: str) -> bytes:
    """Fields that precede the request's bytes."""
    # A deadline below one millisecond is still a deadline, not "none".
    timeout_ms = 0 if timeout_s is None else max(1, min(int(timeout_s * 1_000), _MAX_TIMEOUT_MS))
    trace = trace_parent.encode()[:255]
    return _REQUEST.pack(timeout_ms, len(trace)) + trace


def decode_request(payload: bytes) -> tuple[float | None, str, bytes]:
    """Return timeout in seconds or None, trace parent, request; raises FrameError."""
    if len(payload) < _REQUEST.size:
        raise FrameError("request frame too short")
    timeout_ms, trace_bytes = _REQUEST.unpack_from(payload)
    start = _REQUEST.size + trace_bytes
    if len(payload) < start:
        raise FrameError("request frame too short")
    trace_parent = _text(payload[_REQUEST.size : start])
    return (timeout_ms / 1_000 if timeout_ms else None), trace_parent, payload[start:]


def encode_error(code: str, reason: str) -> bytes:
    """Payload of ERROR and GOODBYE."""
    return f"{code}\n{reason}".encode()


def decode_error(payload: bytes) -> tuple[str, str]:
    """Code and reason."""
    code, _, reason = payload.decode("utf-8", "replace").partition("\n")
    return code or INTERNAL, reason


def encode_credit(taken_bytes: int) -> bytes:
    """Payload of CREDIT."""
    return _CREDIT.pack(taken_bytes)


def decode_credit(payload: bytes) -> int:
    """Taken bytes; raises FrameError."""
    if len(payload) != _CREDIT.size:
        raise FrameError("bad credit frame")
    taken_bytes: int = _CREDIT.unpack(payload)[0]
    return taken_bytes


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FrameError("text is not UTF-8") from None
