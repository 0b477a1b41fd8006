"""Background tasks with an owner: no task is lost or fails unseen, and all end with the owner.

There are two kinds of owner (rule 33). `Tasks` owns the permanent loops of a component: when one of
them fails, the component cannot continue, so the process ends. `RequestTasks` owns the work of one
request: its failure ends only that request.

`asyncio.TaskGroup` must be entered and left by one task and cancels that task when a child fails. A
service is started by one task and stopped by another, and a failure must reach its supervisor
rather than the caller of `start`. These owners therefore give the same guarantees with `spawn` and
`stop`. Invariant: a task is in `_running` until its end was examined.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from strata_runtime.errors import one_line
from strata_runtime.metrics import Metrics, MetricSpec

Result = TypeVar("Result")

OnFatal = Callable[[str, BaseException], None]
OnFailure = Callable[[BaseException], None]

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_request_failures_total",
        "counter",
        "1",
        "Requests that ended with an unexpected exception: a bug, reported in the log.",
        ("component",),
    ),
)


def cancels_of_caller() -> int:
    """Return how often the running task was cancelled and went on, by all who did it.

    It is cancelled now if there are more than before: a task group whose child failed never takes
    its own cancel back, before Python 3.13.
    """
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def first_failure(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that ended the others in a task group.

    Raise it in an `except BaseExceptionGroup`: Python before 3.11.4 puts what is raised in an
    `except*` into a group again.
    """
    first = group.exceptions[0]
    return first_failure(first) if isinstance(first, BaseExceptionGroup) else first


class TooManyTasksError(RuntimeError):
    """The owner already runs as many tasks as its limit allows."""


class TaskOwner:
    """The methods of both kinds of owner, for code that works with either kind.

    Args:
        owner: name of the component, the prefix of every task's name.
        max_tasks: limit on tasks running at once.
    """

    __slots__ = ("_closed", "_max_tasks", "_owner", "_running")

    def __init__(self, owner: str, max_tasks: int) -> None:
        self._owner = owner
        self._max_tasks = max_tasks
        self._running: dict[asyncio.Task[Any], OnFailure | None] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    @property
    def names(self) -> list[str]:
        """Names of the running tasks, sorted."""
        return sorted(task.get_name() for task in self._running)

    def spawn(self, name: str, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run `work` in the background until it ends or `stop` cancels it.

        A caller that awaits the returned task sees its exception, as the owner does.

        Raises:
            TooManyTasksError: `max_tasks` are running.
            RuntimeError: the owner was stopped.
        """
        return self._spawn(name, work, None)

    def _spawn(
        self, name: str, work: Coroutine[Any, Any, Result], on_failure: OnFailure | None
    ) -> asyncio.Task[Result]:
        if self._closed or len(self._running) >= self._max_tasks:
            work.close()
            if self._closed:
                raise RuntimeError(f"{self._owner} is stopped, task {name} refused")
            raise TooManyTasksError(f"{self._owner} runs {self._max_tasks} tasks, {name} refused")
        # Thousands of tasks have one name.
        full_name = sys.intern(f"{self._owner}.{name}")
        task = asyncio.get_running_loop().create_task(work, name=full_name)
        self._running[task] = on_failure
        task.add_done_callback(self._ended)
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
        return self._running.keys() - {asyncio.current_task()}

    def _ended(self, task: asyncio.Task[Any]) -> None:
        on_failure = self._running.pop(task)
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None:
            self._failed(task.get_name(), failure, on_failure)

    def _failed(self, name: str, failure: BaseException, on_failure: OnFailure | None) -> None:
        """Examine a failure; each kind of owner does what it is there for."""
        raise AssertionError(f"{type(self).__name__} examines no failure of {name}: {failure}")


class Tasks(TaskOwner):
    """Owns the permanent loops of one component; the failure of one of them is fatal.

    Args:
        owner: name of the component, the prefix of every task's name.
        on_fatal: called on the event loop with a task's name and its exception when it failed.
            A cancelled task did not fail.
        max_tasks: limit on tasks running at once.
    """

    __slots__ = ("_on_fatal",)

    def __init__(self, owner: str, on_fatal: OnFatal, *, max_tasks: int = 10_000) -> None:
        super().__init__(owner, max_tasks)
        self._on_fatal = on_fatal

    def _failed(self, name: str, failure: BaseException, on_failure: OnFailure | None) -> None:
        self._on_fatal(name, failure)


class RequestTasks(TaskOwner):
    """Owns what is done for single requests; a failure ends its request and is never fatal.

    A failure is logged with its stack and without local variables (the log limits how often),
    counted, and given to whoever spawned the task, who answers the request.

    Args:
        owner: name of the component, the prefix of every task's name.
        metrics: where failures are counted.
        max_tasks: limit on tasks running at once.
    """

    __slots__ = ("_failures", "_labels", "_log", "_on_failed")

    def __init__(
        self, owner: str, metrics: Metrics | None = None, *, max_tasks: int = 10_000
    ) -> None:
        super().__init__(owner, max_tasks)
        metrics = metrics or Metrics.disabled()
        metrics.declare(METRICS)
        self._failures = metrics.counter("strata_request_failures_total")
        self._labels = {"component": owner}
        # Spark's workers own tasks and serve no requests: they have no logger to import.
        from strata_runtime.logs import get_logger

        self._log = get_logger(owner)
        self._on_failed: OnFatal = lambda _, __: None

    def on_failed(self, callback: OnFatal) -> None:
        """Call back with every failure; for who must not miss one, such as a simulation."""
        self._on_failed = callback

    def spawn(
        self,
        name: str,
        work: Coroutine[Any, Any, Result],
        on_failure: OnFailure | None = None,
    ) -> asyncio.Task[Result]:
        """See `TaskOwner.spawn`.

        Args:
            name: what is done; the same for all requests of a kind.
            work: ends with its request.
            on_failure: called on the event loop with the exception when `work` raised; answers
                the request. Not called when the task was cancelled.
        """
        return self._spawn(name, work, on_failure)

    def failed(self, name: str, failure: BaseException) -> None:
        """Log and count a failure of a request that no task of this owner was made for.

        For handlers that answer many requests in one call: they catch what one of them raises,
        report it here, answer INTERNAL and go on with the next.
        """
        self._report(f"{self._owner}.{name}", failure)

    def _failed(self, name: str, failure: BaseException, on_failure: OnFailure | None) -> None:
        self._report(name, failure)
        if on_failure is not None:
            on_failure(failure)

    def _report(self, name: str, failure: BaseException) -> None:
        self._failures.add(1, self._labels)
        self._log.error("request failed", task=name, error=one_line(failure), exc_info=failure)
        self._on_failed(name, failure)
