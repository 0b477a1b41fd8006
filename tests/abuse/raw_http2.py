"""HTTP/2 by hand: connections that say what no library would.

Headers go out as literals without compression, so that no table is needed.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from tests.e2e.standalone import HOST

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
CANCEL = 8


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """Return one header as a literal that is put into no table (RFC 7541, 6.2.2)."""
    return b"\0" + _text(name) + _text(value)


def call_headers(path: str, more: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return the header block of a gRPC call."""
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", HOST),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *more,
    ]
    return b"".join(literal(name, value) for name, value in fields)


def grpc_message(data: bytes, compressed: bool = False) -> bytes:
    """Return a gRPC message with its prefix."""
    return struct.pack(">BI", compressed, len(data)) + data


def data_frames(stream: int, data: bytes, end: bool, size: int = 16_384) -> bytes:
    """Return bytes as DATA frames of the default size."""
    parts = [data[begin : begin + size] for begin in range(0, len(data), size)] or [b""]
    return b"".join(
        frame(DATA, END_STREAM if end and part is parts[-1] else 0, stream, part) for part in parts
    )


class RawConnection:
    """A plaintext HTTP/2 connection; a context manager. Nothing that comes back is read.

    Args:
        port: of the server.
        window_bytes: what the client lets the server send on each stream.
    """

    def __init__(self, port: int, window_bytes: int = 65_535, timeout_s: float = 5.0) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=timeout_s)
        settings = struct.pack(">HI", 4, window_bytes)
        self.send(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(SETTINGS, 1, 0))

    def send(self, data: bytes) -> bool:
        """Send bytes; return False when the server has ended the connection or reads no more."""
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close without a word."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    left, length = len(data) - 127, bytearray([127])
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    length.append(left)
    return bytes(length) + data
