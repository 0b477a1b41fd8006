"""HTTP/2 by hand: what no well-behaved client sends."""

from __future__ import annotations

import asyncio
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY, CONTINUATION = 0x0, 0x1, 0x3, 0x4, 0x7, 0x9
END_STREAM, END_HEADERS = 0x1, 0x4
MAX_FRAME_BYTES = 16_384


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def hello() -> bytes:
    """What a client says first."""
    return PREFACE + frame(SETTINGS, 0, 0)


def request_headers(path: str, **more: str) -> bytes:
    """A header block without compression; `_` in a name stands for `-`."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return b"".join(
        b"\0" + _text(name.encode()) + _text(value.encode()) for name, value in headers.items()
    )


def _text(text: bytes) -> bytes:
    assert len(text) < 127, "longer ones need more than one byte"
    return bytes([len(text)]) + text


def message(payload: bytes, *, compressed: bool = False) -> bytes:
    """A gRPC message with its prefix."""
    return struct.pack(">BI", compressed, len(payload)) + payload


def data_frames(stream: int, payload: bytes, *, end: bool) -> bytes:
    """DATA frames of a payload; `end`: it is the last of its stream."""
    pieces = [
        payload[start : start + MAX_FRAME_BYTES]
        for start in range(0, len(payload), MAX_FRAME_BYTES)
    ]
    last = len(pieces) - 1
    return b"".join(
        frame(DATA, END_STREAM if end and number == last else 0, stream, piece)
        for number, piece in enumerate(pieces)
    )


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has said hello."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(hello())
    return reader, writer


async def read_until_end(reader: asyncio.StreamReader, stream: int) -> bytes:
    """Return all bytes up to the end of a stream: its trailers or its reset."""
    seen = b""
    while True:
        head = await reader.readexactly(9)
        payload = await reader.readexactly(int.from_bytes(head[:3]))
        kind, flags, number = head[3], head[4], int.from_bytes(head[5:9])
        seen += head + payload
        if number == stream and (kind == RST_STREAM or (flags & END_STREAM and kind != SETTINGS)):
            return seen
