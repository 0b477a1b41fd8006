"""Background tasks that have an owner: none is lost, none fails unseen, all end with the owner.

`asyncio.TaskGroup` must be entered and left by one task and cancels that task when a child
fails. A service is started by one task and stopped by another, and a failure must reach its
supervisor rather than whoever happened to call `start`; hence this owner, which gives the same
guarantees with `spawn` and `stop`. Invariant: a task is in `_running` until its end was examined.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")

OnFatal = Callable[[str, BaseException], None]


class TooManyTasksError(RuntimeError):
    """The owner already runs as many tasks as its limit allows."""


class Tasks:
    """Owns named tasks of one component.

    Args:
        owner: name of the component, the prefix of every task's name.
        on_fatal: called on the event loop with a task's name and its exception when it failed.
            A cancelled task did not fail.
        max_tasks: limit on tasks running at once.
    """

    __slots__ = ("_closed", "_max_tasks", "_on_fatal", "_owner", "_running")

    def __init__(self, owner: str, on_fatal: OnFatal, *, max_tasks: int = 10_000) -> None:
        self._owner = owner
        self._on_fatal = on_fatal
        self._max_tasks = max_tasks
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    @property
    def names(self) -> list[str]:
        """Names of the running tasks, sorted."""
        return sorted(task.get_name() for task in self._running)

    def spawn(self, name: str, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run `work` in the background until it ends or `stop` cancels it.

        Whoever awaits the returned task sees its exception as well as `on_fatal` does.

        Raises:
            TooManyTasksError: `max_tasks` are running.
            RuntimeError: the owner was stopped.
        """
        if self._closed or len(self._running) >= self._max_tasks:
            work.close()
            if self._closed:
                raise RuntimeError(f"{self._owner} is stopped, task {name} refused")
            raise TooManyTasksError(f"{self._owner} runs {self._max_tasks} tasks, {name} refused")
        full_name = f"{self._owner}.{name}"
        task = asyncio.get_running_loop().create_task(work, name=full_name)
        self._running.add(task)
        task.add_done_callback(partial(self._ended, full_name))
        return task

    async def drain(self, timeout_s: float) -> bool:
        """Wait until the running tasks end by themselves; return whether all did in time."""
        running = self._running_but_me()
        if not running:
            return True
        _, pending = await asyncio.wait(running, timeout=timeout_s)
        return not pending

    async def stop(self, grace_s: float = 5.0) -> list[str]:
        """Take no new task, cancel the running ones, wait at most `grace_s` for their end.

        Returns:
            Names of tasks that still ran when the time was over; empty if all ended.
        """
        self._closed = True
        running = self._running_but_me()
        for task in running:
            task.cancel()
        if not running:
            return []
        _, pending = await asyncio.wait(running, timeout=grace_s)
        return sorted(task.get_name() for task in pending)

    def _running_but_me(self) -> set[asyncio.Task[Any]]:
        # A task may stop its own owner; it must not wait for itself.
        return self._running - {asyncio.current_task()}

    def _ended(self, name: str, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None:
            self._on_fatal(name, failure)
