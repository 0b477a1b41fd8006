"""Bytes of an object in the tier: header, pages, root, trailer (docs/data-layout.md section 9).

An object is a Merkle chain of CRC32C: blocks under their page, pages under the root, the root under
the trailer and under the row in the raft state. A reader that checks each piece has therefore
checked that it belongs to the committed object.

`blocks` defines the bytes of a block; `plan` assigns messages to blocks. Nothing here reads or
writes a store.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import google_crc32c

from strata_tier.base.errors import DamagedObjectError

FORMAT_VERSION = 1
BLOCKS_PER_PAGE = 256
ENTRIES_PER_SEARCH_PAGE = 2048

_HEADER_MAGIC = b"STHD"
_TRAILER_MAGIC = b"STTR"
_HEADER = struct.Struct(">4sBBHIQQ")
_TRAILER = struct.Struct(">4sBBHQQIII")
_CHECKSUM = struct.Struct(">I")
_ROOT = struct.Struct(">IIIIQQQQH")
_PAGE_FENCE = struct.Struct(">QIIIIQ")
_SEARCH_FENCE = struct.Struct(">QIIQ")
_BLOCK = struct.Struct(">IIQQIIQIIIIQQQ")

HEADER_BYTES = _HEADER.size + _CHECKSUM.size
TRAILER_BYTES = _TRAILER.size + _CHECKSUM.size
BLOCK_ENTRY_BYTES = _BLOCK.size

assert (HEADER_BYTES, TRAILER_BYTES, BLOCK_ENTRY_BYTES) == (32, 40, 80)


class ObjectKind(IntEnum):
    """Kind of an object's content."""

    # Many queues of one raft group, as they were uploaded.
    STREAM_SET = 1
    # One queue, put together by compaction.
    ONE_QUEUE = 2


class BlockFlag(IntEnum):
    """Bits of `BlockEntry.flags`."""

    # Offsets are listed, because some of the block's hold nothing.
    SPARSE = 1


class BlockEntry(NamedTuple):
    """One row of a block page, fields in the order of their bytes.

    Offsets `base_offset` to `end_offset - 1` are covered; `position` is that of the columns in the
    object, the bodies follow them.
    """

    topic_id: int
    queue: int
    base_offset: int
    end_offset: int
    message_count: int
    flags: int
    position: int
    columns_bytes: int
    columns_checksum: int
    bodies_bytes: int
    bodies_checksum: int
    min_time_ms: int
    max_time_ms: int
    tags: int

    @property
    def length(self) -> int:
        """Bytes of the whole block."""
        return self.columns_bytes + self.bodies_bytes

    @property
    def bodies_position(self) -> int:
        """Position of the first stored message in the object."""
        return self.position + self.columns_bytes

    def may_hold_tag(self, tag_hashes: Iterable[int]) -> bool:
        """Whether a message with one of these tags may be in the block."""
        return any(self.tags & bits == bits for bits in map(tag_bits, tag_hashes))


class PageFence(NamedTuple):
    """Place of a block page, and its first block."""

    position: int
    length: int
    checksum: int
    first_topic_id: int
    first_queue: int
    first_base_offset: int


class SearchFence(NamedTuple):
    """Place of a search page, and its first entry."""

    position: int
    length: int
    checksum: int
    first_entry: int


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    """Description of an object in its first bytes; its trailer repeats it."""

    kind: ObjectKind
    raft_group: int
    object_id: int


@dataclass(frozen=True, slots=True)
class Trailer:
    """The last bytes of an object, from which a reader finds everything else."""

    kind: ObjectKind
    object_id: int
    object_length: int
    root_length: int
    root_checksum: int

    @property
    def root_position(self) -> int:
        """Position of the root in the object."""
        return self.object_length - TRAILER_BYTES - self.root_length


@dataclass(frozen=True, slots=True)
class Root:
    """The contents of an object at a glance, and where its pages are.

    Attributes:
        home: id of the cluster that wrote it.
        block_count, queue_count, message_count: how many of each it has.
        bodies_bytes: length of all stored messages.
        min_time_ms, max_time_ms: store times of the messages; 0 if there are none.
        pages, search_pages: in order.
    """

    home: str
    block_count: int
    queue_count: int
    message_count: int
    bodies_bytes: int
    min_time_ms: int
    max_time_ms: int
    pages: Sequence[PageFence]
    search_pages: Sequence[SearchFence]


def tag_bits(tag_hash: int) -> int:
    """Return the two bits of `BlockEntry.tags` that a tag sets; 0 for a message without one."""
    return (1 << (tag_hash & 63) | 1 << (tag_hash >> 6 & 63)) if tag_hash else 0


def search_entry(hash_value: int, block: int) -> int:
    """Return the search entry of a 64-bit hash of something in a block; entries sort as numbers."""
    return hash_value >> 32 << 32 | block


def search_entries(hashes: Iterable[int], block: int) -> set[int]:
    """Return `search_entry` of each of many hashes of things in one block."""
    return {value >> 32 << 32 | block for value in hashes}


def checksum(data: bytes | memoryview) -> int:
    """Return the CRC32C of bytes."""
    value: int = google_crc32c.value(data if isinstance(data, bytes) else bytes(data))
    return value


def encode_header(header: ObjectHeader) -> bytes:
    """Return the first bytes of an object."""
    return _sealed(
        _HEADER.pack(
            _HEADER_MAGIC, FORMAT_VERSION, header.kind, 0, header.raft_group, header.object_id, 0
        )
    )


def decode_header(data: bytes, key: str) -> ObjectHeader:
    """Return what an object's first `HEADER_BYTES` say.

    Raises:
        DamagedObjectError: they are no header of this version.
    """
    fields = _unsealed(_HEADER, data, key, "header", _HEADER_MAGIC)
    return ObjectHeader(_kind(fields[2], key), fields[4], fields[5])


def encode_trailer(trailer: Trailer) -> bytes:
    """Return the last bytes of an object."""
    return _sealed(
        _TRAILER.pack(
            _TRAILER_MAGIC,
            FORMAT_VERSION,
            trailer.kind,
            0,
            trailer.object_id,
            trailer.object_length,
            trailer.root_length,
            trailer.root_checksum,
            0,
        )
    )


def decode_trailer(data: bytes, key: str) -> Trailer:
    """Return what an object's last `TRAILER_BYTES` say.

    Raises:
        DamagedObjectError: they are no trailer of this version.
    """
    fields = _unsealed(_TRAILER, data, key, "trailer", _TRAILER_MAGIC)
    trailer = Trailer(_kind(fields[2], key), fields[4], fields[5], fields[6], fields[7])
    if trailer.root_position < HEADER_BYTES:
        raise DamagedObjectError(key, "trailer: the root does not fit the object")
    return trailer


def encode_block_page(entries: Sequence[BlockEntry]) -> bytes:
    """Return a page of at most `BLOCKS_PER_PAGE` blocks."""
    return b"".join([_BLOCK.pack(*entry) for entry in entries])


def decode_block_page(data: bytes, expected: int, key: str) -> tuple[BlockEntry, ...]:
    """Return the blocks of a page; `expected` is its checksum.

    Raises:
        DamagedObjectError: the bytes are others.
    """
    check(data, expected, key, "block page")
    return tuple(map(BlockEntry._make, _BLOCK.iter_unpack(data)))


def encode_root(root: Root) -> bytes:
    """Return the bytes of a root."""
    home = root.home.encode()
    return b"".join(
        (
            _ROOT.pack(
                root.block_count,
                len(root.pages),
                len(root.search_pages),
                root.queue_count,
                root.message_count,
                root.bodies_bytes,
                root.min_time_ms,
                root.max_time_ms,
                len(home),
            ),
            home,
            *[_PAGE_FENCE.pack(*fence) for fence in root.pages],
            *[_SEARCH_FENCE.pack(*fence) for fence in root.search_pages],
        )
    )


def decode_root(data: bytes, expected: int, key: str) -> Root:
    """Return a root; `expected` is its checksum.

    Raises:
        DamagedObjectError: the bytes are others, or do not fit together.
    """
    check(data, expected, key, "root")
    try:
        blocks, pages, search_pages, queues, messages, bodies, min_time, max_time, home_bytes = (
            _ROOT.unpack_from(data)
        )
        at = _ROOT.size + home_bytes
        end_of_pages = at + pages * _PAGE_FENCE.size
        end = end_of_pages + search_pages * _SEARCH_FENCE.size
        if end != len(data):
            raise DamagedObjectError(key, f"root has {len(data)} bytes, not {end}")
        return Root(
            data[_ROOT.size : at].decode(),
            blocks,
            queues,
            messages,
            bodies,
            min_time,
            max_time,
            tuple(map(PageFence._make, _PAGE_FENCE.iter_unpack(data[at:end_of_pages]))),
            tuple(map(SearchFence._make, _SEARCH_FENCE.iter_unpack(data[end_of_pages:]))),
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise DamagedObjectError(key, f"root: {error}") from error


def check(data: bytes | memoryview, expected: int, key: str, what: str) -> None:
    """Compare bytes with their checksum.

    Raises:
        DamagedObjectError: it is another one.
    """
    found = checksum(data)
    if found != expected:
        raise DamagedObjectError(
            key, f"{what}: checksum {found:08x} of {len(data)} bytes, {expected:08x} expected"
        )


def _kind(value: int, key: str) -> ObjectKind:
    try:
        return ObjectKind(value)
    except ValueError:
        raise DamagedObjectError(key, f"unknown kind {value}") from None


def _sealed(data: bytes) -> bytes:
    return data + _CHECKSUM.pack(checksum(data))


def _unsealed(
    layout: struct.Struct, data: bytes, key: str, what: str, magic: bytes
) -> tuple[int, ...]:
    if len(data) != layout.size + _CHECKSUM.size:
        raise DamagedObjectError(key, f"{what}: {len(data)} bytes")
    (expected,) = _CHECKSUM.unpack_from(data, layout.size)
    check(data[: layout.size], expected, key, what)
    fields = layout.unpack_from(data)
    if fields[0] != magic:
        raise DamagedObjectError(key, f"{what}: the bytes are something else")
    if fields[1] != FORMAT_VERSION:
        raise DamagedObjectError(key, f"{what}: version {fields[1]}, this one reads 1")
    return fields
