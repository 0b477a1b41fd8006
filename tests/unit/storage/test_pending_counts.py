"""Counts of waiting messages: exact whatever changes while rows are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strata_mq.layout.batch import PartKind
from strata_storage.reads.counts import PendingCounts
from tests.unit.storage.waiting_leader import LeaderUnderTest, Result, turns

MANY = 10_001


class SlowReads:
    """Reads that end when the test says so."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, work: Callable[[], Result], /) -> Result:
        await self.go.wait()
        return work()


def store(leader: LeaderUnderTest, count: int, kind: PartKind = PartKind.DELAYED) -> None:
    """Store messages that wait, in one entry."""
    first = leader.index * MANY
    leader.submit([b"%d" % (first + at) for at in range(count)], leader.now_ms() + 9_999, kind)
    leader.commit()


async def test_changes_while_rows_are_counted_are_counted_once() -> None:
    """The picture is that of the call; what comes and goes afterwards is told."""
    leader, reads = LeaderUnderTest(), SlowReads()
    store(leader, 20)
    counts = PendingCounts(leader.machine, reads)
    counting = asyncio.ensure_future(counts.count())
    await turns()
    store(leader, 5)
    counts.changed(PartKind.DELAYED, 5)
    counts.changed(PartKind.DELAYED, -3)
    reads.go.set()
    await counting
    assert counts.of(PartKind.DELAYED) == 22
    assert counts.of(PartKind.HALF) == 0


async def test_a_second_count_takes_the_place_of_the_first_one() -> None:
    """Rows went while they were counted: only the newer picture counts."""
    leader, reads = LeaderUnderTest(), SlowReads()
    store(leader, 20)
    counts = PendingCounts(leader.machine, reads)
    first = asyncio.ensure_future(counts.count())
    await turns()
    store(leader, 1, PartKind.HALF)
    second = asyncio.ensure_future(counts.count())
    await turns()
    reads.go.set()
    await asyncio.gather(first, second)
    assert (counts.of(PartKind.DELAYED), counts.of(PartKind.HALF)) == (20, 1)
