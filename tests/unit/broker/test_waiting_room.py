"""News of many places reach the lines of a waiting room some at a time, and miss no receive."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from strata_broker.base.receive_config import ReceiveSection
from strata_broker.receives.waiting_room import Line, LineKey, WaitingRoom
from strata_broker.storage_client.pop_ends import PopTicket
from strata_broker.storage_client.quiet_places import ConsumerPlace
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from tests.unit.broker.popping import FakeLeaders, new_quiet

GROUP = 5
LINES = 180
LONG_S = 60.0
# Lines that one turn of the event loop may reach.
MOST_PER_TURN = 50


class Scene:
    """One receive in each of many lines; all of their places are quiet until a test says so."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.leaders = FakeLeaders()
        quiet = new_quiet(self.leaders)
        self.room = WaitingRoom(
            quiet, ReceiveSection(), clock=self.clock, metrics=Metrics.disabled()
        )
        # Topic -> how often its line asked when to look.
        self.asked: Counter[int] = Counter()
        self.deliverable = False
        # Topics whose line fails.
        self.failing: set[int] = set()
        self.waiting: list[asyncio.Future[bool]] = []

    def next_look_s(self, line: Line) -> float:
        topic_id = line.key.topic_id
        self.asked[topic_id] += 1
        if topic_id in self.failing:
            raise ValueError("odd topic")
        return 0.0 if self.deliverable else self.clock.monotonic_s() + LONG_S

    def enter(self, topic_id: int, wait_s: float = LONG_S) -> None:
        """Let a receive wait in the line of a topic."""

        async def wait() -> bool:
            seat = self.room.enter(
                LineKey(topic_id, GROUP, b"", -1),
                PopTicket(1),
                self.next_look_s,
                client_id="client",
            )
            try:
                return await seat.turn(wait_s)
            finally:
                seat.leave()

        self.waiting.append(asyncio.ensure_future(wait()))

    async def steps(self) -> list[int]:
        """Let the event loop turn until nothing moves; return how many lines asked in each turn."""
        steps: list[int] = []
        still = 0
        while still < 5:
            before = self.asked.total()
            await asyncio.sleep(0)
            steps.append(self.asked.total() - before)
            still = 0 if steps[-1] else still + 1
        return [step for step in steps if step]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    for topic_id in range(LINES):
        scene.enter(topic_id)
    await scene.steps()
    assert scene.asked == dict.fromkeys(range(LINES), 1)
    scene.asked.clear()
    yield scene
    for waiting in scene.waiting:
        waiting.cancel()


async def test_news_of_many_places_reach_some_lines_in_each_turn(scene: Scene) -> None:
    """Each line once, in the order in which they came."""
    scene.room.news(None)
    assert not scene.asked
    assert await scene.steps() == [50, 50, 50, 30]
    assert list(scene.asked) == list(range(LINES))
    assert set(scene.asked.values()) == {1}


async def test_changes_of_one_turn_become_one_walk(scene: Scene) -> None:
    """A node that restarts leads a dozen raft groups anew."""
    for _ in range(12):
        scene.room.news(None)
    await scene.steps()
    assert scene.asked.total() == LINES


async def test_a_change_in_the_middle_of_a_walk_reaches_all_lines(scene: Scene) -> None:
    """Those that were reached before look again; the others look once for both changes."""
    scene.room.news(None)
    await asyncio.sleep(0)
    assert scene.asked.total() == MOST_PER_TURN
    for _ in range(3):
        scene.room.news(None)
    assert max(await scene.steps()) == MOST_PER_TURN
    assert [scene.asked[topic_id] for topic_id in (0, 49, 50, LINES - 1)] == [2, 2, 1, 1]
    assert scene.asked.total() == LINES + MOST_PER_TURN


async def test_every_receive_looks_after_the_news(scene: Scene) -> None:
    """Its place may have messages, whatever its line knew; also news of one place in between."""
    scene.deliverable = True
    scene.room.news(None)
    scene.room.news(ConsumerPlace(1, LINES - 1, GROUP, -1))
    assert scene.asked == {LINES - 1: 1}, "news of one place need not wait"
    assert await asyncio.gather(*scene.waiting) == [True] * LINES
    assert not len(scene.room)
    assert set(scene.asked.values()) == {1}


async def test_a_receive_whose_time_ends_before_the_news_reach_its_line_looks(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is there; the walk that would have told it comes too late."""
    scene.enter(LINES, wait_s=0.01)
    await scene.steps()
    monkeypatch.setattr(scene.room, "_reach_some", lambda: None)
    scene.room.news(None)
    scene.deliverable = True
    assert await scene.waiting[-1]


async def test_a_pause_ends_with_the_news(scene: Scene) -> None:
    """Lines pause at places that do not tell: another leader may have messages there."""
    place = ConsumerPlace(1, 7, GROUP, -1)
    (line,) = scene.room._lines[7, GROUP].values()
    line.rest(place, LONG_S)
    scene.room.news(None)
    await scene.steps()
    assert line.paused_until_s(place) == 0.0


async def test_lines_that_end_meanwhile_are_forgotten(scene: Scene) -> None:
    """No walk keeps what nobody is in."""
    scene.room.news(None)
    for waiting in scene.waiting:
        waiting.cancel()
    await asyncio.gather(*scene.waiting, return_exceptions=True)
    assert not scene.room._due
    assert not scene.room._lines


async def test_a_line_that_fails_keeps_no_news_from_the_others(scene: Scene) -> None:
    """The loop hears of the failure."""
    heard: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: heard.append(str(context["exception"])))
    try:
        scene.failing = {3, LINES - 1}
        scene.room.news(None)
        for _ in range(20):
            await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    assert scene.asked == dict.fromkeys(range(LINES), 1)
    assert heard == ["odd topic"] * 2


class CountedLines(dict[tuple[int, int], dict[LineKey, Line]]):
    """Lines; it counts how often all of them are gone through."""

    passes = 0

    def values(self) -> Any:
        self.passes += 1
        return super().values()


async def test_many_raft_groups_of_a_node_cost_one_pass_over_the_lines(scene: Scene) -> None:
    """A node that comes back says in one report that it leads a thousand raft groups."""
    counted = CountedLines(scene.room._lines)
    scene.room._lines = counted
    leaders = scene.leaders
    for raft_group in range(1_000):
        leaders.elect(raft_group, "other")
    assert counted.passes == 1
    assert sum(await scene.steps()) == LINES
    for _ in range(2):
        leaders.elect(1, "third")
    assert counted.passes == 2
    assert sum(await scene.steps()) == LINES
    assert set(scene.asked.values()) == {max(scene.asked.values())}
