"""Frames: `length | encoding and length of the header | header | body`, big-endian.

`RemotingFrameReader` splits what arrives; it keeps at most one unfinished frame, whose length it
has checked, and parses nothing that is not whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from strata_remoting.command import RemotingCommand, RemotingError
from strata_remoting.headers import Serialization, decode_header, encode_header

_LENGTH_BYTES = 4
_PREFIX = struct.Struct(">II")
_WORD = struct.Struct(">I")
_HEADER_LENGTH_MASK = 0xFFFFFF
_SERIALIZATIONS = {int(each): each for each in Serialization}
# Bytes behind which the front of the buffer is dropped.
_COMPACT_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits of one frame.

    Attributes:
        max_frame_bytes: of a frame without its first length.
        max_header_bytes: of its header.
        max_fields: of the header's `extFields`.
    """

    max_frame_bytes: int = 16 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    max_fields: int = 128


class ReadFrame(NamedTuple):
    """A whole frame.

    Attributes:
        command: the request or answer.
        serialization: encoding of its header, which an answer repeats.
        size_bytes: of the frame.
    """

    command: RemotingCommand
    serialization: Serialization
    size_bytes: int


def encode_frame(command: RemotingCommand, serialization: Serialization) -> bytes:
    """Return a command as a frame.

    Raises:
        RemotingError: it does not fit; see `encode_header`.
    """
    header = encode_header(command, serialization)
    if len(header) > _HEADER_LENGTH_MASK:
        raise RemotingError(f"the header has {len(header)} bytes")
    length = _LENGTH_BYTES + len(header) + len(command.body)
    return _PREFIX.pack(length, serialization << 24 | len(header)) + header + command.body


class RemotingFrameReader:
    """Splits the bytes of one connection into frames.

    Args:
        limits: of each frame.
    """

    def __init__(self, limits: FrameLimits) -> None:
        self._limits = limits
        self._data = bytearray()
        self._at = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes that `frames` has not yielded: of whole frames too, if it was left early."""
        return len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Take in what arrived."""
        if self._at == len(self._data):
            self._data.clear()
            self._at = 0
        elif self._at > _COMPACT_BYTES:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def frames(self) -> Iterator[ReadFrame]:
        """Yield the frames that are whole; who leaves early finds the others next time.

        Raises:
            RemotingError: the bytes are no frame, or a limit is exceeded; the connection cannot go
                on, because nobody knows where the next frame begins.
        """
        while (end := self._frame_end()) is not None:
            start, self._at = self._at + _LENGTH_BYTES, end
            yield self._parsed(start, end)

    def _frame_end(self) -> int | None:
        """Return where the first frame ends, once all of it is there."""
        if self.waiting_bytes < _LENGTH_BYTES:
            return None
        length = int(_WORD.unpack_from(self._data, self._at)[0])
        if not _LENGTH_BYTES <= length <= self._limits.max_frame_bytes:
            raise RemotingError(
                f"a frame has {length} bytes; {self._limits.max_frame_bytes} are allowed"
            )
        if self.waiting_bytes >= _PREFIX.size:
            self._header_of(self._at + _LENGTH_BYTES, length)
        if self.waiting_bytes < _LENGTH_BYTES + length:
            return None
        return self._at + _LENGTH_BYTES + length

    def _header_of(self, at: int, frame_bytes: int) -> tuple[Serialization, int]:
        """Return encoding and length of the header."""
        (word,) = _WORD.unpack_from(self._data, at)
        serialization = _SERIALIZATIONS.get(word >> 24)
        if serialization is None:
            raise RemotingError(f"the encoding of a header is {word >> 24}; 0 and 1 are known")
        length = word & _HEADER_LENGTH_MASK
        if length > self._limits.max_header_bytes:
            raise RemotingError(
                f"a header has {length} bytes; {self._limits.max_header_bytes} are allowed"
            )
        if length > frame_bytes - _LENGTH_BYTES:
            raise RemotingError(f"a header has {length} bytes, its frame has {frame_bytes}")
        return serialization, length

    def _parsed(self, start: int, end: int) -> ReadFrame:
        serialization, length = self._header_of(start, end - start)
        header_at = start + _LENGTH_BYTES
        header = bytes(self._data[header_at : header_at + length])
        body = bytes(self._data[header_at + length : end])
        command = decode_header(header, body, serialization, self._limits.max_fields)
        return ReadFrame(command, serialization, end - start)
