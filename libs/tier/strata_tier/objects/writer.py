"""Writes one object: it takes the bodies of planned blocks and returns bytes in order. Pure.

A writer compares every message with its checksum, unless its caller has done so, so that damage on
a disk is never uploaded under a fresh checksum. It holds one block and the index, never the object.
The same plan and bodies give the same bytes, so an upload can start again (`ports.PartSource`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from strata_mq.layout import pack_longs
from strata_tier.base.errors import TierError
from strata_tier.objects.blocks import SearchTerms, damaged_message, encode_columns, id_hashes
from strata_tier.objects.layout import (
    BLOCKS_PER_PAGE,
    ENTRIES_PER_SEARCH_PAGE,
    TRAILER_BYTES,
    BlockEntry,
    BlockFlag,
    ObjectHeader,
    PageFence,
    Root,
    SearchFence,
    Trailer,
    checksum,
    encode_block_page,
    encode_header,
    encode_root,
    encode_trailer,
    search_entries,
    tag_bits,
)
from strata_tier.objects.plan import ObjectPlan
from strata_tier.objects.state import ObjectRef

Item = TypeVar("Item")


class BlockData(NamedTuple):
    """Facts of a block that the plan does not know.

    Attributes:
        bodies: one after another.
        terms: what the messages are found by.
        is_proven: whoever gives them has compared them with checksums that the plan's agree with.
    """

    bodies: bytes
    terms: SearchTerms
    is_proven: bool = False


class BodyDamagedError(TierError):
    """A body is not what its CQ row says; the object cannot be written.

    Attributes:
        topic_id, queue, offset: the message.
    """

    def __init__(self, topic_id: int, queue: int, offset: int) -> None:
        super().__init__(f"topic {topic_id} queue {queue} offset {offset} is damaged: not uploaded")
        self.topic_id = topic_id
        self.queue = queue
        self.offset = offset


class ObjectWriter:
    """Writes the object of a plan: `begin`, `add` per block in order, `finish`."""

    __slots__ = ("_entries", "_plan", "_position", "_ref", "_search")

    def __init__(self, plan: ObjectPlan) -> None:
        self._plan = plan
        self._position = 0
        self._entries: list[BlockEntry] = []
        # None is there twice: each names its block.
        self._search = array("Q")
        self._ref: ObjectRef | None = None

    @property
    def ref(self) -> ObjectRef:
        """Return the fields of the object's commit; known once it is finished."""
        assert self._ref is not None, "the object is not finished"
        return self._ref

    def begin(self) -> bytes:
        """Return the first bytes."""
        plan = self._plan
        data = encode_header(ObjectHeader(plan.kind, plan.author.raft_group, plan.object_id))
        self._position = len(data)
        return data

    def add(self, data: BlockData) -> tuple[bytes, bytes]:
        """Return the bytes of the next planned block: columns and bodies.

        Raises:
            BodyDamagedError: a body does not match its checksum, or is of another length.
        """
        number = len(self._entries)
        block = self._plan.blocks[number]
        run = block.joined()
        damaged = None
        if not data.is_proven:
            damaged = damaged_message(run.lengths, run.checksums, data.bodies)
        if damaged is not None or len(data.bodies) != block.bodies_bytes:
            offset = run.offsets[damaged or 0] if run.offsets else block.base_offset
            raise BodyDamagedError(block.topic_id, block.queue, offset)
        assert len(data.terms.key_counts) == len(run.lengths), "terms of other messages"
        is_dense = len(run.lengths) == block.end_offset - block.base_offset
        entry = BlockEntry(
            block.topic_id,
            block.queue,
            block.base_offset,
            block.end_offset,
            len(run.lengths),
            0 if is_dense else BlockFlag.SPARSE,
            self._position,
            0,
            0,
            len(data.bodies),
            checksum(data.bodies),
            run.times_ms[0] if run.times_ms else 0,
            run.times_ms[-1] if run.times_ms else 0,
            _tags(run.tag_hashes),
        )
        columns = encode_columns(run, data.terms, entry)
        self._entries.append(
            entry._replace(columns_bytes=len(columns), columns_checksum=checksum(columns))
        )
        self._position += len(columns) + len(data.bodies)
        hashes = [*id_hashes(data.terms.ids), *data.terms.key_hashes]
        self._search.extend(search_entries(hashes, number))
        return columns, data.bodies

    def finish(self) -> list[bytes]:
        """Return the last bytes: index pages, root and trailer."""
        plan = self._plan
        assert len(self._entries) == len(plan.blocks), "blocks are missing"
        search_pages, search_fences = self._search_pages()
        block_pages, page_fences = self._block_pages()
        timed = [each for each in plan.ranges if each.message_count]
        root = encode_root(
            Root(
                plan.author.home,
                len(self._entries),
                len(plan.ranges),
                sum(each.message_count for each in plan.ranges),
                plan.bodies_bytes,
                min((each.min_time_ms for each in timed), default=0),
                max((each.max_time_ms for each in timed), default=0),
                page_fences,
                search_fences,
            )
        )
        length = self._position + len(root) + TRAILER_BYTES
        root_checksum = checksum(root)
        trailer = Trailer(plan.kind, plan.object_id, length, len(root), root_checksum)
        self._ref = ObjectRef(
            plan.object_id,
            plan.kind,
            plan.key,
            plan.author.space,
            length,
            root_checksum,
            plan.author.raft_group,
        )
        return [*search_pages, *block_pages, root, encode_trailer(trailer)]

    def _search_pages(self) -> tuple[list[bytes], list[SearchFence]]:
        entries = array("Q", sorted(self._search))
        pages: list[bytes] = []
        fences: list[SearchFence] = []
        for of_page in _cut(entries, ENTRIES_PER_SEARCH_PAGE):
            page = pack_longs(of_page)
            fences.append(SearchFence(self._place(page), len(page), checksum(page), of_page[0]))
            pages.append(page)
        return pages, fences

    def _block_pages(self) -> tuple[list[bytes], list[PageFence]]:
        pages: list[bytes] = []
        fences: list[PageFence] = []
        for of_page in _cut(self._entries, BLOCKS_PER_PAGE):
            page = encode_block_page(of_page)
            place = (self._place(page), len(page), checksum(page))
            fences.append(PageFence(*place, *of_page[0][:3]))
            pages.append(page)
        return pages, fences

    def _place(self, data: bytes) -> int:
        position = self._position
        self._position += len(data)
        return position


def _tags(tag_hashes: Sequence[int]) -> int:
    bits = 0
    for tag_hash in set(tag_hashes):
        bits |= tag_bits(tag_hash)
    return bits


def _cut(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[first : first + size] for first in range(0, len(items), size))
