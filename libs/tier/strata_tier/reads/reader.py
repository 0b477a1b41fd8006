"""Messages from the tier: finds them, reads them, and reads ahead of sequential readers.

Two ways in. `messages` is for a storage node, which still has the index of the messages and asks
for bodies by offset; `fetch` is for callers that have only the tier (a restored or read-only topic)
and filters by the block's own columns.

A short read is never taken for the end: an offset that no range covers is an error that says
whether the tier state ends before it or has a gap there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import NamedTuple

from strata_runtime.clock import Clock
from strata_runtime.errors import StrataError
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks, TooManyTasksError
from strata_tier.objects.blocks import BlockColumns, pick
from strata_tier.objects.costs import TopicCosts
from strata_tier.objects.spaces import Stores
from strata_tier.objects.state import ObjectRef
from strata_tier.ranges.metadata import TierMetadata
from strata_tier.reads.block_cache import BlockKey
from strata_tier.reads.block_source import BlockSource, PlacedBlock, ordinals_of
from strata_tier.reads.places import TierPlaces
from strata_tier.reads.read_ahead import ReadAhead, ReaderKey
from strata_tier.reads.read_options import TierReadOptions
from strata_tier.reads.search import TierSearch

_AHEAD_TASKS_MAX = 256
# RocketMQ's name of what a read is.
_GET_MESSAGE = {"operation": "get_message"}


class TierRead(NamedTuple):
    """Messages of a queue by offset.

    Attributes:
        topic_id, queue: which queue.
        offsets: rising; each is that of a message.
        consumer_group: whose pace the read-ahead follows; 0: nobody's.
        is_scan: the reader goes on behind these; False: single messages are looked up.
    """

    topic_id: int
    queue: int
    offsets: Sequence[int]
    consumer_group: int = 0
    is_scan: bool = True


class TierFetch(NamedTuple):
    """Messages of a queue from an offset on.

    Attributes:
        topic_id, queue, offset: where.
        max_messages, max_bytes: at most so much, but one message at least.
        tag_hashes: only messages with one of these tags; None: all.
        consumer_group: whose pace the read-ahead follows; 0: nobody's.
    """

    topic_id: int
    queue: int
    offset: int
    max_messages: int
    max_bytes: int
    tag_hashes: frozenset[int] | None = None
    consumer_group: int = 0


class TieredMessage(NamedTuple):
    """A message as it is in the tier."""

    offset: int
    store_time_ms: int
    tag_hash: int
    group_hash: int
    message: bytes


class TierFetched(NamedTuple):
    """Messages, and where the next fetch goes on: behind what was given or passed over."""

    messages: list[TieredMessage]
    resume_offset: int


class _Wanted(NamedTuple):
    """Offsets of one block."""

    place: PlacedBlock
    offsets: Sequence[int]


class _Taken(NamedTuple):
    """Messages of one block that a fetch gives."""

    place: PlacedBlock
    columns: BlockColumns
    ordinals: Sequence[int]


class TierReader:
    """Reads for one node; ranges come from the metadata of the raft group that is asked.

    Args:
        stores: of all spaces.
        options: limits.
        metrics: where it counts.
        clock: for the cache.
        costs: told of each request; None: nobody counts by topic.

    Attributes:
        search: finds messages by key and id.
    """

    def __init__(
        self,
        stores: Stores,
        options: TierReadOptions,
        metrics: Metrics,
        *,
        clock: Clock,
        costs: TopicCosts | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._ahead = ReadAhead(options)
        self._source = BlockSource(
            stores, options, metrics, clock=clock, on_wasted=self._ahead.wasted, costs=costs
        )
        self._places = TierPlaces(self._source)
        self.search = TierSearch(self._source)
        self._tasks = Tasks("tier-read-ahead", _seen, max_tasks=_AHEAD_TASKS_MAX)
        self._looking_ahead: set[ReaderKey] = set()
        self._last_block: dict[ReaderKey, object] = {}
        self._messages = metrics.counter("strata_tier_read_messages_total")
        self._messages_out = metrics.counter("rocketmq_tiered_store_messages_out_total")
        self._latency_ms = metrics.histogram("rocketmq_tiered_store_api_latency")
        self._accesses = metrics.counter("rocketmq_tiered_store_read_ahead_cache_access_total")
        self._hits = metrics.counter("rocketmq_tiered_store_read_ahead_cache_hit_total")
        self._wanted_bytes = metrics.counter("strata_tier_read_wanted_bytes_total")
        self._passed_over = metrics.counter("strata_tier_read_passed_over_bytes_total")

    def remember(self, ref: ObjectRef, tail: bytes) -> None:
        """Take in the last bytes of an object that was just stored: its index is in them.

        Raises:
            DamagedObjectError: they are not those of the object.
        """
        self._source.remember(ref, tail)

    async def messages(self, metadata: TierMetadata, read: TierRead) -> list[bytes]:
        """Return the stored messages at `read.offsets`, in order, checked.

        Raises:
            NotTieredError: an offset is not, or not any more, in the tier.
            TierGapError: the tier state has a hole.
            StoreError: the store cannot give the bytes.
            DamagedObjectError: they are not what was committed.
            BusyError: too many reads are under way.
        """
        with self._timed():
            wanted = await self._wanted(metadata, read)
            for place, offsets in wanted:
                self._access(len(offsets), is_hit=self._source.is_cached(place))
            bodies = await self._bodies(metadata, read, wanted)
        return [body for of_block in bodies for body in of_block]

    async def fetch(self, metadata: TierMetadata, fetch: TierFetch) -> TierFetched:
        """Return messages from an offset on; none only at the end of what is in the tier.

        Raises:
            NotTieredError, TierGapError, StoreError, DamagedObjectError, BusyError: as `messages`.
        """
        with self._timed():
            return await self._fetch(metadata, fetch)

    async def _fetch(self, metadata: TierMetadata, fetch: TierFetch) -> TierFetched:
        # Blocks that are in memory only because this fetch read them.
        missed: frozenset[BlockKey] = frozenset()
        if fetch.tag_hashes is None:
            missed = await self._read_together(metadata, fetch)
        taken: list[_Taken] = []
        left_messages, left_bytes = fetch.max_messages, fetch.max_bytes
        resume_offset = fetch.offset
        async for place in self._places.walk(metadata, fetch.topic_id, fetch.queue, fetch.offset):
            entry = place.entry
            if fetch.tag_hashes is not None and not entry.may_hold_tag(fetch.tag_hashes):
                self._passed_over.add(entry.length)
                resume_offset = entry.end_offset
                continue
            is_hit = place.key not in missed and self._source.is_cached(place)
            columns = await self._columns(place, fetch.tag_hashes is not None)
            ordinals, resume_offset, is_full = _choose(
                columns, fetch, left_messages, left_bytes, is_first=not taken
            )
            if ordinals:
                taken.append(_Taken(place, columns, ordinals))
                self._access(len(ordinals), is_hit=is_hit)
                left_messages -= len(ordinals)
                left_bytes -= columns.bytes_of(ordinals)
            if is_full or left_messages <= 0 or left_bytes <= 0:
                break
        return TierFetched(await self._chosen(metadata, fetch, taken), resume_offset)

    async def columns(
        self, metadata: TierMetadata, topic_id: int, queue: int, offset: int
    ) -> BlockColumns:
        """Return the columns of the block that holds an offset: what a lost index is made of.

        Raises:
            NotTieredError, TierGapError, StoreError, DamagedObjectError, BusyError: as `messages`.
        """
        place = await self._places.place(metadata, topic_id, queue, offset)
        return await self._source.columns(place)

    async def close(self) -> None:
        """End what is under way and let go of the memory."""
        await self._tasks.stop()
        await self._source.close()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count what is done inside as one read, however it ends."""
        began_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            took_ms = (self._clock.monotonic_s() - began_s) * 1_000
            self._latency_ms.record(took_ms, _GET_MESSAGE)

    def _access(self, message_count: int, *, is_hit: bool) -> None:
        self._accesses.add(message_count)
        self._hits.add(message_count if is_hit else 0)

    async def _bodies(
        self, metadata: TierMetadata, read: TierRead, wanted: Sequence[_Wanted]
    ) -> list[list[bytes]]:
        """Return the messages that are wanted of each block, and read ahead."""
        sparse = [each for each in wanted if self._is_sparse(each, read)]
        pieces = await self._source.pieces(sparse)
        whole = [each.place for each in wanted if each.place not in pieces]
        blocks = dict(zip(whole, await self._source.blocks(whole), strict=True))
        found: list[list[bytes]] = []
        for place, offsets in wanted:
            if place in pieces:
                found.append(pieces[place])
            else:
                block = blocks[place]
                found.append(
                    block.messages(ordinals_of(block.columns, offsets, place.opened.ref.key))
                )
        self._messages.add(len(read.offsets))
        self._messages_out.add(len(read.offsets))
        self._wanted_bytes.add(sum([sum(map(len, bodies)) for bodies in found]))
        if read.is_scan and whole:
            key = ReaderKey(read.consumer_group, read.topic_id, read.queue)
            self._look_ahead(metadata, key, read.offsets[0], read.offsets[-1] + 1, whole[-1])
        return found

    async def _wanted(self, metadata: TierMetadata, read: TierRead) -> list[_Wanted]:
        """Return which blocks hold the offsets."""
        wanted: list[_Wanted] = []
        offsets = read.offsets
        first = 0
        while first < len(offsets):
            place = await self._places.place(metadata, read.topic_id, read.queue, offsets[first])
            end = bisect_left(offsets, place.entry.end_offset, first)
            wanted.append(_Wanted(place, offsets[first:end]))
            first = end
        return wanted

    def _is_sparse(self, wanted: _Wanted, read: TierRead) -> bool:
        """Whether a block is better read in pieces than whole."""
        if self._source.has(wanted.place):
            return False
        if not read.is_scan:
            return True
        # A filtered read may want one message of each block: only all of them show that.
        span = read.offsets[-1] - read.offsets[0] + 1
        return len(read.offsets) < span * self._options.sparse_share

    async def _columns(self, place: PlacedBlock, is_filtered: bool) -> BlockColumns:
        if is_filtered or self._source.has(place):
            return await self._source.columns(place)
        return (await self._source.blocks([place]))[0].columns

    async def _read_together(self, metadata: TierMetadata, fetch: TierFetch) -> frozenset[BlockKey]:
        """Read the blocks that a large fetch will want all at once; return which had to be read."""
        left_bytes = min(fetch.max_bytes, self._options.cache_bytes // 4)
        left_messages = fetch.max_messages
        places: list[PlacedBlock] = []
        async for place in self._places.walk(metadata, fetch.topic_id, fetch.queue, fetch.offset):
            places.append(place)
            left_bytes -= place.entry.bodies_bytes
            left_messages -= place.entry.message_count
            if left_bytes <= 0 or left_messages <= 0:
                break
        missed = frozenset(place.key for place in places if not self._source.is_cached(place))
        await self._source.blocks(places)
        return missed

    async def _chosen(
        self, metadata: TierMetadata, fetch: TierFetch, taken: Sequence[_Taken]
    ) -> list[TieredMessage]:
        """Return the messages at ordinals of blocks."""
        if not taken:
            return []
        wanted = [
            _Wanted(place, pick(columns.offsets, ordinals)) for place, columns, ordinals in taken
        ]
        offsets = [offset for each in wanted for offset in each.offsets]
        is_scan = fetch.tag_hashes is None or len(offsets) > 1
        read = TierRead(fetch.topic_id, fetch.queue, offsets, fetch.consumer_group, is_scan)
        messages: list[TieredMessage] = []
        for each, bodies, (_, columns, ordinals) in zip(
            wanted, await self._bodies(metadata, read, wanted), taken, strict=True
        ):
            rows = zip(
                each.offsets,
                pick(columns.times_ms, ordinals),
                pick(columns.tag_hashes, ordinals),
                pick(columns.group_hashes, ordinals),
                bodies,
                strict=True,
            )
            messages += map(TieredMessage._make, rows)
        return messages

    def _look_ahead(
        self,
        metadata: TierMetadata,
        key: ReaderKey,
        first_offset: int,
        end_offset: int,
        last: PlacedBlock,
    ) -> None:
        """Note a read; begin to read ahead when it came to another block."""
        window_bytes = self._ahead.read(key, first_offset, end_offset)
        if not window_bytes or key in self._looking_ahead or self._last_block.get(key) == last.key:
            return
        self._looking_ahead.add(key)
        work = self._read_ahead(metadata, key, last.entry.end_offset, window_bytes)
        try:
            self._tasks.spawn("walk", work)
        except TooManyTasksError:
            self._looking_ahead.discard(key)
            return
        self._last_block[key] = last.key
        if len(self._last_block) > self._options.ahead_readers_max:
            self._last_block.pop(next(iter(self._last_block)))

    async def _read_ahead(
        self, metadata: TierMetadata, key: ReaderKey, offset: int, window_bytes: int
    ) -> None:
        """Read the blocks from `offset` on, up to a window, unless half of it is there already."""
        try:
            missing: list[PlacedBlock] = []
            seen_bytes = missing_bytes = 0
            async for place in self._places.walk(metadata, key.topic_id, key.queue, offset):
                seen_bytes += place.entry.length
                if not self._source.has(place):
                    missing.append(place)
                    missing_bytes += place.entry.length
                if seen_bytes >= window_bytes:
                    break
            if 2 * missing_bytes >= seen_bytes:
                self._source.start_ahead(missing, key)
        except StrataError:
            # Nobody waits for this: whoever needs the messages gets the error.
            return
        finally:
            self._looking_ahead.discard(key)


def _choose(
    columns: BlockColumns,
    fetch: TierFetch,
    left_messages: int,
    left_bytes: int,
    *,
    is_first: bool,
) -> tuple[Sequence[int], int, bool]:
    """Return (ordinals to take, where to go on, whether the fetch is full)."""
    first = columns.ordinal_at(fetch.offset)
    ordinals: Sequence[int] = range(first, columns.entry.message_count)
    if fetch.tag_hashes is not None:
        tags = columns.tag_hashes
        ordinals = [ordinal for ordinal in ordinals if tags[ordinal] in fetch.tag_hashes]
    count = min(len(ordinals), left_messages)
    lengths = pick(columns.lengths, ordinals[:count])
    count = bisect_right(list(accumulate(lengths)), left_bytes)
    if is_first and ordinals and not count:
        count = 1
    if count < len(ordinals):
        return ordinals[:count], columns.offsets[ordinals[count]], True
    return ordinals, columns.entry.end_offset, False


def _seen(name: str, error: BaseException) -> None:
    """Read-ahead that fails by a mistake is no reason to end the node: reads do not need it."""
