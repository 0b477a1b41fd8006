"""Ticks that a resting leader may sleep through, and how late ticks count."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from strata_multiraft import Replica
from strata_multiraft.driver.ticker import Ticker, is_late_answer
from strata_raft import Message
from strata_raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    TimeoutNow,
    VoteRequest,
)
from strata_testing import ManualClock


@pytest.mark.parametrize(
    ("message", "is_late"),
    [
        (HeartbeatResponse(2, 1, 5), True),
        (AppendResponse(2, 1, 5, index=9), True),
        (AppendResponse(2, 1, 5, index=9, rejected=True), False),
        (HeartbeatResponse(2, 1, 6), False),
        (AppendResponse(2, 1, 6, index=9), False),
        (Heartbeat(2, 1, 5, commit=9), False),
        (AppendRequest(2, 1, 5, 9, 5, (), 9), False),
        (VoteRequest(2, 1, 5, last_index=9, last_term=5), False),
        (TimeoutNow(2, 1, 5), False),
    ],
)
def test_only_answers_of_the_term_are_no_news(message: Message, is_late: bool) -> None:
    """Answers that agree in the present term wake nobody; whatever else comes does."""
    assert is_late_answer(message, term=5) is is_late


class Standing(ManualClock):
    """A clock, and sleeps that take as long as they are told, or far longer."""

    def __init__(self, *late_s: float) -> None:
        super().__init__(0.0)
        self._late_s = iter(late_s)
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        late_s = next(self._late_s, None)
        if late_s is None:
            raise asyncio.CancelledError
        self.advance(seconds + late_s)
        self.slept.append(seconds)


@pytest.mark.parametrize(
    ("late_s", "done"),
    [
        ((0.0, 0.0), ["sleep", "tick", "sleep", "tick"]),
        # Not late enough to have missed anything.
        ((1.5, 0.0), ["sleep", "tick", "sleep", "tick"]),
        # Messages in the sockets are read before silence is judged, and one tick has passed.
        ((50.0, 0.0, 0.0), ["sleep", "sleep", "tick", "sleep", "tick"]),
    ],
)
async def test_a_late_tick_counts_once(
    monkeypatch: pytest.MonkeyPatch, late_s: tuple[float, ...], done: list[str]
) -> None:
    """After the event loop stood still, others are given time to be heard (rule 14)."""
    clock, seen = Standing(*late_s), list[str]()

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        seen.append("sleep")

    monkeypatch.setattr("strata_multiraft.driver.ticker.asyncio.sleep", sleep)
    ticker = Ticker(clock, 1.0, lambda: seen.append("tick"), woken=lambda replica: None)
    ticker.follow(cast("Replica", _Ticked()))
    with pytest.raises(asyncio.CancelledError):
        await ticker.run()
    assert seen == done


class _Ticked:
    raft_group: Any = 1
