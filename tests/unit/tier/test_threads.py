"""Threads of drivers: bounded, and never in the way of an end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from strata_tier.store.drivers.threads import Threads


async def test_results_and_errors_come_back() -> None:
    """The caller gets the results and errors of work."""
    threads = Threads("test", 2)
    assert await threads.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    assert await threads.close()


async def test_no_more_run_at_once_than_there_are_threads() -> None:
    """Two threads do at most two jobs at a time, and all of them in the end."""
    threads, both = Threads("test", 2), threading.Barrier(2)

    def job() -> str:
        both.wait(5)
        return threading.current_thread().name

    async with asyncio.TaskGroup() as group:
        jobs = [group.create_task(threads.run(job)) for _ in range(6)]
    assert {each.result() for each in jobs} == {"test-0", "test-1"}
    assert await threads.close()


async def test_work_that_was_given_up_is_dropped() -> None:
    """A job whose caller is cancelled before its turn is never done."""
    threads, release, done = Threads("test", 1), threading.Event(), []
    first = asyncio.ensure_future(threads.run(lambda: release.wait(5)))
    second = asyncio.ensure_future(threads.run(lambda: done.append(1)))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    release.set()
    assert await first
    assert await threads.run(lambda: "next") == "next"
    assert done == []
    assert await threads.close()


async def test_closing_does_not_wait_for_ever() -> None:
    """Work that hangs delays an end by the grace time only, and what waited is cancelled."""
    threads, begun, release = Threads("test", 1), threading.Event(), threading.Event()

    def hang() -> bool:
        begun.set()
        return release.wait(5)

    hanging = asyncio.ensure_future(threads.run(hang))
    waiting = asyncio.ensure_future(threads.run(lambda: "never"))
    await asyncio.to_thread(begun.wait, 5)
    assert not await threads.close(0.01)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    release.set()
    assert await hanging
