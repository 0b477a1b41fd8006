"""The writer's thread: log calls block, so they run here, one after another (rule 30).

A thread pool would make two futures and a lock for each call; with small writes that was a tenth of
what a proposal costs. Invariant: a call that was given is carried out, whoever still waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


class CarriesCalls(Protocol):
    """An event loop that carries out blocking calls itself: simulated time has no threads."""

    def carry(self, thread: object, work: Callable[[], Result], /) -> Awaitable[Result]:
        """Run `work` after everything that was given for the same thread."""


class WriterThread:
    """One thread, which begins with the first call; a `strata_runtime.blocking.RunBlocking`.

    It takes what a few owners give, each of which waits for one call at a time.
    """

    def __init__(self, name: str = "log-writer") -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._closed = False

    def __call__(self, work: Callable[[], Result], /) -> Awaitable[Result]:
        """Run `work` in the thread, after everything given before.

        Raises:
            RuntimeError: the thread was closed.
        """
        if self._closed:
            raise RuntimeError(f"the thread {self._name} is closed")
        running = asyncio.get_running_loop()
        carry: Callable[..., Awaitable[Result]] | None = getattr(running, "carry", None)
        if carry is not None:
            return carry(self, work)
        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        result: asyncio.Future[Result] = running.create_future()
        self._calls.put(_Call(work, running, result))
        return result

    def close(self) -> None:
        """Wait for the calls that were given and end the thread."""
        self._closed = True
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call.carry_out()


class _Call:
    """Work of the thread, with the future that waits for it."""

    __slots__ = ("_loop", "_result", "_work")

    def __init__(
        self, work: Callable[[], Any], loop: asyncio.AbstractEventLoop, result: asyncio.Future[Any]
    ) -> None:
        self._work = work
        self._loop = loop
        self._result = result

    def carry_out(self) -> None:
        """Do it, in the thread; its failure is that of whoever waits."""
        value, failure = None, None
        try:
            value = self._work()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            failure = error
        # A loop that is closed has nobody who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell, value, failure)

    def _tell(self, value: Any, failure: BaseException | None) -> None:
        if self._result.done():
            return
        if failure is not None:
            self._result.set_exception(failure)
        else:
            self._result.set_result(value)
