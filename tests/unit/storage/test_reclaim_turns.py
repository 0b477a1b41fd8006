"""Relocation looks at many queues in turns: other work goes on meanwhile."""

from __future__ import annotations

import asyncio

from strata_mq.layout.batch import PartKind
from strata_mq.layout.rows import QueueRow
from strata_storage.upkeep import reclaim
from tests.unit.storage.waiting_leader import LeaderUnderTest

EMPTY_QUEUES, OTHER_TOPIC_ID = 1_000, 77


async def test_many_queues_are_looked_at_in_turns() -> None:
    """The entries that hold messages are found, behind a thousand queues without any."""
    leader = LeaderUnderTest()
    batch = leader.store.new_batch()
    for queue in range(EMPTY_QUEUES):
        leader.machine.rows.queues.put(batch, OTHER_TOPIC_ID, queue, QueueRow(3, 3, 0, 0))
        leader.machine.rows.queues.put(batch, 1, queue, QueueRow(3, 3, 0, 0))
    leader.store.write(batch)
    leader.submit([b"a", b"b"], 0, PartKind.PLAIN)
    leader.commit()
    newest = leader.index
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(others())
    found = await reclaim._retained_indexes(leader.machine, newest)
    beside.cancel()
    assert found == {newest}
    assert turns >= 2 * EMPTY_QUEUES // 200
    assert await reclaim._retained_indexes(leader.machine, newest - 1) == set()
