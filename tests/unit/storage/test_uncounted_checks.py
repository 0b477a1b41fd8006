"""Checks of a half message that reached no broker: they do not count (rules 33, 40)."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.pending_rows import PendingRef
from strata_state.ports import StateError
from strata_storage.base.config import PendingOptions
from strata_storage.base.errors import Refused
from strata_storage.leading.pending.resolver import Waiting
from strata_storage.reads.reader import MessageReader
from tests.unit.storage.test_timers import Producer
from tests.unit.storage.waiting_leader import (
    QUICK,
    TOPIC_ID,
    LeaderUnderTest,
    let_pass,
    proposed,
    running,
    start,
    turns,
)

INTERVAL_S = 30


def refuse(*_: object) -> None:
    raise Refused(pb.OUTCOME_OVERLOADED, "too many reads wait")


def fail(*_: object) -> None:
    raise StateError("input/output error")


def find_nothing(locations: list[object], *_: object) -> list[None]:
    return [None] * len(locations)


def checks_of(leader: LeaderUnderTest, half: PendingRef) -> int:
    """Return how many checks of a half count."""
    waiting = leader.resolver.find(half)
    assert isinstance(waiting, Waiting)
    return waiting.row.checks


async def check_once(leader: LeaderUnderTest) -> None:
    """Let one check come due, and commit all that follows from it."""
    await let_pass(leader, INTERVAL_S)
    for _ in range(2):
        leader.commit()
        await turns()


@pytest.mark.parametrize("read", [refuse, fail, find_nothing])
async def test_a_check_whose_message_is_not_read_does_not_count(
    read: Callable[..., list[None] | None],
) -> None:
    """A half is not given up by a disk that is slow: it has all checks when that is over."""
    options = PendingOptions(turn_interval_ms=0, retry_ms=0, max_transaction_checks=2)
    leader = LeaderUnderTest(options)
    producer = await Producer(leader).connect(TOPIC_ID)

    async def not_now(reader: MessageReader, *arguments: object) -> list[None] | None:
        return read(*arguments)

    async with running(leader):
        half = leader.half()
        with patch.object(MessageReader, "_read_log", not_now):
            for _ in range(4):
                await check_once(leader)
                producer.report(TOPIC_ID)
                assert checks_of(leader, half) == 0
        got = []
        for _ in range(3):
            await check_once(leader)
            got += await producer.take()
            producer.report(TOPIC_ID)
    assert got == [(1, False, b"half"), (2, False, b"half"), (2, True, b"half")]


async def test_a_check_for_which_no_broker_has_room_does_not_count() -> None:
    """Its stream is full of others, or ended while the check was written."""
    leader = LeaderUnderTest(QUICK)
    producer = await Producer(leader).connect(TOPIC_ID)
    async with running(leader):
        half = leader.half()
        with patch.object(leader.watchers, "offer", lambda boot_id, check: False):
            await check_once(leader)
        assert checks_of(leader, half) == 0
        producer.report(TOPIC_ID)
        await check_once(leader)
        assert await producer.take() == [(1, False, b"half")]
        assert checks_of(leader, half) == 1


async def test_a_check_is_counted_once_a_broker_has_it() -> None:
    """Its due time stays; a leader that ends in between leaves a half that has one check more."""
    leader = LeaderUnderTest(QUICK)
    producer = await Producer(leader).connect(TOPIC_ID)
    async with running(leader):
        leader.half()
        await let_pass(leader, 6)
        (put_off,) = proposed(leader)
        assert put_off.checks == 0
        leader.commit()
        await turns()
        assert await producer.take() == [(1, False, b"half")]
        (counted,) = proposed(leader)
        assert (counted.checks, counted.offset_or_due) == (1, put_off.offset_or_due)
        leader.commit()
        await let_pass(leader, INTERVAL_S - 0.1)
        assert proposed(leader) == []


async def test_a_half_that_ends_while_it_is_checked_is_not_put_off_again() -> None:
    """The producer was quicker: the count of the check changes nothing."""
    leader = LeaderUnderTest(QUICK)
    await Producer(leader).connect(TOPIC_ID)
    async with running(leader):
        half = leader.half()
        await let_pass(leader, 6)
        commit = await start(leader.transactions.commit(half, TOPIC_ID))
        leader.commit()
        await turns()
        assert proposed(leader) == []
        assert (await commit).topic_id == TOPIC_ID
    assert leader.next_offsets() == {0: 1}


async def test_who_may_find_the_producer_is_asked_beside_who_knows_another_one() -> None:
    """A gRPC producer of the topic knows nothing of a half of a group that has reconnected."""
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, max_transaction_checks=3))
    knows = await Producer(leader, 1).connect(TOPIC_ID)
    may_find = await Producer(leader, 2).connect(TOPIC_ID + 1)
    got: list[tuple[int, bool, int]] = []
    async with running(leader):
        leader.half()
        for _ in range(5):
            knows.report(TOPIC_ID, guesses=True)
            may_find.report(TOPIC_ID + 1, guesses=True)
            await check_once(leader)
            for watch in list(leader.watchers._watches):
                got += [(watch.boot_id, each.exhausted, each.number) for each in watch.checks]
                watch.take_checks(10)
    assert [each for each in got if not each[1]] == [
        *((1, False, 1), (1, False, 2), (2, False, 2)),
        *((1, False, 3), (2, False, 3)),
    ]
