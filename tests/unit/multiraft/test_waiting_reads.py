"""Readers that give up: their memory goes with their place, the others are served as before."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from strata_multiraft.base.in_flight import InFlightLimits
from strata_multiraft.base.options import MultiRaftOptions
from strata_multiraft.replica.waiting_reads import WaitingReads
from strata_runtime.metrics import Metrics

FAR = 1 << 60


@pytest.fixture
def reads() -> WaitingReads:
    return WaitingReads(InFlightLimits(MultiRaftOptions(max_waiting_reads=8), Metrics.disabled()))


async def give_up(reads: WaitingReads, index: int) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(reads.until_applied(index), 0.0001)


async def test_readers_that_give_up_are_forgotten(reads: WaitingReads) -> None:
    """An index that is never applied holds nothing of those that waited for it."""
    for _ in range(50):
        await give_up(reads, FAR)
    assert reads._appliers == []
    waiter = asyncio.ensure_future(reads.until_applied(5))
    for _ in range(50):
        await give_up(reads, FAR)
    assert len(reads._appliers) <= 2
    reads.applied(4)
    await asyncio.sleep(0)
    assert not waiter.done()
    reads.applied(5)
    await asyncio.wait_for(waiter, 1)


async def test_readers_that_stay_are_released_in_order(reads: WaitingReads) -> None:
    """Those that wait among many that gave up are released at their index, not before."""
    released: list[int] = []

    async def wait(index: int) -> None:
        await reads.until_applied(index)
        released.append(index)

    waiting = [asyncio.ensure_future(wait(index)) for index in (9, 3, 7)]
    leaving = [asyncio.ensure_future(wait(index)) for index in (2, 8, 4, 6, 5)]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    assert sorted(index for index, _, _ in reads._appliers) == [3, 7, 9]
    for applied, expected in ((2, []), (6, [3]), (7, [3, 7]), (9, [3, 7, 9])):
        reads.applied(applied)
        await asyncio.sleep(0)
        assert released == expected
    await asyncio.gather(*waiting)
