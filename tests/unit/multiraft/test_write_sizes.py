"""No write is larger than a segment, whatever waits; if one were, the process would live on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from strata_multiraft import LogFull, MultiRaftOptions
from strata_seglog.errors import WriteTooLarge
from strata_seglog.frames import Frame
from strata_seglog.log import CommitLog, LogOptions
from strata_sim.memory_commit_log import MemoryCommitLog
from strata_testing.simulated_disk import SimulatedDisk

Settled = Callable[[], Awaitable[None]]
MIB = 1024 * 1024
SEGMENT_BYTES = MIB


def open_log() -> CommitLog:
    return CommitLog.open(
        SimulatedDisk(), LogOptions(segment_bytes=SEGMENT_BYTES, recent_bytes=0), report=print
    )


@pytest.mark.parametrize("payload_bytes", [0, 100, 100_000])
async def test_what_gathers_while_the_disk_stalls_is_written_in_pieces(
    make_node: Any, settled: Settled, payload_bytes: int
) -> None:
    """A sole voter's queue may be many times a segment; each write fits into one."""
    log = open_log()
    node = make_node(log=log, options=MultiRaftOptions.for_log(SEGMENT_BYTES, tick_ms=1000))
    replica = node.host()
    await node.multiraft.start()
    await settled()
    node.gate.close()
    first = replica.propose((b"x",))
    await settled()
    count = 40 if payload_bytes > 10_000 else 30_000
    futures = [replica.propose((bytes(payload_bytes),)) for _ in range(count)]
    await settled()
    node.gate.open()
    indexes = await asyncio.gather(first, *futures)
    assert indexes == list(range(2, count + 3))
    assert node.fatal == []
    await replica.applied(indexes[-1])
    assert len(node.machines[1].payloads()) == count + 1
    await node.multiraft.stop()


async def test_writes_of_many_raft_groups_are_divided(make_node: Any, settled: Settled) -> None:
    """Each has what one write may have; together they are two segments."""
    log = open_log()
    options = MultiRaftOptions.for_log(SEGMENT_BYTES, tick_ms=1000)
    node = make_node(log=log, options=options)
    replicas = [node.host(number, number) for number in range(1, 9)]
    await node.multiraft.start()
    await settled()
    node.gate.close()
    first = replicas[0].propose((b"x",))
    await settled()
    futures = [replica.propose((bytes(SEGMENT_BYTES // 4),)) for replica in replicas]
    await settled()
    node.gate.open()
    assert await asyncio.gather(first, *futures) == [2, 3, *[2] * 7]
    assert node.fatal == []
    await node.multiraft.stop()


async def test_the_largest_proposal_fits_into_a_segment(make_node: Any, settled: Settled) -> None:
    """With company on its node: hard states stand at the begin of each segment."""
    log = open_log()
    options = MultiRaftOptions.for_log(SEGMENT_BYTES, tick_ms=1000)
    assert options.max_proposal_bytes == 3 * SEGMENT_BYTES // 4
    node = make_node(log=log, options=options)
    replicas = [node.host(number, number) for number in range(1, 200)]
    await node.multiraft.start()
    await settled()
    for _ in range(3):
        await replicas[0].propose((bytes(options.max_proposal_bytes),))
    with pytest.raises(ValueError, match="max_proposal_bytes"):
        replicas[0].propose((bytes(options.max_proposal_bytes + 1),))
    await node.multiraft.stop()
    assert MultiRaftOptions.for_log(256 * MIB) == MultiRaftOptions()


class SmallLog(MemoryCommitLog):
    """Takes no write of more than ten frames."""

    def write_and_sync(self, frames: Sequence[Frame]) -> int:
        if len(frames) > 10:
            raise WriteTooLarge("frames do not fit into one segment")
        return super().write_and_sync(frames)


async def test_a_write_that_is_too_large_fails_its_proposals_only(
    make_node: Any, settled: Settled
) -> None:
    """Limits that do not fit the log's are answered as a full disk; the driver goes on."""
    node = make_node(log=SmallLog())
    replica = node.host()
    await node.multiraft.start()
    await settled()
    futures = [replica.propose((b"x",)) for _ in range(11)]
    for future in futures:
        with pytest.raises(LogFull, match="do not fit"):
            await future
    await asyncio.sleep(0.005)
    await settled()
    assert await replica.propose((b"y",)) == 2
    assert node.fatal == []
    await node.multiraft.stop()
