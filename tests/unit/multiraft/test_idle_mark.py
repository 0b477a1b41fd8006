"""The log's end is marked once when nothing comes for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from strata_multiraft.driver.idle_mark import IdleMark
from strata_seglog.frames import Frame, FrameKind
from strata_seglog.log import CommitLog, LogOptions
from strata_testing.simulated_disk import SimulatedDisk

Result = TypeVar("Result")


async def test_a_flip_in_the_last_write_is_found_after_a_mark() -> None:
    """After one idle interval damage to the last frame is corruption, not a torn tail."""
    disk = SimulatedDisk(seed=1)
    log = CommitLog.open(disk, LogOptions(segment_bytes=1 << 20), report=lambda found: None)
    marked = asyncio.Event()

    def run_blocking(work: Callable[[], Result], /) -> Awaitable[Result]:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        future.set_result(work())
        marked.set()
        return future

    mark = IdleMark(log, run_blocking, interval_ms=1)
    position = log.write_and_sync([Frame(FrameKind.ENTRY, 7, 1, 1, 1, payload=(b"acked",))])
    mark.wrote()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(mark.run())
        await marked.wait()
        task.cancel()
    name = next(segment.name for segment in log.segments() if not segment.sealed)
    disk.flip(name, position - 1, 0)
    reports: list[object] = []
    again = CommitLog.open(disk, LogOptions(segment_bytes=1 << 20), report=reports.append)
    assert len(reports) == 1
    assert again.replicas()[7].damaged
