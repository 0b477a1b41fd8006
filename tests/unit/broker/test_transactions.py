"""Transactional messages and EndTransaction."""

from __future__ import annotations

import asyncio

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import UNAVAILABLE, AngeliaError
from strata_broker.app import BrokerApp
from strata_mq.layout.batch import PartKind
from strata_mq.requests.pending_handle import (
    HandleForm,
    PendingHandle,
    decode_pending_handle,
    encode_pending_handle,
)
from strata_mq.slots import SLOT_COUNT, fifo_queue
from strata_testing import until
from strata_testing.broker.client import Client, id_of, message, resource
from strata_testing.broker.fake_edge import MESSAGING, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_pending import STORED_MS
from strata_testing.broker.fake_storage import FakeStorage

COMMIT, ROLLBACK = definition_pb2.COMMIT, definition_pb2.ROLLBACK
UNDECIDED = definition_pb2.TRANSACTION_RESOLUTION_UNSPECIFIED
INVALID = definition_pb2.INVALID_TRANSACTION_ID


@pytest.fixture(autouse=True)
async def topics(app: BrokerApp, meta: FakeMeta) -> None:
    """A TRANSACTION topic `deals` (number 103), a MIXED topic `mixed`, `deals` of a tenant."""
    meta.add_topic("deals", meta_pb2.TOPIC_TYPE_TRANSACTION)
    meta.add_topic("mixed", meta_pb2.TOPIC_TYPE_MIXED)
    meta.add_topic("deals", meta_pb2.TOPIC_TYPE_TRANSACTION, namespace="tenant")
    assert await app.view.wait_for_revision(meta.revision, 60)


def half(topic: str = "deals", number: int = 1, **properties: object) -> definition_pb2.Message:
    """A transactional message."""
    return message(topic, number, message_type=definition_pb2.TRANSACTION, **properties)  # type: ignore[arg-type]


async def end(
    edge: FakeEdge,
    transaction_id: str,
    resolution: definition_pb2.TransactionResolution.ValueType,
    *,
    topic: str = "deals",
    namespace: str = "",
    message_id: str = id_of(1),
) -> definition_pb2.Status:
    """Make the call."""
    request = service_pb2.EndTransactionRequest(
        topic=resource(topic, namespace),
        message_id=message_id,
        transaction_id=transaction_id,
        resolution=resolution,
        source=definition_pb2.SOURCE_CLIENT,
    )
    response = await edge.call(
        MESSAGING + "EndTransaction", request, service_pb2.EndTransactionResponse
    )
    return response.status


async def test_a_half_waits_and_says_its_transaction(client: Client, storage: FakeStorage) -> None:
    """Nothing is delivered; the first check is due after 6 s; the message repeats the id."""
    sent = half()
    sent.user_properties["color"] = "blue"
    response = await client.send(sent)
    (entry,) = response.entries
    assert (entry.status.code, entry.offset, entry.recall_handle) == (definition_pb2.OK, 0, "")
    assert entry.message_id == sent.system_properties.message_id
    handle = decode_pending_handle(entry.transaction_id)
    assert handle == PendingHandle(handle.raft_group, 103, entry.message_id)
    assert storage.messages(103) == []
    (waiting,) = storage.pending.waiting.values()
    assert waiting.key.kind is PartKind.HALF
    assert waiting.due_ms == STORED_MS + 6_000
    kept = definition_pb2.Message.FromString(waiting.data)
    assert dict(kept.user_properties) == {
        "color": "blue",
        "__transactionId__": entry.transaction_id,
    }
    assert kept.system_properties.message_type == definition_pb2.TRANSACTION
    assert kept.body == b"body"


@pytest.mark.parametrize("seconds", [0, 30, 3_600])
async def test_a_message_says_when_it_is_checked(
    client: Client, storage: FakeStorage, seconds: int
) -> None:
    """So long after it is stored; up to an hour."""
    sent = half()
    sent.system_properties.orphaned_transaction_recovery_duration.seconds = seconds
    assert (await client.send(sent)).status.code == definition_pb2.OK
    (waiting,) = storage.pending.waiting.values()
    # The broker's clock has no part in it.
    assert waiting.due_ms == STORED_MS + seconds * 1000


@pytest.mark.parametrize("seconds", [-1, 3_601])
async def test_recovery_durations_out_of_range(
    client: Client, storage: FakeStorage, seconds: int
) -> None:
    """BAD_REQUEST; nothing is stored."""
    sent = half()
    sent.system_properties.orphaned_transaction_recovery_duration.seconds = seconds
    response = await client.send(sent)
    assert response.status.code == definition_pb2.BAD_REQUEST
    assert "out of range" in response.status.message
    assert storage.count("Append") == 0


async def test_one_transactional_message_per_request(client: Client, storage: FakeStorage) -> None:
    """MESSAGE_CORRUPTED beside another one of any type; nothing is stored."""
    for messages in ((half(), half(number=2)), (half("mixed"), message("mixed", 2))):
        response = await client.send(*messages)
        assert response.status.code == definition_pb2.MESSAGE_CORRUPTED
        assert len(response.entries) == 2
    assert storage.count("Append") == 0


async def test_types_that_do_not_go_together(client: Client, storage: FakeStorage) -> None:
    """Topics without transactions, plain messages in a TRANSACTION topic, delayed halves."""
    late = half()
    late.system_properties.delivery_timestamp.seconds = 1
    for sent in (half("orders"), half("fifo"), message("deals", 1), late):
        response = await client.send(sent)
        assert response.status.code == definition_pb2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert storage.count("Append") == 0


async def test_a_half_keeps_its_message_group(client: Client, storage: FakeStorage) -> None:
    """In a MIXED topic it goes to the queue of its group when it is committed."""
    assert (await client.send(half("mixed", message_group="g"))).status.code == definition_pb2.OK
    (waiting,) = storage.pending.waiting.values()
    assert waiting.key.queue == fifo_queue("g", 4)


async def test_commit(edge: FakeEdge, client: Client, storage: FakeStorage) -> None:
    """The message is there afterwards; again is fine, the other way is not."""
    entry = (await client.send(half())).entries[0]
    for _ in range(2):
        status = await end(edge, entry.transaction_id, COMMIT)
        assert (status.code, status.message) == (definition_pb2.OK, "OK")
    assert len(storage.messages(103)) == 1
    assert (await end(edge, entry.transaction_id, ROLLBACK)).code == INVALID


async def test_rollback(edge: FakeEdge, client: Client, storage: FakeStorage) -> None:
    """The message never comes; a commit is too late."""
    entry = (await client.send(half())).entries[0]
    for _ in range(2):
        assert (await end(edge, entry.transaction_id, ROLLBACK)).code == definition_pb2.OK
    status = await end(edge, entry.transaction_id, COMMIT)
    assert status.code == INVALID
    assert "INVALID_TRANSACTION_ID" in status.message
    assert storage.messages(103) == []


async def test_a_producer_that_does_not_know_changes_nothing(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """OK, and the message waits on."""
    entry = (await client.send(half())).entries[0]
    assert (await end(edge, entry.transaction_id, UNDECIDED)).code == definition_pb2.OK
    assert len(storage.pending.waiting) == 1
    assert storage.count("EndTransaction") == 0


async def test_a_repeated_send_has_the_same_transaction(
    client: Client, storage: FakeStorage
) -> None:
    """The client's retry of a send that was stored."""
    first = (await client.send(half())).entries[0]
    again = (await client.send(half())).entries[0]
    assert again.transaction_id == first.transaction_id
    assert len(storage.pending.waiting) == 1


@pytest.mark.parametrize(
    "trouble",
    [
        storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_LEADER),
        storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_READY),
        AngeliaError(UNAVAILABLE, "gone"),
    ],
)
async def test_ends_are_repeated_where_the_leader_is(
    edge: FakeEdge,
    client: Client,
    storage: FakeStorage,
    trouble: storage_pb2.Refusal | AngeliaError,
) -> None:
    """A leader change costs latency only."""
    entry = (await client.send(half())).entries[0]
    storage.trouble["EndTransaction"].append(trouble)
    assert (await end(edge, entry.transaction_id, COMMIT)).code == definition_pb2.OK
    assert len(storage.messages(103)) == 1


async def test_bad_transaction_ids(edge: FakeEdge, client: Client, storage: FakeStorage) -> None:
    """INVALID_TRANSACTION_ID whatever is wrong with one; nothing is asked of storage."""
    entry = (await client.send(half())).entries[0]
    stored = encode_pending_handle(PendingHandle(1, 103, entry.message_id, HandleForm.STORED, 0, 0))
    good = entry.transaction_id
    for bad in ("", " ", "nonsense", entry.message_id, good[:-1], good + "A", stored):
        status = await end(edge, bad, COMMIT)
        assert status.code == INVALID, bad
    for case in (
        {"topic": "mixed"},
        {"topic": "nowhere"},
        {"namespace": "tenant"},
        {"message_id": id_of(2)},
    ):
        assert (await end(edge, good, COMMIT, **case)).code == INVALID, case
    assert (await end(edge, good, COMMIT, topic="bad!")).code == definition_pb2.ILLEGAL_TOPIC
    assert storage.count("EndTransaction") == 0
    unknown = encode_pending_handle(PendingHandle(1, 103, "never sent"))
    assert (await end(edge, unknown, COMMIT, message_id="never sent")).code == INVALID


async def test_a_delayed_message_has_no_transaction(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Its recall handle is no transaction id."""
    sent = message("mixed", 1, message_type=definition_pb2.DELAY)
    sent.system_properties.delivery_timestamp.seconds = 5
    entry = (await client.send(sent)).entries[0]
    assert (await end(edge, entry.recall_handle, COMMIT, topic="mixed")).code == INVALID
    assert len(storage.pending.waiting) == 1


async def test_a_half_that_moves_names_its_new_raft_group(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage, meta: FakeMeta
) -> None:
    """The transaction id, also inside the message, is that of where it is stored at last."""
    storage.pending.refused_raft_groups = {1}
    for number in range(1, 9):
        sending = client.send(half(number=number))
        first = asyncio.ensure_future(sending)
        await until(lambda: storage.count("Append") > 0)
        everything = meta_pb2.SlotRange(first_slot=0, slot_count=SLOT_COUNT, raft_group=2)
        meta.put(meta_pb2.Change(slots=everything))
        entry = (await first).entries[0]
        assert decode_pending_handle(entry.transaction_id).raft_group == 2
    for name, waiting in storage.pending.waiting.items():
        kept = definition_pb2.Message.FromString(waiting.data)
        said = decode_pending_handle(kept.user_properties["__transactionId__"])
        assert said.raft_group == name[0] == 2
        assert said.message_id == kept.system_properties.message_id
    assert storage.pending.refusals > 0, "no message began in the first raft group"
