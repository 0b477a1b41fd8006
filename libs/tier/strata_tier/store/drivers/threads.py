"""Threads of a driver whose library blocks.

The gate admits at most as many requests as there are threads, so no request waits for a thread,
except behind a call whose caller gave up: a thread cannot be interrupted. Sockets end most calls in
time, but a call on a mount whose server is gone blocks until the server returns. Threads of a
`ThreadPoolExecutor` would keep the process from ending; these are daemons, and `close` waits a
bounded time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Semaphore, Thread
from typing import Any, TypeVar

Result = TypeVar("Result")

_Job = tuple["Future[Any]", Callable[[], Any]]


class Threads:
    """A bounded pool, used from one event loop. Threads start when they are first needed.

    Args:
        name: prefix of the threads' names.
        count: how many there are at most.
    """

    __slots__ = ("_count", "_idle", "_jobs", "_name", "_threads")

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[Thread] = []
        # One permit per thread that waits for work; taken by whoever gives it some.
        self._idle = Semaphore(0)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do blocking work in a thread; whatever it raises is the caller's.

        When the caller is cancelled, work that has not begun is dropped, other work goes on unseen.
        """
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
            name = f"{self._name}-{len(self._threads)}"
            thread = Thread(target=_serve, args=(self._jobs, self._idle), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        future: Future[Result] = Future()
        self._jobs.put((future, work))
        return await asyncio.wrap_future(future)

    async def close(self, grace_s: float = 5.0) -> bool:
        """Drop what has not begun, wait for running work; return whether all ended in time."""
        try:
            while (job := self._jobs.get_nowait()) is not None:
                job[0].cancel()
        except Empty:
            pass
        for _ in self._threads:
            self._jobs.put(None)
        return await asyncio.to_thread(_join, self._threads, grace_s)


def _serve(jobs: SimpleQueue[_Job | None], idle: Semaphore) -> None:
    while (job := jobs.get()) is not None:
        future, work = job
        if not future.set_running_or_notify_cancel():
            idle.release()
            continue
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the call
            future.set_exception(error)
        else:
            future.set_result(result)
        # The next `get` may wait long; results can be large.
        del job, future, work
        idle.release()


def _join(threads: list[Thread], grace_s: float) -> bool:
    deadline_s = time.monotonic() + grace_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
