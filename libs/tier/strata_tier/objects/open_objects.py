"""Indexes of objects: one or two ranged reads open an object; its pages are read on demand.

Everything is checked on the way down: the trailer against the row in the raft state, the root
against the trailer, a page against the root, a block against its page. So bytes of another or older
object are never mistaken for bytes of this object.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from strata_mq.layout import unpack_longs
from strata_tier.base.errors import DamagedObjectError
from strata_tier.objects.blocks import Block, BlockColumns, decode_block
from strata_tier.objects.layout import (
    BLOCKS_PER_PAGE,
    HEADER_BYTES,
    TRAILER_BYTES,
    BlockEntry,
    PageFence,
    Root,
    check,
    decode_block_page,
    decode_root,
    decode_trailer,
    search_entry,
)
from strata_tier.objects.state import ObjectRef, TieredRange
from strata_tier.store.ports import ObjectStore, ObjectTooShortError

_FENCE_BYTES = 120
"""Memory of one fence, about."""


class OpenObject:
    """The index of one object.

    Attributes:
        ref: which object.
        root: its contents at a glance.
    """

    def __init__(self, store: ObjectStore, ref: ObjectRef, root: Root, *, tail: bytes) -> None:
        self._store = store
        self.ref = ref
        self.root = root
        # The part of the object's end that is in memory, so that pages in it cost no request.
        self._tail = tail
        self._pages: dict[int, tuple[BlockEntry, ...]] = {}

    @property
    def size_bytes(self) -> int:
        """Memory it takes, about; it grows with the pages that are read."""
        fences = len(self.root.pages) + len(self.root.search_pages)
        pages = sum(map(len, self._pages.values()))
        return len(self._tail) + _FENCE_BYTES * fences + 400 * pages

    @classmethod
    async def open(cls, store: ObjectStore, ref: ObjectRef, tail_bytes: int) -> OpenObject:
        """Read an object's root.

        Raises:
            StoreError: the store cannot give the bytes.
            DamagedObjectError: they are not those of the object that was committed.
        """
        tail = await _read_tail(store, ref, tail_bytes)
        position, length = _root_place(ref, tail)
        in_tail = position - (ref.length - len(tail))
        if in_tail >= 0:
            data = tail[in_tail:-TRAILER_BYTES]
        else:
            data = await store.get(ref.key, position, length)
        return cls(store, ref, decode_root(data, ref.root_checksum, ref.key), tail=tail)

    @classmethod
    def of_tail(cls, store: ObjectStore, ref: ObjectRef, tail: bytes) -> OpenObject | None:
        """Return the index of an object whose last bytes are known; None: its root is not in them.

        Raises:
            DamagedObjectError: they are not those of the object that was committed.
        """
        position, _ = _root_place(ref, tail)
        in_tail = position - (ref.length - len(tail))
        if in_tail < 0:
            return None
        root = decode_root(tail[in_tail:-TRAILER_BYTES], ref.root_checksum, ref.key)
        return cls(store, ref, root, tail=tail)

    async def find(self, tiered: TieredRange, offset: int) -> int:
        """Return the number of the block of a range that holds an offset.

        Raises:
            DamagedObjectError: the object's index does not cover the offset.
        """
        first, end = tiered.first_block, tiered.first_block + tiered.block_count
        fences = self.root.pages
        first_page, end_page = first // BLOCKS_PER_PAGE, -(-end // BLOCKS_PER_PAGE)
        wanted = (tiered.topic_id, tiered.queue, offset)
        page = bisect_right(fences, wanted, first_page + 1, end_page, key=_first_of)
        entries = await self._page(page - 1)
        at = bisect_right(entries, wanted, key=lambda entry: entry[:3]) - 1
        number = (page - 1) * BLOCKS_PER_PAGE + at
        if at < 0 or not first <= number < end or not _holds(entries[at], wanted):
            raise DamagedObjectError(self.ref.key, f"no block holds {wanted} of its range")
        return number

    async def entry(self, number: int) -> BlockEntry:
        """Return one block's entry.

        Raises:
            DamagedObjectError: there is none, or the page is damaged.
        """
        if not 0 <= number < self.root.block_count:
            raise DamagedObjectError(self.ref.key, f"it has no block {number}")
        page = await self._page(number // BLOCKS_PER_PAGE)
        return page[number % BLOCKS_PER_PAGE]

    async def entries(self, first: int, count: int) -> list[BlockEntry]:
        """Return the entries of blocks side by side."""
        return [await self.entry(number) for number in range(first, first + count)]

    async def search(self, hash_value: int) -> list[int]:
        """Return numbers of blocks that may hold a 64-bit hash of a key or id."""
        first = search_entry(hash_value, 0)
        last = first | (1 << 32) - 1
        fences = self.root.search_pages
        at = max(bisect_left(fences, first, key=lambda fence: fence.first_entry) - 1, 0)
        found: list[int] = []
        for fence in fences[at:]:
            if fence.first_entry > last:
                break
            data = await self._read(fence.position, fence.length)
            check(data, fence.checksum, self.ref.key, f"search page at {fence.position}")
            entries = unpack_longs(data)
            begin, end = bisect_left(entries, first), bisect_right(entries, last)
            found += [entry & (1 << 32) - 1 for entry in entries[begin:end]]
        return found

    async def blocks(self, entries: Sequence[BlockEntry]) -> list[Block]:
        """Read blocks that lie side by side with one request.

        Raises:
            StoreError, DamagedObjectError: as for `open`.
        """
        first, last = entries[0], entries[-1]
        data = await self._store.get(
            self.ref.key, first.position, last.position + last.length - first.position
        )
        # Checksums of megabytes: not on the event loop (rule 31).
        return await asyncio.to_thread(_decoded, entries, data, self.ref.key)

    async def columns(self, entry: BlockEntry) -> BlockColumns:
        """Read a block's columns alone."""
        data = await self._store.get(self.ref.key, entry.position, entry.columns_bytes)
        return BlockColumns(entry, data, self.ref.key)

    async def messages(self, columns: BlockColumns, first: int, end: int) -> list[bytes]:
        """Read messages `first` to `end - 1` of a block alone, each compared with its checksum."""
        starts = columns.starts
        base = columns.entry.bodies_position
        data = await self._store.get(
            self.ref.key, base + starts[first], starts[end] - starts[first]
        )
        messages: list[bytes] = []
        for ordinal in range(first, end):
            at = starts[ordinal] - starts[first]
            message = data[at : at + columns.lengths[ordinal]]
            what = f"message of offset {columns.offsets[ordinal]}"
            check(message, columns.checksums[ordinal], self.ref.key, what)
            messages.append(message)
        return messages

    async def _page(self, number: int) -> tuple[BlockEntry, ...]:
        page = self._pages.get(number)
        if page is None:
            fence = self.root.pages[number]
            data = await self._read(fence.position, fence.length)
            page = self._pages[number] = decode_block_page(data, fence.checksum, self.ref.key)
        return page

    async def _read(self, position: int, length: int) -> bytes:
        in_tail = position - (self.ref.length - len(self._tail))
        if in_tail >= 0:
            return self._tail[in_tail : in_tail + length]
        return await self._store.get(self.ref.key, position, length)


def _decoded(entries: Sequence[BlockEntry], data: bytes, key: str) -> list[Block]:
    """Return the blocks that some bytes are, the first entry's at their start."""
    first = entries[0].position
    return [decode_block(entry, data, entry.position - first, key) for entry in entries]


def _root_place(ref: ObjectRef, tail: bytes) -> tuple[int, int]:
    """Return (position, length) of the root as the trailer says, which must be the committed one.

    Raises:
        DamagedObjectError: it is another one.
    """
    trailer = decode_trailer(tail[-TRAILER_BYTES:], ref.key)
    if (trailer.object_id, trailer.object_length, trailer.kind) != (
        ref.object_id,
        ref.length,
        ref.kind,
    ):
        raise DamagedObjectError(ref.key, "the trailer is that of another object")
    if trailer.root_checksum != ref.root_checksum:
        raise DamagedObjectError(ref.key, "the root is not the one that was committed")
    return trailer.root_position, trailer.root_length


async def _read_tail(store: ObjectStore, ref: ObjectRef, tail_bytes: int) -> bytes:
    if ref.length < HEADER_BYTES + TRAILER_BYTES:
        raise DamagedObjectError(ref.key, f"{ref.length} bytes are no object")
    length = min(max(tail_bytes, TRAILER_BYTES), ref.length)
    try:
        return await store.get(ref.key, ref.length - length, length)
    except ObjectTooShortError as error:
        raise DamagedObjectError(ref.key, f"it is shorter than {ref.length} bytes") from error


def _first_of(fence: PageFence) -> tuple[int, int, int]:
    return fence.first_topic_id, fence.first_queue, fence.first_base_offset


def _holds(entry: BlockEntry, wanted: tuple[int, int, int]) -> bool:
    topic_id, queue, offset = wanted
    return entry[:2] == (topic_id, queue) and entry.base_offset <= offset < entry.end_offset
