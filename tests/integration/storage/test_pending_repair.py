"""`strata log repair` where messages wait, or waited, in what is damaged (rule 8)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands.common import CommandKind
from strata_mq.layout.batch import PartKind
from strata_seglog.frames import HEADER_BYTES
from strata_seglog.real_disk import RealDisk
from strata_seglog.verify import dump_log, verify_log
from strata_storage.upkeep.repair import RepairPlan
from strata_testing import ManualClock
from strata_testing.storage_node import NodeUnderTest, node_under_test, small_config
from tests.integration.storage.damaged_log import FrameDict, flip
from tests.integration.storage.test_repair import lost_offsets, repair
from tests.integration.storage.waiting import (
    append,
    delay,
    end,
    let_pass,
    pop_bodies,
    waiting_batch,
)

CONFIG = small_config(recent_bytes=0, scrub_bytes_per_s=0)
COMMIT = pb.TRANSACTION_END_COMMIT
HALVES = [b"half %d" % number for number in range(4)]
DELAYED = [b"delayed %d" % number for number in range(3)]


def frames(folder: Path, kind: CommandKind) -> list[FrameDict]:
    """Return the entries that carry commands of a kind."""
    log = folder / "log"
    found = []
    for frame in dump_log(RealDisk(log)):
        if frame.get("kind") != "entry" or not int(frame["payload_bytes"]):
            continue
        segment = max(
            path for path in log.glob("*.log") if int(path.stem) <= int(frame["position"])
        )
        at = int(frame["position"]) - int(segment.stem) + HEADER_BYTES
        if segment.read_bytes()[at] == kind:
            found.append(frame)
    return found


async def filled(folder: Path, clock: ManualClock) -> None:
    """Store halves and delayed messages, a plain one around each; commit the first two halves."""
    async with node_under_test(folder, clock=clock, config=CONFIG) as node:
        await node.append([b"plain"])
        due_ms = clock.wall_ms() + 3_600_000
        batch = waiting_batch(HALVES, [due_ms] * len(HALVES), kind=PartKind.HALF)
        name = await append(node, batch)
        await node.append([b"plain"])
        await delay(node, DELAYED, 3_600_000)
        for ordinal in (0, 1):
            half = pb.PendingRef(index=name.index, ordinal=ordinal)
            response = await end(node, half, COMMIT)
            assert not response.HasField("refusal"), response.refusal
        await node.append([b"plain"])


async def after_repair(folder: Path, clock: ManualClock, plan: RepairPlan) -> list[bytes]:
    """Start again, let everything come due, return what is delivered: the same without rows."""
    assert verify_log(RealDisk(folder / "log")).ok
    assert repair(folder).is_empty, "a second repair finds something"
    delivered: list[list[bytes]] = []
    for consumer_group_id in (5, 6):
        async with node_under_test(folder, clock=clock, config=CONFIG) as node:
            status = node.app.node.status().replicas[0]
            assert status.state == pb.REPLICA_STATE_SERVING, status
            offset = (await node.append([b"next"], boot_id=0)).parts[0].base_offset
            assert offset > max(lost_offsets(plan).get(0, ()), default=0)
            let_pass(node, 3_601)
            delivered.append(sorted(set(await drain(node, consumer_group_id))))
        shutil.rmtree(folder / "state")
    assert delivered[0] == delivered[1]
    return delivered[0]


async def drain(node: NodeUnderTest, consumer_group_id: int) -> list[bytes]:
    """Pop until nothing comes any more."""
    bodies: list[bytes] = []
    while popped := await pop_bodies(
        node, consumer_group_id=consumer_group_id, wait_ms=500, invisible_ms=36_000_000
    ):
        bodies += popped
    return bodies


@pytest.mark.parametrize("lose_rows", [False, True])
async def test_a_damaged_message_that_waits_is_given_up_alone(
    tmp_path: Path, lose_rows: bool
) -> None:
    """The others of its entry wait on, are delivered, and it is told of."""
    clock = ManualClock()
    await filled(tmp_path, clock)
    (_, delayed) = frames(tmp_path, CommandKind.APPEND)[1::2][:2]
    end_at = int(delayed["position"]) + HEADER_BYTES + int(delayed["payload_bytes"])
    flip(tmp_path / "log", end_at - 3)
    if lose_rows:
        shutil.rmtree(tmp_path / "state")
    plan = repair(tmp_path)
    (given_up,) = plan.given_up
    assert given_up.saved_messages == 2
    assert given_up.lost == []
    if not lose_rows:
        assert given_up.lost_waiting == 1
    delivered = await after_repair(tmp_path, clock, plan)
    assert delivered == sorted({b"plain", b"next", *HALVES[:2], *DELAYED[:2]})


@pytest.mark.parametrize("lose_rows", [False, True])
async def test_a_damaged_message_that_was_placed_leaves_its_offset_empty(
    tmp_path: Path, lose_rows: bool
) -> None:
    """The entry that placed it stays and places the others."""
    clock = ManualClock()
    await filled(tmp_path, clock)
    halves = frames(tmp_path, CommandKind.APPEND)[1]
    end_at = int(halves["position"]) + HEADER_BYTES + int(halves["payload_bytes"])
    # The second of four halves.
    flip(tmp_path / "log", end_at - 2 * len(HALVES[0]) - 2)
    if lose_rows:
        shutil.rmtree(tmp_path / "state")
    plan = repair(tmp_path)
    (given_up,) = plan.given_up
    assert given_up.saved_messages == 3
    if not lose_rows:
        assert given_up.complete
        assert sum(len(each) for each in lost_offsets(plan).values()) == 1
    delivered = await after_repair(tmp_path, clock, plan)
    assert delivered == sorted({b"plain", b"next", HALVES[0], *DELAYED})


@pytest.mark.parametrize("lose_rows", [False, True])
async def test_an_entry_that_is_lost_as_a_whole_stops_nothing_that_follows(
    tmp_path: Path, lose_rows: bool
) -> None:
    """Commands about its messages are passed over; everything else is there."""
    clock = ManualClock()
    await filled(tmp_path, clock)
    flip(tmp_path / "log", int(frames(tmp_path, CommandKind.APPEND)[1]["position"]), 60)
    if lose_rows:
        shutil.rmtree(tmp_path / "state")
    plan = repair(tmp_path)
    if not lose_rows:
        (given_up,) = plan.given_up
        assert given_up.complete
        assert given_up.lost_waiting == 2
        assert sum(len(each) for each in lost_offsets(plan).values()) == 2
    delivered = await after_repair(tmp_path, clock, plan)
    assert delivered == sorted({b"plain", b"next", *DELAYED})


@pytest.mark.parametrize("lose_rows", [False, True])
async def test_a_lost_resolve_is_named_or_undone(tmp_path: Path, lose_rows: bool) -> None:
    """With rows: what it placed is named as lost. Without: its messages wait again."""
    clock = ManualClock()
    await filled(tmp_path, clock)
    flip(tmp_path / "log", int(frames(tmp_path, CommandKind.RESOLVE)[0]["position"]), 60)
    if lose_rows:
        shutil.rmtree(tmp_path / "state")
    plan = repair(tmp_path)
    delivered = await after_repair(tmp_path, clock, plan)
    assert delivered == sorted({b"plain", b"next", HALVES[1], *DELAYED})
    if not lose_rows:
        (given_up,) = plan.given_up
        assert given_up.complete
        assert sum(len(each) for each in lost_offsets(plan).values()) == 1
