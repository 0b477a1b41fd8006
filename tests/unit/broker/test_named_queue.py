"""Sends that name their queue in a header, as a copy of another system's queues does."""

from __future__ import annotations

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata_broker.sends.named_queue import QUEUE_HEADER
from strata_mq.slots import fifo_queue
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_storage import FakeStorage


def ids(storage: FakeStorage, topic_id: int, queue: int) -> list[str]:
    """Return the ids of the messages of a queue."""
    parse = definition_pb2.Message.FromString
    rows = storage.queues.get((topic_id, queue), ())
    return [parse(row.data).system_properties.message_id for row in rows]


async def test_messages_are_stored_in_the_queue_that_the_header_names(
    client: Client, storage: FakeStorage
) -> None:
    """All of a request, in their order; the answer has their offsets there."""
    for queue in (2, 0, 2):
        client.metadata = {**client.metadata, QUEUE_HEADER: str(queue)}
        first = 10 * len(storage.messages(101))
        sent = [message("orders", first + number) for number in range(1, 6)]
        response = await client.send(*sent)
        assert response.status.code == definition_pb2.OK
        stored = ids(storage, 101, queue)
        assert stored[-5:] == [one.system_properties.message_id for one in sent]
        assert [entry.offset for entry in response.entries] == list(
            range(len(stored) - 5, len(stored))
        )
    assert [len(ids(storage, 101, queue)) for queue in range(4)] == [5, 0, 10, 0]


async def test_a_message_group_keeps_its_own_queue(client: Client, storage: FakeStorage) -> None:
    """The header is for messages without a message group (rule 23)."""
    own = fifo_queue("g", 4)
    client.metadata = {**client.metadata, QUEUE_HEADER: str((own + 1) % 4)}
    sent = message("fifo", 1, message_type=definition_pb2.FIFO, message_group="g")
    assert (await client.send(sent)).status.code == definition_pb2.OK
    assert ids(storage, 102, own) == [sent.system_properties.message_id]


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("4", "x-strata-queue is 4; topic orders has 4 queues, from 0"),
        ("-1", "x-strata-queue is no number: '-1'"),
        ("", "x-strata-queue is no number: ''"),
        ("٣", "x-strata-queue is no number: '٣'"),
        ("9" * 100, f"x-strata-queue is no number: '{'9' * 40}'"),
    ],
)
async def test_a_queue_that_the_topic_does_not_have_is_refused(
    client: Client, storage: FakeStorage, header: str, text: str
) -> None:
    """BAD_REQUEST says what is wrong; nothing is stored, and the next send works."""
    usual = client.metadata
    client.metadata = {**usual, QUEUE_HEADER: header}
    response = await client.send(message("orders", 1))
    assert (response.status.code, response.status.message) == (definition_pb2.BAD_REQUEST, text)
    assert storage.count("Append") == 0
    client.metadata = usual
    assert (await client.send(message("orders", 1))).status.code == definition_pb2.OK
