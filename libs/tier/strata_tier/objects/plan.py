"""Assignment of messages to the blocks of an object, and the object's name. Pure.

The plan uses columns alone, before a body is read. The name is a hash of the object's content, so
two leaders that upload the same messages write the same bytes under the same name, and other bytes
have another name (rule 28).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple

from strata_mq.layout import pack_longs, pack_words
from strata_tier.objects import names
from strata_tier.objects.blocks import MessageRun
from strata_tier.objects.layout import FORMAT_VERSION, ObjectKind
from strata_tier.objects.state import TieredRange

_MAX_DELTA = (1 << 32) - 1
_SHAPE = struct.Struct(">HHIQ")
_SALT = struct.Struct(">Q")
_QUEUE = struct.Struct(">IIQQ")
_BLOCK_SHAPE = struct.Struct(">QQI")


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of cutting objects.

    Attributes:
        block_bytes: bodies of a block, unless it is one message: the unit of a read.
        salt: goes into the name, so that nobody else ever writes an object of this name; 0: the
            name is that of the contents alone.
    """

    block_bytes: int = 1024 * 1024
    salt: int = 0


@dataclass(frozen=True, slots=True)
class Author:
    """Author of an object, and its place."""

    home: str
    raft_group: int
    space: str = names.DEFAULT_SPACE


class QueueRuns(NamedTuple):
    """The messages of one queue that are to be uploaded.

    Offsets `first_offset` to `end_offset - 1`; those in no run hold nothing.
    """

    topic_id: int
    queue: int
    first_offset: int
    end_offset: int
    runs: Sequence[MessageRun]


class PlannedBlock(NamedTuple):
    """A block to be written: its messages, as pieces of the runs they came in."""

    topic_id: int
    queue: int
    base_offset: int
    end_offset: int
    pieces: Sequence[MessageRun]
    bodies_bytes: int

    @property
    def message_count(self) -> int:
        """Messages in it."""
        return sum([len(piece.lengths) for piece in self.pieces])

    def joined(self) -> MessageRun:
        """Return the pieces as one run, without a source."""
        if len(self.pieces) == 1:
            return self.pieces[0]._replace(source=None)
        columns: list[array[int]] = [array(kind) for kind in "QQIIQQ"]
        for piece in self.pieces:
            for column, more in zip(columns, piece[:-1], strict=True):
                column.extend(more)
        return MessageRun._make((*columns, None))


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """An object to be written.

    Attributes:
        author: who writes it.
        kind: what it holds.
        object_id: hash of its contents.
        key: its name in the store of its space.
        blocks: in the order in which they are written.
        ranges: what a commit of it says, one per queue, in order.
        bodies_bytes: length of all messages.
    """

    author: Author
    kind: ObjectKind
    object_id: int
    key: str
    blocks: Sequence[PlannedBlock]
    ranges: Sequence[TieredRange]
    bodies_bytes: int


def plan_object(
    author: Author,
    queues: Iterable[QueueRuns],
    options: PlanOptions,
    kind: ObjectKind = ObjectKind.STREAM_SET,
) -> ObjectPlan:
    """Cut the messages of queues into blocks and name the object.

    Args:
        author: who writes it.
        queues: in any order, each once; at least one.
        options: how to cut.
        kind: `ONE_QUEUE` takes exactly one queue.
    """
    ordered = sorted(queues, key=lambda queue: queue[:2])
    assert ordered, "an object without messages"
    assert len({queue[:2] for queue in ordered}) == len(ordered), "a queue was named twice"
    assert kind is ObjectKind.STREAM_SET or len(ordered) == 1
    blocks_of = [list(_blocks(queue, options.block_bytes)) for queue in ordered]
    object_id = _object_id(author, kind, options, ordered, blocks_of)
    blocks: list[PlannedBlock] = []
    ranges: list[TieredRange] = []
    for queue, of_queue in zip(ordered, blocks_of, strict=True):
        ranges.append(_range(queue, of_queue, len(blocks), object_id))
        blocks += of_queue
    first = ordered[0]
    if kind is ObjectKind.STREAM_SET:
        first_time_ms = min((each.min_time_ms for each in ranges if each.message_count), default=0)
        key = names.set_key(author.home, author.raft_group, first_time_ms, object_id)
    else:
        key = names.queue_object_key(author.home, author.raft_group, first[:3], object_id)
    bodies_bytes = sum(each.bodies_bytes for each in ranges)
    return ObjectPlan(author, kind, object_id, key, blocks, ranges, bodies_bytes)


def _blocks(queue: QueueRuns, block_bytes: int) -> Iterator[PlannedBlock]:
    """Cut a queue so that blocks cover all its offsets, also if it has no message at all."""
    topic_id, number, base, end_offset, runs = queue
    pieces: list[MessageRun] = []
    size = 0
    for piece in _pieces(runs, block_bytes):
        first = piece.offsets[0]
        piece_bytes = sum(piece.lengths)
        if pieces and (
            size + piece_bytes > block_bytes
            or piece.offsets[-1] - base > _MAX_DELTA
            or piece.times_ms[-1] - pieces[0].times_ms[0] > _MAX_DELTA
        ):
            yield PlannedBlock(topic_id, number, base, first, pieces, size)
            base, pieces, size = first, [], 0
        elif not pieces and first - base > _MAX_DELTA:
            # A block of its own for offsets that hold nothing.
            yield PlannedBlock(topic_id, number, base, first, [], 0)
            base = first
        pieces.append(piece)
        size += piece_bytes
    yield PlannedBlock(topic_id, number, base, end_offset, pieces, size)


def _pieces(runs: Iterable[MessageRun], block_bytes: int) -> Iterator[MessageRun]:
    """Cut runs that are larger than a block, or span more than a block's columns can say."""
    for run in runs:
        ends = list(accumulate(run.lengths))
        first = 0
        while first < len(ends):
            before = ends[first - 1] if first else 0
            end = max(bisect_right(ends, before + block_bytes), first + 1)
            end = min(
                end,
                bisect_right(run.offsets, run.offsets[first] + _MAX_DELTA),
                bisect_right(run.times_ms, run.times_ms[first] + _MAX_DELTA),
            )
            yield run if end - first == len(ends) else run.part(first, end)
            first = end


def _range(
    queue: QueueRuns, blocks: Sequence[PlannedBlock], first_block: int, object_id: int
) -> TieredRange:
    pieces = [piece for block in blocks for piece in block.pieces]
    return TieredRange(
        queue.topic_id,
        queue.queue,
        queue.first_offset,
        queue.end_offset,
        first_block,
        len(blocks),
        sum(len(piece.lengths) for piece in pieces),
        sum(block.bodies_bytes for block in blocks),
        pieces[0].times_ms[0] if pieces else 0,
        pieces[-1].times_ms[-1] if pieces else 0,
        object_id,
    )


def _object_id(
    author: Author,
    kind: ObjectKind,
    options: PlanOptions,
    queues: Sequence[QueueRuns],
    blocks_of: Sequence[Sequence[PlannedBlock]],
) -> int:
    digest = blake2b(digest_size=8)
    digest.update(_SHAPE.pack(FORMAT_VERSION, kind, author.raft_group, options.block_bytes))
    # Neither name holds the byte that ends it.
    digest.update(f"{author.home}\n{author.space}\n".encode())
    if options.salt:
        digest.update(_SALT.pack(options.salt))
    for queue, blocks in zip(queues, blocks_of, strict=True):
        digest.update(_QUEUE.pack(*queue[:4]))
        for block in blocks:
            head = (block.base_offset, block.end_offset, block.message_count)
            digest.update(_BLOCK_SHAPE.pack(*head))
            for piece in block.pieces:
                digest.update(pack_longs(piece.offsets))
                digest.update(pack_longs(piece.times_ms))
                digest.update(pack_words(piece.lengths))
                digest.update(pack_words(piece.checksums))
                digest.update(pack_longs(piece.tag_hashes))
                digest.update(pack_longs(piece.group_hashes))
    return int.from_bytes(digest.digest())
