"""REHASH as every replica applies it: the queue's row says by which count message groups came."""

from __future__ import annotations

from strata_mq.commands.rare import RehashCommand, encode_rehash
from tests.unit.storage.waiting_leader import (
    QUEUES,
    QUICK,
    TOPIC_ID,
    LeaderUnderTest,
    let_pass,
    running,
)

QUEUE = 2


async def test_messages_that_come_later_leave_the_count_as_it_is() -> None:
    """Neither an append nor a delivery of what waited puts it back."""
    leader = LeaderUnderTest(QUICK)
    leader.apply(encode_rehash(RehashCommand(TOPIC_ID, QUEUE, QUEUES)))
    async with running(leader):
        leader.submit([b"now"], queue=QUEUE)
        leader.wait_for(b"later", 1_000, queue=QUEUE)
        await let_pass(leader, 1)
        leader.commit()
    row = leader.machine.queues.get(TOPIC_ID, QUEUE)
    assert row is not None
    assert (row.next_offset, row.queue_count) == (2, QUEUES)


async def test_a_dropped_topic_gets_no_row_by_it() -> None:
    """Decided before the drop was applied, it comes to nothing."""
    leader = LeaderUnderTest(QUICK)
    leader.drop_topic()
    leader.apply(encode_rehash(RehashCommand(TOPIC_ID, QUEUE, QUEUES)))
    assert list(leader.machine.rows.queues.all_keys()) == []
