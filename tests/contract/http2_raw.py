"""HTTP/2 by hand: what no well-behaved client sends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY, CONTINUATION = 0x0, 0x1, 0x3, 0x4, 0x7, 0x9
END_STREAM, END_HEADERS = 0x1, 0x4
MAX_FRAME_BYTES = 16_384


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def hello() -> bytes:
    """Return the first bytes that a client sends."""
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


def leave(writer: asyncio.StreamWriter) -> None:
    """Reset a connection: no byte that still waits keeps its end from the server."""
    own = writer.get_extra_info("socket")
    # The server may have ended it before.
    with contextlib.suppress(OSError):
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


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


def header_texts(seen: bytes) -> list[bytes]:
    """Return the names and values in the headers of whole frames that are not from a table."""
    texts: list[bytes] = []
    at = 0
    while at < len(seen):
        length, kind = int.from_bytes(seen[at : at + 3]), seen[at + 3]
        if kind == HEADERS:
            texts += _literals(seen[at + 9 : at + 9 + length])
        at += 9 + length
    return texts


def _literals(block: bytes) -> list[bytes]:
    """The literal texts of a header block (RFC 7541, 6)."""
    texts: list[bytes] = []
    at = 0
    while at < len(block):
        first = block[at]
        indexed, resized = first & 0x80, first & 0xE0 == 0x20
        bits = 7 if indexed else 6 if first & 0x40 else 5 if resized else 4
        index, at = _number(block, at, bits)
        for _ in range(0 if indexed or resized else 1 if index else 2):
            huffman = block[at] & 0x80
            length, at = _number(block, at, 7)
            text = block[at : at + length]
            texts.append(_from_huffman(text) if huffman else text)
            at += length
    return texts


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """A number with a prefix of so many bits (RFC 7541, 5.1), and where it ends."""
    limit = (1 << bits) - 1
    value, shift = block[at] & limit, 0
    at += 1
    if value < limit:
        return value, at
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def _from_huffman(text: bytes) -> bytes:
    codes = _huffman_codes()
    out = bytearray()
    code = bits = 0
    for byte in text:
        for place in range(7, -1, -1):
            code = code << 1 | byte >> place & 1
            bits += 1
            if (bits, code) in codes:
                out.append(codes[bits, code])
                code = bits = 0
    return bytes(out)


def _huffman_codes() -> dict[tuple[int, int], int]:
    """Length and code to byte: the code is canonical, its lengths tell all (RFC 7541, B)."""
    codes: dict[tuple[int, int], int] = {}
    code = before = 0
    for bits, byte in sorted((bits, byte) for byte, bits in enumerate(_HUFFMAN_BITS)):
        code <<= bits - before
        codes[bits, code] = byte
        code, before = code + 1, bits
    return codes


# Bits of the code of each byte (RFC 7541, B).
_HUFFMAN_BITS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c"
    "060a0a0c0d06080b0a0a080b080606060505050606060606060607080f060c0a"
    "0d06070707070707070707070707070707070707070707070807080d130d0e06"
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c"
    "1416141416161617161717171717181718181617181717171715161716171718"
    "1615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b"
    "14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
)
