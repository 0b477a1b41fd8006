"""Many due messages stop no calls, and those that find no place stop no other ones (rule 33)."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from strata_mq.layout.batch import PartKind
from strata_state.ports import StateError
from strata_storage.base.config import PendingOptions
from strata_storage.base.errors import Refused
from strata_storage.leading.pending.check_routes import CheckRoutes
from tests.unit.storage.test_timers import Producer
from tests.unit.storage.waiting_leader import (
    TOPIC_ID,
    LeaderUnderTest,
    id_of,
    let_pass,
    proposed,
    running,
    start,
    turns,
)


async def test_due_messages_leave_room_for_calls() -> None:
    """Millions may be due at once; a producer's decision and a recall are written meanwhile."""
    options = PendingOptions(batch=2, resolves_max=8, turn_interval_ms=0, retry_ms=1_000)
    leader = LeaderUnderTest(options)
    async with running(leader):
        half = leader.wait_for(b"half", 60_000, PartKind.HALF)
        later = leader.wait_for(b"later", 60_000)
        for number in range(100):
            leader.wait_for(b"%d" % number, 1_000)
        await let_pass(leader, 1)
        assert len(proposed(leader)) == 6
        for _ in range(3):
            # The timer uses room that there is again first.
            leader.commit(1)
            await turns()
        commit = await start(leader.transactions.commit(half, TOPIC_ID))
        recall = await start(leader.recalls.recall(later, TOPIC_ID, id_of(b"later")))
        while leader.replica.proposed:
            leader.commit()
            await turns()
        assert (await commit).topic_id == TOPIC_ID
        await recall
    assert leader.count("delivered") == 100


async def test_calls_leave_room_for_due_messages() -> None:
    """Likewise, as many producers may decide at once."""
    leader = LeaderUnderTest(PendingOptions(batch=2, resolves_max=8, turn_interval_ms=0))
    async with running(leader):
        halves = [leader.half(b"%d" % number) for number in range(10)]
        leader.wait_for(b"due", 1_000)
        commits = [await start(leader.transactions.commit(half, TOPIC_ID)) for half in halves]
        assert len(proposed(leader)) == 6
        assert [commit.done() for commit in commits] == [False] * 6 + [True] * 4
        await let_pass(leader, 1)
        assert len(proposed(leader)) == 7
        leader.commit()
        for commit in commits[:6]:
            assert (await commit).topic_id == TOPIC_ID
        for commit in commits[6:]:
            with pytest.raises(Refused, match="being resolved"):
                await commit
        leader.commit()
    assert (leader.resolver.room, leader.resolver.room_for_due) == (8, 6)


async def test_messages_of_a_queue_that_stays_unreadable_do_not_stop_the_others() -> None:
    """A whole batch of them is put aside for a while; what is due behind it goes out meanwhile."""
    options = PendingOptions(batch=2, window=8, turn_interval_ms=0, retry_ms=1_000)
    leader = LeaderUnderTest(options)
    next_offset = leader.appender.next_offset
    is_broken = True

    def offset_of(topic_id: int, queue: int) -> int:
        if is_broken and queue == 1:
            raise StateError("damaged")
        return next_offset(topic_id, queue)

    async with running(leader):
        for number in range(3):
            leader.wait_for(b"%d" % number, 1_000 + number, queue=1)
        for number in range(3, 7):
            leader.wait_for(b"%d" % number, 1_000 + number, queue=2)
        with patch.object(type(leader.appender), "next_offset", lambda _, *key: offset_of(*key)):
            await let_pass(leader, 1.5)
            found = [item.row.message_id for item in proposed(leader) if item.row is not None]
            assert found == [id_of(b"%d" % number) for number in range(3, 7)]
            leader.commit()
            assert (len(leader.timers), leader.timers.due()) == (3, 3)
            is_broken = False
            await let_pass(leader, 1)
            leader.commit()
    assert leader.next_offsets() == {1: 3, 2: 4}


async def test_a_call_that_finds_no_place_leaves_the_half_to_the_timer() -> None:
    """It is refused, and the half is checked when it is due."""
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, retry_ms=1_000))

    def offset_of(*_: object) -> int:
        raise StateError("damaged")

    async with running(leader):
        half = leader.half()
        with patch.object(type(leader.appender), "next_offset", offset_of):
            commit = await start(leader.transactions.commit(half, TOPIC_ID))
            with pytest.raises(Refused, match="cannot be read"):
                await commit
        again = await start(leader.transactions.commit(half, TOPIC_ID))
        leader.commit()
        assert (await again).topic_id == TOPIC_ID
        await let_pass(leader, 10)
    assert proposed(leader) == []


async def test_brokers_are_looked_through_once_for_all_halves_of_a_topic() -> None:
    """There may be hundreds, and a producer may leave any number of halves behind."""
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0))
    can, looked_at = CheckRoutes._can, []

    def counted(routes: CheckRoutes, boot_id: int, topic_id: int | None, now_s: float) -> bool:
        looked_at.append(boot_id)
        return can(routes, boot_id, topic_id, now_s)

    for boot_id in range(1, 4):
        await Producer(leader, boot_id).connect(TOPIC_ID + 1)
    leader.submit([b"%d" % number for number in range(100)], 1_000, PartKind.HALF)
    leader.commit()
    leader.clock.advance(1)
    with patch.object(CheckRoutes, "_can", counted):
        checks, _ = leader.timers.decide(sorted(leader.became), leader.now_ms())
    assert checks == []
    assert len(proposed(leader)) == 100
    assert sorted(set(looked_at)) == [1, 2, 3]
    assert len(looked_at) <= 6
