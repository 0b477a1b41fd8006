"""Threads of a driver whose library blocks.

The gate admits at most as many requests as there are threads, so no request waits for a thread,
except behind a call whose caller gave up: a thread cannot be interrupted. Its sockets can: when the
caller gives up, the connections that the work uses (`watch`) are ended, and with them the work. A
socket's own timeout counts from the last byte, so a store that sends a byte now and then would hold
the thread for as long as it likes. Only a call on a mount whose server is gone blocks until the
server returns. Threads of a `ThreadPoolExecutor` would keep the process from ending; these are
daemons, and `close` waits a bounded time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock, Semaphore, Thread
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Job:
    """Work, its result, and the connections that it uses."""

    __slots__ = ("_connections", "_is_given_up", "_lock", "future", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()
        self._lock = Lock()
        self._connections: list[socket.socket] = []
        self._is_given_up = False

    def watch(self, descriptor: int) -> None:
        """End this connection, too, when the caller gives up: at once if it has."""
        # A descriptor of its own: the other one may be closed, and its number be another file's.
        watched = socket.socket(fileno=os.dup(descriptor))
        with self._lock:
            self._connections.append(watched)
            if self._is_given_up:
                _end(watched)

    def give_up(self) -> None:
        """End the connections: what blocks in them returns."""
        with self._lock:
            self._is_given_up = True
            for watched in self._connections:
                _end(watched)

    def release(self) -> None:
        """Let go of the connections; they stay as they are."""
        with self._lock:
            for watched in self._connections:
                watched.close()
            self._connections.clear()


class _Running(threading.local):
    """The job of this thread."""

    job: _Job | None = None


_running = _Running()


def watch(connection: socket.socket) -> None:
    """End a connection when the caller of the work in this thread gives up.

    To be called each time that work begins to use one. In a thread of another kind it does nothing.

    Raises:
        OSError: no descriptor is left.
    """
    if _running.job is not None:
        _running.job.watch(connection.fileno())


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

        When the caller is cancelled, work that has not begun is dropped, other work loses its
        connections and ends unseen.
        """
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
            name = f"{self._name}-{len(self._threads)}"
            thread = Thread(target=_serve, args=(self._jobs, self._idle), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        job = _Job(work)
        self._jobs.put(job)
        try:
            result: Result = await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            job.give_up()
            raise
        return result

    async def close(self, grace_s: float = 5.0) -> bool:
        """Drop what has not begun, wait for running work; return whether all ended in time."""
        try:
            while (job := self._jobs.get_nowait()) is not None:
                job.future.cancel()
        except Empty:
            pass
        for _ in self._threads:
            self._jobs.put(None)
        return await asyncio.to_thread(_join, self._threads, grace_s)


def _serve(jobs: SimpleQueue[_Job | None], idle: Semaphore) -> None:
    while (job := jobs.get()) is not None:
        if job.future.set_running_or_notify_cancel():
            _do(job)
        # The next `get` may wait long; results can be large.
        del job
        idle.release()


def _do(job: _Job) -> None:
    _running.job = job
    try:
        result = job.work()
    except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the call
        job.future.set_exception(error)
    else:
        job.future.set_result(result)
    finally:
        _running.job = None
        job.release()


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # It has ended already, or is no connection yet.


def _join(threads: list[Thread], grace_s: float) -> bool:
    deadline_s = time.monotonic() + grace_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
