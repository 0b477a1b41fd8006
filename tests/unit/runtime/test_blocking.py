"""Blocking work ends before its caller goes on, also when the caller is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from strata_runtime.blocking import run_to_end
from strata_testing import until

# More than a task needs to take a cancellation.
_TURNS = 5


class Work:
    """Work that blocks until the test lets it go on."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.has_ended = False
        self._failure = failure

    def __call__(self) -> str:
        self.begun.set()
        assert self.may_end.wait(30)
        self.has_ended = True
        if self._failure is not None:
            raise self._failure
        return "opened"


async def cancelled_in_the_middle(
    work: Work, undo: Callable[[str], object] | None = None
) -> asyncio.Task[str]:
    """Return a task that was cancelled twice while its work runs, and still waits for it."""
    task = asyncio.ensure_future(run_to_end(work, undo=undo))
    await until(work.begun.is_set)
    for _ in range(2):
        task.cancel()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    assert not task.done()
    work.may_end.set()
    return task


async def test_the_result_and_the_failure_are_the_callers() -> None:
    """Without a cancellation it is a call."""
    assert await run_to_end(partial(str, 7)) == "7"
    with pytest.raises(ZeroDivisionError):
        await run_to_end(lambda: 1 // 0)


async def test_a_cancelled_caller_waits_for_the_end() -> None:
    """However often it is cancelled."""
    work = Work()
    with pytest.raises(asyncio.CancelledError):
        await (await cancelled_in_the_middle(work))
    assert work.has_ended


async def test_a_result_that_nobody_gets_is_given_back() -> None:
    """Else an opened file or a started process would be nobody's."""
    given_back: list[str] = []
    with pytest.raises(asyncio.CancelledError):
        await (await cancelled_in_the_middle(Work(), given_back.append))
    assert given_back == ["opened"]


async def test_a_failure_that_nobody_gets_is_a_note() -> None:
    """The cancellation is what the caller is told; there is nothing to give back."""
    given_back: list[str] = []
    work = Work(OSError("the disk is full"))
    with pytest.raises(asyncio.CancelledError) as raised:
        await (await cancelled_in_the_middle(work, given_back.append))
    assert given_back == []
    assert raised.value.__notes__ == ["what it waited for failed: OSError: the disk is full"]
