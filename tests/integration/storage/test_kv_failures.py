"""Key-value tables in a storage node: one row or request that fails leaves all others alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from strata.kv.v1 import kv_pb2
from strata.kv.v1 import kv_storage_pb2 as kv
from strata.storage.v1 import storage_pb2 as pb
from strata_kv.rows import Keys
from strata_state.memory_store import MemoryStore
from strata_state.ports import Row, StateError
from strata_testing import ManualClock, until
from tests.integration.storage.kv_node import CONTEXT, GROUP, TABLE, KvNode


class FailingStore(MemoryStore):
    """Rows of some items cannot be read.

    Attributes:
        failing: keys of these items.
        scanned: where scans began.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[bytes] = set()
        self.scanned: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        """Return a row's value, unless it is one of the failing ones."""
        if any(key == Keys(GROUP).item(TABLE.topic_id, item) for item in self.failing):
            raise StateError("state row cannot be read: Input/output error")
        return super().get(key)

    def scan(self, begin: bytes, end: bytes) -> Iterator[Row]:
        """Iterate a range."""
        self.scanned.append(begin)
        return super().scan(begin, end)


async def read(node: KvNode, *keys: bytes) -> Sequence[kv.ReadResult]:
    request = kv.ReadRequest(
        raft_group=GROUP, keys=[kv.ReadKey(table=TABLE, key=key) for key in keys]
    )
    response = await node.rpc.read(request, CONTEXT)
    return response.results


async def write(
    node: KvNode, *operations: kv_pb2.Operation, sequence: int = 1
) -> Sequence[kv.TableWriteResult]:
    """Write requests of one operation each in one batch."""
    request = kv.WriteRequest(
        raft_group=GROUP,
        broker_boot_id=7,
        sequence=sequence,
        writes=[kv.TableWrite(table=TABLE, operations=(one,)) for one in operations],
    )
    response = await node.rpc.write(request, CONTEXT)
    return response.results


async def test_an_item_that_cannot_be_read_fails_its_own_read(tmp_path: Path) -> None:
    """It is asked for again alone, and only then the call is refused: it is never "not there"."""
    store = FailingStore()
    async with KvNode(tmp_path, store=store) as node:
        for key in (b"a", b"b", b"c"):
            await node.put(key, key)
        store.failing = {b"a"}
        for order in ((b"a", b"b", b"c"), (b"b", b"a", b"c")):
            results = dict(zip(order, await read(node, *order), strict=True))
            assert results[b"a"].outcome == pb.OUTCOME_OVERLOADED
            assert [results[key].item.value for key in (b"b", b"c")] == [b"b", b"c"]
        refusal = (await node.get(b"a")).refusal
        assert refusal.outcome == pb.OUTCOME_UNREADABLE
        assert "Input/output error" in refusal.reason
        store.failing = set()
        [found] = await read(node, b"a")
        assert found.item.value == b"a"


async def test_an_item_that_cannot_be_read_fails_its_own_write(tmp_path: Path) -> None:
    """The other requests of the batch are carried out; a repeat gets the same answers."""
    store = FailingStore()
    async with KvNode(tmp_path, store=store) as node:
        await node.put(b"a", b"1")
        store.failing = {b"a"}
        puts = [kv_pb2.Operation(key=key, put=b"2") for key in (b"b", b"a", b"c")]
        results = await write(node, *puts)
        assert [one.applied for one in results] == [True, False, True]
        assert results[1].outcome == pb.OUTCOME_UNREADABLE
        assert list(await write(node, *puts)) == list(results)
        store.failing = set()
        assert await node.items() == {b"a": b"1", b"b": b"2", b"c": b"2"}


async def test_an_item_that_cannot_be_read_does_not_keep_others_from_ending(
    tmp_path: Path,
) -> None:
    """It ends when it can be read again."""
    store, clock = FailingStore(), ManualClock()
    async with KvNode(tmp_path, store=store, clock=clock) as node:
        for key, ttl_ms in ((b"a", 500), (b"b", 1_000), (b"c", 2_000)):
            await node.write(kv_pb2.Operation(key=key, put=b"1", ttl_ms=ttl_ms))
        store.failing = {b"a"}
        clock.advance(1.5)
        await gone(node, b"b")
        clock.advance(1.0)
        await gone(node, b"c")
        assert set(await node.items()) == {b"a"}
        store.failing = set()
        clock.advance(1.0)
        await gone(node, b"a")


async def test_many_items_that_cannot_be_read_do_not_keep_others_from_ending(
    tmp_path: Path,
) -> None:
    """More than one entry ends; they are looked at again after a while, and nothing before them."""
    store, clock = FailingStore(), ManualClock()
    async with KvNode(tmp_path, store=store, clock=clock, expiry_batch=3) as node:
        unreadable = {b"a%d" % number for number in range(8)}
        for key in sorted(unreadable):
            await node.write(kv_pb2.Operation(key=key, put=b"1", ttl_ms=500))
        for number in range(8):
            put = kv_pb2.Operation(key=b"b%d" % number, put=b"1", ttl_ms=600 + number)
            await node.write(put)
        store.failing = unreadable
        clock.advance(1.5)
        await gone(node, b"b7")
        assert set(await node.items()) == unreadable
        await node.write(kv_pb2.Operation(key=b"c", put=b"1", ttl_ms=600))
        store.scanned.clear()
        clock.advance(1.5)
        await gone(node, b"c")
        first, end = Keys(GROUP).expiries(0, 1 << 62)
        floor, _ = Keys(GROUP).expiries(clock.wall_ms() - 2_400, 1 << 62)
        begins = [begin for begin in store.scanned if first <= begin < end]
        assert begins, "the ends of items are looked for"
        assert min(begins) >= floor, "what ended long ago is not passed again"
        store.failing = set()
        clock.advance(10)
        for key in unreadable:
            await gone(node, key)


async def gone(node: KvNode, key: bytes) -> None:
    """Wait until a key is not there."""

    async def is_gone() -> bool:
        return key not in await node.items()

    async with asyncio.timeout(10):
        await until(is_gone)


async def test_an_answer_holds_only_so_many_items_that_stood_in_the_way(tmp_path: Path) -> None:
    """Else one answer is too large for all callers of a batch, however often it is repeated."""
    async with KvNode(tmp_path) as node:
        await node.put(b"large", b"v" * 1_000_000)
        absent = kv_pb2.Operation(key=b"large", put=b"x", condition=kv_pb2.Condition(version=0))
        results = await write(
            node, *[absent] * 70, kv_pb2.Operation(key=b"other", put=b"1"), sequence=2
        )
        assert results[-1].applied
        assert sum(one.ByteSize() for one in results) < 32 * 1024 * 1024
        for one in results[:-1]:
            assert not one.applied
            if one.outcome == pb.OUTCOME_OK:
                assert one.current.value == b"v" * 1_000_000
            else:
                assert one.outcome == pb.OUTCOME_OVERLOADED


@pytest.mark.parametrize("in_flight", [True, False])
async def test_a_late_batch_of_a_broker_does_not_come_behind_its_next_one(
    tmp_path: Path, in_flight: bool
) -> None:
    """The broker gave it up. And a repeat of the next one must find that one's answer."""
    async with KvNode(tmp_path) as node:
        later = asyncio.ensure_future(node.put(b"a", b"6", boot_id=1, sequence=6))
        await asyncio.sleep(0)
        if not in_flight:
            await later
        late = await node.put(b"a", b"5", boot_id=1, sequence=5)
        assert (late.outcome, late.applied) == (pb.OUTCOME_INVALID, False)
        first = await later
        again = await node.put(b"a", b"6", boot_id=1, sequence=6)
        assert (again.revision, list(again.versions)) == (first.revision, list(first.versions))
        assert await node.items() == {b"a": b"6"}


async def test_a_page_of_keys_reads_no_more_than_a_page_of_items(tmp_path: Path) -> None:
    """A row is read with its value, whether the caller wants that or not."""
    async with KvNode(tmp_path) as node:
        for number in range(12):
            await node.put(b"%02d" % number, b"v" * 1_000_000)
        pages: list[list[bytes]] = []
        begin, more = b"", True
        while more:
            request = kv.ScanRequest(raft_group=GROUP, table=TABLE, begin=begin, keys_only=True)
            page = await node.rpc.scan(request, CONTEXT)
            pages.append([item.key for item in page.items])
            begin, more = page.items[-1].key + b"\0", page.more
        assert max(map(len, pages)) == 4
        keys = [key for page in pages for key in page]
        assert keys == [b"%02d" % number for number in range(12)]


async def test_a_table_that_moved_while_it_was_empty_is_not_read_here(tmp_path: Path) -> None:
    """A broker that has not heard of the move would be told that what is written is not there.

    A watch would hear of nothing, forever.
    """
    async with KvNode(tmp_path) as node:
        stream = node.follow(0)
        async with asyncio.timeout(20):
            assert (await anext(stream)).revision == 0
            await node.app.node.engine(GROUP).seal(TABLE.topic_id, 0, 2)
            assert (await node.get(b"a")).results[0].outcome == pb.OUTCOME_WRONG_GROUP
            scan = kv.ScanRequest(raft_group=GROUP, table=TABLE)
            page = await node.rpc.scan(scan, CONTEXT)
            assert page.refusal.outcome == pb.OUTCOME_WRONG_GROUP
            described = kv.DescribeRequest(raft_group=GROUP, table=TABLE)
            table = await node.rpc.describe(described, CONTEXT)
            assert table.refusal.outcome == pb.OUTCOME_WRONG_GROUP
            assert (await anext(stream)).refusal.outcome == pb.OUTCOME_WRONG_GROUP


async def test_a_watch_of_a_table_that_is_not_here_is_told_no_revision(tmp_path: Path) -> None:
    """It would go on from that one where the table is, and tell of all that came before it."""
    async with KvNode(tmp_path) as node:
        await node.app.node.engine(GROUP).seal(TABLE.topic_id, 0, 2)
        async with asyncio.timeout(20):
            told = await anext(node.follow(0))
        assert told.refusal.outcome == pb.OUTCOME_WRONG_GROUP
