"""Writer of the log: group commits of everything that raft groups make durable.

It takes all waiting frames, writes and syncs them in one hop to the writer's thread, then informs
its owner. More frames gather while a sync runs; there is no timer. It decides nothing about raft.

Invariant: frames are written in the order in which they were added, so frames added before a
control write are durable when the control write is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from strata_multiraft.base.errors import LogFull
from strata_multiraft.base.options import FRAME_OVERHEAD_BYTES, MultiRaftOptions
from strata_multiraft.base.ports import Log
from strata_multiraft.driver.idle_mark import IdleMark
from strata_multiraft.replica.writes import Write
from strata_runtime.blocking import RunBlocking
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_seglog.errors import DiskFull, WriteFailed, WriteTooLarge
from strata_seglog.frames import Frame


class WriterOwner(Protocol):
    """The owner that gives the writer its work and receives the results, on the event loop."""

    def before_write(self) -> None:
        """Turn what was proposed since the last write into frames: a write is about to begin."""

    def written(self, writes: Sequence[Write]) -> None:
        """These writes are durable."""

    def write_failed(self, lost: Sequence[Write], reason: str) -> None:
        """None of these was stored: the writes that failed and all that waited behind them."""


class Writer:
    """Writes frames; `run` is its task.

    Args:
        log: the node's CommitLog; nobody else writes to it.
        run_blocking: the writer's thread.
        clock: to time syncs.
        options: sizes and times.
        metrics: where syncs show.
        owner: gives work and hears of it.

    Attributes:
        idle_mark: marks the log's end when nothing was written for a while.
        is_disk_full: the log had no room just now.
    """

    def __init__(
        self,
        log: Log,
        run_blocking: RunBlocking,
        clock: Clock,
        *,
        options: MultiRaftOptions,
        metrics: Metrics,
        owner: WriterOwner,
    ) -> None:
        self.idle_mark = IdleMark(log, run_blocking, options.idle_mark_ms)
        self.is_disk_full = False
        self._log = log
        self._run_blocking = run_blocking
        self._clock = clock
        self._options = options
        self._owner = owner
        self._writes: deque[Write] = deque()
        # Work that the writer's thread has.
        self._under_way: Sequence[Write] = ()
        self._idle: asyncio.Future[None] | None = None
        self._stopping = False
        self._frames_total = metrics.counter("strata_raft_frames_total")
        self._syncs_total = metrics.counter("strata_raft_syncs_total")
        self._sync_ms = metrics.histogram("strata_raft_sync_ms")
        self._sync_thread_ms = metrics.histogram("strata_raft_sync_thread_ms")
        self._disk_full_total = metrics.counter("strata_raft_disk_full_total")

    def add(self, write: Write) -> None:
        """Write this with the next group commit."""
        self._writes.append(write)
        self.wake()

    def control(self, frames: Sequence[Frame]) -> asyncio.Future[int]:
        """Write frames that belong to no step; without any it only waits for its turn.

        Returns:
            A future with the log position up to which everything is durable; it fails with
            LogFull.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        size_bytes = sum(len(part) for frame in frames for part in frame.payload)
        self.add(Write(tuple(frames), size_bytes, future=future))
        return future

    @property
    def is_idle(self) -> bool:
        """Whether no write is under way; the next one begins as soon as it is woken."""
        return self._idle is not None

    def unsynced_bytes(self) -> int:
        """Return the payload bytes that are not durable yet: under way, and behind that."""
        return sum([write.size_bytes for write in (*self._under_way, *self._writes)])

    def wake(self) -> None:
        """Begin a write if none is under way."""
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def stop(self) -> None:
        """Write what waits, then let `run` end."""
        self._stopping = True
        self.wake()

    async def run(self) -> None:
        """Write until stopped; a failed sync ends the task, and with it the process (rule 7)."""
        loop = asyncio.get_running_loop()
        while True:
            self._owner.before_write()
            if self._writes:
                if not await self._write(self._take()):
                    if self._stopping:
                        return
                    await self._wait_for_room()
            elif self._stopping:
                return
            else:
                self._idle = loop.create_future()
                await self._idle
                self._idle = None

    def _take(self) -> list[Write]:
        taken: list[Write] = []
        size_bytes = 0
        while self._writes:
            write = self._writes[0]
            size_bytes += write.size_bytes + FRAME_OVERHEAD_BYTES * len(write.frames)
            if taken and size_bytes > self._options.max_write_bytes:
                break
            taken.append(self._writes.popleft())
        return taken

    async def _write(self, writes: Sequence[Write]) -> bool:
        """Write, sync, report; False: the log could not take it and everybody knows."""
        frames = [frame for write in writes for frame in write.frames]
        position = 0
        if frames:
            started_s = self._clock.monotonic_s()
            self._under_way = writes
            try:
                position, thread_s = await self._run_blocking(self._work(frames))
            except (DiskFull, WriteFailed, WriteTooLarge) as error:
                # Too large only if limits and segments do not fit each other (`for_log`).
                self._failed(writes, str(error))
                return False
            finally:
                self._under_way = ()
            self._frames_total.add(len(frames))
            self._syncs_total.add(1)
            self.idle_mark.wrote()
            self._sync_ms.record((self._clock.monotonic_s() - started_s) * 1000)
            self._sync_thread_ms.record(thread_s * 1000)
        for write in writes:
            if write.future is not None and not write.future.done():
                write.future.set_result(position)
        self._owner.written(writes)
        return True

    def _work(self, frames: Sequence[Frame]) -> Callable[[], tuple[int, float]]:
        def work() -> tuple[int, float]:
            before_s = self._clock.monotonic_s()
            position = self._log.write_and_sync(frames)
            return position, self._clock.monotonic_s() - before_s

        return work

    def _failed(self, writes: Sequence[Write], reason: str) -> None:
        """Nothing was stored, and what was stepped meanwhile builds on it: drop both (rule 11)."""
        self._disk_full_total.add(1)
        lost = [*writes, *self._writes]
        self._writes.clear()
        for write in lost:
            if write.future is not None and not write.future.done():
                write.future.set_exception(LogFull(reason))
        self.is_disk_full = True
        self._owner.write_failed(lost, reason)

    async def _wait_for_room(self) -> None:
        await asyncio.sleep(self._options.disk_full_retry_ms / 1000)
        self.is_disk_full = False
