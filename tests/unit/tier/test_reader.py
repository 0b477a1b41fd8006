"""Reads from the tier: every message that is there, nothing else, each byte fetched once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from strata_mq.layout.hashing import key_hash, text_hash
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock
from strata_tier.base.errors import DamagedObjectError, NotTieredError, TierError, TierGapError
from strata_tier.base.metrics import READ_METRICS
from strata_tier.objects.spaces import Stores
from strata_tier.objects.state import DropRanges
from strata_tier.reads.block_source import BusyError
from strata_tier.reads.read_ahead import ReadAhead, ReaderKey
from strata_tier.reads.read_options import TierReadOptions
from strata_tier.reads.reader import TierFetch, TierRead, TierReader
from strata_tier.store.drivers.memory import MemoryObjectStore
from strata_tier.store.ports import ObjectNotFoundError
from tests.unit.tier.objects import Message, Tier, messages_of, queue_of


class _CountingStore(MemoryObjectStore):
    """Counts ranged reads; can hold them up, and damage what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[str, int, int]] = []
        self.gate: asyncio.Event | None = None
        self.damaged_reads = 0

    async def get(self, key: str, position: int = 0, length: int | None = None) -> bytes:
        data = await super().get(key, position, length)
        self.reads.append((key, position, len(data)))
        if self.gate is not None:
            await self.gate.wait()
        if self.damaged_reads:
            self.damaged_reads -= 1
            return bytes([data[0] ^ 1]) + data[1:]
        return data

    @property
    def bytes_read(self) -> int:
        return sum(length for _, _, length in self.reads)


class _Setup:
    """A tier, its reader and what it counts."""

    def __init__(self, **options: float) -> None:
        self.store = _CountingStore()
        self.tier = Tier(self.store)
        self.clock = ManualClock(0.0)
        self.metrics = Metrics()
        self.reader = TierReader(
            Stores(self.store),
            TierReadOptions(**options),  # type: ignore[arg-type]
            self.metrics,
            clock=self.clock,
        )

    async def settle(self) -> None:
        """Let what is under way in the background end."""
        for _ in range(5):
            await asyncio.sleep(0)
        if self.store.gate is None:
            assert await self.reader._tasks.drain(60)
            assert await self.reader._source._tasks.drain(60)

    def counted(self, name: str) -> float:
        """Return a counter or gauge of RocketMQ's."""
        self.metrics.read_gauges()
        lines = self.metrics.render().decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return float(values[f"rocketmq_tiered_store_{name}"])

    async def messages(self, *offsets: int, is_scan: bool = True, group: int = 1) -> list[bytes]:
        read = TierRead(1, 0, offsets, group, is_scan)
        return await self.reader.messages(self.tier.metadata, read)


@pytest.fixture
async def setup() -> AsyncIterator[_Setup]:
    """A reader with small limits."""
    made = _Setup(tail_bytes=600, request_bytes=2_000, gap_bytes=50)
    yield made
    await made.reader.close()


async def test_messages_come_by_offset_across_objects(setup: _Setup) -> None:
    """Offsets of several objects give their messages, in order."""
    messages = messages_of(1, 0, range(60))
    for first in (0, 20, 40):
        await setup.tier.add([queue_of(messages[first : first + 20])])
    found = await setup.messages(*range(5, 55))
    assert found == [message.stored for message in messages[5:55]]


async def test_an_offset_that_is_not_there_is_an_error(setup: _Setup) -> None:
    """Before the first, behind the last, in a hole of the state: a named error, no short answer."""
    await setup.tier.add([queue_of(messages_of(1, 0, range(10, 20)))])
    await setup.tier.add([queue_of(messages_of(1, 0, range(30, 40)))])
    with pytest.raises(NotTieredError, match="holds 10 to 40"):
        await setup.messages(9)
    with pytest.raises(NotTieredError, match="holds 10 to 40"):
        await setup.messages(39, 40)
    with pytest.raises(NotTieredError, match="nothing of the queue"):
        await setup.reader.messages(setup.tier.metadata, TierRead(1, 1, [0]))
    with pytest.raises(TierGapError, match="offset 25"):
        await setup.messages(25)


async def test_an_offset_that_holds_nothing_is_an_error(setup: _Setup) -> None:
    """An offset within a range that holds no message is not answered with another message."""
    await setup.tier.add([queue_of(messages_of(1, 0, [0, 1, 3]))])
    with pytest.raises(DamagedObjectError, match="no message of offset 2"):
        await setup.messages(1, 2)
    with pytest.raises(DamagedObjectError, match="no message of offset 2"):
        await setup.messages(2, is_scan=False)


async def test_a_missing_object_is_the_stores_error(setup: _Setup) -> None:
    """An object that was deleted behind our back is an error of the store, not an empty queue."""
    ref = await setup.tier.add([queue_of(messages_of(1, 0, range(5)))])
    await setup.store.delete([ref.key])
    with pytest.raises(ObjectNotFoundError):
        await setup.messages(0)
    with pytest.raises(ObjectNotFoundError):
        await setup.reader.fetch(setup.tier.metadata, TierFetch(1, 0, 0, 10, 1_000))


async def test_a_block_is_read_once_for_all(setup: _Setup) -> None:
    """Readers that want a block at the same time share one request, later ones need none."""
    messages = messages_of(1, 0, range(8))
    await setup.tier.add([queue_of(messages)])
    await setup.messages(0)
    await setup.settle()
    setup.reader._source._cache.clear()
    setup.store.reads.clear()
    setup.store.gate = asyncio.Event()
    first, given_up, third = (
        asyncio.ensure_future(setup.messages(*range(8), group=group)) for group in (1, 2, 3)
    )
    await setup.settle()
    given_up.cancel()
    await setup.settle()
    setup.store.gate.set()
    expected = [message.stored for message in messages]
    assert [await first, await third] == [expected, expected]
    assert await setup.messages(*range(8), group=4) == expected
    assert len(setup.store.reads) == 1
    with pytest.raises(asyncio.CancelledError):
        await given_up


async def test_bytes_that_were_damaged_on_the_way_are_read_again(setup: _Setup) -> None:
    """A store that sends wrong bytes once is asked again; one that always does is refused."""
    messages = messages_of(1, 0, range(8))
    await setup.tier.add([queue_of(messages)])
    setup.store.damaged_reads = 2
    assert await setup.messages(*range(8)) == [message.stored for message in messages]
    setup.store.damaged_reads = 1_000
    setup.reader._source._cache.clear()
    with pytest.raises(DamagedObjectError):
        await setup.messages(3)
    with pytest.raises(DamagedObjectError):
        await setup.messages(3, is_scan=False)


async def test_the_cache_tells_what_was_wanted_and_what_it_had(setup: _Setup) -> None:
    """Messages count as hits when their block was in memory before the read, and only then."""
    await setup.tier.add([queue_of(messages_of(1, 0, range(8)))])
    await setup.messages(*range(6))
    assert setup.counted("read_ahead_cache_access_total") == 6
    assert setup.counted("read_ahead_cache_hit_total") == 0
    assert setup.counted("read_ahead_cache_count") == 8
    await setup.messages(6, 7)
    assert setup.counted("read_ahead_cache_access_total") == 8
    assert setup.counted("read_ahead_cache_hit_total") == 2
    setup.clock.now_s = 1_000
    fetch = TierFetch(1, 0, 0, 100, 10**9)
    await setup.reader.fetch(setup.tier.metadata, fetch)
    assert setup.counted("read_ahead_cache_access_total") == 16
    assert setup.counted("read_ahead_cache_hit_total") == 2
    await setup.reader.fetch(setup.tier.metadata, fetch)
    assert setup.counted("read_ahead_cache_hit_total") == 10
    assert setup.counted("messages_out_total") == 24
    latency = setup.metrics.histogram("rocketmq_tiered_store_api_latency")
    assert latency.count({"operation": "get_message"}) == 4
    with pytest.raises(NotTieredError):
        await setup.messages(99)
    assert latency.count({"operation": "get_message"}) == 5
    assert setup.counted("read_ahead_cache_access_total") == 24


async def test_a_block_goes_when_nobody_uses_it(setup: _Setup) -> None:
    """A block is read from memory until its time to live passes after its last use."""
    await setup.tier.add([queue_of(messages_of(1, 0, range(8)))])
    await setup.messages(0)
    setup.store.reads.clear()
    setup.clock.now_s = 59
    await setup.messages(1)
    setup.clock.now_s = 118
    await setup.messages(2)
    assert setup.store.reads == []
    setup.clock.now_s = 179
    await setup.messages(3)
    assert len(setup.store.reads) == 1


async def test_the_cache_keeps_to_its_limit() -> None:
    """However much is read, memory stays within the budget, and what is used stays longest."""
    setup = _Setup(cache_bytes=5_000, tail_bytes=600, ahead_first_bytes=0, ahead_max_bytes=0)
    messages = messages_of(1, 0, range(200))
    await setup.tier.add([queue_of(messages)])
    for offset in range(200):
        assert await setup.messages(offset) == [messages[offset].stored]
        await setup.messages(0)
        assert setup.reader._source._cache.size_bytes <= 5_000
    reads = [position for _, position, _ in setup.store.reads]
    assert reads.count(32) == 1
    await setup.reader.close()


@pytest.mark.parametrize("chosen", [None, frozenset(("A",)), frozenset(("A", "C"))])
async def test_fetches_of_any_size_give_every_message_once(
    setup: _Setup, chosen: frozenset[str] | None
) -> None:
    """Fetch after fetch, each from where the last one ended, gives all that the filter wants."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    offsets = sorted(chance.sample(range(400), 250))
    messages = [
        Message(
            1,
            0,
            offset,
            tag=chance.choice("ABCDEFGH"),
            body_bytes=chance.choice((10, 90, 700)),
            time_ms=offset,
        )
        for offset in offsets
    ]
    for first in range(0, 400, 80):
        part = [each for each in messages if first <= each.offset < first + 80]
        await setup.tier.add([queue_of(part, first, first + 80)])
    hashes = None if chosen is None else frozenset(text_hash(tag) for tag in chosen)
    found: list[bytes] = []
    offset = 0
    while offset < 400:
        count, size = chance.randrange(1, 40), chance.randrange(1, 3_000)
        fetch = TierFetch(1, 0, offset, count, size, hashes, 1)
        fetched = await setup.reader.fetch(setup.tier.metadata, fetch)
        assert len(fetched.messages) <= count
        bodies = [each.message for each in fetched.messages]
        assert sum(map(len, bodies)) <= size or len(bodies) == 1
        assert fetched.resume_offset > offset
        offset = fetched.resume_offset
        found += bodies
    wanted = [each.stored for each in messages if chosen is None or each.tag in chosen]
    assert found == wanted
    end = await setup.reader.fetch(setup.tier.metadata, TierFetch(1, 0, 400, 10, 1_000))
    assert end == ([], 400)


async def test_a_filtered_fetch_moves_less_data() -> None:
    """A fetch of a rare tag takes little more than columns and the messages themselves; counted."""
    setup = _Setup(tail_bytes=4_000, gap_bytes=100)
    setup.metrics.declare(READ_METRICS)
    setup.tier.block_bytes = 20_000
    messages = [
        replace(each, tag="rare" if each.offset % 50 == 0 else "often", body_bytes=500)
        for each in messages_of(1, 0, range(1_000))
    ]
    # No block of the last quarter holds the tag.
    messages = [replace(each, tag="often") if each.offset >= 750 else each for each in messages]
    await setup.tier.add([queue_of(messages)])
    hashes = frozenset((text_hash("rare"),))
    fetch = TierFetch(1, 0, 0, 1_000, 10**9, hashes)
    fetched = await setup.reader.fetch(setup.tier.metadata, fetch)
    wanted = [each for each in messages if each.tag == "rare"]
    assert [each.offset for each in fetched.messages] == [each.offset for each in wanted]
    assert [each.message for each in fetched.messages] == [each.stored for each in wanted]
    total = sum(len(each.stored) for each in messages)
    assert setup.store.bytes_read < total / 5
    await setup.reader.close()


async def test_single_messages_are_read_alone(setup: _Setup) -> None:
    """A look-up fetches the columns of a block and the one message."""
    setup.tier.block_bytes = 100_000
    messages = messages_of(1, 0, range(100), body_bytes=900)
    await setup.tier.add([queue_of(messages)])
    assert await setup.messages(50, is_scan=False) == [messages[50].stored]
    assert setup.store.bytes_read < 10_000


async def test_a_scan_reads_ahead_in_few_requests() -> None:
    """A client that reads on gets blocks ahead in large requests, each byte once."""
    setup = _Setup(request_bytes=8_000, ahead_first_bytes=4_000, ahead_max_bytes=32_000)
    setup.tier.block_bytes = 1_000
    messages = messages_of(1, 0, range(1_000), body_bytes=200)
    await setup.tier.add([queue_of(messages[:500])])
    await setup.tier.add([queue_of(messages[500:])])
    for first in range(0, 1_000, 5):
        wanted = messages[first : first + 5]
        assert await setup.messages(*[each.offset for each in wanted]) == [
            each.stored for each in wanted
        ]
        await setup.settle()
    positions = [(key, position) for key, position, _ in setup.store.reads]
    assert len(set(positions)) == len(positions)
    # 200 kB in blocks of 1 kB, read by up to 8 kB.
    assert len(positions) < 60
    await setup.reader.close()


async def test_more_reads_than_the_limit_are_refused() -> None:
    """A read beyond the limit fails at once by name; those under way end well."""
    setup = _Setup(flights_max=1)
    setup.tier.block_bytes = 100
    messages = messages_of(1, 0, range(10))
    await setup.tier.add([queue_of(messages)])
    await setup.messages(0)
    await setup.settle()
    setup.store.gate = asyncio.Event()
    waiting = asyncio.ensure_future(setup.messages(4))
    await setup.settle()
    with pytest.raises(BusyError, match="1 reads"):
        await setup.messages(8)
    setup.store.gate.set()
    assert await waiting == [messages[4].stored]
    await setup.reader.close()


async def test_closing_ends_reads_with_an_error() -> None:
    """A caller that waits for a read at the close gets an error, and is not cancelled itself."""
    setup = _Setup()
    await setup.tier.add([queue_of(messages_of(1, 0, range(10)))])
    setup.store.gate = asyncio.Event()
    waiting = asyncio.ensure_future(setup.messages(4))
    await setup.settle()
    await setup.reader.close()
    with pytest.raises(TierError, match="was stopped"):
        await waiting


def test_the_window_grows_while_it_serves_and_starts_over_when_it_wastes() -> None:
    """Doubling up to what was too much, then steps; a jump ends it, waste makes it small again."""
    options = TierReadOptions(
        ahead_first_bytes=10, ahead_step_bytes=5, ahead_max_bytes=100, ahead_readers_max=2
    )
    ahead = ReadAhead(options)
    key = ReaderKey(1, 1, 0)
    windows = [ahead.read(key, first, first + 10) for first in range(0, 70, 10)]
    assert windows == [0, 10, 20, 40, 80, 100, 100]
    ahead.wasted(key)
    windows = [ahead.read(key, first, first + 10) for first in range(70, 120, 10)]
    assert windows == [20, 40, 50, 55, 60]
    assert ahead.read(key, 10**6, 10**6 + 10) == 0
    assert ahead.read(key, 10**6 + 10, 10**6 + 20) == 10
    for group in (2, 3):
        ahead.read(ReaderKey(group, 1, 0), 0, 10)
    assert len(ahead) == 2
    assert ahead.window_bytes(key) == 0


def test_reading_the_same_again_is_no_reason_to_read_ahead() -> None:
    """A message that comes twice may be the only one that its reader's filter lets through."""
    ahead = ReadAhead(TierReadOptions(ahead_first_bytes=10))
    key = ReaderKey(1, 1, 0)
    assert [ahead.read(key, 20, 21) for _ in range(3)] == [0, 0, 0]
    assert ahead.read(key, 21, 31) == ahead.read(key, 21, 31) == 10


async def test_blocks_that_were_read_ahead_in_vain_make_the_window_smaller(setup: _Setup) -> None:
    """A reader that stops lets its blocks expire, and then reads ahead less than before."""
    messages = messages_of(1, 0, range(200))
    await setup.tier.add([queue_of(messages)])
    for first in range(0, 40, 4):
        await setup.messages(*range(first, first + 4))
        await setup.settle()
    key = ReaderKey(1, 1, 0)
    before = setup.reader._ahead.window_bytes(key)
    setup.clock.now_s = 1_000
    await setup.messages(0, group=2)
    assert 0 < setup.reader._ahead.window_bytes(key) < before


async def test_search_finds_keys_and_ids(setup: _Setup) -> None:
    """A key or an id leads to its messages, newest first, within the times that are asked for."""
    messages = [
        replace(each, keys=[f"order-{each.offset % 10}"]) for each in messages_of(1, 0, range(90))
    ]
    for first in (0, 30, 60):
        await setup.tier.add(
            [queue_of(messages[first : first + 30]), queue_of(messages_of(2, 0, [first]))]
        )
    find_key = setup.reader.search.find_key
    metadata = setup.tier.metadata
    found = await find_key(metadata, 1, key_hash("order-4"), range(0, 10_000), 100)
    assert found == [(0, offset) for offset in range(84, -1, -10)]
    found = await find_key(metadata, 1, key_hash("order-4"), range(1_014, 1_044), 2)
    assert found == [(0, 34), (0, 24)]
    assert await find_key(metadata, 2, key_hash("order-4"), range(0, 10_000), 100) == []
    packed = messages[47].packed_id
    found = await setup.reader.search.find_id(metadata, 1, packed, range(0, 10_000))
    assert found == [(0, 47)]
    assert await setup.reader.search.find_id(metadata, 2, packed, range(0, 10_000)) == []


async def test_what_retention_dropped_is_not_read(setup: _Setup) -> None:
    """Behind a drop, older offsets are refused and newer ones of the same range still come."""
    messages = messages_of(1, 0, range(40))
    await setup.tier.add([queue_of(messages[:20])])
    await setup.tier.add([queue_of(messages[20:])])
    setup.tier.apply(DropRanges([(1, 0, 25)], 5_000))
    with pytest.raises(NotTieredError, match="holds 25 to 40"):
        await setup.messages(3)
    assert await setup.messages(25) == [messages[25].stored]
