"""Searches for earlier sends that wait for room: in their order, and without asking for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from strata_broker.sends.searches import Destination, Search, Searches
from strata_mq.requests import Code, RequestError
from strata_runtime.tasks import RequestTasks
from strata_testing import until

HERE = Destination(1, 0, 4)


class Room:
    """The part of `EarlierSends` that counts lookups.

    Attributes:
        tries: how often somebody asked for room.
    """

    max_lookups = 1

    def __init__(self) -> None:
        self.used = 0
        self.tries = 0

    def try_begin(self, count: int) -> bool:
        self.tries += 1
        if self.used:
            return False
        self.used = 1
        return True

    def end(self, count: int) -> None:
        assert self.used == 1
        self.used = 0


class Pending:
    """A request of one message, whose search ends when the test says so."""

    def __init__(self, begun: list[Pending]) -> None:
        self._begun = begun
        self.found = asyncio.Event()
        self.late = False
        self.outcome: object = None

    def is_late(self) -> bool:
        return self.late

    def stage(self, destination: Destination, indexes: Sequence[int]) -> None:
        self.outcome = "staged"

    def refused(self, indexes: Sequence[int], failure: RequestError) -> None:
        self.outcome = failure.code

    def choose_again(
        self, indexes: Sequence[int], refused: Destination, *, may_stay: bool = False
    ) -> None:
        self.outcome = "staged"

    async def find_earlier(self, *_: object) -> bool:
        self._begun.append(self)
        await self.found.wait()
        return False

    def is_settled(self) -> bool:
        return self.outcome is not None

    def failed(self) -> None:
        self.outcome = "failed"


class Scene:
    """Searches with room for one."""

    def __init__(self) -> None:
        self.room, self.tasks = Room(), RequestTasks("test", max_tasks=2)
        self.searches = Searches(cast(Any, self.room), self.tasks)
        self.begun: list[Pending] = []

    def begin(self) -> Pending:
        pending = Pending(self.begun)
        self.searches.begin(pending, Search(HERE, (0,), frozenset((0,)), (2,)))
        return pending


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    await scene.tasks.stop()


async def turns() -> None:
    """Let whatever needs no timer happen."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_search_that_ends_lets_the_next_one_begin_at_once(scene: Scene) -> None:
    """In the order in which they came; one that comes then does not pass those that wait."""
    searches = [scene.begin() for _ in range(50)]
    assert scene.room.tries == 2, "those behind one that waits do not ask"
    for number, search in enumerate(searches):
        await turns()
        assert scene.begun == searches[: number + 1]
        if number == 10:
            searches.append(scene.begin())
        search.found.set()
    searches[-1].found.set()
    await until(lambda: all(search.outcome for search in searches))
    assert {search.outcome for search in searches} == {"staged"}
    assert scene.begun == searches
    assert scene.room.used == 0


async def test_a_search_that_waits_ends_with_the_time_of_its_request(scene: Scene) -> None:
    """Also one behind another that may still wait, while the room is taken."""
    first, patient, hasty = (scene.begin() for _ in range(3))
    await turns()
    hasty.late = True
    await until(lambda: hasty.outcome)
    assert hasty.outcome is Code.PROXY_TIMEOUT
    assert patient.outcome is None
    first.found.set()
    await turns()
    assert scene.begun == [first, patient]


async def test_room_that_others_give_back_is_found(scene: Scene) -> None:
    """Dead letters are looked for in the same room."""
    assert scene.room.try_begin(1)
    waiting = scene.begin()
    await turns()
    assert not scene.begun
    scene.room.end(1)
    await until(lambda: scene.begun == [waiting])


async def test_a_search_for_which_there_are_too_many_tasks_is_refused(scene: Scene) -> None:
    """It holds no room then, and those behind it have their turn."""
    first, refused, last = (scene.begin() for _ in range(3))
    await turns()
    idle = [scene.tasks.spawn("idle", asyncio.Event().wait())]
    first.found.set()
    await until(lambda: refused.outcome)
    assert refused.outcome is Code.TOO_MANY_REQUESTS
    idle[0].cancel()
    await until(lambda: last.outcome or last in scene.begun)
    assert scene.room.used == (last in scene.begun)
