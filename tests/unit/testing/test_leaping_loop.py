"""A leaping loop: timers come in their order and only when nothing else is to be done."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from strata_testing import NeverHeld, until
from strata_testing.leaping_loop import LeapingLoop, LoopClock


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine function on a leaping loop."""
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        runner.run(test())


def test_a_day_takes_no_time() -> None:
    """Timers come in their order, cancelled ones never, and clocks show when they were due."""
    told: list[tuple[str, int]] = []

    async def days() -> None:
        loop, clock = asyncio.get_running_loop(), LoopClock()
        began_ms = clock.wall_ms()

        def tell(name: str) -> None:
            told.append((name, (clock.wall_ms() - began_ms) // 1_000))

        loop.call_later(86_400, tell, "a day")
        loop.call_later(1, tell, "never").cancel()
        loop.call_later(3_600, tell, "an hour")
        await asyncio.sleep(90_000)
        assert clock.monotonic_s() == pytest.approx(90_000, abs=1)

    run(days)
    assert told == [("an hour", 3_600), ("a day", 86_400)]


def test_no_limit_ends_what_is_able_to_go_on() -> None:
    """A thousand turns, and a loop that stands still meanwhile, take less than a ms."""

    async def turns() -> None:
        async with asyncio.timeout(0.001):
            time.sleep(0.01)  # noqa: ASYNC251 - the machine is slow
            for _ in range(1_000):
                await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        with pytest.raises(NeverHeld):
            await until(lambda: False)

    run(turns)


def test_a_call_in_a_thread_is_waited_for() -> None:
    """No timer comes before its result."""

    async def call() -> None:
        let_go = threading.Event()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(0.001):
            work = loop.run_in_executor(None, let_go.wait, 30)
            threading.Timer(0.05, let_go.set).start()
            assert await work

    run(call)


def test_two_readings_differ() -> None:
    """An order by time says who came first."""

    async def read() -> None:
        clock = LoopClock()
        seen = [clock.monotonic_s() for _ in range(100)]
        assert sorted(set(seen)) == seen

    run(read)
