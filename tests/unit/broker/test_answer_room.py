"""Room for answers: many that are made at the same moment do not fill the memory (rule 34)."""

from __future__ import annotations

import asyncio

import pytest

from strata_broker.receives.answer_room import AnswerRoom
from strata_mq.requests import Code, RequestError
from strata_runtime.metrics import Metrics

KIB = 1024
MIB = 1024 * KIB
TOPIC = 7


def new_room(most_bytes: int = 32 * MIB, wait_s: float = 60.0) -> AnswerRoom:
    return AnswerRoom("receives", most_bytes, 8 * MIB, wait_s=wait_s, metrics=Metrics.disabled())


def test_an_unknown_topic_may_have_the_largest_answer() -> None:
    """So few are read at the same time; the others ask for places."""
    room = new_room()
    asked = [room.share(TOPIC).ask() for _ in range(400)]
    assert asked[:4] == [8 * MIB] * 4
    assert set(asked[4:]) == {0}
    assert room.held_bytes == 32 * MIB


def test_many_small_answers_are_read_at_once() -> None:
    """The next answer takes the size that the topic's answers had lately."""
    room = new_room()
    for _ in range(10):
        share = room.share(TOPIC)
        share.ask()
        share.came(2 * KIB)
        share.leave()
    asked = [room.share(TOPIC).ask() for _ in range(1_000)]
    assert asked.count(64 * KIB) == 32 * MIB // (64 * KIB)
    assert room.share(TOPIC + 1).ask() == 0


def test_reads_that_wait_for_messages_leave_room_for_those_that_find_some() -> None:
    """A thousand long polls of an idle topic once held all of it: nobody could pull elsewhere."""
    room = new_room()
    while room.expected_bytes(TOPIC) > 64 * KIB:
        room.learn(TOPIC, 2 * KIB)
    parked = [room.share(TOPIC) for _ in range(1_000)]
    asked = [share.ask(waits=True) for share in parked]
    assert asked.count(64 * KIB) == 16 * MIB // (64 * KIB)
    assert room.parked_bytes == 16 * MIB
    assert room.share(TOPIC + 1).ask() == 8 * MIB
    # One that got a message holds its bytes, and another one may wait in its place.
    parked[0].came(2 * KIB)
    assert (room.parked_bytes, room.held_bytes) == (16 * MIB - 64 * KIB, 24 * MIB - 62 * KIB)
    assert room.share(TOPIC).ask(waits=True) == 64 * KIB
    for share in parked:
        share.leave()
    assert (room.parked_bytes, room.held_bytes) == (64 * KIB, 8 * MIB + 64 * KIB)


def test_answers_that_grow_are_followed() -> None:
    """An answer may be twice as large as the one before, and one large message is enough."""
    room = new_room()
    sizes = [64 * KIB]
    share = room.share(TOPIC)
    for _ in range(20):
        share.ask()
        share.came(2 * KIB)
    while sizes[-1] < 8 * MIB:
        assert share.ask() == sizes[-1]
        share.came(sizes[-1])
        assert room.held_bytes == sizes[-1]
        sizes.append(2 * sizes[-1])
    share.came(9 * MIB)
    assert room.held_bytes == 9 * MIB
    assert share.ask() == 8 * MIB
    share.leave()
    assert room.held_bytes == 0


async def test_those_who_wait_are_served_in_order() -> None:
    """A large one at the front is not overtaken forever, and one that fits never waits alone."""
    room = new_room(10 * MIB)
    shares = [room.share(TOPIC) for _ in range(4)]
    served: list[int] = []

    async def take(number: int, size_bytes: int) -> None:
        await shares[number].wait_for(size_bytes)
        served.append(number)

    async with asyncio.TaskGroup() as tasks:
        await take(0, 4 * MIB)
        for number, size_bytes in ((1, 8 * MIB), (2, MIB), (3, MIB)):
            tasks.create_task(take(number, size_bytes))
        await asyncio.sleep(0)
        assert served == [0]
        assert room.share(TOPIC + 1).ask() == 0
        shares[0].leave()
        await asyncio.sleep(0)
    assert served == [0, 1, 2, 3]
    for share in shares:
        share.leave()
    await shares[0].wait_for(99 * MIB)
    assert room.held_bytes == 99 * MIB


@pytest.mark.parametrize("goes_first", [True, False])
async def test_who_leaves_while_waiting_takes_nothing(goes_first: bool) -> None:
    """Cancelled right before its turn or right after it: the next one has the room."""
    room = new_room(MIB)
    first, second, third = (room.share(TOPIC) for _ in range(3))
    await first.wait_for(MIB)
    waiting = [asyncio.ensure_future(share.wait_for(MIB)) for share in (second, third)]
    await asyncio.sleep(0)
    if goes_first:
        waiting[0].cancel()
    first.leave()
    waiting[0].cancel()
    await waiting[1]
    await asyncio.wait(waiting[:1])
    assert waiting[0].cancelled()
    assert room.held_bytes == MIB
    last = asyncio.ensure_future(first.wait_for(MIB))
    await asyncio.sleep(0)
    last.cancel()
    await asyncio.wait([last])
    third.leave()
    assert room.held_bytes == 0


async def test_the_wait_has_an_end() -> None:
    """The client is told to come again; nothing stays behind."""
    room = new_room(MIB, wait_s=0.001)
    holder, waiter = room.share(TOPIC), room.share(TOPIC)
    await holder.wait_for(MIB)
    with pytest.raises(RequestError, match="too many bytes of receives") as refused:
        await waiter.wait_for(1)
    assert refused.value.code is Code.TOO_MANY_REQUESTS
    holder.leave()
    assert room.held_bytes == 0
    assert waiter.ask() > 0
