"""Compressed bodies of remoting clients, by the algorithms that RocketMQ's producers know.

Nothing here inflates a body beyond a limit, whatever it claims (rule 34).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple

import lz4.frame
import zstandard

# By bits 8 to 10 of the system flag. Old clients set none of these bits.
_KINDS = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}
_COMPRESSED = 1
_KIND_SHIFT, _KIND_MASK = 8, 7
_PIECE_BYTES = 65_536
# Java's producers need 2 MiB at their own level and 8 MiB at level 19 (RFC 8878, 3.1.1.1.2).
_MAX_WINDOW_BYTES = 8 * 1024 * 1024


class InflationError(Exception):
    """A body that cannot be inflated; the text says why."""


class TooLargeError(Exception):
    """A body that is larger than allowed once it is inflated."""


class _Inflated(NamedTuple):
    """The first frame of a body: whether it is whole, and what is behind it."""

    body: bytes
    is_whole: bool
    rest: bytes | None


def is_compressed(system_flag: int) -> bool:
    """Whether a body is compressed."""
    return bool(system_flag & _COMPRESSED)


def kind_of(system_flag: int) -> str:
    """Return how a body is compressed.

    Raises:
        InflationError: the algorithm is unknown.
    """
    number = system_flag >> _KIND_SHIFT & _KIND_MASK
    kind = _KINDS.get(number)
    if kind is None:
        raise InflationError(
            f"the body is compressed with algorithm {number}; zlib, lz4 and zstd are supported"
        )
    return kind


def inflated(body: bytes, system_flag: int, max_bytes: int) -> bytes:
    """Return the body behind a compressed one.

    Args:
        body: compressed.
        system_flag: of its message, which names the algorithm.
        max_bytes: of the result; no more than one piece beyond them is inflated.

    Raises:
        InflationError: the algorithm is unknown, or the body is damaged or has several frames.
        TooLargeError: the result has more bytes.
    """
    kind = kind_of(system_flag)
    try:
        result = _INFLATERS[kind](body, max_bytes)
    except (zlib.error, RuntimeError, zstandard.ZstdError) as error:
        raise InflationError(f"the body cannot be inflated with {kind}: {error}") from None
    if len(result.body) > max_bytes:
        raise TooLargeError
    if not result.is_whole:
        raise InflationError("the compressed body is cut off")
    if result.rest:
        # Their bytes would be lost.
        raise InflationError(f"{len(result.rest)} bytes follow the first frame of {kind}")
    return result.body


def _zlib(body: bytes, max_bytes: int) -> _Inflated:
    inflater = zlib.decompressobj()
    result = inflater.decompress(body, max_bytes + 1)
    return _Inflated(result, inflater.eof, inflater.unused_data)


def _lz4(body: bytes, max_bytes: int) -> _Inflated:
    inflater = lz4.frame.LZ4FrameDecompressor()
    result = inflater.decompress(body, max_length=max_bytes + 1)
    return _Inflated(result, inflater.eof, inflater.unused_data)


def _zstd(body: bytes, max_bytes: int) -> _Inflated:
    """Inflate twice: a reader stops at the limit, but does not tell where a frame ends."""
    inflater = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    result = bytearray()
    with inflater.stream_reader(body) as reader:
        while len(result) <= max_bytes and (piece := reader.read(_PIECE_BYTES)):
            result += piece
    if len(result) > max_bytes:
        return _Inflated(bytes(result), is_whole=True, rest=b"")
    whole = inflater.decompressobj()
    whole.decompress(body)
    return _Inflated(bytes(result), whole.eof, whole.unused_data)


_INFLATERS: dict[str, Callable[[bytes, int], _Inflated]] = {
    "zlib": _zlib,
    "lz4": _lz4,
    "zstd": _zstd,
}
