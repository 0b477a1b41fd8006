"""The writer's thread: order, failures, ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from strata_multiraft import WriterThread


@pytest.fixture
def thread() -> WriterThread:
    """A thread that has not begun."""
    return WriterThread("test-writer")


async def test_calls_run_in_order_beside_the_loop(thread: WriterThread) -> None:
    """Each gets its own result, and none runs in the event loop's thread."""
    ran: list[tuple[int, bool]] = []
    loop_thread = threading.get_ident()

    def work(number: int) -> int:
        ran.append((number, threading.get_ident() == loop_thread))
        return number * 2

    async with asyncio.timeout(30):
        waits = [thread(lambda number=number: work(number)) for number in range(20)]  # type: ignore[misc]
        assert [await wait for wait in waits] == [number * 2 for number in range(20)]
    assert ran == [(number, False) for number in range(20)]
    thread.close()


async def test_a_failure_is_its_own_callers(thread: WriterThread) -> None:
    """The caller gets the error, whatever it is; the next call is carried out."""

    def fail() -> int:
        raise OSError(5, "no")

    async with asyncio.timeout(30):
        failing, good = thread(fail), thread(lambda: 7)
        with pytest.raises(OSError, match="no"):
            await failing
        assert await good == 7
    thread.close()


async def test_a_call_that_nobody_waits_for_is_carried_out(thread: WriterThread) -> None:
    """It was given in an order that others rely on."""
    gate, ran = threading.Event(), []
    async with asyncio.timeout(30):
        first = thread(gate.wait)
        given_up = asyncio.ensure_future(thread(lambda: ran.append("given up")))
        given_up.cancel()
        gate.set()
        await first
        assert await thread(lambda: list(ran)) == ["given up"]
    thread.close()


async def test_the_end_waits_for_what_was_given(thread: WriterThread) -> None:
    """And nothing is taken after it."""
    ran: list[int] = []
    for number in range(5):
        thread(lambda number=number: ran.append(number))  # type: ignore[misc]
    await asyncio.to_thread(thread.close)
    assert ran == list(range(5))
    with pytest.raises(RuntimeError, match="test-writer is closed"):
        thread(lambda: None)
    thread.close()


async def test_a_loop_that_carries_calls_itself_gets_them(
    thread: WriterThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In simulated time no real thread decides when a write ends: two runs of a seed are alike."""
    carried: list[object] = []

    async def carry(given: object, work: Callable[[], str]) -> str:
        carried.append(given)
        return work()

    running = SimpleNamespace(carry=carry)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: running)
    result = thread(lambda: "done")
    monkeypatch.undo()
    assert await result == "done"
    assert carried == [thread]
