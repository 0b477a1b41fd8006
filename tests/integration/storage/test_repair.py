"""`strata log repair`: what is damaged is given up by name, all else stays (rule 8)."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_seglog.frames import HEADER_BYTES
from strata_seglog.real_disk import RealDisk
from strata_seglog.repair import RepairError
from strata_seglog.verify import dump_log, verify_log
from strata_state.memory_store import MemoryStore
from strata_state.ports import StateStore
from strata_state.rocksdb_store import RocksdbOptions, RocksdbStore
from strata_storage.upkeep.repair import RepairPlan, carry_out, plan_repair
from strata_testing import ManualClock
from strata_testing.simulated_disk import SimulatedDisk
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    TOPIC,
    NodeUnderTest,
    lease_of,
    node_under_test,
    pop_request,
    small_config,
)
from tests.integration.storage.damaged_log import (
    GROUPS,
    OTHER_GROUP,
    append,
    fetch_all,
    flip,
    frames_of,
    status_of,
)

CONFIG = small_config(default_retention_ms=60_000, recent_bytes=0, scrub_bytes_per_s=0)
REPLICA = 100 + GROUP
SEEDS = max(6, int(os.environ.get("STRATA_TEST_ROUNDS", "0")))
Queues = dict[int, dict[int, bytes]]


def repair(folder: Path, raft_group: int | None = None, *, dry_run: bool = False) -> RepairPlan:
    """Repair the log of a stopped node; return what was given up."""
    disk = RealDisk(folder / "log")
    store: StateStore = MemoryStore()
    if (folder / "state").is_dir():
        store = RocksdbStore(folder / "state", RocksdbOptions())
    try:
        plan = plan_repair(disk, store, raft_group)
        if not dry_run:
            carry_out(plan, disk, store)
        return plan
    finally:
        store.close()


def lost_offsets(plan: RepairPlan) -> dict[int, set[int]]:
    """Return the offsets that a plan names as lost, by queue."""
    found: dict[int, set[int]] = {}
    for entry in plan.given_up:
        for lost in entry.lost:
            offsets = range(lost.first_offset, lost.last_offset + 1)
            found.setdefault(lost.queue, set()).update(offsets)
    return found


async def everything(node: NodeUnderTest) -> Queues:
    """Return all messages: queues 0 and 2 are group 1's, 1 and 3 group 2's."""
    return {queue: await fetch_all(node, GROUPS[queue % 2], queue) for queue in range(4)}


async def filled(folder: Path, clock: ManualClock, *, large: bool = False) -> Queues:
    """Run a node that takes messages of several sizes, some of them leased and acked."""
    rng = random.Random(1)
    async with node_under_test(folder, clock=clock, config=CONFIG, raft_groups=GROUPS) as node:
        for number in range(24):
            queue = number % 4
            size = 500_000 if large else 100
            bodies = [b"%d-%d-" % (number, at) + rng.randbytes(size) for at in range(3)]
            assert not (await append(node, GROUPS[queue % 2], bodies, queue)).HasField("refusal")
            clock.advance(4 if large else 0)
        popped = await node.pop(max_messages=10, invisible_ms=3_600_000)
        await node.ack(*(lease_of(message) for message in popped.messages[:4]))
        if large:
            await node.app.node.retain_once()
            assert node.app.node.status().log_first_position > 0
        return await everything(node)


async def check_repaired(
    folder: Path, clock: ManualClock, before: Queues, plan: RepairPlan, *, exact: bool = True
) -> Queues:
    """Start after a repair: writable, only what was named is gone, offsets go on, verify clean."""
    report = verify_log(RealDisk(folder / "log"))
    assert report.ok, report.corruptions
    assert repair(folder).is_empty, "a second repair finds something"
    lost = lost_offsets(plan)
    async with node_under_test(folder, clock=clock, config=CONFIG, raft_groups=GROUPS) as node:
        after = await everything(node)
        for queue, messages in before.items():
            gone = messages.keys() - after[queue].keys()
            if exact:
                assert gone == lost.get(queue, set()) & messages.keys()
            assert after[queue].items() <= messages.items()
            assert status_of(node, GROUPS[queue % 2]).leader
            result = await append(node, GROUPS[queue % 2], [b"next"], queue)
            assert result.parts[0].base_offset > max(messages)
            after[queue][result.parts[0].base_offset] = b"next"
        return after


@pytest.mark.parametrize(("number", "lose_rows"), [(0, True), (3, False), (5, True)])
@pytest.mark.parametrize(
    ("at", "length", "lost"),
    [
        (20, 4, 3),  # The frame's header.
        (HEADER_BYTES + 40, 1, 3),  # Where the leader put the messages.
        (HEADER_BYTES + 100, 1, 3),  # The batch's columns.
        (-50, 1, 1),  # The last message.
        (-150, 100, 2),  # The last two.
        (0, 500, 3),  # All of it.
    ],
)
async def test_what_is_damaged_is_given_up_and_nothing_else(
    tmp_path: Path, at: int, length: int, lost: int, number: int, lose_rows: bool
) -> None:
    """The group is read-only, then repaired; other messages stay, offsets are not used again."""
    clock = ManualClock()
    before = await filled(tmp_path, clock)
    frame = frames_of(tmp_path / "log", REPLICA)[number]
    end = int(frame["position"]) + HEADER_BYTES + int(frame["payload_bytes"])
    flip(tmp_path / "log", end + at if at < 0 else int(frame["position"]) + at, length)
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, raft_groups=GROUPS) as node:
        assert status_of(node, GROUP).state == pb.REPLICA_STATE_READ_ONLY
        assert "strata log repair" in status_of(node, GROUP).reason
        if at == 20 or length == 500:
            return  # Nobody can say whose the frame was: all groups are read-only.
        assert status_of(node, OTHER_GROUP).leader
    if lose_rows:
        shutil.rmtree(tmp_path / "state")
    tried = repair(tmp_path, dry_run=True)
    assert not verify_log(RealDisk(tmp_path / "log")).ok, "a dry run changes nothing"
    plan = repair(tmp_path)
    assert plan.given_up == tried.given_up
    (given_up,) = plan.given_up
    assert (given_up.raft_group, given_up.index) == (GROUP, frame["index"])
    assert given_up.saved_messages == 3 - lost
    exact = not lose_rows or number in (0, 3) or lost < 3
    await check_repaired(tmp_path, clock, before, plan, exact=exact)


@pytest.mark.parametrize(("number", "lose_rows"), [(0, True), (2, False), (11, False), (11, True)])
async def test_a_frame_whose_header_is_gone_is_found_by_its_neighbours(
    tmp_path: Path, number: int, lose_rows: bool
) -> None:
    """Its index is missing; if it may have been the newest, offsets are skipped."""
    clock = ManualClock()
    before = await filled(tmp_path, clock)
    frame = frames_of(tmp_path / "log", REPLICA)[number]
    flip(tmp_path / "log", int(frame["position"]), 200)
    if lose_rows:
        shutil.rmtree(tmp_path / "state")
    plan = repair(tmp_path)
    assert [(each.raft_group, each.index) for each in plan.given_up] == [(GROUP, frame["index"])]
    after = await check_repaired(tmp_path, clock, before, plan, exact=False)
    gone = [
        body for queue in before for at, body in before[queue].items() if at not in after[queue]
    ]
    assert len(gone) == 3
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, raft_groups=GROUPS) as node:
        assert await everything(node) == after, "the log alone gives the same"


@pytest.mark.parametrize("lose_rows", [False, True])
async def test_damage_in_sealed_segments_is_repaired(tmp_path: Path, lose_rows: bool) -> None:
    """Messages, headers, a footer and a trailer, of a log whose oldest segments were freed."""
    clock = ManualClock()
    before = await filled(tmp_path, clock, large=True)
    log = tmp_path / "log"
    mine, others = (frames_of(log, 100 + group, sealed=True) for group in GROUPS)
    flip(log, int(mine[-1]["position"]) + HEADER_BYTES + 1_400_000)
    flip(log, int(others[-1]["position"]) + 30)
    used = {frame["segment"]: frame for frame in mine}
    segment = log / str(next(iter(used)))
    data = bytearray(segment.read_bytes())
    data[-3] ^= 1
    segment.write_bytes(data)
    if lose_rows:
        shutil.rmtree(tmp_path / "state")
    plan = repair(tmp_path)
    assert [each.name for each in plan.unsealed] == [segment.name]
    assert {each.raft_group for each in plan.given_up} == set(GROUPS)
    after = await check_repaired(tmp_path, clock, before, plan, exact=not lose_rows)
    assert 1 <= sum(len(before[queue].keys() - after[queue].keys()) for queue in before) <= 4


async def test_a_repair_of_one_raft_group_leaves_the_others_damage(tmp_path: Path) -> None:
    """`--raft-group`: the other one stays read-only."""
    clock = ManualClock()
    await filled(tmp_path, clock)
    for raft_group in GROUPS:
        frame = frames_of(tmp_path / "log", 100 + raft_group)[2]
        flip(tmp_path / "log", int(frame["position"]) + HEADER_BYTES + 150)
    plan = repair(tmp_path, GROUP)
    assert {each.raft_group for each in plan.given_up} == {GROUP}
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, raft_groups=GROUPS) as node:
        assert status_of(node, GROUP).leader
        assert status_of(node, OTHER_GROUP).state == pb.REPLICA_STATE_READ_ONLY


async def test_a_repair_of_one_raft_group_writes_over_nothing_of_the_others(
    tmp_path: Path,
) -> None:
    """A segment without footer that others have damage in waits for their repair."""
    clock = ManualClock()
    before = await filled(tmp_path, clock, large=True)
    log = tmp_path / "log"
    mine, others = (frames_of(log, 100 + group, sealed=True) for group in GROUPS)
    shared = next(each for each in reversed(mine) if each["segment"] == others[0]["segment"])
    flip(log, int(shared["position"]) + HEADER_BYTES + 1_400_000)
    flip(log, int(others[0]["position"]) + HEADER_BYTES + 1_400_000)
    segment = log / str(shared["segment"])
    data = bytearray(segment.read_bytes())
    data[-3] ^= 1
    segment.write_bytes(data)
    first = repair(tmp_path, GROUP)
    assert (len(first.given_up), first.unsealed) == (1, [])
    second = repair(tmp_path)
    assert (len(second.given_up), len(second.unsealed)) == (1, 1)
    after = await check_repaired(tmp_path, clock, before, second, exact=False)
    assert sum(len(before[queue].keys() - after[queue].keys()) for queue in before) == 2


async def test_consumers_go_on_behind_lost_messages(tmp_path: Path) -> None:
    """A pop skips them, a lease on one is consumed, the cursor gets past all."""
    clock = ManualClock()
    async with node_under_test(tmp_path, clock=clock, config=CONFIG) as node:
        for number in range(8):
            await node.append([b"%d" % number * 300], queue=0)
        leased = await node.pop(max_messages=3, invisible_ms=30_000)
        assert [message.offset for message in leased.messages] == [0, 1, 2]
    frames = frames_of(tmp_path / "log", REPLICA)
    for number in (1, 4, 5):
        flip(tmp_path / "log", int(frames[number]["position"]) + HEADER_BYTES + 300)
    plan = repair(tmp_path)
    assert lost_offsets(plan) == {0: {1, 4, 5}}
    clock.advance(31)
    async with node_under_test(tmp_path, clock=clock, config=CONFIG) as node:
        got: list[int] = []
        for _ in range(12):
            for message in (await node.pop(max_messages=2, invisible_ms=30_000)).messages:
                got.append(message.offset)
                await node.ack(lease_of(message))
        assert sorted(got) == [0, 2, 3, 6, 7]
        state = pb.GetConsumerStateRequest(raft_group=GROUP, consumer_group_id=5, topic=TOPIC)
        queue = (await node.rpc.get_consumer_state(state, CONTEXT)).queues[0]
        assert (queue.cursor, queue.head, queue.in_flight, queue.waiting) == (8, 8, 0, 0)
        offsets: list[int] = []
        for _ in range(3):
            popped = await node.rpc.pop(pop_request(consumer_group_id=6), CONTEXT)
            offsets += [message.offset for message in popped.messages]
        assert offsets == [0, 2, 3, 6, 7]


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_any_damage_can_be_repaired(tmp_path: Path, seed: int) -> None:
    """Flips anywhere: afterwards both groups are writable and no readable message is missing."""
    print(f"seed {seed}")
    rng, clock = random.Random(seed), ManualClock()
    before = await filled(tmp_path, clock)
    log = tmp_path / "log"
    end = verify_log(RealDisk(log)).end_position
    for _ in range(rng.randrange(1, 4)):
        flip(log, rng.randrange(end - 300), rng.choice((1, 30, 300)))
    if rng.random() < 0.5:
        shutil.rmtree(tmp_path / "state")
    plan = repair(tmp_path)
    after = await check_repaired(tmp_path, clock, before, plan, exact=False)
    gone = sum(len(before[queue].keys() - after[queue].keys()) for queue in before)
    # The newest entry of a raft group leaves no trace but that it may have stood there.
    unnamed = sum(len(damage.suspects) for damage in plan.damages)
    assert gone <= 3 * (len(plan.given_up) + unnamed)


async def test_a_repair_that_is_cut_off_is_finished_by_the_next_one(tmp_path: Path) -> None:
    """A power failure at any write or sync of a repair: the same is there after another."""
    clock, disk, store = ManualClock(), SimulatedDisk(1), MemoryStore()
    async with node_on(tmp_path, disk, store, clock) as node:
        for number in range(6):
            await append(node, GROUP, [b"%d-%d" % (number, at) * 60 for at in range(3)], 0)
            await append(node, OTHER_GROUP, [b"other" * 60], 1)
    frames = [
        frame
        for frame in dump_log(disk)
        if frame["replica_id"] == REPLICA and 700 < int(frame["payload_bytes"]) < 2_000
    ]
    assert len(frames) == 6
    # A message, a frame without header, the batch's columns.
    for frame, at in zip(frames[1::2], (HEADER_BYTES + 500, 0, HEADER_BYTES + 100), strict=True):
        disk.flip(str(frame["segment"]), int(frame["position"]) + at)
    moments: list[tuple[SimulatedDisk, MemoryStore]] = []

    def look(operation: str, name: str) -> None:
        if operation in ("write", "sync", "sync_folder"):
            moments.append((disk.snapshot(len(moments)), store.after_crash()))

    disk.on_call = look
    carry_out(plan_repair(disk, store), disk, store)
    disk.on_call = None
    expected: Queues | None = None
    assert len(moments) > 8
    for lost_disk, rows in [(disk, store), *moments]:
        if lost_disk is not disk:
            lost_disk.power_loss()
            carry_out(plan_repair(lost_disk, rows), lost_disk, rows)
        assert verify_log(lost_disk).ok
        async with node_on(tmp_path, lost_disk, rows, clock) as node:
            assert status_of(node, GROUP).leader
            found = await everything(node)
        expected = expected or found
        assert found == expected
    assert expected is not None
    assert expected[0].keys() == set(range(18)) - {4, 9, 10, 11, 15, 16, 17}


def node_on(
    folder: Path, disk: SimulatedDisk, store: MemoryStore, clock: ManualClock
) -> NodeUnderTest:
    return node_under_test(
        folder, clock=clock, disk=disk, store=store, config=CONFIG, raft_groups=GROUPS
    )


async def test_times_and_retention_see_holes_as_nothing(tmp_path: Path) -> None:
    """A hole at the start of a queue: a search by time and a trim find what comes behind it."""
    clock = ManualClock()
    times: list[int] = []
    async with node_under_test(tmp_path, clock=clock, config=CONFIG) as node:
        for number in range(8):
            times.append((await node.append([b"%d" % number * 300])).store_time_ms)
            clock.advance(10)
    frames = frames_of(tmp_path / "log", REPLICA)
    for number in (0, 1, 2, 5):
        flip(tmp_path / "log", int(frames[number]["position"]) + HEADER_BYTES + 300)
    repair(tmp_path)
    async with node_under_test(tmp_path, clock=clock, config=CONFIG) as node:
        for number, first in ((0, 3), (3, 3), (4, 4), (5, 6), (6, 6)):
            request = pb.GetOffsetsRequest(
                raft_group=GROUP, topic=TOPIC, queues=[0], time_ms=times[number]
            )
            (queue,) = (await node.rpc.get_offsets(request, CONTEXT)).queues
            assert queue.by_time in range(number, first + 1)
            assert (queue.min_offset, queue.next_offset) == (0, 8)
        await node.app.node.retain_once()
        assert (await fetch_all(node, GROUP, 0)).keys() == {3, 4, 6, 7}
        clock.advance(26)
        await node.app.node.retain_once()
        assert (await fetch_all(node, GROUP, 0)).keys() == {6, 7}


@pytest.mark.parametrize("lose_rows", [False, True])
async def test_a_damaged_checkpoint_is_written_anew_from_the_rows(
    tmp_path: Path, lose_rows: bool
) -> None:
    """Without rows there is nothing to write it from: an error that says what helps."""
    clock = ManualClock()
    before = await filled(tmp_path, clock, large=True)
    log = tmp_path / "log"
    for frame in dump_log(RealDisk(log)):
        if frame.get("kind") == "checkpoint" and frame["replica_id"] == REPLICA:
            flip(log, int(frame["position"]) + HEADER_BYTES + 60)
    if lose_rows:
        shutil.rmtree(tmp_path / "state")
        with pytest.raises(RepairError, match="checkpoint is damaged and its rows are gone"):
            repair(tmp_path)
        return
    plan = repair(tmp_path)
    assert not plan.given_up
    after = await check_repaired(tmp_path, clock, before, plan)
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, raft_groups=GROUPS) as node:
        assert await everything(node) == after


async def test_a_missing_segment_is_no_damage_to_repair(tmp_path: Path) -> None:
    """The file is put back, or the replica replaced: a repair makes nothing up."""
    await filled(tmp_path, ManualClock(), large=True)
    segments = sorted((tmp_path / "log").glob("*.log"))
    segments[1].unlink()
    with pytest.raises(RepairError, match="missing"):
        repair(tmp_path)
