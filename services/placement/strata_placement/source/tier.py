"""Reads a topic straight from the tier: its manifests and objects, no broker and no storage node.

Messages that are not uploaded yet are missing here; the newest manifest of each raft group lists
the uploaded ones. A queue is read up to its first hole only: a later epoch may be uploaded before
the rest of an earlier one, and a stream that went on behind the hole would never come back to it.

The driver plans (`TierTopic`), tasks read what the plan names (`scan`): no task lists the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from strata.meta.v1 import meta_pb2
from strata_mq.filters import TagFilter, parse_tag_expression
from strata_placement.source.options import SourceOptions
from strata_placement.source.plan import QueueSpan, StreamOffset, ends_of
from strata_placement.source.runs import DataLossError, SourceError, StoredRun
from strata_runtime.clock import SystemClock
from strata_runtime.errors import StrataError
from strata_runtime.metrics import Metrics
from strata_state.metadata_keys import topic_key
from strata_tier import upkeep
from strata_tier.objects import Block, BlockEntry, ObjectRef, Stores, TieredRange, pick
from strata_tier.ranges import Manifest
from strata_tier.reads import BlockSource, PlacedBlock, TierReadOptions
from strata_tier.store import ObjectStore, OpenWith, open_store

# Limit of one request; a task has one in hand and one on its way.
_REQUEST_BYTES = 8 * 1024 * 1024
_READ_OPTIONS = TierReadOptions(
    request_bytes=_REQUEST_BYTES, cache_bytes=2 * _REQUEST_BYTES, flights_max=64
)

Result = TypeVar("Result")
OpenStore = Callable[[str], Coroutine[Any, Any, ObjectStore]]


class TierPiece(NamedTuple):
    """A part of a queue, and the object that holds it."""

    ref: ObjectRef
    tiered: TieredRange


class TierTopic:
    """One topic, as a bucket has it; a context manager, as `BrokerClient` is.

    Args:
        options: which topic, which queues; whether holes are passed over.
        pieces: of all its queues, in any order.
    """

    def __init__(self, options: SourceOptions, pieces: Iterable[TierPiece]) -> None:
        self._options = options
        self._of_queue: dict[int, list[TierPiece]] = {}
        for piece in sorted(pieces, key=lambda piece: piece.tiered[:3]):
            queue = piece.tiered.queue
            if options.queues is None or queue in options.queues:
                known = self._of_queue.setdefault(queue, [])
                if not known or known[-1].tiered.end_offset == piece.tiered.first_offset:
                    known.append(piece)

    @classmethod
    def open(cls, options: SourceOptions) -> TierTopic:
        """Read the newest manifests.

        Raises:
            SourceError: the store cannot be read, or knows no such topic.
        """
        return cls(options, _run(_pieces_of(options)))

    def __enter__(self) -> TierTopic:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open."""

    def spans(self, begin_ms: int | None = None, end_ms: int | None = None) -> list[QueueSpan]:
        """Return what may have been stored between two times; `scan` looks at each message."""
        spans: list[QueueSpan] = []
        for queue, pieces in self._of_queue.items():
            ranges = [piece.tiered for piece in pieces]
            wanted = [each for each in ranges if _overlaps(each, begin_ms, end_ms)]
            end = ranges[-1].end_offset
            first, last = (wanted[0].first_offset, wanted[-1].end_offset) if wanted else (end, end)
            spans.append(QueueSpan(queue, first, last))
        return spans

    def ends(self, start: StreamOffset) -> dict[str, int]:
        """Return the end of each queue, as far as it is uploaded.

        An end before `start`, up to which a query has read, is waited for: the newest manifest was
        not there, or could not be read.
        """
        return ends_of(self.spans())

    def pieces(self, span: QueueSpan) -> tuple[TierPiece, ...]:
        """Return what a task reads for a span.

        Raises:
            DataLossError: a part of it is not in the tier any more, and options do not allow that.
        """
        found = [
            piece
            for piece in self._of_queue.get(span.queue, ())
            if piece.tiered.first_offset < span.end and piece.tiered.end_offset > span.first
        ]
        begins = found[0].tiered.first_offset if found else span.end
        if begins > span.first and self._options.fail_on_data_loss:
            raise DataLossError(
                f"queue {span.queue} of topic {self._options.topic}: offsets {span.first} to "
                f"{begins - 1} are not in the tier any more; set failOnDataLoss to false to go on "
                "behind them"
            )
        return tuple(found)


def scan(
    options: SourceOptions,
    span: QueueSpan,
    pieces: Sequence[TierPiece],
    open_url: OpenStore = open_store,
) -> Iterator[StoredRun]:
    """Give the messages of a span, in order, a block at a time; the next request is on its way.

    Args:
        options: which store, which tag, which times.
        span: what is wanted of the pieces.
        pieces: see `TierTopic.pieces`.
        open_url: opens the store.

    Raises:
        SourceError: the store cannot give the bytes, or they are damaged.
    """
    wanted = parse_tag_expression(options.tag)
    reads = _Reads(options, span, pieces, tag_hashes=wanted.tag_hashes, open_url=open_url)
    runner = asyncio.Runner()
    with ThreadPoolExecutor(1, "strata-tier") as thread:
        try:
            coming = thread.submit(runner.run, reads.next())
            while blocks := _outcome(coming):
                coming = thread.submit(runner.run, reads.next())
                for block in blocks:
                    run = _run_of(block, span, options, wanted)
                    if run.offsets:
                        yield run
        finally:
            thread.submit(runner.run, reads.close()).result()
            thread.submit(runner.close).result()


class _Reads:
    """The requests of one task, one after another."""

    def __init__(
        self,
        options: SourceOptions,
        span: QueueSpan,
        pieces: Sequence[TierPiece],
        *,
        tag_hashes: frozenset[int] | None,
        open_url: OpenStore,
    ) -> None:
        self._options = options
        self._span = span
        self._pieces = pieces
        self._tag_hashes = tag_hashes
        self._open_url = open_url
        self._store: ObjectStore | None = None
        self._source: BlockSource | None = None
        self._groups: AsyncIterator[list[PlacedBlock]] | None = None

    async def next(self) -> list[Block]:
        """Return the blocks of the next request; none: that was all."""
        if self._source is None:
            self._store = await self._open_url(self._options.tier)
            self._source = BlockSource(
                Stores(self._store),
                _READ_OPTIONS,
                Metrics.disabled(),
                clock=SystemClock(),
                on_wasted=_ignore,
            )
            self._groups = self._grouped(self._source)
        assert self._groups is not None, "set with the source"
        group = await anext(self._groups, None)
        return await self._source.blocks(group) if group else []

    async def close(self) -> None:
        """Let go of the store."""
        if self._source is not None:
            await self._source.close()
        if self._store is not None:
            await self._store.close()

    async def _grouped(self, source: BlockSource) -> AsyncIterator[list[PlacedBlock]]:
        """Yield the blocks that may hold something wanted, as many as one request may read."""
        group: list[PlacedBlock] = []
        size_bytes = 0
        for ref, tiered in self._pieces:
            if not self._is_in_time(tiered):
                continue
            opened = await source.open(ref, tiered.topic_id)
            for number in range(tiered.first_block, tiered.first_block + tiered.block_count):
                entry = await opened.entry(number)
                if not self._wants(entry):
                    continue
                if group and size_bytes + entry.length > _REQUEST_BYTES:
                    yield group
                    group, size_bytes = [], 0
                group.append(PlacedBlock(opened, number, entry))
                size_bytes += entry.length
        if group:
            yield group

    def _wants(self, entry: BlockEntry) -> bool:
        if entry.base_offset >= self._span.end or entry.end_offset <= self._span.first:
            return False
        if not entry.message_count or not self._is_in_time(entry):
            return False
        return self._tag_hashes is None or entry.may_hold_tag(self._tag_hashes)

    def _is_in_time(self, part: TieredRange | BlockEntry) -> bool:
        return _overlaps(part, self._options.begin_ms, self._options.end_ms)


def _run_of(block: Block, span: QueueSpan, options: SourceOptions, wanted: TagFilter) -> StoredRun:
    """Return what is wanted of a block."""
    columns = block.columns
    ordinals: Sequence[int] = range(columns.ordinal_at(span.first), columns.ordinal_at(span.end))
    begin_ms, end_ms = options.begin_ms or 0, options.end_ms
    entry = columns.entry
    if entry.min_time_ms < begin_ms or (end_ms is not None and entry.max_time_ms >= end_ms):
        last_ms = entry.max_time_ms if end_ms is None else end_ms - 1
        times_ms = columns.times_ms
        ordinals = [at for at in ordinals if begin_ms <= times_ms[at] <= last_ms]
    messages = block.messages(ordinals)
    if wanted.tag_hashes is not None:
        # Not by the column of hashes alone: two tags may have one hash.
        kept = [place for place, message in enumerate(messages) if wanted.matches(message)]
        ordinals = [ordinals[place] for place in kept]
        messages = [messages[place] for place in kept]
    offsets, times = pick(columns.offsets, ordinals), pick(columns.times_ms, ordinals)
    return StoredRun(span.queue, offsets, times, messages)


async def _pieces_of(options: SourceOptions) -> list[TierPiece]:
    """Return where the newest manifests say that a topic is."""
    store = await open_store(options.tier, OpenWith())
    try:
        home = await upkeep.one_home(store, options.tier_home)
        topic_id = await _topic_id(store, home, options)
        pieces: list[TierPiece] = []
        for names in (await upkeep.manifests_in(store, home)).values():
            found = await upkeep.newest_manifest(store, home, names)
            pieces += _of_manifest(found.manifest, topic_id)
        return pieces
    finally:
        await store.close()


async def _topic_id(store: ObjectStore, home: str, options: SourceOptions) -> int:
    _, metadata, _ = await upkeep.newest_metadata(store, home)
    wanted = topic_key(options.namespace, options.topic)
    for key, value in metadata.rows if metadata is not None else ():
        if key == wanted:
            return meta_pb2.Topic.FromString(value).topic_id
    raise SourceError(f"{store.name} knows no topic {options.topic} of {home}")


def _of_manifest(manifest: Manifest, topic_id: int) -> list[TierPiece]:
    refs = {held.ref.object_id: held.ref for held in manifest.objects}
    return [
        TierPiece(refs[tiered.object_id], tiered)
        for queue in manifest.queues
        if queue.key[0] == topic_id
        for tiered in queue.ranges
    ]


def _overlaps(part: TieredRange | BlockEntry, begin_ms: int | None, end_ms: int | None) -> bool:
    """Whether something of it may have been stored between two times."""
    if begin_ms is not None and part.max_time_ms < begin_ms:
        return False
    return end_ms is None or part.min_time_ms < end_ms


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    try:
        return asyncio.run(work)
    except StrataError as error:
        raise SourceError(str(error)) from error


def _outcome(coming: Future[Result]) -> Result:
    try:
        return coming.result()
    except StrataError as error:
        raise SourceError(str(error)) from error


def _ignore(_: object) -> None:
    """Nothing is read ahead of readers here."""
