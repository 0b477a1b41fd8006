"""Delay messages and RecallMessage: what waits in storage, what the producer is told."""

from __future__ import annotations

import time
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.app import BrokerApp
from strata_mq.layout.batch import PartKind
from strata_mq.requests.pending_handle import HandleForm, PendingHandle, encode_pending_handle
from strata_mq.slots import fifo_queue
from strata_testing.broker.client import Client, id_of, message, resource
from strata_testing.broker.fake_edge import MESSAGING, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage

DAY_MS = 86_400_000
_RECALL = storage_pb2.RecallRequest


@pytest.fixture(autouse=True)
async def topics(app: BrokerApp, meta: FakeMeta) -> None:
    """A DELAY topic `later` and a MIXED topic `mixed`."""
    meta.add_topic("later", meta_pb2.TOPIC_TYPE_DELAY)
    meta.add_topic("mixed", meta_pb2.TOPIC_TYPE_MIXED)
    assert await app.view.wait_for_revision(meta.revision, 60)


def delayed(topic: str, number: int, delivery_ms: int, **properties: Any) -> definition_pb2.Message:
    """A delay message."""
    properties.setdefault("message_type", definition_pb2.DELAY)
    made = message(topic, number, **properties)
    made.system_properties.delivery_timestamp.FromMilliseconds(delivery_ms)
    return made


async def recall(edge: FakeEdge, topic: str, handle: str) -> service_pb2.RecallMessageResponse:
    """Make the call."""
    request = service_pb2.RecallMessageRequest(topic=resource(topic), recall_handle=handle)
    return await edge.call(MESSAGING + "RecallMessage", request, service_pb2.RecallMessageResponse)


async def test_a_delay_message_waits(client: Client, storage: FakeStorage) -> None:
    """It is stored without an offset, due at its time; the entry has a handle to recall it."""
    due_ms = int(time.time() * 1000) + DAY_MS
    response = await client.send(delayed("later", 1, due_ms))
    (entry,) = response.entries
    assert entry.status.code == definition_pb2.OK
    assert entry.message_id == entry.transaction_id == id_of(1)
    assert (entry.offset, bool(entry.recall_handle)) == (0, True)
    (waiting,) = storage.pending.waiting.values()
    assert (waiting.key.kind, waiting.due_ms) == (PartKind.DELAYED, due_ms)
    kept = definition_pb2.Message.FromString(waiting.data)
    assert kept.system_properties.delivery_timestamp.ToMilliseconds() == due_ms
    assert kept.system_properties.message_type == definition_pb2.DELAY


async def test_a_fraction_of_a_millisecond_is_not_early(
    client: Client, storage: FakeStorage
) -> None:
    """The due time is rounded up."""
    sent = delayed("later", 1, 5_000)
    sent.system_properties.delivery_timestamp.nanos = 1
    await client.send(sent)
    assert [one.due_ms for one in storage.pending.waiting.values()] == [5_001]


async def test_a_time_in_the_past_waits_for_the_leader(
    client: Client, storage: FakeStorage
) -> None:
    """Only group time tells what is due, so also 1969 is stored as delayed."""
    sent = delayed("later", 1, 0)
    sent.system_properties.delivery_timestamp.seconds = -5
    response = await client.send(sent)
    assert response.status.code == definition_pb2.OK
    assert [one.due_ms for one in storage.pending.waiting.values()] == [0]


async def test_forty_days_at_most(client: Client, storage: FakeStorage) -> None:
    """ILLEGAL_DELIVERY_TIME with the limit in the real text; just below it is fine."""
    now_ms = int(time.time() * 1000)
    far = await client.send(delayed("later", 1, now_ms + 40 * DAY_MS + 60_000))
    assert (far.status.code, far.status.message) == (
        definition_pb2.ILLEGAL_DELIVERY_TIME,
        f"the max delay time of message is too large, max is {40 * DAY_MS}",
    )
    near = await client.send(delayed("later", 2, now_ms + 40 * DAY_MS - 60_000))
    assert near.status.code == definition_pb2.OK
    assert storage.count("Append") == 1


@pytest.mark.parametrize(
    ("topic", "sent"),
    [
        ("orders", delayed("orders", 1, 1)),
        ("fifo", delayed("fifo", 1, 1, message_group="g")),
        ("later", message("later", 1)),
        ("later", message("later", 1, message_type=definition_pb2.DELAY)),
        ("later", message("later", 1, message_type=definition_pb2.FIFO, message_group="g")),
    ],
)
async def test_type_and_properties_must_fit_the_topic(
    client: Client, topic: str, sent: definition_pb2.Message
) -> None:
    """MESSAGE_PROPERTY_CONFLICT_WITH_TYPE: the delivery time makes the type, not the word."""
    response = await client.send(sent)
    assert response.status.code == definition_pb2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "TopicMessageType validate failed" in response.status.message


async def test_a_request_of_many_kinds(client: Client, storage: FakeStorage) -> None:
    """A MIXED topic takes plain, FIFO and delayed messages of one request, each its own way."""
    response = await client.send(
        message("mixed", 1),
        delayed("mixed", 2, 7_000),
        message("mixed", 3, message_type=definition_pb2.FIFO, message_group="g"),
        delayed("mixed", 4, 9_000, message_group="g"),
    )
    assert [bool(entry.recall_handle) for entry in response.entries] == [False, True, False, True]
    assert {entry.status.code for entry in response.entries} == {definition_pb2.OK}
    waiting = sorted(storage.pending.waiting.values(), key=lambda one: one.due_ms)
    assert [(one.key.queue, one.due_ms) for one in waiting] == [
        (-1, 7_000),
        (fifo_queue("g", 4), 9_000),
    ]
    kept = definition_pb2.Message.FromString(waiting[1].data)
    assert kept.system_properties.message_group == "g"
    assert kept.user_properties["__SHARDINGKEY"] == "g"


async def test_a_repeat_gets_the_first_handle(client: Client, storage: FakeStorage) -> None:
    """Also in a batch with new ones; one that was delivered meanwhile has a handle as well."""
    first = await client.send(delayed("later", 1, 5_000))
    again = await client.send(*(delayed("later", number, 5_000) for number in (7, 1, 8)))
    assert again.entries[1].recall_handle == first.entries[0].recall_handle
    assert len({entry.recall_handle for entry in again.entries}) == 3
    storage.pending.place_due()
    last = await client.send(delayed("later", 1, 5_000))
    assert last.entries[0].status.code == definition_pb2.OK
    assert last.entries[0].recall_handle not in ("", first.entries[0].recall_handle)


async def test_recall(edge: FakeEdge, client: Client, storage: FakeStorage) -> None:
    """It answers with the message's id; a second time there is nothing to recall."""
    sent = await client.send(delayed("later", 1, 5_000), delayed("later", 2, 5_000))
    handle = sent.entries[1].recall_handle
    response = await recall(edge, "later", handle)
    assert (response.status.code, response.message_id) == (definition_pb2.OK, id_of(2))
    assert [one.message_id.hex().upper() for one in storage.pending.waiting.values()] == [id_of(1)]
    again = await recall(edge, "later", handle)
    assert again.status.code == definition_pb2.INVALID_RECEIPT_HANDLE
    assert "INVALID_RECEIPT_HANDLE" in again.status.message
    storage.pending.place_due()
    late = await recall(edge, "later", sent.entries[0].recall_handle)
    assert late.status.code == definition_pb2.INVALID_RECEIPT_HANDLE


async def test_recall_is_repeated_where_the_leader_is(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """A refusal that passes costs latency only."""
    sent = await client.send(delayed("later", 1, 5_000))
    storage.trouble["Recall"].append(storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_LEADER))
    response = await recall(edge, "later", sent.entries[0].recall_handle)
    assert response.status.code == definition_pb2.OK
    assert storage.count("Recall") == 2


async def test_bad_recall_handles(edge: FakeEdge, client: Client, storage: FakeStorage) -> None:
    """Not ours, of another topic, a transaction's; and topics that are wrong or unknown."""
    sent = await client.send(delayed("later", 1, 5_000))
    handle = sent.entries[0].recall_handle
    half = encode_pending_handle(PendingHandle(1, 103, "x"))
    nameless = encode_pending_handle(PendingHandle(1, 103, "", HandleForm.PENDING, 1, 0))
    for topic, bad, code in (
        ("later", "", definition_pb2.INVALID_RECEIPT_HANDLE),
        ("later", "nonsense", definition_pb2.INVALID_RECEIPT_HANDLE),
        ("later", handle[:-1] + "-", definition_pb2.INVALID_RECEIPT_HANDLE),
        ("later", half, definition_pb2.INVALID_RECEIPT_HANDLE),
        ("later", nameless, definition_pb2.INVALID_RECEIPT_HANDLE),
        ("later", id_of(9), definition_pb2.INVALID_RECEIPT_HANDLE),
        ("mixed", handle, definition_pb2.INVALID_RECEIPT_HANDLE),
        ("orders", "nonsense", definition_pb2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("nowhere", handle, definition_pb2.TOPIC_NOT_FOUND),
        ("bad topic!", handle, definition_pb2.ILLEGAL_TOPIC),
    ):
        response = await recall(edge, topic, bad)
        assert response.status.code == code, (topic, bad)
    asked = [request for _, request in storage.calls if isinstance(request, _RECALL)]
    # Only a message id could be right.
    assert {request.message_id for request in asked} == {id_of(9)}
    assert sorted(request.raft_group for request in asked) == [1, 2]
    assert len(storage.pending.waiting) == 1


async def test_recall_by_message_id(edge: FakeEdge, client: Client, storage: FakeStorage) -> None:
    """The raft groups of the topic are asked in turn until one knows the message."""
    for number in range(1, 5):
        await client.send(delayed("later", number, 5_000))
    for number in range(1, 5):
        response = await recall(edge, "later", id_of(number))
        assert (response.status.code, response.message_id) == (
            definition_pb2.OK,
            id_of(number),
        )
    assert not storage.pending.waiting


@pytest.mark.parametrize("ahead_ms", [-400 * DAY_MS, 400 * DAY_MS])
async def test_the_furthest_delivery_is_judged_by_the_time_of_storage(
    client: Client, storage: FakeStorage, ahead_ms: int
) -> None:
    """A broker whose clock is more than a year off refuses and takes what others would."""
    now_ms = storage.store_time_ms = int(time.time() * 1000) + ahead_ms
    assert (await client.send(message("orders", 1))).status.code == definition_pb2.OK
    near = await client.send(delayed("later", 2, now_ms + 39 * DAY_MS))
    assert near.status.code == definition_pb2.OK
    far = await client.send(delayed("later", 3, now_ms + 41 * DAY_MS))
    assert far.status.code == definition_pb2.ILLEGAL_DELIVERY_TIME
