"""State after a restart, a lost state folder, a power failure, a damaged or freed log."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.rows import LocalRow, RowKind
from strata_seglog.errors import CorruptFrame
from strata_state.memory_store import MemoryStore
from strata_state.ports import Row
from strata_state.rows import GroupRows
from strata_storage.base.config import StorageConfig
from strata_storage.upkeep import row_preparer
from strata_storage.upkeep.rebuild import RebuildError, Rebuilt, rebuild_if_needed
from strata_testing import ManualClock
from strata_testing.simulated_disk import SimulatedDisk
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    TOPIC,
    NodeUnderTest,
    lease_of,
    message_id,
    node_under_test,
    small_config,
)
from tests.integration.storage.kept_rows import kept_rows

_MIB = 1024 * 1024


def rows_of(node: NodeUnderTest) -> list[Row]:
    """Return all rows of the raft group but the applied row: the no-op of a term moves it."""
    rows = list(node.app.node.engine(GROUP).machine.rows.all())
    return [row for row in rows if row[0][4] != 0]


async def work(node: NodeUnderTest, rng: random.Random, rounds: int) -> None:
    """Do a bit of everything that leaves rows."""
    for number in range(rounds):
        queue = rng.randrange(-1, 4)
        await node.append(
            [rng.randbytes(rng.randrange(1, 200)) for _ in range(rng.randrange(1, 9))],
            queue=queue,
        )
        popped = await node.pop(max_messages=rng.randrange(1, 12), max_attempts=2)
        acked = [message for message in popped.messages if rng.random() < 0.7]
        await node.ack(*(lease_of(message) for message in acked))
        if number % 5 == 4:
            node.clock.advance(20)
            engine = node.app.node.engine(GROUP)
            assert engine.leader is not None
            await node.app.node.expire_once(engine, engine.leader)
    await node.app.node.engine(GROUP).barrier()


async def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    """Rows after a clean stop and start are the same; offsets go on."""
    clock = ManualClock()
    async with node_under_test(tmp_path, clock=clock) as node:
        await work(node, random.Random(1), 30)
        before = rows_of(node)
        last = await node.append([b"last"])
    async with node_under_test(tmp_path, clock=clock) as node:
        again = await node.append([b"next"], boot_id=2)
        assert again.parts[0].base_offset == last.parts[0].base_offset + 1
    async with node_under_test(tmp_path, clock=clock) as node:
        assert {key for key, _ in before} <= {key for key, _ in rows_of(node)}


async def test_known_ids_and_broker_results_survive_a_restart(tmp_path: Path) -> None:
    """A repeat after a crash still finds the first result (rule 23)."""
    identity = message_id(b"x")
    async with node_under_test(tmp_path) as node:
        first = await node.append([b"x"], ids=[identity], sequence=7)
    async with node_under_test(tmp_path) as node:
        assert await node.append([b"x"], ids=[identity], sequence=7) == first
        again = await node.append([b"x"], ids=[identity], sequence=8)
        assert [(d.queue, d.offset) for d in again.parts[0].duplicates] == [(0, 0)]


async def test_the_same_state_comes_back_when_the_state_folder_was_deleted(
    tmp_path: Path,
) -> None:
    """All rows, byte for byte, from the log alone."""
    clock = ManualClock()
    async with node_under_test(tmp_path, clock=clock) as node:
        await work(node, random.Random(2), 40)
        before = rows_of(node)
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path, clock=clock) as node:
        assert rows_of(node) == before


async def test_a_checkpoint_is_used_also_when_the_log_has_all_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost rows are not applied again one by one: the same ones come from checkpoint and log."""
    clock = ManualClock()
    config = small_config()
    async with node_under_test(tmp_path, clock=clock, config=config) as node:
        await work(node, random.Random(4), 20)
        await node.append([b"with a key"] * 3, queue=3, keys=["a", "b", "a"])
        parts = node.app.node
        parts._keeping.checkpointer.want(100 + GROUP)
        await parts._keeping.checkpointer.write_due(parts.engines(), parts.replicas())
        assert parts._keeping.checkpointer.indexes[100 + GROUP] > 20
        await work(node, random.Random(5), 20)
        before = rows_of(node)
    shutil.rmtree(tmp_path / "state")
    rebuilt: list[bool] = []

    def noted(*args: Any) -> Rebuilt | None:
        found = rebuild_if_needed(*args)
        # A crash now leaves no rows without an owner (`claim_rows`).
        assert GroupRows(args[0], GROUP).local.get() == LocalRow(100 + GROUP)
        rebuilt.append(found is not None)
        return found

    monkeypatch.setattr(row_preparer, "rebuild_if_needed", noted)
    async with node_under_test(tmp_path, clock=clock, config=config) as node:
        assert rows_of(node) == before
    assert rebuilt == [True]


async def test_a_damaged_checkpoint_is_passed_over_when_the_log_has_all_entries(
    tmp_path: Path,
) -> None:
    """Every entry is applied again."""
    clock = ManualClock()
    async with node_under_test(tmp_path, clock=clock) as node:
        await work(node, random.Random(4), 10)
        parts = node.app.node
        parts._keeping.checkpointer.want(100 + GROUP)
        await parts._keeping.checkpointer.write_due(parts.engines(), parts.replicas())
        before = rows_of(node)
        at = parts._data.log.checkpoints(100 + GROUP)[0]
    (segment,) = (tmp_path / "log").iterdir()
    data = bytearray(segment.read_bytes())
    data[at + 200] ^= 1
    segment.write_bytes(bytes(data))
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path, clock=clock) as node:
        assert rows_of(node) == before
        with pytest.raises(CorruptFrame):
            node.app.node._data.log.read_at(at)


async def test_rows_are_rebuilt_from_checkpoint_and_retained_frames(tmp_path: Path) -> None:
    """After segments were freed a checkpoint stands in for them: the same rows come back."""
    clock = ManualClock()
    config = small_config(default_retention_ms=60_000)
    async with node_under_test(tmp_path, clock=clock, config=config) as node:
        rng = random.Random(3)
        for _ in range(12):
            await node.append([rng.randbytes(200_000) for _ in range(8)], queue=-1)
            clock.advance(10)
        await work(node, rng, 10)
        await node.append([b"with a key"] * 3, queue=3, keys=["a", "b", "a"])
        for _ in range(2):
            await node.app.node.retain_once()
        first_position = node.app.node.status().log_first_position
        assert first_position > 0, "no segment was freed"
        await node.append([b"after the checkpoint"], queue=2, keys=["order-1"])
        engine = node.app.node.engine(GROUP)
        assert engine.leader is not None
        # The next proposal has what the trim does to leases.
        engine.leader.sets.flush_kept()
        await engine.leader.proposer.settled()
        await engine.barrier()
        before = kept_rows(rows_of(node))
        assert {RowKind.ID, RowKind.KEY} <= {row[0][4] for row in before}
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path, clock=clock, config=config) as node:
        assert kept_rows(rows_of(node)) == before
        fetched = await node.rpc.fetch(
            pb.FetchRequest(raft_group=GROUP, topic_id=7, queue=2, offset=0, max_messages=1_000),
            CONTEXT,
        )
        assert fetched.messages[-1].message == b"after the checkpoint"
        assert fetched.min_offset == fetched.messages[0].offset > 0


async def test_trimmed_messages_are_gone_and_their_leases_dropped(tmp_path: Path) -> None:
    """Retention moves the min offset; nothing below it is given out again (rule 26)."""
    clock = ManualClock()
    config = small_config(default_retention_ms=60_000)
    async with node_under_test(tmp_path, clock=clock, config=config) as node:
        await node.append([b"old"] * 3)
        popped = await node.pop(max_messages=2, invisible_ms=3_600_000)
        assert len(popped.messages) == 2
        clock.advance(61)
        await node.append([b"new"])
        await node.app.node.retain_once()
        assert [m.message for m in (await node.pop()).messages] == [b"new"]
        state = await node.rpc.get_consumer_state(
            pb.GetConsumerStateRequest(raft_group=GROUP, consumer_group_id=5, topic=TOPIC), CONTEXT
        )
        assert next((q.min_offset, q.cursor, q.in_flight) for q in state.queues) == (3, 3, 1)


@dataclass
class _Moment:
    """Promises and files at the moment when the power failed."""

    appended: dict[tuple[int, int], bytes]
    consumed: set[bytes]
    store: MemoryStore
    disk: SimulatedDisk


class _PowerFailures:
    """Takes a picture of the disk at writes and syncs; promises first, so they are not ahead."""

    def __init__(self, disk: SimulatedDisk, store: MemoryStore, limit: int) -> None:
        self.appended: dict[tuple[int, int], bytes] = {}
        self.consumed: set[bytes] = set()
        self.moments: list[_Moment] = []
        self._disk = disk
        self._store = store
        self._limit = limit
        disk.on_call = self._look

    def _look(self, operation: str, name: str) -> None:
        if operation in ("write", "sync") and len(self.moments) < self._limit:
            promised = dict(self.appended), set(self.consumed)
            store = self._store.after_crash()
            disk = self._disk.snapshot(len(self.moments))
            self.moments.append(_Moment(*promised, store, disk))


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_promised_is_lost_by_a_power_failure(tmp_path: Path, seed: int) -> None:
    """At every write and sync: appended messages are there, acked ones stay away, no phantom."""
    rng = random.Random(seed)
    print(f"seed {seed}")
    clock, disk, store = ManualClock(), SimulatedDisk(seed), MemoryStore()
    config = small_config()
    failures = _PowerFailures(disk, store, 40)
    sent: set[bytes] = set()
    async with node_under_test(
        tmp_path, clock=clock, disk=disk, store=store, config=config
    ) as node:
        for number in range(18):
            bodies = [b"%d-%d-%d" % (seed, number, at) for at in range(rng.randrange(1, 6))]
            sent.update(bodies)
            part = (await node.append(bodies, queue=-1)).parts[0]
            for at, body in enumerate(bodies):
                failures.appended[part.queue, part.base_offset + at] = body
            popped = (await node.pop(max_messages=3)).messages
            await node.ack(*(lease_of(message) for message in popped))
            failures.consumed.update(message.message for message in popped)
            if rng.random() < 0.2:
                await node.app.node.flush_once()
    assert len(failures.moments) > 20
    clock.advance(60)
    for moment in failures.moments:
        await _check_after(moment, sent, tmp_path, clock, config)


async def _check_after(
    moment: _Moment, sent: set[bytes], folder: Path, clock: ManualClock, config: StorageConfig
) -> None:
    moment.disk.power_loss()
    async with node_under_test(
        folder, clock=clock, disk=moment.disk, store=moment.store, config=config
    ) as node:
        found: dict[tuple[int, int], bytes] = {}
        for queue in range(4):
            fetched = await node.rpc.fetch(
                pb.FetchRequest(raft_group=GROUP, topic_id=7, queue=queue, max_messages=1_000),
                CONTEXT,
            )
            offsets = [message.offset for message in fetched.messages]
            assert offsets == list(range(fetched.next_offset))
            found |= {(queue, m.offset): m.message for m in fetched.messages}
        assert moment.appended.items() <= found.items(), "an answered append is lost"
        assert set(found.values()) <= sent, "a phantom"
        given = {message.message for message in (await node.pop(max_messages=1_000)).messages}
        assert not given & moment.consumed, "an acked message came back"
        assert (await node.append([b"next"], boot_id=9, queue=0)).parts[0].base_offset == sum(
            queue == 0 for queue, _ in found
        )


async def test_a_message_whose_bytes_were_flipped_is_never_served(tmp_path: Path) -> None:
    """It is CORRUPT for reads by offset; the others go on."""
    config = small_config(recent_bytes=0)
    async with node_under_test(tmp_path, config=config) as node:
        await node.append([b"first" * 50])
        await node.append([b"poison" * 50])
        await node.append([b"third" * 50])
        (segment,) = [p for p in (tmp_path / "log").iterdir() if b"poison" in p.read_bytes()]
        data = bytearray(segment.read_bytes())
        data[data.index(b"poison") + 3] ^= 1
        segment.write_bytes(bytes(data))
        request = pb.FetchRequest(raft_group=GROUP, topic_id=7, queue=0, offset=1, max_messages=1)
        assert (await node.rpc.fetch(request, CONTEXT)).refusal.outcome == pb.OUTCOME_CORRUPT
        popped = await node.pop()
        assert [m.message for m in popped.messages] == [b"first" * 50, b"third" * 50]


async def test_a_full_disk_refuses_appends_and_takes_acks(tmp_path: Path) -> None:
    """Rule 11: the first mark refuses appends, the second pops too, acks go on."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"a", b"b"])
        popped = await node.pop(max_messages=1)
        guard = node.app.node.disk_guard
        space = guard.space
        guard.observe(type(space)(300 * _MIB, space.total_bytes))
        assert (await node.append([b"c"])).refusal.outcome == pb.OUTCOME_DISK_FULL
        assert [m.message for m in (await node.pop(max_messages=1)).messages] == [b"b"]
        guard.observe(type(space)(200 * _MIB, space.total_bytes))
        assert (await node.pop()).refusal.outcome == pb.OUTCOME_DISK_FULL
        outcomes = (await node.ack(lease_of(popped.messages[0]))).outcomes
        assert list(outcomes) == [pb.OUTCOME_OK]


async def test_a_log_that_begins_after_the_rows_and_has_no_checkpoint_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is made up: without rows and without checkpoint there is no start."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"a"])
        log = node.app.node._data.log
        assert not rebuild_if_needed(MemoryStore(), log, GROUP, 101)
        (found,) = log.replicas().values()
        begins_late = replace(found, first_index=found.last_index)
        monkeypatch.setattr(log, "replica", lambda replica_id: begins_late)
        with pytest.raises(RebuildError, match="no checkpoint"):
            rebuild_if_needed(MemoryStore(), log, GROUP, 101)
