"""Message groups while the queue count of their topic grows: where they are sent to (rule 23)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import UNAVAILABLE, AngeliaError
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_broker.metadata.metadata import LEADER_CHOOSES, TopicRow
from strata_broker.sends.message_groups import MessageGroups, QueueChoice
from strata_mq.layout.batch import OutgoingMessage
from strata_mq.slots import fifo_queue, slot_of
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage

FIFO = 102
GROUPS = [f"g{number}" for number in range(12)]


@pytest.fixture
def config() -> BrokerConfig:
    """Old queues are asked about all the time."""
    return broker_config(metadata={"rehash_interval_ms": 5})


def topic_row(**fields: Any) -> TopicRow:
    """A FIFO topic that grew from four queues to eight."""
    row: dict[str, Any] = {"topic_id": 7, "type": meta_pb2.TOPIC_TYPE_FIFO}
    row |= {"queue_count": 8, "previous_queue_count": 4}
    return TopicRow(meta_pb2.Topic(**row | fields))


def outgoing(*group_hashes: int) -> list[OutgoingMessage]:
    """Messages of these message groups; 0: of none."""
    return [OutgoingMessage(b"", 0, 0, group, b"", 1, 0, ()) for group in group_hashes]


def test_a_message_group_stays_in_its_queue_until_that_is_left() -> None:
    """Queue by queue; messages without a message group go anywhere at once."""
    groups, topic = MessageGroups(), topic_row()
    messages = outgoing(1, 5, 2, 0, 5)
    stay = [
        (QueueChoice(1, 4), [0, 1, 4]),
        (QueueChoice(2, 4), [2]),
        (QueueChoice(LEADER_CHOOSES, 8), [3]),
    ]
    assert groups.choose(topic, messages, range(5)) == stay
    groups.left(topic, 1)
    assert groups.choose(topic, messages, range(5)) == [
        (QueueChoice(1, 8), [0]),
        (QueueChoice(5, 8), [1, 4]),
        (QueueChoice(2, 4), [2]),
        (QueueChoice(LEADER_CHOOSES, 8), [3]),
    ]


def test_what_was_left_counts_for_one_growth() -> None:
    """The next one begins anew, and a topic that has grown is forgotten."""
    groups = MessageGroups()
    groups.left(topic_row(), 1)
    wider = topic_row(queue_count=16, previous_queue_count=8)
    assert not groups.has_left(wider, 1)
    groups.left(wider, 1)
    assert groups.has_left(wider, 1)
    groups.forget_others([])
    assert not groups.has_left(wider, 1)


def test_a_topic_without_message_groups_has_one_choice() -> None:
    """Its messages may take any queue."""
    topic = topic_row(type=meta_pb2.TOPIC_TYPE_NORMAL)
    assert MessageGroups().choose(topic, outgoing(0, 0), range(2)) == [
        (QueueChoice(LEADER_CHOOSES, 8), range(2))
    ]


async def send(client: Client, first: int) -> service_pb2.SendMessageResponse:
    """Send a message of every message group, all in one request."""
    messages = [
        message(
            "fifo",
            first + number,
            message_type=definition_pb2.FIFO,
            message_group=group,
            body=b"%d" % (first + number),
        )
        for number, group in enumerate(GROUPS)
    ]
    response = await client.send(*messages)
    assert response.status.code == definition_pb2.OK, response.status
    assert len({entry.message_id for entry in response.entries}) == len(GROUPS)
    return response


def queues_of(storage: FakeStorage) -> dict[str, list[int]]:
    """Return the queues of each message group's messages, in the order they were sent in."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for (topic_id, queue), rows in storage.queues.items():
        for row in rows if topic_id == FIFO else ():
            kept = definition_pb2.Message.FromString(row.data)
            found[kept.system_properties.message_group].append((int(kept.body), queue))
    return {group: [queue for _, queue in sorted(places)] for group, places in found.items()}


async def test_messages_follow_when_all_is_consumed(
    client: Client, storage: FakeStorage, meta: FakeMeta, app: BrokerApp
) -> None:
    """Until then they go to the old queue; then the nameserver forgets the old queue count."""
    await send(client, 100)
    storage.unconsumed = {(FIFO, queue) for queue in range(4)}
    meta.grow_topic("fifo", 8)
    await until(lambda: storage.count("Rehash") > 4)
    await send(client, 200)
    storage.unconsumed.remove((FIFO, 1))
    await until(lambda: (FIFO, 1) in storage.queue_counts)
    await send(client, 300)
    assert "ConfirmRehashed" not in meta.calls
    storage.unconsumed.clear()
    await until(lambda: not app.view.rehashing())
    await send(client, 400)
    for group, queues in queues_of(storage).items():
        old, new = fifo_queue(group, 4), fifo_queue(group, 8)
        assert queues == [old, old, new if old == 1 else old, new]


async def test_a_broker_that_has_not_heard_of_it_learns_by_a_refusal(
    client: Client, storage: FakeStorage, meta: FakeMeta
) -> None:
    """Another broker was faster: the messages go on at once, each to its own queue."""
    storage.trouble["Rehash"].extend([AngeliaError(UNAVAILABLE, "gone")] * 10_000)
    meta.grow_topic("fifo", 8)
    storage.queue_counts = {(FIFO, queue): 8 for queue in range(4)}
    await until(lambda: storage.count("Rehash") > 0)
    await send(client, 100)
    assert queues_of(storage) == {group: [fifo_queue(group, 8)] for group in GROUPS}


async def test_a_broker_with_old_metadata_waits_for_them(
    client: Client, storage: FakeStorage, meta: FakeMeta
) -> None:
    """Nothing is stored by the old count once storage refuses it."""
    storage.queue_counts = {(FIFO, queue): 8 for queue in range(4)}
    sending = asyncio.ensure_future(send(client, 100))
    await until(lambda: storage.count("Append") >= 4)
    assert storage.messages(FIFO) == []
    meta.grow_topic("fifo", 8)
    await sending
    assert queues_of(storage) == {group: [fifo_queue(group, 8)] for group in GROUPS}


async def test_older_epochs_of_a_queue_are_asked_first(
    client: Client, storage: FakeStorage, meta: FakeMeta
) -> None:
    """A queue that moved is left when all its epochs are consumed; the last one takes no more."""
    override = meta_pb2.QueueOverride(topic_id=FIFO, queue=2)
    (topic,) = [change.topic for change in meta.rows if change.topic.topic_id == FIFO]
    owner = meta.slots[slot_of(topic.slot_base, 2)]
    other = 3 - owner
    for epoch, raft_group in enumerate((other, owner)):
        override.epochs.add(epoch=epoch, raft_group=raft_group)
    meta.put(meta_pb2.Change(queue_override=override))
    storage.unconsumed = {(FIFO, 0), (FIFO, 1), (FIFO, 3)}
    meta.grow_topic("fifo", 8)
    await until(lambda: storage.count("Rehash") > 8)
    asked = [
        (request.raft_group, request.ended)
        for _, request in storage.calls
        if isinstance(request, storage_pb2.RehashRequest) and request.queue == 2
    ]
    assert asked == [(other, True), (owner, False)]


async def test_a_repeat_that_the_old_queue_refuses_is_not_stored_again(
    client: Client, storage: FakeStorage, meta: FakeMeta
) -> None:
    """The raft group of the old queue refuses it without a look at its ids, so it is asked."""
    storage.trouble["Rehash"].extend([AngeliaError(UNAVAILABLE, "gone")] * 10_000)
    first = await send(client, 100)
    meta.grow_topic("fifo", 7)
    storage.queue_counts.update({(FIFO, queue): 7 for queue in range(4)})
    again = await send(client, 100)
    assert [entry.offset for entry in again.entries] == [entry.offset for entry in first.entries]
    assert all(len(queues) == 1 for queues in queues_of(storage).values())


async def test_a_repeat_after_message_groups_left_their_queues_is_not_stored_again(
    client: Client, storage: FakeStorage, meta: FakeMeta, app: BrokerApp
) -> None:
    """They leave when all is consumed, long after the topic got its queues: one, then the rest."""
    storage.unconsumed = {(FIFO, queue) for queue in range(4)}
    meta.grow_topic("fifo", 7)
    await until(lambda: storage.count("Rehash") > 4)
    first = await send(client, 100)
    for left in ({0}, {1, 2, 3}):
        storage.unconsumed -= {(FIFO, queue) for queue in left}
        await until(lambda: not storage.unconsumed or (FIFO, 0) in storage.queue_counts)
        if not storage.unconsumed:
            await until(lambda: not app.view.rehashing())
        again = await send(client, 100)
        offsets = [entry.offset for entry in first.entries]
        assert [entry.offset for entry in again.entries] == offsets
        assert all(len(queues) == 1 for queues in queues_of(storage).values())


async def test_a_repeat_is_not_stored_again_though_another_broker_asked_about_the_queues(
    client: Client, storage: FakeStorage, meta: FakeMeta, app: BrokerApp
) -> None:
    """This one learns by the topic's row alone that message groups have left their queues."""
    storage.trouble["Rehash"].extend([AngeliaError(UNAVAILABLE, "gone")] * 10_000)
    grown = meta.grow_topic("fifo", 7)
    assert await app.view.wait_for_revision(meta.revision, 60)
    first = await send(client, 100)
    grown.previous_queue_count = 0
    meta.put(meta_pb2.Change(topic=grown))
    assert await app.view.wait_for_revision(meta.revision, 60)
    again = await send(client, 100)
    assert [entry.offset for entry in again.entries] == [entry.offset for entry in first.entries]
    assert all(len(queues) == 1 for queues in queues_of(storage).values())


def named(storage: FakeStorage) -> set[tuple[int, ...]]:
    """Return the consumer groups that leaders were told of."""
    requests = (request for name, request in storage.calls if name == "Rehash")
    return {
        tuple(request.consumer_group_ids)
        for request in requests
        if isinstance(request, storage_pb2.RehashRequest)
    }


async def test_leaders_are_told_of_consumer_groups_that_read_elsewhere(
    storage: FakeStorage, meta: FakeMeta, app: BrokerApp
) -> None:
    """Only ordered ones are told: other groups take message groups in any order."""
    ordered = meta.add_group(meta_pb2.ConsumerGroup(name="ordered", fifo=True))
    plain = meta.add_group(meta_pb2.ConsumerGroup(name="plain"))
    assert await app.view.wait_for_revision(meta.revision, 60)
    storage.consumers[2, FIFO] = [ordered.consumer_group_id, plain.consumer_group_id]
    meta.grow_topic("fifo", 7)
    assert await app.view.wait_for_revision(meta.revision, 60)
    await until(lambda: not app.view.rehashing())
    assert named(storage) == {(ordered.consumer_group_id,)}


async def test_raft_groups_are_not_asked_for_consumers_in_every_round(
    storage: FakeStorage, meta: FakeMeta, app: BrokerApp
) -> None:
    """A consumer group may be slow for hours; a topic that grows again is asked about anew."""
    storage.unconsumed = {(FIFO, queue) for queue in range(4)}
    meta.grow_topic("fifo", 7)
    await until(lambda: storage.count("Rehash") > 40)
    raft_groups = len(app.view.raft_groups())
    assert storage.count("GetConsumers") == raft_groups
    storage.unconsumed.clear()
    await until(lambda: not app.view.rehashing())
    meta.grow_topic("fifo", 8)
    assert await app.view.wait_for_revision(meta.revision, 60)
    await until(lambda: not app.view.rehashing())
    assert storage.count("GetConsumers") == 2 * raft_groups


async def test_no_queue_is_left_while_a_raft_group_does_not_answer(
    storage: FakeStorage, meta: FakeMeta, app: BrokerApp
) -> None:
    """It may be the only one that knows a consumer group."""
    lost: list[storage_pb2.Refusal | AngeliaError] = [AngeliaError(UNAVAILABLE, "gone")] * 10_000
    storage.trouble["GetConsumers"].extend(lost)
    meta.grow_topic("fifo", 7)
    await until(lambda: storage.count("GetConsumers") > 4)
    assert storage.count("Rehash") == 0
    assert app.view.rehashing()
    storage.trouble["GetConsumers"].clear()
    await until(lambda: not app.view.rehashing())
