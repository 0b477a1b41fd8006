"""Append batches: built once by the broker, sliced by storage, parsed by nobody else.

Byte layout: docs/data-layout.md section 3 (rule 22). A part is a run of messages of one queue;
columns run over all messages of all parts. The module knows bytes and numbers, not the type
`Message`.

Messages of a part that is not plain are *pending*: they get no offset when they are stored, only
when they are delivered (`commands.pending`), and have a due time, in a column that plain batches
lack.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, chain
from typing import NamedTuple

from strata_mq.layout.columns import (
    LONG_BYTES,
    WORD_BYTES,
    pack_longs,
    pack_words,
    unpack_longs,
    unpack_words,
)
from strata_mq.layout.hashing import MESSAGE_ID_BYTES, text_hash

Checksum = Callable[[bytes], int]
"""CRC32C of bytes; injected, because this package uses only the standard library."""

MAX_BATCH_BYTES = 1024 * 1024
"""Largest batch unless it is one message; whoever fills a builder keeps to it."""

BATCH_HEADER_BYTES = 32

_MAGIC = b"AB"
_VERSION = 1
# Magic, version, flags, parts, reserved, messages, columns length, messages length, columns crc,
# reserved; then the header crc.
_HEADER = struct.Struct(">2sBBHHIIIII")
_HEADER_CHECKSUM = struct.Struct(">I")
# Topic id, queue, slot base, queue count, message count, part kind.
_PART = struct.Struct(">IiHHII")
_HAS_DUE_TIMES = 1

# Bytes of all columns per message: length, crc, tag hash, message-group hash, id, type, born time,
# key count; key hashes come on top.
_COLUMN_BYTES_PER_MESSAGE = WORD_BYTES * 2 + LONG_BYTES * 3 + MESSAGE_ID_BYTES + 2


class PartKind(IntEnum):
    """Fate of a part's messages once they are stored."""

    # They take their offsets at once.
    PLAIN = 0
    # They take offsets when they are due.
    DELAYED = 1
    # They take offsets when their transaction commits.
    HALF = 2


_PART_KINDS = tuple(PartKind)


class OutgoingMessage(NamedTuple):
    """One validated message on its way into a batch.

    `due_ms` is for pending messages: when to deliver a delayed one, in ms of group time; how long
    after it was stored to ask for the first time what became of a half one. 0 for plain ones.
    """

    stored: bytes
    checksum: int
    tag_hash: int
    group_hash: int
    message_id: bytes  # 17 bytes, see pack_message_id
    message_type: int
    born_ms: int
    key_hashes: Sequence[int]
    due_ms: int = 0


class PrioritizedMessage(OutgoingMessage):
    """A message with a priority, 0 or more: it chooses the queue, and no column has it."""

    priority: int = 0

    @classmethod
    def of(cls, message: OutgoingMessage, priority: int) -> PrioritizedMessage:
        """Return the same message with a priority."""
        prioritized = cls(*message)
        prioritized.priority = priority
        return prioritized


class LiteMessage(OutgoingMessage):
    """A message of a lite topic, whose name chooses the queue and is its message group.

    No column has the name.
    """

    lite_topic: str = ""

    @classmethod
    def of(cls, message: OutgoingMessage, lite_topic: str) -> LiteMessage:
        """Return the same message with its lite topic."""
        lite = cls(*message._replace(group_hash=text_hash(lite_topic)))
        lite.lite_topic = lite_topic
        return lite


class PartKey(NamedTuple):
    """The fields that all messages of a part share. `queue` -1: the leader chooses."""

    topic_id: int
    queue: int
    slot_base: int
    queue_count: int
    kind: PartKind = PartKind.PLAIN


class BatchError(Exception):
    """The bytes are not an append batch; the reason says at which byte and why."""


class BatchBuilder:
    """Collects messages by part and builds one batch.

    Attributes:
        message_count: How many messages were added.
        byte_count: Size of what `build` would return.
    """

    __slots__ = (
        "_checksum",
        "_has_due_times",
        "_numbers",
        "_parts",
        "byte_count",
        "message_count",
    )

    def __init__(self, checksum: Checksum) -> None:
        self._checksum = checksum
        self._has_due_times = False
        self._numbers: dict[PartKey, int] = {}
        self._parts: list[list[OutgoingMessage]] = []
        self.message_count = 0
        self.byte_count = BATCH_HEADER_BYTES

    def add(self, key: PartKey, messages: Sequence[OutgoingMessage]) -> tuple[int, int]:
        """Add messages to the part of `key`, made when first named.

        Returns:
            (part number, ordinal of the first message within that part).
        """
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._parts)
            self._parts.append([])
            self.byte_count += _PART.size
            if key.kind and not self._has_due_times:
                self._has_due_times = True
                self.byte_count += LONG_BYTES * self.message_count
        part = self._parts[number]
        first = len(part)
        part.extend(messages)
        self.message_count += len(messages)
        self.byte_count += _COLUMN_BYTES_PER_MESSAGE * len(messages) + sum(
            [len(message.stored) + LONG_BYTES * len(message.key_hashes) for message in messages]
        )
        if self._has_due_times:
            self.byte_count += LONG_BYTES * len(messages)
        return number, first

    def build(self) -> bytes:
        """Return the batch.

        Raises:
            ValueError: nothing was added.
        """
        if not self.message_count:
            raise ValueError("a batch has at least one message")
        parts = b"".join(
            _PART.pack(*key[:4], len(part), key.kind)
            for key, part in zip(self._numbers, self._parts, strict=True)
        )
        stored, checksums, tag_hashes, group_hashes, ids, types, born, key_hashes, due = zip(
            *chain.from_iterable(self._parts), strict=True
        )
        lengths = list(map(len, stored))
        columns = b"".join(
            (
                parts,
                pack_words(lengths),
                pack_words(checksums),
                pack_longs(tag_hashes),
                pack_longs(group_hashes),
                b"".join(ids),
                bytes(types),
                pack_longs(born),
                bytes(map(len, key_hashes)),
                pack_longs(chain.from_iterable(key_hashes)),
                pack_longs(due) if self._has_due_times else b"",
            )
        )
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            _HAS_DUE_TIMES if self._has_due_times else 0,
            len(self._parts),
            0,
            self.message_count,
            len(columns),
            sum(lengths),
            self._checksum(columns),
            0,
        )
        # One copy of the messages: most bytes of a batch are theirs.
        check = _HEADER_CHECKSUM.pack(self._checksum(header))
        return b"".join((header, check, columns, *stored))


@dataclass(frozen=True, slots=True)
class PartView:
    """One part of a parsed batch: ordinals first .. first + count - 1 of the batch's columns."""

    key: PartKey
    first: int
    count: int
    # Offset of the part's first message within the batch's bytes.
    messages_at: int


class BatchView:
    """A batch read in place: slices of columns, no object per message unless asked.

    Attributes:
        data: The batch's bytes.
        parts: Its parts, in order.
        message_count: Messages in all parts.
    """

    __slots__ = (
        "_born_at",
        "_checksum",
        "_checksums_at",
        "_due_at",
        "_group_hashes_at",
        "_has_due_times",
        "_ids_at",
        "_key_counts_at",
        "_key_hashes_at",
        "_lengths",
        "_lengths_at",
        "_starts",
        "_tag_hashes_at",
        "_types_at",
        "data",
        "message_count",
        "parts",
    )

    def __init__(self, data: bytes, checksum: Checksum, *, verify: bool = True) -> None:
        """Parse the header and parts.

        Args:
            data: Exactly one batch.
            checksum: CRC32C.
            verify: Compare the checksums of header and columns; False for bytes whose frame was
                checked already.

        Raises:
            BatchError: bad magic, version, lengths or checksum.
        """
        self.data = data
        self._checksum = checksum
        part_count, columns_bytes, messages_bytes, due_bytes = self._read_header(verify)
        self._has_due_times = due_bytes > 0
        count = self.message_count
        self._lengths_at = BATCH_HEADER_BYTES + part_count * _PART.size
        self._checksums_at = self._lengths_at + WORD_BYTES * count
        self._tag_hashes_at = self._checksums_at + WORD_BYTES * count
        self._group_hashes_at = self._tag_hashes_at + LONG_BYTES * count
        self._ids_at = self._group_hashes_at + LONG_BYTES * count
        self._types_at = self._ids_at + MESSAGE_ID_BYTES * count
        self._born_at = self._types_at + count
        self._key_counts_at = self._born_at + LONG_BYTES * count
        self._key_hashes_at = self._key_counts_at + count
        messages_at = BATCH_HEADER_BYTES + columns_bytes
        # Where the due times are, or would be.
        self._due_at = messages_at - due_bytes
        key_counts = data[self._key_counts_at : self._key_hashes_at]
        if self._key_hashes_at + LONG_BYTES * sum(key_counts) != self._due_at:
            raise BatchError(f"columns of {columns_bytes} bytes do not fit {count} messages")
        self._lengths = unpack_words(data[self._lengths_at : self._checksums_at])
        # Start of every message and, last, the end of the batch.
        self._starts = list(accumulate(self._lengths, initial=messages_at))
        if self._starts[-1] != messages_at + messages_bytes:
            raise BatchError(f"lengths at byte {self._lengths_at} do not add up")
        self.parts = self._read_parts(part_count)

    def lengths(self, first: int, count: int) -> Sequence[int]:
        """Return lengths of the stored messages."""
        return self._lengths[first : first + count]

    def checksums(self, first: int, count: int) -> Sequence[int]:
        """Return checksums of the stored messages."""
        start = self._checksums_at + WORD_BYTES * first
        return unpack_words(self.data[start : start + WORD_BYTES * count])

    def message_at(self, ordinal: int) -> int:
        """Return the offset of a stored message within the batch's bytes."""
        return self._starts[ordinal]

    def message_id(self, ordinal: int) -> bytes:
        """Return the 17 bytes."""
        at = self._ids_at + MESSAGE_ID_BYTES * ordinal
        return self.data[at : at + MESSAGE_ID_BYTES]

    def message_ids(self, first: int, count: int) -> list[bytes]:
        """Return ids of a run."""
        data = self.data
        start = self._ids_at + MESSAGE_ID_BYTES * first
        stop = start + MESSAGE_ID_BYTES * count
        return [data[at : at + MESSAGE_ID_BYTES] for at in range(start, stop, MESSAGE_ID_BYTES)]

    def message_types(self, first: int, count: int) -> bytes:
        """Return message types of a run, one byte each."""
        return self.data[self._types_at + first : self._types_at + first + count]

    def born_times(self, first: int, count: int) -> Sequence[int]:
        """Return when messages of a run were born, in ms by their producers' clocks."""
        return self._longs(self._born_at, first, count)

    def due_times(self, first: int, count: int) -> Sequence[int]:
        """Return when messages of a pending part are due, in ms of group time (a part's run)."""
        return self._longs(self._due_at, first, count)

    def tag_hashes(self, first: int, count: int) -> Sequence[int]:
        """Return tag hashes of a run."""
        return self._longs(self._tag_hashes_at, first, count)

    def group_hashes(self, first: int, count: int) -> Sequence[int]:
        """Return message-group hashes of a run."""
        return self._longs(self._group_hashes_at, first, count)

    def key_uses(self, first: int, count: int, base: int) -> list[tuple[int, int]]:
        """Return (offset, key hash) for every key of a run whose first message has offset `base`.

        Args:
            first: ordinal of the first message.
            count: messages of the run.
            base: its offset.
        """
        counts_at = self._key_counts_at
        counts = self.data[counts_at + first : counts_at + first + count]
        if counts == b"\x01" * count:
            skipped = sum(self.data[counts_at : counts_at + first])
            hashes = self._longs(self._key_hashes_at, skipped, count)
            return list(zip(range(base, base + count), hashes, strict=True))
        from_first = base - first
        return [(ordinal + from_first, one) for ordinal, one in self.key_hashes(first, count)]

    def key_hashes(self, first: int, count: int) -> list[tuple[int, int]]:
        """Return (ordinal, key hash) for every key of a run."""
        counts_at = self._key_counts_at
        counts = self.data[counts_at + first : counts_at + first + count]
        total = sum(counts)
        if not total:
            return []
        skipped = sum(self.data[counts_at : counts_at + first])
        hashes = iter(self._longs(self._key_hashes_at, skipped, total))
        return [
            (ordinal, next(hashes))
            for ordinal, key_count in enumerate(counts, first)
            for _ in range(key_count)
        ]

    def search_columns(self, first: int, count: int) -> tuple[bytes, bytes, array[int]]:
        """Return what a run is found by: ids, key count of each message, hashes of all keys."""
        data = self.data
        ids_at = self._ids_at + MESSAGE_ID_BYTES * first
        counts_at = self._key_counts_at
        counts = data[counts_at + first : counts_at + first + count]
        skipped = sum(data[counts_at : counts_at + first])
        hashes = self._longs(self._key_hashes_at, skipped, sum(counts))
        return data[ids_at : ids_at + MESSAGE_ID_BYTES * count], counts, hashes

    def row_columns(self, first: int, count: int) -> bytes:
        """Return the columns of a CQ row for a run: lengths, crcs, tag hashes, group hashes."""
        data = self.data
        if count == self.message_count:
            return data[self._lengths_at : self._ids_at]
        words, longs = WORD_BYTES * first, LONG_BYTES * first
        words_end, longs_end = words + WORD_BYTES * count, longs + LONG_BYTES * count
        return b"".join(
            (
                data[self._lengths_at + words : self._lengths_at + words_end],
                data[self._checksums_at + words : self._checksums_at + words_end],
                data[self._tag_hashes_at + longs : self._tag_hashes_at + longs_end],
                data[self._group_hashes_at + longs : self._group_hashes_at + longs_end],
            )
        )

    def check_messages(self) -> None:
        """Compare every stored message with its checksum.

        Raises:
            BatchError: names the first message that differs.
        """
        for ordinal, expected in enumerate(self.checksums(0, self.message_count)):
            start, stop = self._starts[ordinal], self._starts[ordinal + 1]
            if self._checksum(self.data[start:stop]) != expected:
                raise BatchError(f"message {ordinal} at byte {start} does not match its checksum")

    def _read_header(self, verify: bool) -> tuple[int, int, int, int]:
        """Return part count, bytes of the columns, of the messages, and of the due times."""
        data = self.data
        if len(data) < BATCH_HEADER_BYTES:
            raise BatchError(f"{len(data)} bytes are no header of {BATCH_HEADER_BYTES}")
        (
            magic,
            version,
            flags,
            part_count,
            _,
            count,
            columns_bytes,
            messages_bytes,
            columns_crc,
            _,
        ) = _HEADER.unpack_from(data)
        if magic != _MAGIC or version != _VERSION or flags > _HAS_DUE_TIMES:
            raise BatchError(f"bytes 0..3 are magic {magic!r} version {version} flags {flags}")
        if len(data) != BATCH_HEADER_BYTES + columns_bytes + messages_bytes:
            raise BatchError(f"{len(data)} bytes, the header says otherwise")
        least_bytes = part_count * _PART.size + count * _COLUMN_BYTES_PER_MESSAGE
        if not count or not part_count or columns_bytes < least_bytes:
            raise BatchError(f"columns of {columns_bytes} bytes do not fit {count} messages")
        if verify:
            (header_crc,) = _HEADER_CHECKSUM.unpack_from(data, _HEADER.size)
            if self._checksum(data[: _HEADER.size]) != header_crc:
                raise BatchError("bytes 0..27 do not match the header checksum")
            columns = data[BATCH_HEADER_BYTES : BATCH_HEADER_BYTES + columns_bytes]
            if self._checksum(columns) != columns_crc:
                raise BatchError("the columns do not match their checksum")
        self.message_count = count
        return part_count, columns_bytes, messages_bytes, LONG_BYTES * count if flags else 0

    def _read_parts(self, part_count: int) -> list[PartView]:
        parts = []
        first = 0
        # Without due times all parts are plain.
        kinds = _PART_KINDS if self._has_due_times else _PART_KINDS[:1]
        for number in range(part_count):
            *key, count, kind = _PART.unpack_from(
                self.data, BATCH_HEADER_BYTES + number * _PART.size
            )
            if not 0 < count <= self.message_count - first:
                raise BatchError(f"part {number} has {count} messages")
            if kind >= len(kinds):
                raise BatchError(f"part {number} is of kind {kind}")
            part_key = PartKey._make((*key, kinds[kind]))
            parts.append(PartView(part_key, first, count, self._starts[first]))
            first += count
        if first != self.message_count:
            raise BatchError(f"parts have {first} messages, the batch {self.message_count}")
        return parts

    def _longs(self, column_at: int, first: int, count: int) -> array[int]:
        start = column_at + LONG_BYTES * first
        return unpack_longs(self.data[start : start + LONG_BYTES * count])
