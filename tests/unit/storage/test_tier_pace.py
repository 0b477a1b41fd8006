"""Uploads give way to appends, and only to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from strata_storage.tiering.pace import PaceOptions, UploadPace
from strata_testing import ManualClock

Result = TypeVar("Result")

MIB = 1024 * 1024


class _Setup:
    """A log of some length, and the rests of uploads beside it."""

    def __init__(self, options: PaceOptions) -> None:
        self.clock = ManualClock(0.0)
        self.end = 0
        self.rests_ms: list[float] = []
        self.pace = UploadPace(options, lambda: self.end, self.clock, on_rest=self.rests_ms.append)
        self._paced = self.pace.paced(self._run)

    @staticmethod
    async def _run(work: Callable[[], Result], /) -> Result:
        return work()

    async def upload(self, appended_bytes: int, past_s: float = 1.0) -> str:
        """Do a piece of work after a time in which the log grew."""
        self.clock.advance(past_s)
        self.end += appended_bytes
        work: Awaitable[str] = self._paced(_spend)
        return await work


def _spend() -> str:
    """Use a processor for a millisecond."""
    end_s = time.thread_time() + 0.001
    while time.thread_time() < end_s:
        pass
    return "done"


async def test_uploads_rest_only_while_messages_come_in() -> None:
    """A share of a quarter is three times as much rest as work; a quiet log asks for none."""
    setup = _Setup(PaceOptions(share=0.25))
    assert await setup.upload(0) == "done"
    assert setup.rests_ms == []
    assert await setup.upload(10 * MIB) == "done"
    assert len(setup.rests_ms) == 1
    assert setup.rests_ms[0] >= 3.0
    await setup.upload(MIB // 2)
    assert len(setup.rests_ms) == 1


async def test_what_was_seen_last_holds_for_a_moment() -> None:
    """Between two looks at the log nothing is concluded from bytes that have not come yet."""
    setup = _Setup(PaceOptions(share=0.5))
    await setup.upload(10 * MIB)
    await setup.upload(0, past_s=0.01)
    assert len(setup.rests_ms) == 2
    await setup.upload(0, past_s=1.0)
    assert len(setup.rests_ms) == 2


async def test_a_rest_is_bounded_and_can_be_forbidden() -> None:
    """However little its share is, an upload goes on; a share of 1 is everything."""
    setup = _Setup(PaceOptions(share=0.0001, rest_max_s=0.005))
    await setup.upload(10 * MIB)
    assert setup.rests_ms == pytest.approx([5.0])
    setup = _Setup(PaceOptions(share=1.0))
    await setup.upload(10 * MIB)
    assert setup.rests_ms == []


async def test_uploads_at_once_have_the_share_together() -> None:
    """The second one rests for itself and for the first one."""
    setup = _Setup(PaceOptions(share=0.25))
    await asyncio.gather(setup.upload(10 * MIB), setup.upload(0, past_s=0.0))
    first_ms, second_ms = setup.rests_ms
    assert second_ms >= first_ms + 3.0


def test_old_messages_are_urgent() -> None:
    """Messages that have waited for longer than the limit are not held back."""
    pace = _Setup(PaceOptions(patience_ms=1_000)).pace
    assert not pace.is_urgent(1_000)
    assert pace.is_urgent(1_001)
