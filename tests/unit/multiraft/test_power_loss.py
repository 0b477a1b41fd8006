"""The driver over the real CommitLog on a simulated disk that loses power or has no room."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from strata_multiraft import LogFull, MultiRaftOptions
from strata_seglog.log import CommitLog, LogOptions
from strata_testing.simulated_disk import SimulatedDisk

Settled = Callable[[], Awaitable[None]]
QUICK = MultiRaftOptions(tick_ms=1000, disk_full_retry_ms=1)
OPTIONS = LogOptions(segment_bytes=64 << 10, recent_bytes=4 << 10, zero_ahead_bytes=4 << 10)


def open_log(disk: SimulatedDisk) -> CommitLog:
    return CommitLog.open(disk, OPTIONS, report=lambda corruption: pytest.fail(str(corruption)))


@pytest.mark.parametrize("seed", range(8))
async def test_power_loss_loses_nothing_acknowledged(
    seed: int, make_node: Any, settled: Settled
) -> None:
    """After each of several power losses every acknowledged entry is applied, in its place."""
    print(f"SEED={seed}")
    disk = SimulatedDisk(seed)
    acked: dict[int, dict[int, bytes]] = {1: {}, 2: {}}
    for life in range(4):
        node = make_node(log=open_log(disk), options=QUICK)
        replicas = [node.host(raft_group, 10 + raft_group) for raft_group in (1, 2)]
        await node.multiraft.start()
        await settled()
        for number in range(12):
            payloads = {r.raft_group: b"%d.%d.%d" % (life, number, r.raft_group) for r in replicas}
            futures = {r.raft_group: r.propose((payloads[r.raft_group],)) for r in replicas}
            for raft_group, future in futures.items():
                acked[raft_group][await future] = payloads[raft_group]
        await asyncio.gather(*(replica.read_barrier() for replica in replicas))
        for raft_group, machine in node.machines.items():
            applied = {entry.index: b"".join(entry.payload) for entry in machine.entries}
            assert acked[raft_group].items() <= applied.items()
        node.gate.close()  # proposals whose write the power loss prevents
        for replica in replicas:
            replica.propose((b"never acknowledged",))
        await settled()
        disk.power_loss()
        node.gate.open()
        await node.multiraft.stop()


async def test_no_room_in_the_log(make_node: Any, settled: Settled) -> None:
    """ENOSPC on the log fails the proposal and nothing else; with room again writing goes on."""
    disk = SimulatedDisk(1)
    node = make_node(log=open_log(disk))
    replica = node.host()
    await node.multiraft.start()
    await settled()
    assert await replica.propose((b"kept",)) == 2
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(LogFull):
        await replica.propose((b"lost",))
    assert await replica.read_barrier() == 2
    disk.heal()
    await asyncio.sleep(0.01)
    assert await replica.propose((b"again",)) == 3
    await replica.applied(3)
    assert node.machines[1].payloads() == [b"kept", b"again"]
    assert not node.fatal
    await node.multiraft.stop()


async def test_failed_sync_ends_it(make_node: Any, settled: Settled) -> None:
    """EIO on a sync is fatal (rule 7)."""
    disk = SimulatedDisk(1)
    node = make_node(log=open_log(disk))
    replica = node.host()
    await node.multiraft.start()
    await settled()
    disk.fail("sync", errno.EIO)
    future = replica.propose((b"x",))
    await settled()
    assert [task for task, _ in node.fatal] == ["multiraft.write"]
    assert not future.done()
    await node.multiraft.stop()
