"""Opened objects and blocks; concurrent requests for one of them share one read.

A read under way has no owner: further callers join it, and a caller that gives up does not end it
for other callers. Bytes that do not match their checksum are read again before they count as
damaged, since a store may send wrong bytes once; they are never served.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from strata_runtime.clock import Clock
from strata_runtime.errors import StrataError
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks, TooManyTasksError
from strata_tier.base.errors import DamagedObjectError, TierError
from strata_tier.base.metrics import READ_METRICS
from strata_tier.objects.blocks import Block, BlockColumns
from strata_tier.objects.costs import TopicCosts
from strata_tier.objects.layout import BlockEntry
from strata_tier.objects.open_objects import OpenObject
from strata_tier.objects.spaces import Stores
from strata_tier.objects.state import ObjectRef
from strata_tier.reads.block_cache import BlockCache, BlockKey
from strata_tier.reads.read_ahead import ReaderKey
from strata_tier.reads.read_options import TierReadOptions

Result = TypeVar("Result")
Landed = dict[BlockKey, Block]


class PlacedBlock(NamedTuple):
    """A block and where it is."""

    opened: OpenObject
    number: int
    entry: BlockEntry

    @property
    def key(self) -> BlockKey:
        """Its name in the cache."""
        return BlockKey(self.opened.ref.object_id, self.number)


class BusyError(TierError):
    """As many reads are under way as the limit allows."""


class BlockSource:
    """Reads indexes, blocks and pieces of blocks.

    Args:
        stores: the stores of all spaces.
        options: limits.
        metrics: where it counts.
        clock: for the time to live of what is cached.
        on_wasted: told for whom a block was read ahead that nobody used.
        costs: told of each request; None: nobody counts by topic.
    """

    def __init__(
        self,
        stores: Stores,
        options: TierReadOptions,
        metrics: Metrics,
        *,
        clock: Clock,
        on_wasted: Callable[[ReaderKey], None],
        costs: TopicCosts | None = None,
    ) -> None:
        self._stores = stores
        self._costs = costs
        self._options = options
        self._on_wasted = on_wasted
        self._tasks = Tasks("tier-read", _ignore, max_tasks=options.flights_max)
        self._flights: dict[BlockKey, asyncio.Task[Landed | StrataError]] = {}
        self._shared: dict[Hashable, asyncio.Task[Any]] = {}
        self._indexes: OrderedDict[int, OpenObject] = OrderedDict()
        self._cache = BlockCache(
            options.cache_bytes, options.cache_ttl_s, clock, on_wasted=self._wasted
        )
        metrics.declare(READ_METRICS)
        self._blocks = metrics.counter("strata_tier_read_blocks_total")
        self._fetched = metrics.counter("strata_tier_read_fetched_bytes_total")
        self._damaged = metrics.counter("strata_tier_read_damaged_total")
        self._unused = metrics.counter("strata_tier_read_ahead_unused_total")
        self._gauges = (
            metrics.gauge("strata_tier_cache_bytes", lambda: self._cache.size_bytes),
            metrics.gauge(
                "rocketmq_tiered_store_read_ahead_cache_bytes", lambda: self._cache.size_bytes
            ),
            metrics.gauge(
                "rocketmq_tiered_store_read_ahead_cache_count", self._cache.message_count
            ),
            metrics.gauge("strata_tier_cache_limit_bytes", lambda: options.cache_bytes),
            metrics.gauge("strata_tier_index_bytes", self._index_bytes),
            metrics.gauge("strata_tier_index_limit_bytes", lambda: options.index_bytes),
            metrics.gauge("strata_tier_reads_under_way", lambda: len(self._tasks)),
            metrics.gauge("strata_tier_reads_under_way_limit", lambda: options.flights_max),
        )

    async def open(self, ref: ObjectRef, topic_id: int) -> OpenObject:
        """Return the index of an object; a topic pays for reading it.

        Raises:
            StoreError: the store cannot give it.
            DamagedObjectError: it is not what was committed.
            BusyError: too many reads.
        """
        index = self._indexes.get(ref.object_id)
        if index is not None and index.ref == ref:
            self._indexes.move_to_end(ref.object_id)
            return index
        return await self._join(ref, partial(self._open, ref, topic_id))

    def remember(self, ref: ObjectRef, tail: bytes) -> None:
        """Keep the index of an object that was just stored: its first reader needs no request.

        Raises:
            DamagedObjectError: these are not its last bytes.
        """
        tail = tail[-self._options.tail_bytes :]
        index = OpenObject.of_tail(self._stores.of(ref.space), ref, tail)
        if index is not None:
            self._keep(index)

    def _keep(self, index: OpenObject) -> None:
        self._indexes[index.ref.object_id] = index
        while len(self._indexes) > 1 and self._index_bytes() > self._options.index_bytes:
            self._indexes.popitem(last=False)

    def has(self, place: PlacedBlock) -> bool:
        """Whether a whole block is in memory or on its way."""
        return place.key in self._cache or place.key in self._flights

    def is_cached(self, place: PlacedBlock) -> bool:
        """Whether a whole block is in memory."""
        return self._cache.holds(place.key)

    async def blocks(self, places: Sequence[PlacedBlock]) -> list[Block]:
        """Return whole blocks; what lies side by side is read together, all at once.

        Raises:
            StoreError, DamagedObjectError, BusyError: as for `open`.
        """
        found: Landed = {}
        missing: list[PlacedBlock] = []
        flights: list[asyncio.Task[Landed | StrataError]] = []
        for place in places:
            block = self._cache.block(place.key)
            if block is not None:
                found[place.key] = block
                self._blocks.add(1, {"how": "cached"})
            elif (flight := self._flights.get(place.key)) is not None:
                flights.append(flight)
                self._blocks.add(1, {"how": "joined"})
            else:
                missing.append(place)
                self._blocks.add(1, {"how": "read"})
        flights += self._start(missing, None)
        for flight in flights:
            found |= await _outcome(flight)
        return [self._used(place.key, found[place.key]) for place in places]

    def start_ahead(self, places: Sequence[PlacedBlock], reader: ReaderKey) -> None:
        """Begin to read blocks that a reader will want; what does not fit the limit is left out."""
        try:
            self._start([place for place in places if not self.has(place)], reader)
        except BusyError:
            # A caller that needs them reads them.
            return

    async def columns(self, place: PlacedBlock) -> BlockColumns:
        """Return a block's columns.

        Raises:
            StoreError, DamagedObjectError, BusyError: as for `open`.
        """
        columns = self._cache.columns(place.key)
        if columns is not None:
            return columns
        return await self._join(place.key, partial(self._columns, place))

    async def pieces(
        self, wanted: Sequence[tuple[PlacedBlock, Sequence[int]]]
    ) -> dict[PlacedBlock, list[bytes]]:
        """Return the messages of some offsets of blocks, reading little more than them.

        Raises:
            StoreError, DamagedObjectError, BusyError: as for `open`; also if a block does not
                list one of the offsets.
        """
        found: dict[PlacedBlock, list[bytes]] = {}
        at_once = self._options.pieces_at_once
        for first in range(0, len(wanted), at_once):
            group = wanted[first : first + at_once]
            tasks = [self._spawn(partial(self._pieces, *each)) for each in group]
            for (place, _), task in zip(group, tasks, strict=True):
                found[place] = await _outcome(task)
        return found

    async def _pieces(self, place: PlacedBlock, offsets: Sequence[int]) -> list[bytes]:
        columns = await self.columns(place)
        ordinals = ordinals_of(columns, offsets, place.opened.ref.key)
        starts = columns.starts
        runs = list(_runs(ordinals, starts, self._options.gap_bytes))
        if len(runs) > self._options.runs_max:
            (block,) = await self.blocks([place])
            return block.messages(ordinals)
        messages: list[bytes] = []
        for run in runs:
            first, end = run[0], run[-1] + 1
            read = await self.again_if_damaged(partial(place.opened.messages, columns, first, end))
            size_bytes = starts[end] - starts[first]
            self._fetched.add(size_bytes, {"what": "pieces"})
            self._paid(place.opened.ref, place.entry.topic_id, size_bytes)
            messages += [read[ordinal - first] for ordinal in run]
        self._blocks.add(1, {"how": "pieces"})
        return messages

    async def close(self) -> None:
        """End the reads under way and let go of the memory."""
        await self._tasks.stop()
        self._cache.clear()
        self._indexes.clear()
        for gauge in self._gauges:
            gauge.close()

    async def _open(self, ref: ObjectRef, topic_id: int) -> OpenObject:
        store = self._stores.of(ref.space)
        tail_bytes = self._options.tail_bytes
        index = await self.again_if_damaged(partial(OpenObject.open, store, ref, tail_bytes))
        size_bytes = min(tail_bytes, ref.length)
        self._fetched.add(size_bytes, {"what": "index"})
        self._paid(ref, topic_id, size_bytes)
        self._keep(index)
        return index

    async def _columns(self, place: PlacedBlock) -> BlockColumns:
        columns = await self.again_if_damaged(partial(place.opened.columns, place.entry))
        self._fetched.add(columns.size_bytes, {"what": "columns"})
        self._paid(place.opened.ref, place.entry.topic_id, columns.size_bytes)
        self._cache.put(place.key, columns)
        return columns

    def _start(
        self, places: Sequence[PlacedBlock], ahead_of: ReaderKey | None
    ) -> list[asyncio.Task[Landed | StrataError]]:
        """Begin to read blocks of which none is in memory or on its way."""
        flights = []
        for group in _side_by_side(places, self._options.request_bytes):
            flight = self._spawn(partial(self._read, group, ahead_of))
            flights.append(flight)
            for place in group:
                self._flights[place.key] = flight
        return flights

    async def _read(self, places: Sequence[PlacedBlock], ahead_of: ReaderKey | None) -> Landed:
        try:
            entries = [place.entry for place in places]
            blocks = await self.again_if_damaged(partial(places[0].opened.blocks, entries))
        finally:
            for place in places:
                self._flights.pop(place.key, None)
        ref, size_bytes = places[0].opened.ref, sum([entry.length for entry in entries])
        self._paid(ref, entries[0].topic_id, size_bytes)
        landed: Landed = {}
        for place, block in zip(places, blocks, strict=True):
            landed[place.key] = block
            self._cache.put(place.key, block, ahead_of)
            self._fetched.add(place.entry.length, {"what": "ahead" if ahead_of else "blocks"})
        return landed

    def _used(self, key: BlockKey, block: Block) -> Block:
        # One that was on its way ahead of somebody is used now.
        self._cache.block(key)
        return block

    async def again_if_damaged(self, read: Callable[[], Awaitable[Result]]) -> Result:
        """Read, and read again when the bytes are not what they should be.

        Raises:
            DamagedObjectError: they never were.
            StoreError: the store failed.
        """
        attempts = self._options.damaged_attempts
        while True:
            attempts -= 1
            try:
                return await read()
            except DamagedObjectError:
                self._damaged.add(1)
                if attempts <= 0:
                    raise

    async def _join(self, name: Hashable, work: Callable[[], Awaitable[Result]]) -> Result:
        task: asyncio.Task[Result | StrataError] | None = self._shared.get(name)
        if task is None:
            task = self._shared[name] = self._spawn(work)
            task.add_done_callback(lambda _: self._shared.pop(name, None))
        return await _outcome(task)

    def _spawn(self, work: Callable[[], Awaitable[Result]]) -> asyncio.Task[Result | StrataError]:
        try:
            return self._tasks.spawn("read", _caught(work))
        except TooManyTasksError:
            raise BusyError(
                f"{self._options.flights_max} reads from the tier are under way"
            ) from None

    def _paid(self, ref: ObjectRef, topic_id: int, size_bytes: int) -> None:
        if self._costs is not None:
            self._costs.downloaded(ref.raft_group, topic_id, size_bytes)

    def _index_bytes(self) -> int:
        return sum([index.size_bytes for index in self._indexes.values()])

    def _wasted(self, reader: ReaderKey) -> None:
        self._unused.add(1)
        self._on_wasted(reader)


def ordinals_of(columns: BlockColumns, offsets: Sequence[int], key: str) -> Sequence[int]:
    """Return where messages stand in a block.

    Raises:
        DamagedObjectError: it does not list one of them.
    """
    listed = columns.offsets
    first = columns.ordinal_at(offsets[0])
    end = first + len(offsets)
    # Both rise: offsets without a gap, as many in the block between the same two, are the same.
    is_run = offsets[-1] - offsets[0] == len(offsets) - 1 and end <= len(listed)
    if is_run and (listed[first], listed[end - 1]) == (offsets[0], offsets[-1]):
        return range(first, end)
    ordinals = [columns.ordinal_at(offset) for offset in offsets]
    for offset, ordinal in zip(offsets, ordinals, strict=True):
        if ordinal == len(listed) or listed[ordinal] != offset:
            raise DamagedObjectError(key, f"it holds no message of offset {offset}")
    return ordinals


async def _caught(work: Callable[[], Awaitable[Result]]) -> Result | StrataError:
    """Return the error instead of raising it: several may wait for one task, or nobody."""
    try:
        return await work()
    except StrataError as error:
        return error


async def _outcome(task: asyncio.Task[Result | StrataError]) -> Result:
    try:
        outcome = await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise TierError("reading from the tier was stopped") from None
        raise
    if isinstance(outcome, StrataError):
        raise outcome
    return outcome


def _side_by_side(
    places: Sequence[PlacedBlock], request_bytes: int
) -> Iterator[Sequence[PlacedBlock]]:
    """Cut blocks into groups that one request each can read."""
    first = 0
    size = 0
    for at, place in enumerate(places):
        previous = places[at - 1] if at > first else None
        size += place.entry.length
        if previous is not None and (
            size > request_bytes
            or previous.opened is not place.opened
            or previous.entry.position + previous.entry.length != place.entry.position
        ):
            yield places[first:at]
            first, size = at, place.entry.length
    if places:
        yield places[first:]


def _runs(ordinals: Sequence[int], starts: Sequence[int], gap_bytes: int) -> Iterator[list[int]]:
    """Cut ordinals into runs with no more than `gap_bytes` of others between two."""
    run: list[int] = []
    for ordinal in ordinals:
        if run and starts[ordinal] - starts[run[-1] + 1] > gap_bytes:
            yield run
            run = []
        run.append(ordinal)
    if run:
        yield run


def _ignore(name: str, error: BaseException) -> None:
    """A task that failed by a mistake in this package is seen by whoever waits for it."""
