"""Sends of other kinds that arrive together: ordered, half and delayed messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_mq.layout import PartKind, pack_message_id, text_hash
from strata_mq.requests import HandleForm, decode_pending_handle
from strata_mq.slots import queue_of_hash
from strata_testing.broker.client import id_of, message
from strata_testing.broker.fake_edge import FakeCall, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage

OK = definition_pb2.OK
QUEUES = 4
DUE_MS = int(time.time() * 1_000) + 60_000


@pytest.fixture
def meta() -> FakeMeta:
    """The nameserver; topics of each kind."""
    fake = FakeMeta()
    fake.add_topic("fifo", meta_pb2.TOPIC_TYPE_FIFO, queue_count=QUEUES)
    fake.add_topic("halves", meta_pb2.TOPIC_TYPE_TRANSACTION, queue_count=1)
    fake.add_topic("later", meta_pb2.TOPIC_TYPE_DELAY, queue_count=1)
    return fake


def send_of(*messages: definition_pb2.Message) -> tuple[str, service_pb2.SendMessageRequest]:
    return "SendMessage", service_pb2.SendMessageRequest(messages=messages)


def ordered(number: int, message_group: str) -> definition_pb2.Message:
    return message("fifo", number, message_type=definition_pb2.FIFO, message_group=message_group)


def half(number: int) -> definition_pb2.Message:
    return message("halves", number, message_type=definition_pb2.TRANSACTION)


def delayed(number: int) -> definition_pb2.Message:
    later = message("later", number, message_type=definition_pb2.DELAY)
    later.system_properties.delivery_timestamp.FromMilliseconds(DUE_MS)
    return later


async def answers_of(calls: Sequence[FakeCall]) -> list[service_pb2.SendMessageResponse]:
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*(call.answer for call in calls))
    return [service_pb2.SendMessageResponse.FromString(answer) for (answer,) in answers]


def entry_sizes(app: BrokerApp) -> list[int]:
    """Return how many messages each entry has of the batches that wait or are under way."""
    lanes = app._storage.appender._groups.values()
    batches = [batch for lane in lanes for batch in lane.waiting]
    return sorted(len(entry.indexes) for batch in batches for entry in batch.entries)


def groups_of_a_queue(count: int) -> list[str]:
    """Return message groups that go to queue 0, and one that goes to another queue."""
    names = [f"g{number}" for number in range(200)]
    queues = {name: queue_of_hash(text_hash(name), QUEUES) for name in names}
    own = [name for name in names if queues[name] == 0][:count]
    return [*own, next(name for name in names if queues[name] == 1)]


async def test_ordered_sends_of_a_turn_are_gathered_in_their_order(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """By queue; a send to two queues goes alone, after those that came before it."""
    first, second, elsewhere = groups_of_a_queue(2)
    sent = [
        [ordered(0, first)],
        [ordered(1, second)],
        [ordered(2, first), ordered(3, elsewhere)],
        [ordered(4, first)],
        [ordered(5, second)],
    ]
    storage.gate = asyncio.Event()
    calls = edge.begin_turn(*(send_of(*messages) for messages in sent))
    assert entry_sizes(app) == [1, 1, 2, 2]
    storage.gate.set()
    assert [answer.status.code for answer in await answers_of(calls)] == [OK] * len(sent)
    topic = app.view.topic("", "fifo")
    assert topic is not None
    stored = [one.message_id for one in storage.queues[topic.topic_id, 0]]
    assert stored == [pack_message_id(id_of(number)) for number in (0, 1, 2, 4, 5)]
    assert app.send_budget.used_bytes == 0


async def test_ordered_sends_keep_their_order_across_deadlines(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """Sends with other deadlines are other entries, which must not overtake each other."""
    group, _ = groups_of_a_queue(1)
    storage.gate = asyncio.Event()
    calls = [
        FakeCall(
            "SendMessage",
            send_of(ordered(number, group))[1].SerializeToString(),
            time_left_s=left_s,
        )
        for number, left_s in enumerate((25.0, 5.0, 25.0, 25.0))
    ]
    assert edge.hot is not None
    edge.hot.handle(calls)
    assert entry_sizes(app) == [1, 1, 2]
    storage.gate.set()
    offsets = [answer.entries[0].offset for answer in await answers_of(calls)]
    assert offsets == list(range(len(calls)))


async def test_half_messages_of_a_turn_are_one_entry(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """Each has a transaction id of its own, which its consumers find in the message."""
    storage.gate = asyncio.Event()
    calls = edge.begin_turn(*(send_of(half(number)) for number in range(3)))
    assert entry_sizes(app) == [3]
    storage.gate.set()
    answers = await answers_of(calls)
    for number, answer in enumerate(answers):
        (entry,) = answer.entries
        assert (answer.status.code, entry.message_id) == (OK, id_of(number))
        handle = decode_pending_handle(entry.transaction_id)
        assert (handle.form, handle.message_id) == (HandleForm.MESSAGE_ID, id_of(number))
    waiting = list(storage.pending.waiting.values())
    assert [one.key.kind for one in waiting] == [PartKind.HALF] * 3
    for one, answer in zip(waiting, answers, strict=True):
        stored = definition_pb2.Message.FromString(one.data)
        transaction_id = answer.entries[0].transaction_id
        assert stored.user_properties["__transactionId__"] == transaction_id
    assert app.send_budget.used_bytes == 0


async def test_half_messages_that_are_settled_in_parts_have_the_ids_they_were_stored_with(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """The last one is in another batch than the others."""
    halves = [half(number) for number in range(3)]
    for one in halves:
        one.body = bytes(400_000)
    calls = edge.begin_turn(*map(send_of, halves))
    answers = await answers_of(calls)
    assert storage.count("Append") > 1
    stored = {}
    for pending in storage.pending.waiting.values():
        properties = definition_pb2.Message.FromString(pending.data).user_properties
        stored[pending.message_id] = properties["__transactionId__"]
    given = [answer.entries[0] for answer in answers]
    assert stored == {pack_message_id(one.message_id): one.transaction_id for one in given}
    assert len(stored) == len(halves)
    assert app.send_budget.used_bytes == 0


async def test_a_half_message_that_is_not_alone_is_refused_alone(edge: FakeEdge) -> None:
    """Those beside it in the turn are stored."""
    calls = edge.begin_turn(send_of(half(1)), send_of(half(2), half(3)), send_of(half(4)))
    codes = [answer.status.code for answer in await answers_of(calls)]
    assert codes == [OK, definition_pb2.MESSAGE_CORRUPTED, OK]


async def test_delayed_messages_of_a_turn_are_one_entry(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """Each has a recall handle that names it; messages of a request may be several."""
    requests: list[list[Any]] = [[delayed(0)], [delayed(1), delayed(2)], [delayed(3)]]
    storage.gate = asyncio.Event()
    calls = edge.begin_turn(*(send_of(*messages) for messages in requests))
    assert entry_sizes(app) == [4]
    storage.gate.set()
    entries = [entry for answer in await answers_of(calls) for entry in answer.entries]
    assert [entry.message_id for entry in entries] == [id_of(number) for number in range(4)]
    assert [entry.transaction_id for entry in entries] == [id_of(number) for number in range(4)]
    named = [decode_pending_handle(entry.recall_handle) for entry in entries]
    assert [(one.raft_group, one.number, one.part) for one in named] == list(
        storage.pending.waiting
    )
    assert [one.message_id for one in named] == [id_of(number) for number in range(4)]
