"""Blocks: runs of messages of one queue, as columns and bodies (docs/data-layout.md section 9).

Columns are unpacked whole, and only on request; a message is sliced out of the bodies on request.
This module does not know the position of a block or the reason for its bounds.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from strata_mq.layout import (
    LONG_BYTES,
    MESSAGE_ID_BYTES,
    WORD_BYTES,
    pack_longs,
    pack_words,
    unpack_longs,
    unpack_words,
)
from strata_tier.base.errors import DamagedObjectError
from strata_tier.objects.layout import BlockEntry, BlockFlag, check, checksum

_MAX_U64 = (1 << 64) - 1
_ID = struct.Struct(">QBQ")

assert _ID.size == MESSAGE_ID_BYTES


class MessageRun(NamedTuple):
    """Messages of one queue in a row, bodies elsewhere.

    Attributes:
        offsets: rising.
        times_ms: store times; they never fall.
        lengths, checksums: of the stored messages (CRC32C).
        tag_hashes, group_hashes: 0 for none.
        source: where the bodies are; whoever made the run knows how to read it.
    """

    offsets: Sequence[int]
    times_ms: Sequence[int]
    lengths: array[int]
    checksums: array[int]
    tag_hashes: array[int]
    group_hashes: array[int]
    source: object

    def part(self, first: int, end: int) -> MessageRun:
        """Return messages `first` to `end - 1` of the run; the source stays."""
        return MessageRun(
            self.offsets[first:end],
            self.times_ms[first:end],
            self.lengths[first:end],
            self.checksums[first:end],
            self.tag_hashes[first:end],
            self.group_hashes[first:end],
            self.source,
        )


class SearchTerms(NamedTuple):
    """Columns by which messages are found: packed ids, counts of keys, hashes of all keys."""

    ids: bytes
    key_counts: bytes
    key_hashes: array[int]

    @classmethod
    def joined(cls, parts: Sequence[SearchTerms]) -> SearchTerms:
        """Return the terms of messages that follow each other."""
        hashes = array("Q")
        for part in parts:
            hashes.extend(part.key_hashes)
        ids = b"".join([part.ids for part in parts])
        return cls(ids, b"".join([part.key_counts for part in parts]), hashes)

    def part(self, first: int, end: int) -> SearchTerms:
        """Return the terms of messages `first` to `end - 1`."""
        keys_before = sum(self.key_counts[:first])
        counts = self.key_counts[first:end]
        return SearchTerms(
            self.ids[first * MESSAGE_ID_BYTES : end * MESSAGE_ID_BYTES],
            counts,
            self.key_hashes[keys_before : keys_before + sum(counts)],
        )


def id_hash(message_id: bytes) -> int:
    """Return the 64-bit hash under which a packed message id (17 bytes) is searched."""
    return id_hashes(message_id)[0]


def id_hashes(ids: bytes) -> list[int]:
    """Return `id_hash` of each of several ids, one after another."""
    # Ids of one producer differ at their ends only: the multiplication carries that upwards.
    return [
        (first * 0x9E3779B97F4A7C15 + middle * 0xC2B2AE3D27D4EB4F + last) * 0xD6E8FEB86659FD93
        & _MAX_U64
        for first, middle, last in _ID.iter_unpack(ids)
    ]


def encode_columns(run: MessageRun, terms: SearchTerms, entry: BlockEntry) -> bytes:
    """Return the columns of a block; of `entry`, base offset, flags and times count."""
    base, first_time = entry.base_offset, entry.min_time_ms
    offsets = b""
    if entry.flags & BlockFlag.SPARSE:
        offsets = pack_words([offset - base for offset in run.offsets])
    return b"".join(
        (
            offsets,
            pack_words(run.lengths),
            pack_words(run.checksums),
            pack_words([time_ms - first_time for time_ms in run.times_ms]),
            pack_longs(run.tag_hashes),
            pack_longs(run.group_hashes),
            terms.ids,
            terms.key_counts,
            pack_longs(terms.key_hashes),
        )
    )


class BlockColumns:
    """The columns of a block whose checksum was compared.

    Attributes:
        entry: the block.

    Raises:
        DamagedObjectError: the bytes are others, or do not fit together.
    """

    def __init__(self, entry: BlockEntry, data: bytes, key: str) -> None:
        if len(data) != entry.columns_bytes:
            raise DamagedObjectError(key, f"columns of a block: {len(data)} bytes")
        check(data, entry.columns_checksum, key, f"columns at {entry.position}")
        self.entry = entry
        self._data = data
        count = entry.message_count
        self._lengths_at = WORD_BYTES * count if entry.flags & BlockFlag.SPARSE else 0
        self._tags_at = self._lengths_at + 3 * WORD_BYTES * count
        self._ids_at = self._tags_at + 2 * LONG_BYTES * count
        self._counts_at = self._ids_at + MESSAGE_ID_BYTES * count
        self._keys_at = self._counts_at + count
        end = self._keys_at + LONG_BYTES * sum(data[self._counts_at : self._keys_at])
        if end != len(data) or sum(self.lengths) != entry.bodies_bytes:
            raise DamagedObjectError(key, f"columns at {entry.position} do not fit together")

    @cached_property
    def offsets(self) -> Sequence[int]:
        """Offsets of the messages, rising."""
        entry = self.entry
        if not entry.flags & BlockFlag.SPARSE:
            return range(entry.base_offset, entry.base_offset + entry.message_count)
        deltas = unpack_words(self._data[: WORD_BYTES * entry.message_count])
        return array("Q", [entry.base_offset + delta for delta in deltas])

    @cached_property
    def lengths(self) -> array[int]:
        """Lengths of the stored messages."""
        return self._words(0)

    @cached_property
    def checksums(self) -> array[int]:
        """CRC32C of the stored messages."""
        return self._words(1)

    @cached_property
    def times_ms(self) -> array[int]:
        """Store times."""
        first = self.entry.min_time_ms
        return array("Q", [first + delta for delta in self._words(2)])

    @cached_property
    def tag_hashes(self) -> array[int]:
        """Tag hashes, 0 for no tag."""
        return self._longs(0)

    @cached_property
    def group_hashes(self) -> array[int]:
        """Message-group hashes, 0 for none."""
        return self._longs(1)

    @cached_property
    def terms(self) -> SearchTerms:
        """Ids and key hashes."""
        return SearchTerms(
            self._data[self._ids_at : self._counts_at],
            self._data[self._counts_at : self._keys_at],
            unpack_longs(self._data[self._keys_at :]),
        )

    @cached_property
    def starts(self) -> list[int]:
        """Where each message begins in the bodies, and where the last one ends."""
        return list(accumulate(self.lengths, initial=0))

    @property
    def size_bytes(self) -> int:
        """Memory of the packed columns; unpacked they take about as much again."""
        return len(self._data)

    def ordinal_at(self, offset: int) -> int:
        """Return the ordinal of the first message at or behind an offset."""
        return bisect_left(self.offsets, offset)

    def bytes_of(self, ordinals: Sequence[int]) -> int:
        """Return the length of some messages together."""
        return sum(pick(self.lengths, ordinals))

    def run(self, source: object) -> MessageRun:
        """Return the messages as a run."""
        return MessageRun(
            self.offsets,
            self.times_ms,
            self.lengths,
            self.checksums,
            self.tag_hashes,
            self.group_hashes,
            source,
        )

    def _words(self, column: int) -> array[int]:
        size = WORD_BYTES * self.entry.message_count
        start = self._lengths_at + column * size
        return unpack_words(self._data[start : start + size])

    def _longs(self, column: int) -> array[int]:
        size = LONG_BYTES * self.entry.message_count
        start = self._tags_at + column * size
        return unpack_longs(self._data[start : start + size])


class Block:
    """A whole block: columns and all bodies, both compared with their checksums."""

    __slots__ = ("bodies", "columns")

    def __init__(self, columns: BlockColumns, bodies: bytes, key: str) -> None:
        entry = columns.entry
        if len(bodies) != entry.bodies_bytes:
            raise DamagedObjectError(key, f"bodies of a block: {len(bodies)} bytes")
        check(bodies, entry.bodies_checksum, key, f"bodies at {entry.bodies_position}")
        self.columns = columns
        self.bodies = bodies

    @property
    def size_bytes(self) -> int:
        """Memory it takes."""
        return self.columns.size_bytes + len(self.bodies)

    def messages(self, ordinals: Sequence[int]) -> list[bytes]:
        """Return stored messages; a `range` is the quick way."""
        bodies, starts = self.bodies, self.columns.starts
        if isinstance(ordinals, range):
            run = starts[ordinals.start : ordinals.stop + 1]
            return [bodies[start:end] for start, end in pairwise(run)]
        return [bodies[starts[at] : starts[at + 1]] for at in ordinals]


def pick(column: Sequence[int], ordinals: Sequence[int]) -> Sequence[int]:
    """Return the values at ordinals; a `range` of step 1 is a slice."""
    if isinstance(ordinals, range):
        return column[ordinals.start : ordinals.stop]
    return [column[ordinal] for ordinal in ordinals]


def decode_block(entry: BlockEntry, data: bytes, at: int, key: str) -> Block:
    """Return the block whose bytes begin at `at`; they are copied once.

    Raises:
        DamagedObjectError: they are others.
    """
    bodies_at = at + entry.columns_bytes
    columns = BlockColumns(entry, data[at:bodies_at], key)
    return Block(columns, data[bodies_at : at + entry.length], key)


def damaged_message(lengths: Iterable[int], checksums: Iterable[int], bodies: bytes) -> int | None:
    """Return the ordinal of the first message that is not as its checksum says; None: all are."""
    at = 0
    for ordinal, (length, expected) in enumerate(zip(lengths, checksums, strict=True)):
        if checksum(bodies[at : at + length]) != expected:
            return ordinal
        at += length
    return None
