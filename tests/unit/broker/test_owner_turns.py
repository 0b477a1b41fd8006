"""Large work in turns: owners take turns, nobody is stuck, and slow work keeps nobody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from strata_broker.base.owner_turns import OwnerTurns
from strata_runtime.metrics import Metrics
from strata_testing import until

LONG_MS = 60_000


def new_turns(most: int, max_hold_ms: int = LONG_MS) -> OwnerTurns:
    return OwnerTurns("tests", most, max_hold_ms=max_hold_ms, metrics=Metrics.disabled())


async def order_of(turns: OwnerTurns, owners: Sequence[str], amount: int = 1) -> list[str]:
    """Let owners ask at once; return the order in which their work was done."""
    done = []

    async def work(owner: str) -> None:
        async with turns.of(owner, amount):
            done.append(owner)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for owner in owners:
            tasks.create_task(work(owner))
    return done


async def test_owners_take_turns() -> None:
    """One piece of work waits for one turn of each other owner, not for all that they asked for."""
    assert await order_of(new_turns(1), "aaaabbc") == list("aabcaba")


async def test_no_more_is_done_at_once() -> None:
    turns = new_turns(4)
    most_used = 0

    async def work() -> None:
        nonlocal most_used
        async with turns.of("a", 2):
            most_used = max(most_used, turns.used)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(10):
            tasks.create_task(work())
    assert (most_used, turns.used, turns.waiting) == (4, 0, 0)


async def test_work_larger_than_the_limit_is_done_alone() -> None:
    turns = new_turns(4)
    assert await order_of(turns, "ab", amount=10) == ["a", "b"]
    async with turns.of("a", 10):
        assert turns.used == 10
        waits = asyncio.ensure_future(order_of(turns, "b"))
        await until(lambda: turns.waiting == 1)
    assert await waits == ["b"]


async def test_slow_work_does_not_keep_its_turn() -> None:
    """It waits for something; others go on, and its end gives nothing back twice."""
    turns = new_turns(1, max_hold_ms=1)
    async with turns.of("slow"):
        assert await order_of(turns, "ab") == ["a", "b"]
        assert turns.used == 0
    assert turns.used == 0


async def test_who_gives_up_leaves_nothing() -> None:
    """Also one that was just let in, and one that was in the way of a smaller one."""
    turns = new_turns(4)
    async with turns.of("a", 2):
        large = asyncio.ensure_future(order_of(turns, "b", amount=3))
        small = asyncio.ensure_future(order_of(turns, "c", amount=1))
        await until(lambda: turns.waiting == 4)
        large.cancel()
        assert await small == ["c"]
        let_in = asyncio.ensure_future(order_of(turns, "d", amount=3))
        await until(lambda: turns.waiting == 3)
    let_in.cancel()
    await asyncio.gather(large, let_in, return_exceptions=True)
    assert (turns.used, turns.waiting) == (0, 0)
