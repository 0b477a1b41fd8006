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
    DEAD_LETTER_TOPIC_ID,
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


async def test_a_check_counts_once_a_producer_was_given_it() -> None:
    """A broker that drops it (no producer, no room, it stops) reports nothing: nobody was asked."""
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, max_transaction_checks=2))
    producer = await Producer(leader, reports_checks=True).connect(TOPIC_ID)
    got = []
    async with running(leader):
        half = leader.half()
        for is_given in (False, False, False, True, True, False):
            await check_once(leader)
            got += await producer.take()
            producer.report(TOPIC_ID)
            number, exhausted, _ = got[-1]
            if is_given:
                # A report may come twice, or late.
                for told in (number, number, number - 1):
                    leader.transactions.given(half, told)
                leader.commit()
                await turns()
            assert checks_of(leader, half) == number - (not is_given and not exhausted)
    assert [each[:2] for each in got] == [
        *((1, False), (1, False), (1, False), (1, False)),
        *((2, False), (2, True)),
    ]


async def test_a_guess_counts_if_a_producer_was_given_it() -> None:
    """A broker that knows no topic of its producers found one of the half's group."""
    leader = LeaderUnderTest(QUICK)
    may_find = await Producer(leader, reports_checks=True).connect()
    async with running(leader):
        half = leader.half()
        may_find.report(guesses=True)
        await check_once(leader)
        ((number, exhausted, _),) = await may_find.take()
        assert (number, exhausted, checks_of(leader, half)) == (1, False, 0)
        leader.transactions.given(half, number)
        leader.commit()
        await turns()
        assert checks_of(leader, half) == 1


async def test_a_report_about_a_half_that_ended_changes_nothing() -> None:
    """The producer was quicker than the report; a delayed message is none of its business."""
    leader = LeaderUnderTest(QUICK)
    async with running(leader):
        delayed, half = leader.wait_for(b"later", 60_000), leader.half()
        commit = await start(leader.transactions.commit(half, TOPIC_ID))
        leader.commit()
        await commit
        for name in (half, delayed, half._replace(ordinal=9)):
            leader.transactions.given(name, 1)
        await turns()
        assert proposed(leader) == []


async def test_a_half_without_a_producer_is_given_up_when_it_is_too_old() -> None:
    """It would keep the log forever; a younger one stays, whatever the wall clock does."""
    options = PendingOptions(turn_interval_ms=0, max_transaction_age_ms=10 * INTERVAL_S * 1_000)
    leader = LeaderUnderTest(options)
    broker = await Producer(leader).connect()
    async with running(leader):
        half = leader.half()
        for _ in range(9):
            await check_once(leader)
            broker.report()
            assert await broker.take() == []
        leader.clock.wall_offset_ms += 1_000_000_000
        leader.timers.wake()
        await turns()
        assert await broker.take() == []
        await check_once(leader)
        assert await broker.take() == [(0, True, b"half")]
        assert checks_of(leader, half) == 0
        gone = await start(leader.transactions.give_up(half, TOPIC_ID, DEAD_LETTER_TOPIC_ID))
        leader.commit()
        assert (await gone).topic_id == DEAD_LETTER_TOPIC_ID
    checks = leader.metrics.counter("strata_storage_transaction_checks_total")
    assert checks.value({"result": "too_old"}) == 1


async def test_an_old_half_that_was_committed_is_delivered() -> None:
    """Only what nobody decided is given up."""
    options = PendingOptions(turn_interval_ms=0, max_transaction_age_ms=1_000)
    leader = LeaderUnderTest(options)
    async with running(leader):
        half = leader.half()
        leader.clock.now_s += 100
        commit = await start(leader.transactions.commit(half, TOPIC_ID))
        leader.commit()
        assert (await commit).topic_id == TOPIC_ID
    assert leader.next_offsets() == {0: 1}
