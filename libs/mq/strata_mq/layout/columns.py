"""Whole columns of big-endian numbers to and from bytes, without a Python object per number."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

_SWAP = sys.byteorder == "little"
_WORD = "I"
_LONG = "Q"
WORD_BYTES = 4
LONG_BYTES = 8

assert array(_WORD).itemsize == WORD_BYTES
assert array(_LONG).itemsize == LONG_BYTES


def pack_words(values: Iterable[int]) -> bytes:
    """Return u32 values as a column."""
    return _pack(array(_WORD, values))


def pack_longs(values: Iterable[int]) -> bytes:
    """Return u64 values as a column."""
    return _pack(array(_LONG, values))


def unpack_words(column: bytes | memoryview) -> array[int]:
    """Return the u32 values of a column."""
    return _unpack(_WORD, column)


def unpack_longs(column: bytes | memoryview) -> array[int]:
    """Return the u64 values of a column."""
    return _unpack(_LONG, column)


def _pack(values: array[int]) -> bytes:
    if _SWAP:
        values.byteswap()
    return values.tobytes()


def _unpack(kind: str, column: bytes | memoryview) -> array[int]:
    values: array[int] = array(kind)
    values.frombytes(column)
    if _SWAP:
        values.byteswap()
    return values
