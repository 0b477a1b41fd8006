"""Recall of stored messages: only before any consumer group was given them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.batch import PartKind
from strata_mq.layout.rows import HeadRow, RowKind, kind_prefix
from strata_mq.leases.queue_leases import Columns, TakeRequest
from strata_state.memory_store import MemoryStore
from strata_state.rows import GroupRows, HeadRows
from strata_storage.base.errors import Refused
from strata_storage.leading.pending.resolver import End, Place, Waiting
from strata_storage.leading.pops.known_consumers import KnownConsumers
from tests.unit.storage.waiting_leader import (
    GROUP,
    TOPIC_ID,
    LeaderUnderTest,
    id_of,
    start,
    turns,
)

QUEUE, CONSUMER_GROUP_ID = 1, 5


@pytest.fixture
async def leader() -> LeaderUnderTest:
    made = LeaderUnderTest()
    made.submit([b"first", b"second", b"third"], queue=QUEUE)
    made.commit()
    return made


def place(offset: int) -> Place:
    return Place(TOPIC_ID, QUEUE, offset)


def take(leader: LeaderUnderTest, count: int) -> None:
    """Let a consumer group take messages; that is proposed and not applied."""
    key = (CONSUMER_GROUP_ID, TOPIC_ID, QUEUE)
    lease_set = leader.sets.find_or_start(key, latest=False)
    request = TakeRequest(
        max_messages=count,
        max_bytes=1_000_000,
        invisible_ms=30_000,
        auto_renew=False,
        holder=0,
        attempt=0,
        fifo=False,
        max_attempts=16,
        dead_letter_topic_id=0,
    )
    columns = [Columns(0, 3, None, [0] * 3, [5] * 3)]
    taken = lease_set.leases.take(request, leader.now_ms(), 3, columns)
    assert taken.change is not None
    leader.sets.propose([(lease_set, taken.change)])


def held(leader: LeaderUnderTest) -> list[int]:
    """Return the offsets that hold a message."""
    queues = leader.machine.consume_queues
    return [offset for offset in range(3) if queues.covering(TOPIC_ID, QUEUE, offset) is not None]


async def recalled(leader: LeaderUnderTest, offset: int, body: bytes) -> pb.Outcome.ValueType:
    """Recall a message; return OK or why not."""
    recall = await start(leader.recalls.recall(place(offset), TOPIC_ID, id_of(body)))
    leader.commit()
    try:
        await recall
    except Refused as refused:
        return refused.outcome
    return pb.OUTCOME_OK


async def test_a_message_nobody_was_given_is_taken_out_of_its_queue(
    leader: LeaderUnderTest,
) -> None:
    """Its offset stays and holds nothing; its neighbours are as before."""
    assert await recalled(leader, 1, b"second") == pb.OUTCOME_OK
    assert held(leader) == [0, 2]
    assert leader.next_offsets() == {QUEUE: 3}


async def test_a_message_that_was_given_to_a_consumer_group_stays(
    leader: LeaderUnderTest,
) -> None:
    """Also when that is not applied yet; messages behind the group's head can be recalled."""
    take(leader, 2)
    assert await recalled(leader, 1, b"second") == pb.OUTCOME_INVALID_HANDLE
    assert await recalled(leader, 2, b"third") == pb.OUTCOME_OK
    assert held(leader) == [0, 1]


async def test_the_id_must_be_the_messages(leader: LeaderUnderTest) -> None:
    """A wrong id, a wrong place, or a queue that is not here recalls nothing."""
    assert await recalled(leader, 1, b"first") == pb.OUTCOME_INVALID_HANDLE
    assert await recalled(leader, 1, b"nobody") == pb.OUTCOME_INVALID_HANDLE
    assert await recalled(leader, 9, b"second") == pb.OUTCOME_INVALID_HANDLE
    recall = await start(leader.recalls.recall(Place(TOPIC_ID, 3, 0), TOPIC_ID, id_of(b"first")))
    with pytest.raises(Refused):
        await recall
    assert held(leader) == [0, 1, 2]


async def test_pops_take_nothing_of_the_queue_while_a_recall_is_in_flight(
    leader: LeaderUnderTest,
) -> None:
    """The message is in its rows until then; a pop that waited is woken afterwards."""
    recall = await start(leader.recalls.recall(place(1), TOPIC_ID, id_of(b"second")))
    assert (TOPIC_ID, QUEUE) in leader.sets.held_queues
    pop = asyncio.ensure_future(leader.waiters.wait(TOPIC_ID, CONSUMER_GROUP_ID, -1, 10))
    await turns()
    leader.commit()
    await recall
    assert await pop
    assert leader.sets.held_queues == set()


async def test_two_recalls_of_one_message_are_one_entry(leader: LeaderUnderTest) -> None:
    """Both are told that it is done; so is a later one, and nothing more is written."""
    calls = [
        await start(leader.recalls.recall(place(1), TOPIC_ID, id_of(b"second"))) for _ in range(2)
    ]
    assert len(leader.replica.proposed) == 1
    leader.commit()
    await asyncio.gather(*calls)
    assert await recalled(leader, 1, b"second") == pb.OUTCOME_OK
    assert await recalled(leader, 1, b"first") == pb.OUTCOME_INVALID_HANDLE
    assert leader.replica.proposed == []


async def test_a_queue_is_held_until_the_last_recall_of_it_is_applied(
    leader: LeaderUnderTest,
) -> None:
    """Two messages of one queue, applied one after the other."""
    calls = [
        await start(leader.recalls.recall(place(offset), TOPIC_ID, id_of(body)))
        for offset, body in ((0, b"first"), (2, b"third"))
    ]
    leader.commit(1)
    assert (TOPIC_ID, QUEUE) in leader.sets.held_queues
    leader.commit(1)
    await asyncio.gather(*calls)
    assert leader.sets.held_queues == set()
    assert held(leader) == [1]


async def test_a_delivered_delayed_message_can_be_recalled_by_its_first_handle(
    leader: LeaderUnderTest,
) -> None:
    """The handle names it by entry; what was placed and given to nobody is taken back."""
    name = leader.wait_for(b"later", 1_000, PartKind.DELAYED, queue=2)
    leader.clock.now_s = 1
    leader.timers.decide([*leader.became], leader.now_ms())
    leader.commit()
    recall = await start(leader.recalls.recall(name, TOPIC_ID, id_of(b"later")))
    leader.commit()
    await recall
    assert leader.machine.consume_queues.covering(TOPIC_ID, 2, 0) is None


async def test_the_newest_message_with_an_id_is_recalled_without_a_name(
    leader: LeaderUnderTest,
) -> None:
    """A handle may know the message's id only."""
    leader.wait_for(b"later", 1_000)
    recall = await start(leader.recalls.recall(None, TOPIC_ID, id_of(b"later")))
    leader.commit()
    await recall
    assert list(leader.machine.rows.pending.keys()) == []


async def test_a_recall_of_a_message_that_was_brought_elsewhere_takes_back_no_other_one(
    leader: LeaderUnderTest,
) -> None:
    """Its place is not known here; the first message of the first queue is another one."""
    leader.submit([b"another"], queue=0)
    leader.commit()
    name = leader.wait_for(b"later", 1_000, queue=2)
    waiting = leader.resolver.find(name)
    assert isinstance(waiting, Waiting)
    leader.resolver.discard(waiting, End.FORWARDED)
    await turns()
    leader.commit()
    for named in (name, None, Place(TOPIC_ID, 0, 0)):
        recall = await start(leader.recalls.recall(named, TOPIC_ID, id_of(b"later")))
        assert leader.replica.proposed == []
        with pytest.raises(Refused):
            await recall
    assert leader.machine.consume_queues.covering(TOPIC_ID, 0, 0) is not None


async def test_recalls_of_a_topic_look_for_its_consumers_once(leader: LeaderUnderTest) -> None:
    """Not at the heads of all consumer groups each time; those that come meanwhile are known."""
    rows = leader.machine.rows.heads
    batch = leader.store.new_batch()
    for consumer_group_id in range(100, 300):
        rows.put(batch, (consumer_group_id, TOPIC_ID + 1, QUEUE), HeadRow(5, 0))
    for consumer_group_id in (50, 51):
        rows.put(batch, (consumer_group_id, TOPIC_ID, QUEUE), HeadRow(consumer_group_id - 50, 0))
    leader.store.write(batch)
    scan, seen = leader.store.scan, [0]

    def counted(begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row in scan(begin, end):
            seen[0] += begin.startswith(kind_prefix(GROUP, RowKind.HEAD))
            yield row

    with patch.object(leader.store, "scan", counted):
        # A group whose head is behind it has been given it.
        assert await recalled(leader, 0, b"first") == pb.OUTCOME_INVALID_HANDLE
        assert seen[0] > 0
        seen[0] = 0
        assert await recalled(leader, 2, b"third") == pb.OUTCOME_OK
        take(leader, 2)
        assert await recalled(leader, 1, b"second") == pb.OUTCOME_INVALID_HANDLE
        leader.commit()
        # Its set may have left memory since.
        leader.sets._sets.remove((CONSUMER_GROUP_ID, TOPIC_ID, QUEUE))
        assert await recalled(leader, 1, b"second") == pb.OUTCOME_INVALID_HANDLE
        assert seen[0] == 0
    assert held(leader) == [0, 1]


async def test_a_recall_reads_no_leases(leader: LeaderUnderTest) -> None:
    """The head of a consumer group says whether it was given a message."""
    take(leader, 1)
    leader.commit()
    leader.sets._sets.remove((CONSUMER_GROUP_ID, TOPIC_ID, QUEUE))
    before = leader.sets.rows_read
    assert await recalled(leader, 0, b"first") == pb.OUTCOME_INVALID_HANDLE
    assert await recalled(leader, 1, b"second") == pb.OUTCOME_OK
    assert (leader.sets.rows_read, len(leader.sets)) == (before, 0)


def test_consumers_of_few_topics_are_remembered() -> None:
    """Those asked for last; a topic with more than all may have is read each time."""
    store = MemoryStore()
    rows = GroupRows(store, GROUP).heads
    batch = store.new_batch()
    for topic_id, count in ((1, 2), (2, 2), (3, 9)):
        for consumer_group_id in range(count):
            rows.put(batch, (consumer_group_id, topic_id, 0), HeadRow(0, 0))
    store.write(batch)
    consumers = KnownConsumers(rows, lambda _: (), max_keys=6)
    read: list[int] = []
    of_topic = HeadRows.of_topic

    def noted(self: HeadRows, topic_id: int) -> list[tuple[int, int, int]]:
        read.append(topic_id)
        return of_topic(self, topic_id)

    with patch.object(HeadRows, "of_topic", noted):
        for topic_id in (1, 2, 1, 3, 3, 2, 1):
            found = consumers.of_queue(topic_id, 0)
            assert len(found) == {1: 2, 2: 2, 3: 9}[topic_id]
        assert read == [1, 2, 3, 3]
        # It makes the one that was not asked for longest go.
        consumers.added((7, 1, 0))
        assert set(consumers.of_queue(1, 0)) == {(0, 1, 0), (1, 1, 0), (7, 1, 0)}
        consumers.of_queue(2, 0)
        assert read == [1, 2, 3, 3, 2]
