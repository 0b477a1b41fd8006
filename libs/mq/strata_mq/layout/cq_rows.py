"""Consume queue rows: where the messages of a run are. Layout: docs/data-layout.md section 5.

One entry stored a run and one entry gave it offsets. The two entries are the same, except for
pending messages, which were *delivered* to the queue later.
"""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate

from strata_mq.layout.columns import LONG_BYTES, WORD_BYTES, unpack_longs, unpack_words

_VERSION = 1
_PLACED = 1
# Version, flags, count, first message's offset in the payload, raft index, store time.
_CQ = struct.Struct(">BBHIQQ")
_PLACED_INDEX = struct.Struct(">Q")
_CQ_COUNT_MAX = 0xFFFF
# Lengths, crcs, tag hashes, message-group hashes.
_COLUMN_WIDTHS = (WORD_BYTES, WORD_BYTES, LONG_BYTES, LONG_BYTES)


def encode_cq_row(
    first_message_at: int,
    raft_index: int,
    store_time_ms: int,
    columns: bytes,
    count: int,
    placed_index: int = 0,
) -> bytes:
    """Return the value of a consume queue row.

    Args:
        first_message_at: Offset of the run's first message in the entry's payload.
        raft_index: Index of the entry.
        store_time_ms: Group time stamped into the entry that gave the offsets.
        columns: `BatchView.row_columns` of the run.
        count: Messages in the run, at most 65,535.
        placed_index: Index of the entry that gave the offsets; 0: the one that stored the run.
    """
    assert 0 < count <= _CQ_COUNT_MAX, f"a run of {count} messages does not fit a row"
    flags = _PLACED if placed_index else 0
    head = _CQ.pack(_VERSION, flags, count, first_message_at, raft_index, store_time_ms)
    if placed_index:
        return b"".join((head, columns, _PLACED_INDEX.pack(placed_index)))
    return head + columns


class CqRow:
    """A consume queue row, read in place: columns are unpacked when first asked for.

    Attributes:
        count: Messages in the run.
        message_at: Offset of the first message in the entry's payload.
        raft_index: Index of the entry that has the messages.
        offset_index: Index of the entry that gave them their offsets: never falls along a queue.
        store_time_ms: When they took their offsets, group time: never falls along a queue.
    """

    __slots__ = (
        "_checksums",
        "_lengths",
        "_starts",
        "_value",
        "count",
        "message_at",
        "offset_index",
        "raft_index",
        "store_time_ms",
    )

    def __init__(self, value: bytes) -> None:
        _, flags, self.count, self.message_at, self.raft_index, self.store_time_ms = (
            _CQ.unpack_from(value)
        )
        self.offset_index: int = self.raft_index
        if flags & _PLACED:
            (self.offset_index,) = _PLACED_INDEX.unpack_from(value, len(value) - _PLACED_INDEX.size)
        self._value = value
        self._lengths: array[int] | None = None
        self._checksums: array[int] | None = None
        self._starts: list[int] | None = None

    @property
    def lengths(self) -> array[int]:
        """Lengths of the stored messages."""
        if self._lengths is None:
            self._lengths = self._words(0)
        return self._lengths

    @property
    def checksums(self) -> array[int]:
        """CRC32C of the stored messages."""
        if self._checksums is None:
            self._checksums = self._words(1)
        return self._checksums

    @property
    def starts(self) -> list[int]:
        """Offsets of the messages in the entry's payload, and the end of the last one."""
        if self._starts is None:
            self._starts = list(accumulate(self.lengths, initial=self.message_at))
        return self._starts

    @property
    def tag_hashes(self) -> array[int]:
        """Tag hashes, 0 for no tag."""
        return self._longs(0)

    @property
    def group_hashes(self) -> array[int]:
        """Message-group hashes, 0 for none."""
        return self._longs(1)

    def location(self, ordinal: int) -> tuple[int, int, int]:
        """Return (offset in the entry's payload, length, crc) of one message of the run."""
        checksum_at = _CQ.size + WORD_BYTES * (self.count + ordinal)
        checksum = int.from_bytes(self._value[checksum_at : checksum_at + WORD_BYTES])
        return self.starts[ordinal], self.lengths[ordinal], checksum

    def part(self, first: int, count: int) -> bytes:
        """Return the row of `count` messages of the run from ordinal `first` on."""
        value = self._value
        columns = []
        at = _CQ.size
        for width in _COLUMN_WIDTHS:
            columns.append(value[at + width * first : at + width * (first + count)])
            at += width * self.count
        is_placed = self.offset_index != self.raft_index
        return encode_cq_row(
            self.location(first)[0],
            self.raft_index,
            self.store_time_ms,
            b"".join(columns),
            count,
            self.offset_index if is_placed else 0,
        )

    def _words(self, column: int) -> array[int]:
        start = _CQ.size + WORD_BYTES * self.count * column
        return unpack_words(self._value[start : start + WORD_BYTES * self.count])

    def _longs(self, column: int) -> array[int]:
        start = _CQ.size + (2 * WORD_BYTES + LONG_BYTES * column) * self.count
        return unpack_longs(self._value[start : start + LONG_BYTES * self.count])
