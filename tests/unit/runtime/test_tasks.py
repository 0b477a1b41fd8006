"""Background tasks: none fails unseen, none outlives its owner."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks, Tasks, TooManyTasksError


class Failures:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, name: str, failure: BaseException) -> None:
        self.seen.append((name, str(failure)))


async def _fail() -> None:
    raise ValueError("broken")


async def test_failure_is_reported_with_its_name() -> None:
    """A failing task reaches on_fatal; the others run on."""
    failures = Failures()
    tasks = Tasks("store", failures)
    other = tasks.spawn("other", asyncio.Event().wait())
    tasks.spawn("bad", _fail())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert failures.seen == [("store.bad", "broken")]
    assert tasks.names == ["store.other"]
    assert await tasks.stop() == []
    assert other.cancelled()


async def test_cancelled_task_did_not_fail() -> None:
    """Stopping reports nothing and refuses new tasks."""
    failures = Failures()
    tasks = Tasks("store", failures)
    tasks.spawn("waits", asyncio.Event().wait())
    await tasks.stop()
    assert failures.seen == []
    assert len(tasks) == 0
    with pytest.raises(RuntimeError, match="stopped"):
        tasks.spawn("late", _fail())


async def test_stop_names_what_does_not_end() -> None:
    """A task that ignores its cancellation is named, and stop returns in time."""
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    tasks = Tasks("store", Failures())
    task = tasks.spawn("stubborn", stubborn())
    await asyncio.sleep(0)
    assert await tasks.stop(grace_s=0.01) == ["store.stubborn"]
    release.set()
    await task


async def test_limit() -> None:
    """The owner refuses more tasks than its limit."""
    tasks = Tasks("store", Failures(), max_tasks=1)
    tasks.spawn("one", asyncio.Event().wait())
    with pytest.raises(TooManyTasksError, match="two"):
        tasks.spawn("two", _fail())
    await tasks.stop()


async def test_drain_waits_for_the_end() -> None:
    """Drain returns True when all ended by themselves, False when time was over."""
    tasks = Tasks("store", Failures())
    assert await tasks.drain(1)
    tasks.spawn("short", asyncio.sleep(0))
    assert await tasks.drain(1)
    tasks.spawn("long", asyncio.Event().wait())
    assert not await tasks.drain(0.01)
    await tasks.stop()


async def test_task_may_stop_its_own_owner() -> None:
    """A task that stops its owner does not wait for itself."""
    tasks = Tasks("store", Failures())

    async def stop() -> list[str]:
        return await tasks.stop(grace_s=0.01)

    assert await tasks.spawn("stop", stop()) == []


async def test_a_request_that_fails_ends_alone() -> None:
    """Its failure is counted, logged with its stack and answered; the others run on."""
    metrics = Metrics()
    requests = RequestTasks("broker.receive", metrics)
    other = requests.spawn("pop", asyncio.Event().wait())
    answered: list[str] = []
    with structlog.testing.capture_logs() as lines:
        requests.spawn("pop", _fail(), lambda failure: answered.append(str(failure)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    (line,) = lines
    assert (line["event"], line["task"]) == ("request failed", "broker.receive.pop")
    assert line["error"] == "ValueError: broken"
    assert isinstance(line["exc_info"], ValueError)
    assert answered == ["broken"]
    labels = {"component": "broker.receive"}
    assert metrics.counter("strata_request_failures_total").value(labels) == 1
    assert requests.names == ["broker.receive.pop"]
    assert await requests.stop() == []
    assert other.cancelled()
    assert answered == ["broken"]


async def test_a_request_of_many_is_reported_without_a_task() -> None:
    """A handler of many requests reports the one that failed and goes on."""
    metrics = Metrics()
    requests = RequestTasks("broker.hot", metrics)
    with structlog.testing.capture_logs() as lines:
        requests.failed("SendMessage", ValueError("broken"))
    assert [line["task"] for line in lines] == ["broker.hot.SendMessage"]
    labels = {"component": "broker.hot"}
    assert metrics.counter("strata_request_failures_total").value(labels) == 1
