"""Waiting messages that are read at once are bounded in bytes, however many come due (rule 34)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from unittest.mock import patch

import pytest

from strata_mq.layout.batch import OutgoingMessage, PartKey
from strata_storage.base.config import PendingOptions
from strata_storage.leading.pending.forwarding import ForwardFailed
from strata_storage.leading.pending.resolver import Place
from strata_storage.reads.reader import Location, MessageReader
from tests.unit.storage.test_forwards import Elsewhere, begin, seal_all
from tests.unit.storage.test_timers import Producer
from tests.unit.storage.waiting_leader import TOPIC_ID, LeaderUnderTest, let_pass, running, turns

BODY_BYTES = 1_000
COUNT = 10


def body(number: int) -> bytes:
    return b"%d" % number * BODY_BYTES


class Slow(Elsewhere):
    """Answers when it is let; keeps how many bytes it was given and has not answered for."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.under_way_bytes: list[int] = [0]

    async def forward(
        self, raft_group: int, key: PartKey, messages: Sequence[OutgoingMessage]
    ) -> list[Place | None]:
        size_bytes = sum(len(message.stored) for message in messages)
        self.under_way_bytes.append(self.under_way_bytes[-1] + size_bytes)
        await self.may_answer.wait()
        self.under_way_bytes.append(self.under_way_bytes[-1] - size_bytes)
        return await super().forward(raft_group, key, messages)


async def test_checks_that_come_due_together_are_read_one_after_the_other() -> None:
    """A producer may let thousands of large halves come due at once; all are checked."""
    leader = LeaderUnderTest(
        PendingOptions(turn_interval_ms=0, check_read_bytes=3 * BODY_BYTES + 100)
    )
    producer = await Producer(leader).connect(TOPIC_ID)
    read, sizes_bytes = MessageReader.read, []

    async def counted(
        reader: MessageReader, locations: Sequence[Location], consumer_group: int = 0
    ) -> list[bytes | None]:
        sizes_bytes.append(sum(location.length for location in locations))
        return await read(reader, locations, consumer_group)

    async with running(leader):
        for number in range(COUNT):
            leader.half(body(number))
        with patch.object(MessageReader, "read", counted):
            await let_pass(leader, 6)
            leader.commit()
            await turns()
        got = [message for _, _, message in await producer.take()]
    assert sizes_bytes == [3 * BODY_BYTES, 3 * BODY_BYTES, 3 * BODY_BYTES, BODY_BYTES]
    assert got == [body(number) for number in range(COUNT)]
    assert leader.transactions.checks_in_flight == 0


async def test_a_message_larger_than_that_is_checked_alone() -> None:
    """No half is too large to be checked."""
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, check_read_bytes=1))
    producer = await Producer(leader).connect(TOPIC_ID)
    async with running(leader):
        for number in range(2):
            leader.half(body(number))
        await let_pass(leader, 6)
        leader.commit()
        await turns()
        assert [message for *_, message in await producer.take()] == [body(0), body(1)]


@pytest.mark.parametrize("fails", [False, True])
async def test_messages_on_their_way_elsewhere_are_bounded_in_bytes(fails: bool) -> None:
    """The others follow when the first ones have arrived, or were put off."""
    elsewhere = Slow()
    if fails:
        elsewhere.failures, elsewhere.failure = 1, ForwardFailed("no answer")
    limit_bytes = 3 * BODY_BYTES + 100
    options = PendingOptions(turn_interval_ms=0, retry_ms=100, forward_bytes_max=limit_bytes)
    leader = LeaderUnderTest(options, elsewhere)
    async with running(leader):
        for number in range(COUNT):
            leader.wait_for(body(number), 1_000, queue=2)
        seal_all(leader)
        await let_pass(leader, 1)
        await begin(leader)
        assert elsewhere.under_way_bytes == [0, 3 * BODY_BYTES]
        elsewhere.may_answer.set()
        for _ in range(COUNT):
            await turns()
            leader.commit()
            await let_pass(leader, 0.2)
        leader.commit()
    assert max(elsewhere.under_way_bytes) <= limit_bytes
    assert sorted(elsewhere.stored) == [body(number) for number in range(COUNT)]
    assert list(leader.machine.rows.pending.keys()) == []
    assert leader.timers.forwards_in_flight == 0
