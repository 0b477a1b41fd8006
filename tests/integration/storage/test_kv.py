"""Key-value tables in a storage node: repeats, restarts, lost state, streams, drops."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from strata.kv.v1 import kv_pb2
from strata.kv.v1 import kv_storage_pb2 as kv
from strata.storage.v1 import storage_pb2 as pb
from strata_kv.options import TableOptions
from strata_mq.commands.rare import DropKind
from strata_state.memory_store import MemoryStore
from strata_storage.base.errors import Refused
from strata_testing import ManualClock, until
from strata_testing.simulated_disk import SimulatedDisk
from strata_testing.storage_node import small_config
from tests.integration.storage.kv_node import CONTEXT, GROUP, OTHER_TABLE, TABLE, KvNode

ENGINES = [kv_pb2.ENGINE_ROCKSDB, kv_pb2.ENGINE_MEMORY]


def swap(key: bytes, value: bytes, version: int) -> kv_pb2.Operation:
    return kv_pb2.Operation(key=key, put=value, condition=kv_pb2.Condition(version=version))


async def test_a_write_is_read_when_it_is_answered(tmp_path: Path) -> None:
    """By a get, by a list, and by a read at any replica as of the leader's index."""
    async with KvNode(tmp_path) as node:
        written = await node.put(b"a", b"1")
        assert (written.applied, written.revision, list(written.versions)) == (True, 1, [1])
        assert await node.items() == {b"a": b"1"}
        index = await node.rpc.read_index(kv.ReadIndexRequest(raft_group=GROUP), CONTEXT)
        place = kv.ReadPlace(raft_group=GROUP, any_replica=True, index=index.index)
        for found in (await node.get(b"a"), await node.get(b"a", place)):
            assert found.results[0].item.value == b"1"
        missing = await node.get(b"b")
        assert not missing.results[0].HasField("item")
        assert missing.results[0].outcome == pb.OUTCOME_OK


async def test_a_repeated_batch_is_carried_out_once(tmp_path: Path) -> None:
    """Also beside the first one, also after a restart; an older batch is refused."""
    async with KvNode(tmp_path) as node:
        both = await asyncio.gather(
            node.write(swap(b"a", b"1", 0), sequence=5, boot_id=1),
            node.write(swap(b"a", b"1", 0), sequence=5, boot_id=1),
        )
        assert both[0] == both[1]
        assert both[0].applied
        await node.put(b"b", b"2", sequence=6, boot_id=1)
    async with KvNode(tmp_path) as node:
        again = await node.put(b"b", b"2", sequence=6, boot_id=1)
        assert (again.applied, again.revision, list(again.versions)) == (True, 2, [1])
        old = await node.write(swap(b"a", b"1", 0), sequence=5, boot_id=1)
        assert old.outcome == pb.OUTCOME_INVALID
        assert await node.items() == {b"a": b"1", b"b": b"2"}
        # The same sequence of another broker is another batch.
        other = await node.write(swap(b"a", b"3", 0), sequence=5, boot_id=2)
        assert (other.outcome, other.applied, other.current.value) == (pb.OUTCOME_OK, False, b"1")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("loses_state", [False, True])
async def test_a_restart_keeps_tables(
    tmp_path: Path, engine: kv_pb2.Engine.ValueType, loses_state: bool
) -> None:
    """After a stop, with the row store or from the log alone."""
    chance = random.Random(1)
    model: dict[bytes, bytes] = {}
    for _ in range(3):
        async with KvNode(tmp_path) as node:
            assert await node.items() == model
            for _ in range(40):
                key, value = b"%d" % chance.randrange(20), chance.randbytes(30)
                if chance.random() < 0.7:
                    await node.put(key, value, engine=engine)
                    model[key] = value
                else:
                    await node.write(kv_pb2.Operation(key=key, delete=True), engine=engine)
                    model.pop(key, None)
        if loses_state:
            shutil.rmtree(tmp_path / "state")


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_power_failure_keeps_what_was_answered(
    tmp_path: Path, engine: kv_pb2.Engine.ValueType
) -> None:
    """Rows are some flushed prefix; the log has the rest, for items in memory too."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    disk, store = SimulatedDisk(seed), MemoryStore()
    model: dict[bytes, bytes] = {}
    for _ in range(4):
        node = KvNode(tmp_path, disk=disk, store=store)
        await node.app.start()
        assert await node.items() == model
        for _ in range(25):
            key, value = b"%d" % chance.randrange(9), chance.randbytes(8)
            await node.put(key, value, engine=engine)
            model[key] = value
            if chance.random() < 0.15:
                await node.app.node.flush_once()
            elif chance.random() < 0.1:
                # RocksDB flushes a full memtable by itself, whatever is settled.
                store.flush()
        crashed_disk, crashed_store = disk.snapshot(chance.randrange(1 << 32)), store.after_crash()
        await node.app.stop(1.0)
        crashed_disk.power_loss()
        disk, store = crashed_disk, crashed_store


@pytest.mark.parametrize("engine", ENGINES)
async def test_checkpoints_hold_tables(tmp_path: Path, engine: kv_pb2.Engine.ValueType) -> None:
    """When the log's oldest segments are gone, a lost row store comes back from a checkpoint."""
    config = small_config(log_segment_bytes=8 * 1024 * 1024)
    async with KvNode(tmp_path, config=config) as node:
        for number in range(30):
            await node.put(b"%d" % (number % 4), b"%03d" % number * 200_000, engine=engine)
        before = await node.items()
        for _ in range(3):
            await node.app.node.retain_once()
        log = node.app.node
        assert log.log_bytes()[0] < log.log_bytes()[1], "no segment was freed"
    shutil.rmtree(tmp_path / "state")
    async with KvNode(tmp_path, config=config) as node:
        assert await node.items() == before
        assert (await node.put(b"next", b"1")).revision == 31


async def test_items_end_by_group_time(tmp_path: Path) -> None:
    """Not before their time, soon after it, and on the next start if it came in between."""
    clock = ManualClock()
    async with KvNode(tmp_path, clock=clock) as node:
        for key, ttl_ms in ((b"short", 1_000), (b"long", 60_000)):
            await node.write(kv_pb2.Operation(key=key, put=b"1", ttl_ms=ttl_ms))
        clock.advance(0.9)
        await asyncio.sleep(0.05)
        assert set(await node.items()) == {b"short", b"long"}
        clock.advance(0.2)
        await gone(node, b"short")
        assert set(await node.items()) == {b"long"}
    clock.advance(100)
    async with KvNode(tmp_path, clock=clock) as node:
        await gone(node, b"long")


async def gone(node: KvNode, key: bytes) -> None:
    """Wait until a key is not there."""

    async def is_gone() -> bool:
        return key not in await node.items()

    await until(is_gone)


async def test_a_follower_hears_every_change_in_order(tmp_path: Path) -> None:
    """From a revision that is over, then what comes, of its prefix only."""
    async with KvNode(tmp_path) as node:
        await node.put(b"a1", b"1")
        await node.write(
            kv_pb2.Operation(key=b"a2", put=b"2"), kv_pb2.Operation(key=b"b", put=b"3")
        )
        stream = node.follow(2, b"a")
        async with asyncio.timeout(30):
            assert (await anext(stream)).revision == 1
            told = await anext(stream)
            assert (told.revision, [change.item.key for change in told.changes]) == (2, [b"a2"])
            following = asyncio.ensure_future(anext(stream))
            await node.write(kv_pb2.Operation(key=b"a1", delete=True))
            told = await following
        assert told.changes[0].kind == kv_pb2.CHANGE_KIND_DELETE
        assert (told.changes[0].item.key, told.revision) == (b"a1", 3)


async def test_a_follower_waits_for_a_revision_to_come(tmp_path: Path) -> None:
    """Changes before it are not told."""
    async with KvNode(tmp_path) as node:
        await node.put(b"a", b"1")
        stream = node.follow(4)
        async with asyncio.timeout(30):
            await anext(stream)
            following = asyncio.ensure_future(anext(stream))
            for value in (b"2", b"3", b"4"):
                await node.put(b"a", value)
            told = await following
        assert (told.revision, [change.item.value for change in told.changes]) == (4, [b"4"])


async def test_a_follower_of_a_forgotten_revision_is_told_the_oldest(tmp_path: Path) -> None:
    """It must list the table and begin anew."""
    async with KvNode(tmp_path, options=TableOptions(history_max_changes=10)) as node:
        for number in range(40):
            await node.put(b"k", b"%d" % number)
        stream = node.follow(3)
        async with asyncio.timeout(30):
            await anext(stream)
            told = await anext(stream)
        assert told.oldest_revision > 20
        assert [one async for one in stream] == []


async def test_a_client_leaves_watches_of_a_raft_group_to_others(tmp_path: Path) -> None:
    """Through however many brokers it watches; one that ends makes room."""
    async with KvNode(tmp_path) as node:
        await node.put(b"a", b"1")
        streams = []
        for number in range(256):
            owner = kv.StreamOwner(broker_boot_id=number + 1, client=7)
            streams.append(node.follow(0, owner=owner))
            assert (await anext(streams[-1])).revision == 1
        last = kv.StreamOwner(broker_boot_id=999, client=7)
        told = await anext(node.follow(0, owner=last))
        assert told.refusal.outcome == pb.OUTCOME_TOO_MANY_WAITERS
        streams.append(node.follow(0, owner=kv.StreamOwner(broker_boot_id=999, client=8)))
        assert (await anext(streams[-1])).revision == 1
        await streams[0].aclose()  # type: ignore[attr-defined]
        streams.append(node.follow(0, owner=last))
        assert (await anext(streams[-1])).revision == 1
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]


async def test_a_dump_is_of_one_revision_and_whole(tmp_path: Path) -> None:
    """Writes during the dump do not show; its last part says that it is complete."""
    async with KvNode(tmp_path) as node:
        for number in range(30):
            await node.put(b"%02d" % number, b"v" * 200_000)
        found: dict[bytes, int] = {}
        complete = False
        request = kv.DumpRequest(raft_group=GROUP, table=TABLE)
        async for part in node.rpc.dump(request, CONTEXT):
            assert part.revision == 30
            found |= {item.key: len(item.value) for item in part.items}
            complete = part.complete
            await node.put(b"%02d" % len(found), b"new")
        assert found == {b"%02d" % number: 200_000 for number in range(30)}
        assert complete


async def test_a_dropped_table_is_gone_and_its_id_stays_away(tmp_path: Path) -> None:
    """Reads and writes are sent elsewhere; other tables keep their items; a restart too."""
    async with KvNode(tmp_path) as node:
        await node.put(b"a", b"1")
        await node.put(b"a", b"other", table=OTHER_TABLE)
        await node.app.node.engine(GROUP).drop(DropKind.TOPIC, TABLE.topic_id)
        await node.app.node.engine(GROUP).barrier()
        assert (await node.put(b"a", b"2")).outcome == pb.OUTCOME_WRONG_GROUP
        assert (await node.get(b"a")).results[0].outcome == pb.OUTCOME_WRONG_GROUP
    async with KvNode(tmp_path) as node:
        assert await node.items(OTHER_TABLE) == {b"a": b"other"}


async def test_a_table_does_not_move(tmp_path: Path) -> None:
    """Its queue cannot be sealed: items would stay behind."""
    async with KvNode(tmp_path) as node:
        await node.put(b"a", b"1")
        with pytest.raises(Refused, match="cannot be moved"):
            await node.app.node.engine(GROUP).seal(TABLE.topic_id, 0, 2)
        assert (await node.put(b"a", b"2")).applied


async def test_a_table_that_gets_its_first_item_does_not_move(tmp_path: Path) -> None:
    """Its queue cannot be sealed while that entry is in flight: it would be behind the end."""
    async with KvNode(tmp_path) as node:
        engine = node.app.node.engine(GROUP)
        write = asyncio.ensure_future(node.put(b"a", b"1"))
        await asyncio.sleep(0)
        assert engine.machine.queues.get(TABLE.topic_id, 0) is None, "it is not applied yet"
        with pytest.raises(Refused, match="cannot be moved"):
            await engine.seal(TABLE.topic_id, 0, 2)
        assert (await write).applied
        assert await node.items() == {b"a": b"1"}


@pytest.mark.parametrize("in_flight", [True, False])
async def test_a_sealed_table_takes_no_writes(tmp_path: Path, in_flight: bool) -> None:
    """It moved while it was empty: what is written here from then on nobody would read.

    Not from the proposal of its end on, and not after a restart.
    """
    store = MemoryStore()
    async with KvNode(tmp_path, store=store) as node:
        seal = asyncio.ensure_future(node.app.node.engine(GROUP).seal(TABLE.topic_id, 0, 2))
        await asyncio.sleep(0)
        if not in_flight:
            await seal
        refused = await node.put(b"a", b"1")
        assert (refused.outcome, refused.applied) == (pb.OUTCOME_WRONG_GROUP, False)
        assert await seal == 0
        assert (await node.put(b"a", b"1", table=OTHER_TABLE)).applied
    async with KvNode(tmp_path, store=store) as node:
        assert (await node.put(b"a", b"1")).outcome == pb.OUTCOME_WRONG_GROUP
        assert node.tables.table(TABLE.topic_id) is None
        assert await node.items(OTHER_TABLE) == {b"a": b"1"}


async def test_a_node_without_the_plugin_stops_at_its_entries(tmp_path: Path) -> None:
    """It does not skip them: the raft group is read-only, and says what is missing."""
    store = MemoryStore()
    async with KvNode(tmp_path) as node:
        await node.put(b"a", b"1")
    node = KvNode(tmp_path, plugin=False, store=store)
    await node.app.start()
    replica = node.app.node.replicas()[GROUP]
    assert "plugin" in replica.read_only
    await node.app.stop(1.0)
