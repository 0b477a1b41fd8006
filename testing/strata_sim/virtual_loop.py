"""An asyncio loop whose time is a number: it jumps to the next timer when it has no other work.

Services run on it unchanged. Invariants:
- The same seed gives the same run: one thread, no real clock, work for other threads runs inline.
- A callback belongs to the `Incarnation` in whose context it was scheduled. Nothing of a dead
  incarnation runs any more, not even `finally` blocks, as after kill -9. Callbacks of a paused
  incarnation wait, in order, until it continues, as after SIGSTOP.

It does not know what machines are for; `machine.py` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import heapq
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar, cast

Result = TypeVar("Result")

INCARNATION: contextvars.ContextVar[Incarnation | None] = contextvars.ContextVar(
    "incarnation", default=None
)
"""Machine that runs now; None is the simulation itself: clients' drivers, faults, checkers."""

_THREAD_HOP_S = 1e-6


class Stuck(AssertionError):
    """Nothing is scheduled, and the simulation waits for something."""


class Incarnation:
    """One life of a machine's process.

    Attributes:
        slowness: factor on the time of its calls in threads.
        tasks: those that run. They are held after its death too: a task that is collected runs
            its `finally` blocks.
        on_death: called once, by the simulation, when it dies.
    """

    __slots__ = ("dead", "deferred", "name", "on_death", "paused", "slowness", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.paused = False
        self.slowness = 1.0
        self.tasks: set[asyncio.Task[Any]] = set()
        self.on_death: list[Callable[[], None]] = []
        # Calls that came due while it was paused, oldest first.
        self.deferred: list[asyncio.Handle] = []


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module docstring.

    Args:
        chance: how long work in threads takes, and whether it happens at its begin or its end.
        thread_work_s: shortest and longest time of a call in a thread.
    """

    def __init__(
        self, chance: random.Random, *, thread_work_s: tuple[float, float] = (0.0001, 0.002)
    ) -> None:
        super().__init__()
        self._chance = chance
        self._thread_work_s = thread_work_s
        self._now_s = 0.0
        self._due: deque[_Handle | _Timer] = deque()
        # (time, number, handle): of one moment the timer that was set first runs first.
        self._timers: list[tuple[float, int, _Timer]] = []
        # Executor and incarnation -> when its calls so far have ended: they run one by one.
        self._busy_until_s: dict[tuple[Any, Incarnation | None], float] = {}
        self._numbers = itertools.count()

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._now_s

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Schedule a callback in the name of whoever's context it has."""
        handle = _Handle(callback, args, self, context=_context(context))
        if not self.is_closed():
            # Else: what is dropped at the end has nothing to say.
            self._due.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a callback at a virtual time."""
        timer = _Timer(when, callback, args, loop=self, context=_context(context))
        if not self.is_closed():
            heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """There is one thread only."""
        return self.call_soon(callback, *args, context=context)

    def call_next(self, handles: Iterable[asyncio.Handle]) -> None:
        """Run callbacks that were due before, in order."""
        self._due.extend(cast("Iterable[_Handle | _Timer]", handles))

    def _run_once(self) -> None:
        """Run what is due; if nothing is, let time jump to the next timer."""
        due, timers = self._due, self._timers
        # A stopped machine has its last turn at once.
        if not due and not self._stopping:  # type: ignore[attr-defined]
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
            if not timers:
                raise Stuck("nothing is scheduled and nothing can happen any more")
            self._now_s = max(self._now_s, timers[0][0])
        while timers and timers[0][0] <= self._now_s:
            due.append(heapq.heappop(timers)[2])
        for _ in range(len(due)):
            handle = due.popleft()
            if handle._cancelled:
                continue
            incarnation = handle.incarnation
            if incarnation is not None:
                if incarnation.dead:
                    continue
                if incarnation.paused:
                    incarnation.deferred.append(handle)
                    continue
            handle._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it in the heap: it is passed over when its time comes."""

    def carry(self, thread: Any, work: Callable[[], Any], /) -> asyncio.Future[Any]:
        """See `strata_multiraft.driver.writer.CarriesCalls`."""
        return self.run_in_executor(thread, work)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run `func` inline, at the begin or the end of the time it takes."""
        future: asyncio.Future[Any] = self.create_future()
        # The objects themselves: an id would be used again.
        incarnation = INCARNATION.get()
        key = (executor, incarnation)
        # Timers of one moment run in any order; calls of one thread must not.
        begin_s = max(self._now_s, self._busy_until_s.get(key, 0.0) + _THREAD_HOP_S)
        work_s = self._chance.uniform(*self._thread_work_s)
        end_s = begin_s + work_s * (incarnation.slowness if incarnation is not None else 1.0)
        self._busy_until_s[key] = end_s
        outcome: list[tuple[Any, BaseException | None]] = []

        def work() -> None:
            try:
                outcome.append((func(*args), None))
            except Exception as failure:  # noqa: BLE001 - handed to whoever awaits the call
                outcome.append((None, failure))

        def report() -> None:
            if not outcome:
                work()
            result, failure = outcome[0]
            if future.done():
                return
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)

        if self._chance.random() < 0.5:
            self.call_at(begin_s, work)
        self.call_at(end_s, report)
        return future

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Result],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Result]:
        """Create a task that belongs to whoever's context it has."""
        task = _NumberedTask(coro, loop=self, name=name, context=context)
        owner = context.get(INCARNATION) if context is not None else INCARNATION.get()
        if owner is not None:
            owner.tasks.add(task)
            task.add_done_callback(owner.tasks.discard)
        return task

    def next_number(self) -> int:
        """Return a number that was not returned before; for tasks and futures."""
        return next(self._numbers)

    def create_future(self) -> asyncio.Future[Any]:
        """Create a future whose place in a set depends on the run alone."""
        return _NumberedFuture(loop=self)

    def _write_to_self(self) -> None:
        """There is nobody to wake."""


def _context(given: contextvars.Context | None) -> contextvars.Context:
    # An empty context is false: it must not be taken for none.
    return contextvars.copy_context() if given is None else given


class _Handle(asyncio.Handle):
    """A callback and whose it is."""

    __slots__ = ("incarnation",)

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: VirtualLoop,
        *,
        context: contextvars.Context,
    ) -> None:
        # All that `asyncio.Handle` sets; it asks for the loop's debug mode each time.
        self._context = context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None
        self.incarnation = context.get(INCARNATION)


class _Timer(asyncio.TimerHandle):
    """The same for a time."""

    __slots__ = ("incarnation",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        *,
        loop: VirtualLoop,
        context: contextvars.Context,
    ) -> None:
        # All that `asyncio.TimerHandle` sets.
        self._context = context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = self._scheduled = False
        self._repr = self._source_traceback = None
        self._when = when
        self.incarnation = context.get(INCARNATION)


class _NumberedTask(asyncio.Task[Result]):
    """A task whose place in a set depends on the run, not on its address in memory."""

    def __init__(
        self,
        coro: Coroutine[Any, Any, Result],
        *,
        loop: VirtualLoop,
        name: str | None,
        context: contextvars.Context | None,
    ) -> None:
        self._number = loop.next_number()
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number


class _NumberedFuture(asyncio.Future[Any]):
    """The same for a future."""

    def __init__(self, *, loop: VirtualLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


def run(loop: VirtualLoop, main: Any) -> Any:
    """Run the simulation's coroutine to its end and drop everything that is left.

    Garbage is collected afterwards only: when that happens would depend on what ran before.
    """
    loop.set_exception_handler(lambda _loop, _context: None)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return loop.run_until_complete(main)
    finally:
        _drop(loop)
        loop.close()
        if was_enabled:
            gc.enable()


def _drop(loop: VirtualLoop) -> None:
    """End every coroutine that is left; what their `finally` blocks say interests nobody."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    dropped: set[asyncio.Task[Any]] = set()
    # Tasks that such blocks make would else wait forever in a loop of asyncio's own.
    asyncio._set_running_loop(loop)
    try:
        while left := asyncio.all_tasks(loop) - dropped:
            dropped |= left
            for task in sorted(left, key=hash):
                coroutine = task.get_coro()
                # A block may wait for something, or find its world gone.
                with contextlib.suppress(BaseException):
                    if isinstance(coroutine, Coroutine):
                        coroutine.close()
        dropped.clear()
        gc.collect()
    finally:
        asyncio._set_running_loop(None)
        sys.unraisablehook = hook
