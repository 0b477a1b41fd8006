"""Rows of lite topics: their names and numbers (docs/data-layout.md section 5, kinds 36 to 38).

A lite topic is a queue of its parent topic with a number of its own. Builders trust their
arguments, parsers their bytes, which the store's own checksums cover.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from strata_mq.layout.rows import RowKind

_TOPIC_KEY = struct.Struct(">IBI")
_PARENT_KEY = struct.Struct(">IBII")
_PARENT = struct.Struct(">III")
_NUMBER = struct.Struct(">I")


class LiteParentRow(NamedTuple):
    """State of the lite topics whose names choose one queue of a parent topic.

    Attributes:
        next_turn: the next lite topic gets the number of this turn (`slots.lite_queue`).
        lite_count: lite topics there are.
        queue_count: of the parent topic; it never changes, because the numbers depend on it.
    """

    next_turn: int
    lite_count: int
    queue_count: int


def lite_parent_key(raft_group: int, topic_id: int, home: int) -> bytes:
    """Return the key of the row of a parent topic's queue."""
    return _PARENT_KEY.pack(raft_group, RowKind.LITE_PARENT, topic_id, home)


def parse_lite_parent_key(key: bytes) -> tuple[int, int]:
    """Return (topic, queue) of such a key."""
    _, _, topic_id, home = _PARENT_KEY.unpack(key)
    return topic_id, home


def encode_lite_parent(row: LiteParentRow) -> bytes:
    """Return the value of the row of a parent topic's queue."""
    return _PARENT.pack(*row)


def decode_lite_parent(value: bytes) -> LiteParentRow:
    """Parse such a value."""
    return LiteParentRow(*_PARENT.unpack(value))


def lite_number_key(raft_group: int, topic_id: int, name: bytes) -> bytes:
    """Return the key of the number of a lite topic, by its name in UTF-8."""
    return _TOPIC_KEY.pack(raft_group, RowKind.LITE_NUMBER, topic_id) + name


def parse_lite_number_key(key: bytes) -> bytes:
    """Return the name of such a key."""
    return key[_TOPIC_KEY.size :]


def encode_lite_number(number: int) -> bytes:
    """Return the value of the row of a name."""
    return _NUMBER.pack(number)


def decode_lite_number(value: bytes) -> int:
    """Parse such a value."""
    (number,) = _NUMBER.unpack(value)
    return int(number)


def lite_name_key(raft_group: int, topic_id: int, number: int) -> bytes:
    """Return the key of the name of a lite topic; the value is the name in UTF-8."""
    return _PARENT_KEY.pack(raft_group, RowKind.LITE_NAME, topic_id, number)


def parse_lite_name_key(key: bytes) -> tuple[int, int]:
    """Return (topic, number) of such a key."""
    _, _, topic_id, number = _PARENT_KEY.unpack(key)
    return topic_id, number
