"""The oldest segments go although some of their messages stay (rule 10)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_seglog.real_disk import RealDisk
from strata_state.memory_store import MemoryStore
from strata_storage.upkeep.retention import FixedRetention
from strata_testing import ManualClock
from strata_testing.simulated_disk import SimulatedDisk
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    TOPIC,
    NodeUnderTest,
    lease_of,
    node_under_test,
    small_config,
)
from tests.integration.storage.damaged_log import GROUPS, OTHER_GROUP, append, status_of

_MIB = 1024 * 1024
_HOUR_S = 3_600
LONG, SHORT = TOPIC.topic_id, 8
RETENTION = FixedRetention(60_000, {LONG: 72 * _HOUR_S * 1_000, SHORT: 60_000})
CONFIG = small_config(recent_bytes=0)


def log_bytes(folder: Path) -> int:
    """Return what the log's segments take."""
    return sum(file.stat().st_size for file in (folder / "log").iterdir())


async def kept(
    node: NodeUnderTest, topic_id: int = LONG, queue: int = 0
) -> list[tuple[int, bytes]]:
    """Return all (offset, message) of a queue, read page by page."""
    found: list[tuple[int, bytes]] = []
    while True:
        request = pb.FetchRequest(
            raft_group=GROUP,
            topic_id=LONG,
            queue=0,
            offset=found[-1][0] + 1 if found else 0,
            max_messages=1_000,
        )
        response = await node.rpc.fetch(request, CONTEXT)
        assert not response.HasField("refusal"), response.refusal
        if not response.messages:
            return found
        found += [(message.offset, message.message) for message in response.messages]


async def round_of(node: NodeUnderTest, rng: random.Random, expected: list[bytes]) -> None:
    """Send little of one topic and much of the other; time goes by; retention works."""
    messages = [rng.randbytes(rng.randrange(1, 2_000)) for _ in range(3)]
    await node.append(messages, boot_id=0, queue=0)
    expected += messages
    for _ in range(6):
        await node.append([rng.randbytes(900_000)], boot_id=0, topic_id=SHORT, queue=-1)
    node.clock.advance(90)
    await node.app.node.retain_once()


async def test_a_topic_with_long_retention_does_not_pin_the_log(tmp_path: Path) -> None:
    """Disk usage is bounded; its messages stay, byte for byte, over restarts and lost rows."""
    rng, clock, expected = random.Random(1), ManualClock(), list[bytes]()
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, retention=RETENTION) as node:
        for _ in range(12):
            await round_of(node, rng, expected)
            assert log_bytes(tmp_path) <= 4 * 8 * _MIB
        status = node.app.node.status()
        assert status.log_first_position > 30 * _MIB
        assert await kept(node) == list(enumerate(expected))
        last_index = status.replicas[0].last_index
        assert last_index == status.replicas[0].applied_index
        await node.app.node.retain_once()
        (replica,) = node.app.node.status().replicas
        assert replica.last_index <= last_index + 1, "more than a trim was proposed"
    for lose_rows in (False, True, False):
        if lose_rows:
            shutil.rmtree(tmp_path / "state")
        async with node_under_test(
            tmp_path, clock=clock, config=CONFIG, retention=RETENTION
        ) as node:
            assert await kept(node) == list(enumerate(expected))
            await round_of(node, rng, expected)
            assert await kept(node) == list(enumerate(expected))
            assert log_bytes(tmp_path) <= 4 * 8 * _MIB
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, retention=RETENTION) as node:
        clock.advance(72 * _HOUR_S)
        await node.app.node.retain_once()
        assert await kept(node) == []


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_by_a_power_failure_during_relocation(
    tmp_path: Path, seed: int
) -> None:
    """At writes, syncs and deletions of a relocation: every message of the long topic is there."""
    print(f"seed {seed}")
    rng, clock, expected = random.Random(seed), ManualClock(), list[bytes]()
    disk, store = SimulatedDisk(seed), MemoryStore()
    moments: list[tuple[SimulatedDisk, MemoryStore]] = []

    def look(operation: str, name: str) -> None:
        if operation in ("write", "sync", "delete", "sync_folder"):
            moments.append((disk.snapshot(len(moments)), store.after_crash()))

    async with node_under_test(
        tmp_path, clock=clock, disk=disk, store=store, config=CONFIG, retention=RETENTION
    ) as node:
        for _ in range(2):
            await round_of(node, rng, expected)
        for _ in range(9):
            await node.append([rng.randbytes(900_000)], boot_id=0, topic_id=SHORT, queue=-1)
        clock.advance(90)
        first_position = node.app.node.status().log_first_position
        disk.on_call = look
        await node.app.node.retain_once()
        disk.on_call = None
        assert node.app.node.status().log_first_position > first_position, "nothing was freed"
    assert len(moments) > 3
    for lost_disk, lost_store in moments[:12]:
        lost_disk.power_loss()
        async with node_under_test(
            tmp_path, clock=clock, disk=lost_disk, store=lost_store, config=CONFIG
        ) as node:
            assert await kept(node) == list(enumerate(expected))


async def test_a_segment_that_is_mostly_live_is_left_alone(tmp_path: Path) -> None:
    """Copying must pay: above the ratio nothing is copied, until the disk is at its mark."""
    rng, clock = random.Random(1), ManualClock()
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, retention=RETENTION) as node:
        for topic_id in (LONG, LONG, LONG, SHORT, LONG, LONG, SHORT, SHORT) * 3:
            await node.append([rng.randbytes(900_000)], boot_id=0, topic_id=topic_id)
        clock.advance(90)
        before = await kept(node)
        for _ in range(2):
            await node.app.node.retain_once()
            assert node.app.node.status().log_first_position == 0
        guard = node.app.node.disk_guard
        guard.observe(type(guard.space)(300 * _MIB, guard.space.total_bytes))
        await node.app.node.retain_once()
        assert node.app.node.status().log_first_position > 0
        assert await kept(node) == before


async def test_a_turn_copies_no_more_than_its_budget(tmp_path: Path) -> None:
    """Relocation goes on in the next turn where the budget ended the last one."""
    config = small_config(recent_bytes=0, relocate_bytes_per_turn=1)
    rng, clock = random.Random(1), ManualClock()
    async with node_under_test(tmp_path, clock=clock, config=config, retention=RETENTION) as node:
        for _ in range(9):
            await node.append([rng.randbytes(100)], boot_id=0)
            for _ in range(4):
                await node.append([rng.randbytes(900_000)], boot_id=0, topic_id=SHORT)
        clock.advance(90)
        before = await kept(node)
        positions = []
        for _ in range(8):
            await node.app.node.retain_once()
            positions.append(node.app.node.status().log_first_position)
        assert positions[0] == 0
        assert positions[-1] > 0
        assert await kept(node) == before


@pytest.mark.parametrize("mostly_kept", [False, True])
async def test_messages_go_early_only_when_relocation_cannot_make_room(
    tmp_path: Path, mostly_kept: bool
) -> None:
    """Above `max_log_bytes`: first what is dead goes, then the oldest messages (rule 10)."""
    config = small_config(recent_bytes=0, max_log_bytes=24 * _MIB)
    rng, clock, expected = random.Random(1), ManualClock(), list[bytes]()
    async with node_under_test(tmp_path, clock=clock, config=config, retention=RETENTION) as node:
        for _ in range(10):
            if mostly_kept:
                await node.append([rng.randbytes(900_000) for _ in range(5)], boot_id=0)
                await node.app.node.retain_once()
            else:
                await round_of(node, rng, expected)
        await node.app.node.retain_once()
        await node.app.node.retain_once()
        found = await kept(node)
        assert log_bytes(tmp_path) <= 4 * 8 * _MIB
        if mostly_kept:
            assert 5 < len(found) < 50
        else:
            assert found == list(enumerate(expected))


async def test_messages_go_early_above_the_share_of_the_disk(tmp_path: Path) -> None:
    """Above quota * threshold, although retention keeps them and the disk has room."""
    total_bytes = RealDisk(tmp_path / "any").space().total_bytes
    config = small_config(
        recent_bytes=0,
        disk_quota_ratio=96 * _MIB / total_bytes,
        logical_disk_clean_ratio=0.4,
        refuse_appends_free_bytes=_MIB,
    )
    rng, most_bytes = random.Random(1), 0
    async with node_under_test(tmp_path, config=config, retention=RETENTION) as node:
        for _ in range(20):
            await node.append([rng.randbytes(900_000) for _ in range(5)], boot_id=0)
            await node.app.node.check_disk()
            await node.app.node.retain_once()
            most_bytes = max(most_bytes, node.app.node.disk_guard.use.used_bytes)
        use, found = node.app.node.disk_guard.use, await kept(node)

    assert abs(use.quota_bytes - 96 * _MIB) < 4_096
    assert 5 < len(found) < 100
    assert most_bytes < 96 * _MIB
    assert use.used_bytes <= 0.4 * 96 * _MIB + 3 * 8 * _MIB


async def test_an_idle_raft_group_outlives_the_relocation_of_its_last_entries(
    tmp_path: Path,
) -> None:
    """Its newest entries go with their segment; it leads, knows its place and goes on there."""
    rng, clock = random.Random(1), ManualClock()
    async with node_under_test(
        tmp_path, clock=clock, config=CONFIG, retention=RETENTION, raft_groups=GROUPS
    ) as node:
        await append(node, GROUP, [b"kept"], 0)
        popped = await node.pop()
        await node.ack(*map(lease_of, popped.messages))
        before = status_of(node, GROUP)
        for _ in range(24):
            await append(node, OTHER_GROUP, [rng.randbytes(900_000)], 1, topic_id=SHORT)
            clock.advance(20)
            await node.app.node.retain_once()
        assert node.app.node.status().log_first_position > 0, "nothing was freed"
    for lose_rows in (False, True, False):
        if lose_rows:
            shutil.rmtree(tmp_path / "state")
        async with node_under_test(
            tmp_path, clock=clock, config=CONFIG, retention=RETENTION, raft_groups=GROUPS
        ) as node:
            status = status_of(node, GROUP)
            assert (status.state, status.reason) == (pb.REPLICA_STATE_SERVING, "")
            assert status.last_index > before.last_index
            assert await kept(node) == [(0, b"kept")]
            assert not (await node.pop()).messages, "it was acknowledged"
