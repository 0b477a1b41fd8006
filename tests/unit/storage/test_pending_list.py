"""Lists of messages that wait: by due time, kind and topic, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest

from strata_mq.layout.batch import PartKind
from strata_mq.layout.pending_rows import PendingKey, pending_key
from strata_storage.base.config import EngineOptions
from strata_storage.reads.listing import PendingList, PendingQuery
from strata_storage.reads.reader import MessageReader
from tests.unit.storage.waiting_leader import (
    GROUP,
    TOPIC_ID,
    LeaderUnderTest,
    run_here,
    running,
    start,
    turns,
)

OTHER_TOPIC_ID = 8


@pytest.fixture
async def leader() -> LeaderUnderTest:
    made = LeaderUnderTest()
    for number, delay_ms in enumerate((5_000, 1_000, 3_000)):
        made.wait_for(b"delayed-%d" % number, delay_ms)
    made.half(b"half")
    made.wait_for(b"other", 2_000, topic_id=OTHER_TOPIC_ID)
    return made


def list_of(leader: LeaderUnderTest, pop_max_bytes: int = 1024 * 1024) -> PendingList:
    reader = MessageReader(leader.log, 1, run_here, on_corrupt=lambda index: None)
    return PendingList(leader.machine, reader, EngineOptions(pop_max_bytes=pop_max_bytes))


async def bodies(pending: PendingList, query: PendingQuery) -> list[list[bytes]]:
    """Return the messages page by page."""
    pages = []
    query = replace(query, with_messages=True)
    while True:
        page = await pending.page(query)
        pages.append([message.message for message in page.messages])
        if page.next_after is None:
            return pages
        query = replace(query, after=page.next_after)


async def test_messages_are_listed_by_due_time(leader: LeaderUnderTest) -> None:
    """All of them, or those of a kind or of a topic."""
    pending = list_of(leader)
    everything = [[b"delayed-1", b"other", b"delayed-2", b"delayed-0", b"half"]]
    assert await bodies(pending, PendingQuery()) == everything
    assert await bodies(pending, PendingQuery(PartKind.HALF)) == [[b"half"]]
    assert await bodies(pending, PendingQuery(topic_id=OTHER_TOPIC_ID)) == [[b"other"]]
    assert await bodies(pending, PendingQuery(PartKind.HALF, OTHER_TOPIC_ID)) == [[]]


async def test_pages_go_on_where_the_last_one_ended(leader: LeaderUnderTest) -> None:
    """By number of messages, and by bytes if the messages themselves are wanted."""
    query = PendingQuery(topic_id=TOPIC_ID, max_messages=2)
    pages = [[b"delayed-1", b"delayed-2"], [b"delayed-0", b"half"], []]
    assert await bodies(list_of(leader), query) == pages
    small = list_of(leader, pop_max_bytes=20)
    pages = [[b"delayed-1", b"delayed-2"], [b"delayed-0", b"half"]]
    assert await bodies(small, PendingQuery(topic_id=TOPIC_ID)) == pages
    tiny = list_of(leader, pop_max_bytes=1)
    assert [len(page) for page in await bodies(tiny, PendingQuery())] == [1, 1, 1, 1, 1]


async def test_without_messages_none_is_read(leader: LeaderUnderTest) -> None:
    """Rows say enough: kind, due time, length."""
    leader.log.payloads.clear()
    page = await list_of(leader).page(PendingQuery())
    assert len(page.messages) == 5
    assert {message.message for message in page.messages} == {b""}


async def test_one_message_is_found_by_its_name(leader: LeaderUnderTest) -> None:
    """As long as it waits, and is of the kind and topic that is asked for."""
    half = leader.half(b"wanted")
    pending = list_of(leader)
    page = await pending.one(PendingQuery(topic_id=TOPIC_ID, with_messages=True), half)
    assert [message.message for message in page.messages] == [b"wanted"]
    assert not (await pending.one(PendingQuery(PartKind.DELAYED), half)).messages
    rollback = await start(leader.transactions.roll_back(half, TOPIC_ID))
    leader.commit()
    await rollback
    assert not (await pending.one(PendingQuery(), half)).messages


async def test_a_list_begins_where_something_waits(leader: LeaderUnderTest) -> None:
    """Tombstones of messages that were delivered lie before it and cost as much as rows."""
    bound = leader.machine.pending_bound
    for number in range(1_000):
        leader.wait_for(b"%d" % number, -number - 1)
    async with running(leader):
        for _ in range(3):
            await turns()
            leader.commit()
    assert leader.machine.pending_bound > bound
    begins: list[bytes] = []
    scan = leader.store.scan

    def recorded(begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        begins.append(begin)
        return scan(begin, end)

    pending = list_of(leader)
    with patch.object(leader.store, "scan", recorded):
        page = await pending.page(PendingQuery())
        early = PendingKey(1, 1, 0)
        assert await pending.page(PendingQuery(after=early)) == page
        last = page.messages[-1].key
        assert (await pending.page(PendingQuery(after=last))).messages == []
    first, later = pending_key(GROUP, leader.machine.pending_bound), last.following()
    assert begins == [first, first, pending_key(GROUP, later)]
    assert len(page.messages) == 5
