"""Races of a commit, a rollback, a recall and the due time for a message (rule 1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from unittest.mock import patch

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands.pending import ResolveAction
from strata_mq.layout.batch import PartKind
from strata_mq.layout.pending_rows import PendingKey, PendingRef
from strata_mq.layout.rows import day_of
from strata_state.ports import StateError
from strata_storage.base.config import PendingOptions
from strata_storage.base.errors import Refused
from strata_storage.leading.pending.resolver import End, Ended, Place, Waiting
from strata_storage.leading.pending.transactions import HalfEnd
from tests.unit.storage.waiting_leader import (
    DEAD_LETTER_TOPIC_ID,
    GROUP,
    TOPIC_ID,
    LeaderUnderTest,
    id_of,
    start,
    turns,
)


@pytest.fixture
async def leader() -> LeaderUnderTest:
    return LeaderUnderTest()


async def refused(work: Awaitable[object]) -> pb.Outcome.ValueType:
    with pytest.raises(Refused) as caught:
        await work
    return caught.value.outcome


def due_now(leader: LeaderUnderTest) -> None:
    """Let the timer decide about everything that is due."""
    leader.timers.decide([*leader.became], leader.now_ms())


# Commit against rollback ------------------------------------------------------------------------


async def test_of_commit_and_rollback_the_first_one_wins(leader: LeaderUnderTest) -> None:
    """The loser is refused, and only once the winner's entry is committed."""
    half = leader.half()
    commit = await start(leader.transactions.commit(half, TOPIC_ID))
    rollback = await start(leader.transactions.roll_back(half, TOPIC_ID))
    ((item,),) = [command.items for command in leader.resolves()]
    assert item.action is ResolveAction.DELIVER
    assert not commit.done()
    assert not rollback.done()
    leader.commit()
    assert await commit == Place(TOPIC_ID, 0, 0)
    assert await refused(rollback) == pb.OUTCOME_INVALID_HANDLE
    assert leader.next_offsets() == {0: 1}


async def test_a_rollback_that_comes_first_wins_against_a_commit(leader: LeaderUnderTest) -> None:
    """The half is gone and was never visible."""
    half = leader.half()
    rollback = await start(leader.transactions.roll_back(half, TOPIC_ID))
    commit = await start(leader.transactions.commit(half, TOPIC_ID))
    leader.commit()
    await rollback
    assert await refused(commit) == pb.OUTCOME_INVALID_HANDLE
    assert leader.next_offsets() == {}
    assert list(leader.machine.rows.pending.keys()) == []
    assert leader.machine.rows.pins.get(half) is None


@pytest.mark.parametrize("is_applied", [False, True])
async def test_a_repeat_is_answered_as_the_first_one(
    leader: LeaderUnderTest, is_applied: bool
) -> None:
    """Commit, rollback and give-up: whether the first one is in flight or long done."""
    names = [leader.half(b"%d" % number) for number in range(3)]
    calls: list[Callable[[], Coroutine[object, object, object]]] = [
        lambda: leader.transactions.commit(names[0], TOPIC_ID),
        lambda: leader.transactions.roll_back(names[1], TOPIC_ID),
        lambda: leader.transactions.give_up(names[2], TOPIC_ID, DEAD_LETTER_TOPIC_ID),
    ]
    first = [await start(call()) for call in calls]
    if is_applied:
        leader.commit()
    again = [await start(call()) for call in calls]
    leader.commit()
    answers = [await call for call in first]
    assert answers == [Place(TOPIC_ID, 0, 0), None, Place(DEAD_LETTER_TOPIC_ID, GROUP, 0)]
    assert [await call for call in again] == answers
    assert leader.next_offsets() == {0: 1}


async def test_a_commit_is_found_by_the_id_of_its_message(leader: LeaderUnderTest) -> None:
    """A producer's transaction id names the message by id, before and after it was placed."""
    half = leader.half(b"mine")
    name = leader.resolver.name_of(TOPIC_ID, id_of(b"mine"))
    assert name == half
    commit = await start(leader.transactions.commit(name, TOPIC_ID))
    leader.commit()
    place = await commit
    again = leader.resolver.name_of(TOPIC_ID, id_of(b"mine"))
    assert await leader.transactions.commit(again, TOPIC_ID) == place


async def test_what_is_no_half_of_the_topic_is_refused(leader: LeaderUnderTest) -> None:
    """Unknown names, other topics, delayed messages, and ids nobody sent."""
    half = leader.half()
    delayed = leader.wait_for(b"delayed", 5_000)
    for name, topic_id in ((PendingRef(99, 0), TOPIC_ID), (half, 8), (delayed, TOPIC_ID)):
        for call in (leader.transactions.commit, leader.transactions.roll_back):
            assert await refused(await start(call(name, topic_id))) == pb.OUTCOME_INVALID_HANDLE
    with pytest.raises(Refused):
        leader.resolver.name_of(TOPIC_ID, id_of(b"nobody"))
    assert leader.resolves() == []


async def test_a_half_is_given_up_to_the_dead_letter_queue_of_its_raft_group(
    leader: LeaderUnderTest,
) -> None:
    """Its queue bears the raft group's number (rule 26); a commit comes too late then."""
    half = leader.half()
    with pytest.raises(Refused):
        await leader.transactions.give_up(half, TOPIC_ID, 0)
    give_up = await start(leader.transactions.give_up(half, TOPIC_ID, DEAD_LETTER_TOPIC_ID))
    leader.commit()
    assert await give_up == Place(DEAD_LETTER_TOPIC_ID, GROUP, 0)
    commit = await start(leader.transactions.commit(half, TOPIC_ID))
    assert await refused(commit) == pb.OUTCOME_INVALID_HANDLE
    assert leader.next_offsets(DEAD_LETTER_TOPIC_ID) == {GROUP: 1}


# The due time -----------------------------------------------------------------------------------


async def test_a_recall_before_the_due_time_wins(leader: LeaderUnderTest) -> None:
    """The timer finds the message taken; nothing is delivered."""
    name = leader.wait_for(b"later", 5_000)
    leader.clock.now_s = 4.9
    recall = await start(leader.recalls.recall(name, TOPIC_ID, id_of(b"later")))
    leader.clock.now_s = 5.1
    due_now(leader)
    assert [len(command.items) for command in leader.resolves()] == [1]
    leader.commit()
    await recall
    due_now(leader)
    assert leader.resolves() == []
    assert leader.next_offsets() == {}
    assert leader.count("recalled") == 1


async def test_a_recall_at_the_due_time_loses(leader: LeaderUnderTest) -> None:
    """Whether the timer has looked or not: a message that is due is delivered."""
    name = leader.wait_for(b"later", 5_000)
    leader.clock.now_s = 5.0
    early = await start(leader.recalls.recall(name, TOPIC_ID, id_of(b"later")))
    assert await refused(early) == pb.OUTCOME_INVALID_HANDLE
    due_now(leader)
    late = await start(leader.recalls.recall(name, TOPIC_ID, id_of(b"later")))
    assert not late.done()
    leader.commit()
    # Delivered, and nobody has it yet: it is taken out of its queue.
    await turns()
    leader.commit()
    await late
    assert leader.count("delivered") == 1


async def test_a_recall_needs_the_messages_id(leader: LeaderUnderTest) -> None:
    """A handle with another id recalls nothing, nor does one of a half."""
    name = leader.wait_for(b"later", 5_000)
    half = leader.half()
    for ref, message_id in ((name, id_of(b"other")), (half, id_of(b"half"))):
        recall = await start(leader.recalls.recall(ref, TOPIC_ID, message_id))
        assert await refused(recall) == pb.OUTCOME_INVALID_HANDLE
    assert leader.resolves() == []


async def test_a_commit_wins_against_a_check_in_flight(leader: LeaderUnderTest) -> None:
    """The check puts the half off, the commit then takes it from its new time."""
    half = leader.half()
    leader.clock.now_s = 6.0
    due_now(leader)
    commit = await start(leader.transactions.commit(half, TOPIC_ID))
    reschedule, place = (command.items[0] for command in leader.resolves())
    assert reschedule.action is ResolveAction.RESCHEDULE
    assert place.action is ResolveAction.DELIVER
    assert place.key.due_ms == reschedule.offset_or_due
    leader.commit()
    assert await commit == Place(TOPIC_ID, 0, 0)
    assert list(leader.machine.rows.pending.keys()) == []
    # It waited for 6 s: more than 5, at most 60.
    finished = leader.metrics.histogram("rocketmq_finish_message_latency")
    assert list(finished.boundaries[:2]) == [5, 60]
    assert finished.bucket_counts() == [0, 1, 0, 0, 0, 0, 0]


async def test_the_timer_leaves_a_half_alone_that_is_being_committed(
    leader: LeaderUnderTest,
) -> None:
    """A half that came due while its commit is in flight is decided about once."""
    half = leader.half()
    commit = await start(leader.transactions.commit(half, TOPIC_ID))
    leader.clock.now_s = 6.0
    due_now(leader)
    leader.commit()
    await commit
    assert leader.count("committed") == 1
    assert leader.next_offsets() == {0: 1}


# Entries ----------------------------------------------------------------------------------------


async def test_decisions_of_one_turn_share_an_entry(leader: LeaderUnderTest) -> None:
    """Sixty-four commits at once are one entry, their offsets without a hole per queue."""
    names = [leader.half(b"%d" % number) for number in range(64)]
    calls = [asyncio.ensure_future(leader.transactions.commit(name, TOPIC_ID)) for name in names]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (command,) = leader.resolves()
    assert len(command.items) == 64
    leader.commit()
    places = [await call for call in calls]
    assert len(set(places)) == 64
    # One after another over the four queues: none gets all.
    assert leader.next_offsets() == {0: 16, 1: 16, 2: 16, 3: 16}


async def test_offsets_are_given_when_the_entry_is_proposed(leader: LeaderUnderTest) -> None:
    """An append between a decision and its entry takes the offset before."""
    half = leader.wait_for(b"half", 6_000, PartKind.HALF, queue=2)
    commit = asyncio.ensure_future(leader.transactions.commit(half, TOPIC_ID))
    asyncio.get_running_loop().call_soon(leader.submit, [b"plain"], 0)
    leader.submit([b"first"], queue=2)
    await asyncio.sleep(0)
    leader.submit([b"second"], queue=2)
    await asyncio.sleep(0)
    leader.submit([b"third"], queue=2)
    leader.commit()
    assert (await commit).offset in (1, 2)
    assert leader.next_offsets()[2] == 4


async def test_messages_side_by_side_share_a_queue_and_a_row(leader: LeaderUnderTest) -> None:
    """Messages of one append that are due together lie together; the next batch goes elsewhere."""
    for number in range(3):
        leader.submit(
            [b"%d-%d" % (number, at) for at in range(5)], leader.now_ms(), PartKind.DELAYED
        )
    leader.commit()
    due_now(leader)
    leader.commit()
    assert leader.next_offsets() == {0: 5, 1: 5, 2: 5}
    rows = [leader.machine.consume_queues.covering(TOPIC_ID, queue, 0) for queue in range(3)]
    assert [row[1].count for row in rows if row is not None] == [5, 5, 5]


async def test_a_refused_entry_leaves_no_trace(leader: LeaderUnderTest) -> None:
    """Everyone who waits for it is refused; the message waits as before and may be ended."""
    half = leader.half()
    leader.replica.is_full = True
    commit = await start(leader.transactions.commit(half, TOPIC_ID))
    assert await refused(commit) == pb.OUTCOME_OVERLOADED
    assert len(leader.resolver) == 0
    assert isinstance(leader.resolver.find(half), Waiting)
    leader.replica.is_full = False
    rollback = await start(leader.transactions.roll_back(half, TOPIC_ID))
    leader.commit()
    await rollback


async def test_who_lost_against_a_refused_decision_is_refused_too(leader: LeaderUnderTest) -> None:
    """A rollback must not say that the half was committed when that was not written."""
    half = leader.half()
    leader.replica.is_full = True
    commit = asyncio.ensure_future(leader.transactions.commit(half, TOPIC_ID))
    rollback = asyncio.ensure_future(leader.transactions.roll_back(half, TOPIC_ID))
    assert await refused(commit) == pb.OUTCOME_OVERLOADED
    assert await refused(rollback) == pb.OUTCOME_OVERLOADED


async def test_a_refused_second_decision_leaves_the_first_one(leader: LeaderUnderTest) -> None:
    """A put-off in flight stands when the commit behind it cannot be proposed, applied or not."""
    for is_applied in (False, True):
        half = leader.half(b"%d" % is_applied)
        leader.clock.advance(6.0)
        due_now(leader)
        leader.replica.is_full = True
        commit = asyncio.ensure_future(leader.transactions.commit(half, TOPIC_ID))
        if is_applied:
            asyncio.get_running_loop().call_soon(leader.commit)
        assert await refused(commit) == pb.OUTCOME_OVERLOADED
        leader.replica.is_full = False
        leader.commit()
        found = leader.resolver.find(half)
        assert isinstance(found, Waiting)
        assert found.key.due_ms == leader.now_ms() + 30_000
        assert len(leader.resolver) == 0


async def test_lost_leadership_refuses_all_who_wait(leader: LeaderUnderTest) -> None:
    """Whether the entry will be committed is not known."""
    half = leader.half()
    commit = await start(leader.transactions.commit(half, TOPIC_ID))
    rollback = await start(leader.transactions.roll_back(half, TOPIC_ID))
    leader.lose()
    assert await refused(commit) == pb.OUTCOME_NOT_LEADER
    assert await refused(rollback) == pb.OUTCOME_NOT_LEADER


async def test_decisions_in_flight_are_limited() -> None:
    """Calls beyond the limit are refused; the timer waits for room."""
    leader = LeaderUnderTest(PendingOptions(resolves_max=2))
    names = [leader.half(b"%d" % number) for number in range(3)]
    calls = [await start(leader.transactions.commit(name, TOPIC_ID)) for name in names]
    assert await refused(calls[2]) == pb.OUTCOME_OVERLOADED
    assert leader.resolver.room == 0
    leader.commit()
    await asyncio.gather(*calls[:2])
    assert leader.resolver.room == 2


async def test_what_ended_without_an_offset_is_kept_for_a_day(leader: LeaderUnderTest) -> None:
    """A repeated rollback is told the same, until trims of a later day remove the row."""
    name = leader.half(b"half")
    call = await start(leader.transactions.roll_back(name, TOPIC_ID))
    leader.commit()
    await call
    rows = leader.machine.rows.ended
    today = day_of(leader.now_ms())
    for day, kept in ((today, True), (today + 1, False)):
        batch = leader.store.new_batch()
        rows.expire(batch, day)
        leader.store.write(batch)
        assert (leader.resolver.find(name) == Ended(None, End.ROLLED_BACK)) is kept


# Sealed queues and dropped topics ---------------------------------------------------------------


async def test_a_sealed_queue_is_passed_for_another_one(leader: LeaderUnderTest) -> None:
    """A message of one queue goes to another open one of its topic (rule 18)."""
    half = leader.wait_for(b"half", 6_000, PartKind.HALF, queue=2)
    leader.appender.seal(TOPIC_ID, 2)
    commit = await start(leader.transactions.commit(half, TOPIC_ID))
    leader.commit()
    assert (await commit).queue in (0, 1, 3)


async def test_a_queue_sealed_in_the_last_moment_gets_nothing(leader: LeaderUnderTest) -> None:
    """Between decision and entry all queues are sealed: the call is refused, the half stays."""
    half = leader.half()
    commit = asyncio.ensure_future(leader.transactions.commit(half, TOPIC_ID))
    await asyncio.sleep(0)
    for queue in range(4):
        leader.appender.seal(TOPIC_ID, queue)
    assert await refused(commit) == pb.OUTCOME_OVERLOADED
    assert leader.resolves() == []
    assert isinstance(leader.resolver.find(half), Waiting)


async def test_what_waits_of_a_dropped_topic_goes(leader: LeaderUnderTest) -> None:
    """It cannot be committed any more, and the timer drops it when it is due."""
    half = leader.half()
    leader.drop_topic()
    commit = await start(leader.transactions.commit(half, TOPIC_ID))
    assert await refused(commit) == pb.OUTCOME_INVALID_HANDLE
    leader.clock.now_s = 6.0
    due_now(leader)
    leader.commit()
    assert leader.count("topic_dropped") == 1
    assert list(leader.machine.rows.pending.keys()) == []


async def test_a_drop_that_overtakes_a_commit_does_no_harm(leader: LeaderUnderTest) -> None:
    """The commit's entry behind the DROP is applied as nothing."""
    half = leader.half()
    commit = await start(leader.transactions.commit(half, TOPIC_ID))
    leader.drop_topic()
    leader.commit()
    await commit
    assert leader.next_offsets() == {}


# Parts that fail --------------------------------------------------------------------------------


async def test_a_half_that_cannot_be_read_is_refused_and_the_others_end(
    leader: LeaderUnderTest,
) -> None:
    """Many ends are one call: each of them has an answer (rule 33)."""
    names = [leader.half(b"%d" % number) for number in range(3)]
    read = leader.resolver._read

    def read_some(key: PendingKey) -> Waiting | None:
        if key.ref == names[1]:
            raise StateError("input/output error")
        return read(key)

    commits = (True, True, False)
    ends = [HalfEnd(name, b"", TOPIC_ID, how) for name, how in zip(names, commits, strict=True)]
    with patch.object(type(leader.resolver), "_read", lambda _, key: read_some(key)):
        call = await start(leader.transactions.end_all(ends))
        leader.commit()
        committed, refused, rolled_back = await call
    assert isinstance(refused, Refused)
    assert refused.outcome == pb.OUTCOME_OVERLOADED
    assert "cannot be read" in refused.reason
    assert (committed, rolled_back) == ((TOPIC_ID, 0, 0), None)
    assert isinstance(leader.resolver.find(names[1]), Waiting)
    assert leader.next_offsets() == {0: 1}


async def test_a_queue_that_cannot_be_read_keeps_no_other_end_from_its_entry(
    leader: LeaderUnderTest,
) -> None:
    """Decisions of one turn share an entry; one that gets no offset is refused alone."""
    names = [
        leader.wait_for(b"%d" % queue, 6_000, PartKind.HALF, queue=queue) for queue in range(3)
    ]
    next_offset = leader.appender.next_offset

    def offset_of(topic_id: int, queue: int) -> int:
        if queue == 1:
            raise StateError("input/output error")
        return next_offset(topic_id, queue)

    ends = [HalfEnd(name, b"", TOPIC_ID, True) for name in names]
    with patch.object(type(leader.appender), "next_offset", lambda _, *key: offset_of(*key)):
        call = await start(leader.transactions.end_all(ends))
        leader.commit()
        first, refused, last = await call
    assert isinstance(refused, Refused)
    assert refused.outcome == pb.OUTCOME_OVERLOADED
    assert (first, last) == ((TOPIC_ID, 0, 0), (TOPIC_ID, 2, 0))
    again = await start(leader.transactions.end_all(ends))
    leader.commit()
    assert await again == [(TOPIC_ID, queue, 0) for queue in range(3)]
