"""Rows about the tier that the storage node adds to the tier's own (docs/data-layout.md section 5).

The tier knows the content of each object (`strata_tier`). These rows hold what the storage node
must know locally: the offsets that the log may delete, the uploads under way, whether uploads are
paused. Builders trust their arguments, parsers their bytes, which the store's own checksums cover.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from strata_mq.layout.rows import RowKind

_QUEUE_KEY = struct.Struct(">IBII")
_LOCAL = struct.Struct(">Q")
# Version, reserved, ranges; then per range.
_DISPATCH = struct.Struct(">BBHI")
_OFFSETS = struct.Struct(">IIQQ")
_VERSION = 1


class OffsetRange(NamedTuple):
    """Offsets `first` .. `end` - 1 of a queue."""

    topic_id: int
    queue: int
    first: int
    end: int


def tier_local_key(raft_group: int, topic_id: int, queue: int) -> bytes:
    """Return the key of a queue's local offset."""
    return _QUEUE_KEY.pack(raft_group, RowKind.TIER_LOCAL, topic_id, queue)


def parse_tier_local_key(key: bytes) -> tuple[int, int]:
    """Return (topic, queue) of such a key."""
    _, _, topic_id, queue = _QUEUE_KEY.unpack(key)
    return topic_id, queue


def encode_local_offset(offset: int) -> bytes:
    """Return the value of a queue's local offset: what is below it, the log may give up."""
    return _LOCAL.pack(offset)


def decode_local_offset(value: bytes) -> int:
    """Parse such a value."""
    (offset,) = _LOCAL.unpack(value)
    return int(offset)


def encode_dispatch(ranges: Sequence[OffsetRange]) -> bytes:
    """Return the value of the row of what is being uploaded."""
    return _DISPATCH.pack(_VERSION, 0, 0, len(ranges)) + pack_offset_ranges(ranges)


def decode_dispatch(value: bytes) -> list[OffsetRange]:
    """Parse such a value."""
    _, _, _, count = _DISPATCH.unpack_from(value)
    return unpack_offset_ranges(value, _DISPATCH.size, count)


def pack_offset_ranges(ranges: Sequence[OffsetRange]) -> bytes:
    """Encode ranges one after another, 24 bytes each."""
    return b"".join([_OFFSETS.pack(*each) for each in ranges])


def unpack_offset_ranges(value: bytes, at: int, count: int) -> list[OffsetRange]:
    """Parse `count` ranges from `at` on.

    Raises:
        struct.error: there are fewer.
    """
    return [
        OffsetRange(*_OFFSETS.unpack_from(value, at + number * _OFFSETS.size))
        for number in range(count)
    ]
