"""Long work in slices: how much of it fits in a turn of the event loop, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from itertools import pairwise

import pytest

from strata_runtime.metrics import Metrics, MetricSpec
from strata_runtime.turns import Turns

PER_TURN = 100


class LoopTurns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.number = 0
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self.number += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def end(self) -> None:
        self._handle.cancel()


class Work:
    """Makes pieces of work and notes in which turn each was done."""

    def __init__(self, turns: LoopTurns) -> None:
        self._turns = turns
        self.steps: Counter[int] = Counter()
        self.done: list[str] = []

    def of(self, name: str, pieces: int, steps: int) -> Generator[int, None, str]:
        for _ in range(pieces):
            yield steps
            self.steps[self._turns.number] += steps
            self.done.append(name)
        return name


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(
        [MetricSpec(name, "counter", "1", ".") for name in ("steps_total", "waits_total")]
    )


@pytest.fixture
def turns(metrics: Metrics) -> Turns:
    return Turns(PER_TURN, metrics.counter("steps_total"), metrics.counter("waits_total"))


async def test_however_many_work_a_turn_has_one_slice(turns: Turns, metrics: Metrics) -> None:
    """Ten at once do as much in one turn as one alone; everything is done and counted."""
    loop_turns = LoopTurns()
    work = Work(loop_turns)
    results = await asyncio.gather(
        *(turns.do(work.of(str(number), 50, 30)) for number in range(10))
    )
    loop_turns.end()
    assert results == [(str(number), 1_500) for number in range(10)]
    # The last piece of a slice may go beyond it.
    assert max(work.steps.values()) < PER_TURN + 30
    assert len(work.steps) >= 15_000 // (PER_TURN + 30)
    await asyncio.sleep(0)
    assert "steps_total 15000.0" in metrics.render().decode()


async def test_a_piece_larger_than_a_slice_is_paid_for_by_later_turns(turns: Turns) -> None:
    """On the average no turn has more than its slice."""
    loop_turns = LoopTurns()
    work = Work(loop_turns)
    await turns.do(work.of("large", 4, 10 * PER_TURN))
    loop_turns.end()
    at = sorted(work.steps)
    assert [later - earlier >= 9 for earlier, later in pairwise(at)] == [True] * 3


async def test_who_comes_late_is_not_last(turns: Turns) -> None:
    """Short work beside long work takes its turn; it does not wait for the end of the long one."""
    loop_turns = LoopTurns()
    work = Work(loop_turns)
    long = asyncio.ensure_future(turns.do(work.of("long", 200, 60)))
    await asyncio.sleep(0)
    assert await turns.do(work.of("short", 3, 60)) == ("short", 180)
    assert not long.done()
    await long
    loop_turns.end()
    assert work.done.index("short") < 20


async def test_work_that_fits_does_not_wait(turns: Turns) -> None:
    """Nothing else runs in between."""
    loop_turns = LoopTurns()
    work = Work(loop_turns)
    assert await turns.do(work.of("small", 3, 30)) == ("small", 90)
    loop_turns.end()
    assert work.steps == {0: 90}


async def test_who_is_cancelled_while_waiting_holds_up_nobody(turns: Turns) -> None:
    """The next in line goes on."""
    loop_turns = LoopTurns()
    work = Work(loop_turns)
    first, second = (asyncio.ensure_future(turns.do(work.of(name, 50, 60))) for name in "ab")
    await asyncio.sleep(0)
    first.cancel()
    assert await second == ("b", 3_000)
    loop_turns.end()
    assert first.cancelled()
