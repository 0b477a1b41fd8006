"""Reads a segment's frames in order and handles bad frames.

A walk never skips silently: it yields unreadable bytes as a `Gap` and continues at the next header.
A header is valid only if its CRC is right and it names its own position, so the search for the next
header may examine every byte.

`recovery.py` decides whether a gap is corruption or the end of the log (rule 7).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from strata_seglog.errors import CorruptFrame
from strata_seglog.frames import (
    HEADER_BYTES,
    MAGIC,
    Header,
    decode_header,
    payload_matches,
)
from strata_seglog.ports import DiskFile

CHUNK_BYTES = 1024 * 1024
# A payload's length has 32 bits.
_FRAME_BYTES_MAX = HEADER_BYTES + (1 << 32)
_ZEROS = bytes(CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that are not a good frame.

    Attributes:
        position: log position where they begin.
        next_position: where the next header is; None: no more in the walked range.
        header: of the frame, if that is good and only the payload is bad.
        reason: what does not fit.
    """

    position: int
    next_position: int | None
    header: Header | None
    reason: str


def walk(file: DiskFile, base: int, start: int, end: int) -> Iterator[tuple[Header, bytes] | Gap]:
    """Yield the frames of a segment whose first byte has log position `base`.

    Args:
        file: the segment.
        base: its log position.
        start: offset in the segment to begin at.
        end: offset to stop before; a frame that runs beyond it is a gap.

    Yields:
        (header, payload) of a good frame, or a `Gap`.
    """
    window = _Window(file, end)
    offset = start
    while offset + HEADER_BYTES <= end:
        data, at = window.at(offset, HEADER_BYTES)
        header = decode_header(data, at, base + offset)
        if header is None or header.end - base > end:
            reason = "no frame header" if header is None else "longer than its segment"
            following = find_header(file, base, offset + 1, end)
            yield Gap(base + offset, following, None, reason)
            if following is None:
                return
            offset = following - base
            continue
        data, at = window.at(offset, HEADER_BYTES + header.payload_bytes)
        payload = data[at + HEADER_BYTES : at + HEADER_BYTES + header.payload_bytes]
        offset = header.end - base
        if payload_matches(header, payload):
            yield header, payload
        else:
            yield Gap(header.position, header.end, header, "payload checksum")


def find_header(file: DiskFile, base: int, start: int, end: int) -> int | None:
    """Return the log position of the first good header at an offset in [start, end)."""
    for offset in range(start, end, CHUNK_BYTES):
        # The overlap lets a header that begins in this chunk be read whole.
        chunk = file.read(offset, min(CHUNK_BYTES + HEADER_BYTES - 1, end - offset))
        if chunk[:CHUNK_BYTES] == _ZEROS:
            continue
        at = chunk.find(MAGIC)
        while at >= 0:
            if decode_header(chunk, at, base + offset + at) is not None:
                return base + offset + at
            at = chunk.find(MAGIC, at + 1)
    return None


def nonzero_chunks(file: DiskFile, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of the pieces of [start, end) that are not all zero."""
    for offset in range(start, end, CHUNK_BYTES):
        chunk = file.read(offset, min(CHUNK_BYTES, end - offset))
        if chunk != _ZEROS[: len(chunk)]:
            yield offset, len(chunk)


def read_header(file: DiskFile, segment: str, base: int, offset: int) -> Header:
    """Read the header at `offset`.

    Raises:
        CorruptFrame: there is no good header of that position.
    """
    header = decode_header(file.read(offset, HEADER_BYTES), 0, base + offset)
    if header is None:
        raise CorruptFrame(base + offset, segment, "no frame header")
    return header


def read_frame(file: DiskFile, segment: str, base: int, offset: int) -> tuple[Header, bytes]:
    """Read the frame at `offset`.

    Raises:
        CorruptFrame: there is no good frame of that position.
    """
    header = read_header(file, segment, base, offset)
    payload = file.read(offset + HEADER_BYTES, header.payload_bytes)
    if not payload_matches(header, payload):
        raise CorruptFrame(base + offset, segment, "payload checksum")
    return header, payload


def read_frames(
    file: DiskFile, segment: str, base: int, offsets: Sequence[int]
) -> Iterator[tuple[Header, bytes]]:
    """Read the frames at these offsets, ascending as a rule; neighbours come with one read.

    Raises:
        CorruptFrame: there is no good frame at one of them; those before it were yielded.
    """
    span = max(HEADER_BYTES, min(CHUNK_BYTES, offsets[-1] - offsets[0] + HEADER_BYTES))
    window = _Window(file, offsets[-1] + _FRAME_BYTES_MAX, span)
    for offset in offsets:
        data, at = window.at(offset, HEADER_BYTES)
        header = decode_header(data, at, base + offset)
        if header is None:
            raise CorruptFrame(base + offset, segment, "no frame header")
        data, at = window.at(offset, HEADER_BYTES + header.payload_bytes)
        payload = data[at + HEADER_BYTES : at + HEADER_BYTES + header.payload_bytes]
        if not payload_matches(header, payload):
            raise CorruptFrame(base + offset, segment, "payload checksum")
        yield header, payload


class _Window:
    """Read-ahead over a file: a piece of it that moves forward."""

    __slots__ = ("_chunk_bytes", "_data", "_end", "_file", "_start")

    def __init__(self, file: DiskFile, end: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._file = file
        self._end = end
        self._chunk_bytes = chunk_bytes
        self._start = 0
        self._data = b""

    def at(self, offset: int, length: int) -> tuple[bytes, int]:
        """Return (data, index of `offset` in it) with `length` bytes there if the file has them."""
        if offset < self._start or offset + length > self._start + len(self._data):
            wanted = min(max(length, self._chunk_bytes), self._end - offset)
            self._start, self._data = offset, self._file.read(offset, wanted)
        return self._data, offset - self._start
