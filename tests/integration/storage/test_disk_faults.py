"""ENOSPC and EIO at any call of the disk, through a whole node (rules 7, 11 and 31)."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_runtime.metrics import Metrics
from strata_state.memory_store import MemoryStore
from strata_storage.base.config import StorageConfig
from strata_storage.base.disk_guard import DiskMark
from strata_storage.upkeep.retention import FixedRetention
from strata_testing import ManualClock
from strata_testing.simulated_disk import Keep, SimulatedDisk
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    TOPIC,
    NodeUnderTest,
    batch_of,
    lease_of,
    node_under_test,
    pop_request,
    small_config,
)
from tests.integration.storage.damaged_log import GROUPS, fetch_all

LONG, SHORT = TOPIC.topic_id, 8
RETENTION = FixedRetention(60_000, {LONG: 72 * 3_600_000})
# Below what a configuration may say: so that few bytes make many segments.
CONFIG = small_config(recent_bytes=0, scrub_bytes_per_s=0).model_copy(
    update={"log_segment_bytes": 192 * 1024}
)
ROUNDS = int(os.environ.get("STRATA_TEST_ROUNDS", "0"))
REFUSALS = {
    pb.OUTCOME_DISK_FULL,
    pb.OUTCOME_NOT_LEADER,
    pb.OUTCOME_NOT_READY,
    pb.OUTCOME_OVERLOADED,
    pb.OUTCOME_UNREADABLE,
}


@dataclass
class Promises:
    """Requests that were answered with OK, and why the rest was refused."""

    appended: dict[tuple[int, int], bytes] = field(default_factory=dict)
    consumed: set[bytes] = field(default_factory=set)
    sent: set[bytes] = field(default_factory=set)
    refused: list[int] = field(default_factory=list)

    def take(self, refusal: pb.Refusal) -> None:
        """Note a refusal; only those that mean "later" may come."""
        assert refusal.outcome in REFUSALS, refusal
        self.refused.append(refusal.outcome)


class Faults:
    """Counts calls of the disk and lets chosen ones fail."""

    def __init__(self, disk: SimulatedDisk, operations: frozenset[str]) -> None:
        self.calls = 0
        self.failed = 0
        self.fail_from: int | None = None
        self.fail_times = 0
        self.error = 0
        self._operations = operations
        disk.on_call = self._called

    def _called(self, operation: str, name: str) -> None:
        if operation not in self._operations:
            return
        self.calls += 1
        due = self.fail_from is not None and self.calls >= self.fail_from
        if due and self.failed < self.fail_times:
            self.failed += 1
            raise OSError(self.error, os.strerror(self.error))


async def work(node: NodeUnderTest, promises: Promises, rounds: int = 10) -> None:
    """Appends to two raft groups, pops, acks, checkpoints, retention, relocation."""
    rng = random.Random(1)
    for number in range(rounds):
        for queue, raft_group in enumerate(GROUPS):
            await append(node, promises, raft_group, queue, LONG, b"%d" % rng.randrange(10**9))
            await append(node, promises, raft_group, queue, SHORT, rng.randbytes(15_000))
        popped = await node.rpc.pop(pop_request(max_messages=2), CONTEXT)
        if popped.HasField("refusal"):
            promises.take(popped.refusal)
        acked = await node.ack(*(lease_of(message) for message in popped.messages))
        if acked.HasField("refusal"):
            promises.take(acked.refusal)
        else:
            # In order: the outcomes are one per lease.
            assert set(acked.outcomes) <= {pb.OUTCOME_OK, pb.OUTCOME_INVALID_HANDLE}
            promises.consumed.update(
                message.message
                for message, outcome in zip(popped.messages, acked.outcomes, strict=True)
                if outcome == pb.OUTCOME_OK
            )
        node.clock.advance(25)
        if number % 3 == 2:
            # As the node's own task: what it cannot bear ends the process.
            turn = node.app.node._tasks.spawn("turn", node.app.node.retain_once())
            await asyncio.wait({turn})


async def append(
    node: NodeUnderTest, promises: Promises, raft_group: int, queue: int, topic_id: int, body: bytes
) -> None:
    node.sequence += 1
    promises.sent.add(body)
    batch = pb.GroupBatch(
        raft_group=raft_group,
        sequence=node.sequence,
        batch=batch_of([body], queue=queue, topic_id=topic_id),
    )
    request = pb.AppendRequest(broker_boot_id=id(promises), batches=[batch])
    (result,) = (await node.rpc.append(request, CONTEXT)).results
    if result.HasField("refusal"):
        promises.take(result.refusal)
    elif topic_id == LONG:
        promises.appended[queue, result.parts[0].base_offset] = body


def node_on(
    folder: Path,
    disk: SimulatedDisk,
    store: MemoryStore,
    clock: ManualClock,
    config: StorageConfig = CONFIG,
    metrics: Metrics | None = None,
) -> NodeUnderTest:
    return node_under_test(
        folder,
        clock=clock,
        disk=disk,
        store=store,
        config=config,
        raft_groups=GROUPS,
        retention=RETENTION,
        metrics=metrics,
    )


def retry_soon(node: NodeUnderTest) -> None:
    """Let a full log be tried again at once."""
    raft = node.app.node._raft
    raft.options = replace(raft.options, disk_full_retry_ms=5)


async def check(
    folder: Path, disk: SimulatedDisk, store: MemoryStore, clock: ManualClock, promises: Promises
) -> None:
    """After a start: what was promised is there, what was consumed stays away, no phantom."""
    clock.advance(60)
    async with node_on(folder, disk, store, clock) as node:
        found = {
            (queue, offset): body
            for queue, raft_group in enumerate(GROUPS)
            for offset, body in (await fetch_all(node, raft_group, queue)).items()
        }
        assert promises.appended.items() <= found.items(), "an answered append is lost"
        assert set(found.values()) <= promises.sent, "a phantom"
        given = {
            message.message
            for message in (await node.rpc.pop(pop_request(max_messages=1_000), CONTEXT)).messages
        }
        assert not given & promises.consumed, "an acked message came back"


async def calls_of(folder: Path, operations: frozenset[str]) -> tuple[int, int]:
    """Return how many calls there are before the work begins and when it ends."""
    disk, store, clock = SimulatedDisk(1), MemoryStore(), ManualClock()
    faults = Faults(disk, operations)
    async with node_on(folder, disk, store, clock) as node:
        first = faults.calls
        await work(node, Promises())
        assert node.app.node.status().log_first_position > 0, "nothing was reclaimed"
        return first, faults.calls


def chosen(first: int, last: int, count: int) -> Iterator[int]:
    """Yield call numbers: all with STRATA_TEST_ROUNDS, else spread evenly from a seeded start."""
    step = 1 if ROUNDS else max(1, (last - first) // count)
    start = random.Random(7).randrange(step)
    print(f"calls {first} to {last}, every {step}th from {first + 1 + start}")
    yield from range(first + 1 + start, last + 1, step)


@pytest.mark.parametrize("times", [1, 12])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_a_refused_write_loses_nothing_and_the_node_stays_up(
    tmp_path: Path, error: int, times: int
) -> None:
    """At writes and preallocations, once or a dozen times: refused, then it goes on (rule 11)."""
    operations = frozenset({"write", "allocate"})
    first, last = await calls_of(tmp_path, operations)
    refused: set[int] = set()
    for number in chosen(first, last, 12):
        disk, store, clock, promises = (
            SimulatedDisk(number),
            MemoryStore(),
            ManualClock(),
            Promises(),
        )
        faults = Faults(disk, operations)
        faults.fail_from, faults.fail_times, faults.error = number, times, error
        async with node_on(tmp_path, disk, store, clock) as node:
            retry_soon(node)
            await work(node, promises)
            assert faults.failed, number
            faults.fail_times = 0
            refused.update(promises.refused)
            await recovered(node, promises)
            assert not node.fatal
            disk.on_call = None
            power_lost, rows_lost = disk.snapshot(number), store.after_crash()
        await check(tmp_path, disk, store, clock, promises)
        power_lost.power_loss(Keep.ANY)
        await check(tmp_path, power_lost, rows_lost, clock, promises)
    assert pb.OUTCOME_DISK_FULL in refused


async def recovered(node: NodeUnderTest, promises: Promises) -> None:
    """Wait until both groups take messages again."""
    async with asyncio.timeout(30):
        for queue, raft_group in enumerate(GROUPS):
            count = len(promises.appended)
            while len(promises.appended) == count:
                await asyncio.sleep(0.005)
                await append(node, promises, raft_group, queue, LONG, b"again %d" % queue)


async def test_a_failed_sync_ends_the_process_and_nothing_is_acked_after_it(
    tmp_path: Path,
) -> None:
    """Rule 7: on_fatal is called; the disk, opened again, has all that was acked."""
    operations = frozenset({"sync", "sync_folder"})
    first, last = await calls_of(tmp_path, operations)
    for number in chosen(first, last, 14):
        disk, store, clock, promises = (
            SimulatedDisk(number),
            MemoryStore(),
            ManualClock(),
            Promises(),
        )
        faults = Faults(disk, operations)
        faults.fail_from, faults.fail_times, faults.error = number, 1, errno.EIO
        node = node_on(tmp_path, disk, store, clock)
        await node.app.start()
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(work(node, promises))
            await asyncio.wait_for(node.failed.wait(), 60)
            acked = len(promises.appended), len(promises.consumed)
            # A caller that still waits gets no answer.
            await asyncio.sleep(0.02)
            assert (len(promises.appended), len(promises.consumed)) == acked
            working.cancel()
        disk.on_call = None
        pictures = [
            (disk.snapshot(number), store.after_crash(), keep) for keep in (Keep.NONE, Keep.ANY)
        ]
        await node.app.stop(0.1)
        for lost_disk, rows, keep in pictures:
            lost_disk.power_loss(keep)
            await check(tmp_path, lost_disk, rows, clock, promises)


async def test_reads_that_fail_are_told_to_the_caller_only(tmp_path: Path) -> None:
    """Rule 31: EIO on reads changes no leader and ends no task; the next read is served."""
    disk, store, clock, promises = SimulatedDisk(1), MemoryStore(), ManualClock(), Promises()
    metrics = Metrics()
    async with node_on(tmp_path, disk, store, clock, metrics=metrics) as node:
        await work(node, promises, 4)
        term = node.app.node.status().replicas[0].term
        faults = Faults(disk, frozenset({"read"}))
        faults.fail_from, faults.fail_times, faults.error = 1, 10_000, errno.EIO
        request = pb.FetchRequest(raft_group=GROUP, topic_id=LONG, queue=0, max_messages=10)
        fetched = (await node.rpc.fetch(request, CONTEXT)).refusal
        assert fetched.outcome == pb.OUTCOME_UNREADABLE
        assert "cannot be read now" in fetched.reason
        popped = await node.rpc.pop(pop_request(consumer_group_id=9), CONTEXT)
        assert popped.refusal.outcome == pb.OUTCOME_UNREADABLE
        assert "cannot be read now" in popped.refusal.reason
        scraped = metrics.render().decode()
        assert re.search(r"^strata_storage_reads_failed_total [1-9]", scraped, re.MULTILINE)
        assert not re.search(r"^strata_storage_corrupt_total [1-9]", scraped, re.MULTILINE)
        await node.app.node.scrub_once(1_000_000)
        await node.app.node.retain_once()
        await append(node, promises, GROUP, 0, LONG, b"written meanwhile")
        assert faults.failed > 3
        faults.fail_times = 0
        assert (await fetch_all(node, GROUP, 0)).items() >= {
            offset: body for (queue, offset), body in promises.appended.items() if queue == 0
        }.items()
        replica = node.app.node.status().replicas[0]
        assert (replica.term, replica.leader) == (term, True)
        assert not node.fatal


async def test_a_disk_that_fills_up_is_served_by_the_ballast(tmp_path: Path) -> None:
    """Appends are refused before ENOSPC, acks and trims go on, room makes it whole (rule 11)."""
    mib = 1024 * 1024
    config = CONFIG.model_copy(
        update={
            "ballast_bytes": mib,
            "refuse_appends_free_bytes": 2 * mib,
            "default_retention_ms": 60_000,
        }
    )
    disk = SimulatedDisk(1, capacity_bytes=8 * mib)
    store, clock, promises = MemoryStore(), ManualClock(), Promises()
    async with node_on(tmp_path, disk, store, clock, config) as node:
        guard = node.app.node.disk_guard
        await node.app.node.check_disk()
        assert "ballast" in disk.names()
        async with asyncio.timeout(60):
            while guard.mark < DiskMark.REFUSE_APPENDS:
                await append(node, promises, GROUP, 0, LONG, b"kept")
                await append(node, promises, GROUP, 0, SHORT, bytes(15_000))
                await node.app.node.check_disk()
        promises.refused.clear()
        await append(node, promises, GROUP, 0, LONG, b"too much")
        assert promises.refused == [pb.OUTCOME_DISK_FULL]
        popped = await node.rpc.pop(pop_request(max_messages=5), CONTEXT)
        # Somebody else takes the rest.
        disk.open("stranger", create=True).allocate(disk.space().free_bytes)
        await node.app.node.check_disk()
        assert guard.mark.name == "STOP"
        assert "ballast" not in disk.names()
        leases = [lease_of(message) for message in popped.messages]
        assert set((await node.ack(*leases)).outcomes) == {pb.OUTCOME_OK}
        clock.advance(90)
        first_position = node.app.node.status().log_first_position
        await node.app.node.retain_once()
        assert node.app.node.status().log_first_position > first_position, "nothing was freed"
        disk.delete("stranger")
        await node.app.node.check_disk()
        assert guard.mark.name == "NORMAL"
        await node.app.node.check_disk()
        assert "ballast" in disk.names()
        await append(node, promises, GROUP, 0, LONG, b"kept again")
        assert (await fetch_all(node, GROUP, 0)).items() >= {
            offset: body for (_, offset), body in promises.appended.items()
        }.items()


async def test_a_disk_that_fills_up_is_seen_during_long_work(tmp_path: Path) -> None:
    """Rows of another replica are rebuilt, for hours perhaps: appends go on until the disk ends."""
    mib = 1024 * 1024
    sizes = {"ballast_bytes": mib, "refuse_appends_free_bytes": 2 * mib}
    disk = SimulatedDisk(1, capacity_bytes=8 * mib)
    store, clock = MemoryStore(), ManualClock()
    config = CONFIG.model_copy(update=sizes)
    async with node_on(tmp_path, disk, store, clock, config) as node:
        guard, is_over = node.app.node.disk_guard, threading.Event()
        await node.app.node.check_disk()
        running = node.app._running
        assert running is not None
        rebuild = asyncio.ensure_future(running.threads.flushes(lambda: is_over.wait(60)))
        try:
            disk.open("stranger", create=True).allocate(disk.space().free_bytes)
            async with asyncio.timeout(20):
                await node.app.node.check_disk()
            assert guard.mark.name == "STOP"
            assert "ballast" not in disk.names()
            disk.delete("stranger")
            async with asyncio.timeout(20):
                await node.app.node.check_disk()
            assert guard.mark.name == "NORMAL"
        finally:
            is_over.set()
            assert await rebuild
