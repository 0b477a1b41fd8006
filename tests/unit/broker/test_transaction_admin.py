"""Transactions as operators see and end them."""

from __future__ import annotations

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_edge.ports import CallError
from strata_testing.broker.client import Client, id_of, message
from strata_testing.broker.fake_edge import ADMIN, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage

COMMIT = admin_pb2.TRANSACTION_RESOLUTION_COMMIT
ROLLBACK = admin_pb2.TRANSACTION_RESOLUTION_ROLLBACK


@pytest.fixture(autouse=True)
async def topics(app: BrokerApp, meta: FakeMeta) -> None:
    """`deals` and `mixed` of the default namespace, `deals` of a tenant."""
    meta.add_topic("deals", meta_pb2.TOPIC_TYPE_TRANSACTION)
    meta.add_topic("mixed", meta_pb2.TOPIC_TYPE_MIXED)
    meta.add_topic("deals", meta_pb2.TOPIC_TYPE_TRANSACTION, namespace="tenant")
    assert await app.view.wait_for_revision(meta.revision, 60)


async def send_half(
    client: Client, number: int, topic: str = "deals", *, wait_s: int = 60, **properties: object
) -> str:
    """Send a transactional message; return its transaction id."""
    sent = message(topic, number, message_type=definition_pb2.TRANSACTION, **properties)  # type: ignore[arg-type]
    sent.system_properties.orphaned_transaction_recovery_duration.seconds = wait_s
    entry = (await client.send(sent)).entries[0]
    assert entry.status.code == definition_pb2.OK
    return entry.transaction_id


async def listed(edge: FakeEdge, **fields: object) -> list[admin_pb2.Transaction]:
    """All pages."""
    request = admin_pb2.ListTransactionsRequest(**fields)  # type: ignore[arg-type]
    found: list[admin_pb2.Transaction] = []
    while True:
        response = await edge.call(
            ADMIN + "ListTransactions", request, admin_pb2.ListTransactionsResponse
        )
        found.extend(response.transactions)
        if not response.next_page_token:
            return found
        request.page_token = response.next_page_token


async def show(edge: FakeEdge, **fields: str) -> admin_pb2.Transaction:
    """One."""
    request = admin_pb2.GetTransactionRequest(**fields)
    return (
        await edge.call(ADMIN + "GetTransaction", request, admin_pb2.GetTransactionResponse)
    ).transaction


async def end(edge: FakeEdge, **fields: object) -> admin_pb2.EndTransactionResponse:
    """Commit or roll back."""
    request = admin_pb2.EndTransactionRequest(**fields)  # type: ignore[arg-type]
    return await edge.call(ADMIN + "EndTransaction", request, admin_pb2.EndTransactionResponse)


@pytest.mark.parametrize("page_size", [1, 2, 3, 100])
async def test_lists_are_by_next_check_over_all_raft_groups(
    edge: FakeEdge, client: Client, page_size: int
) -> None:
    """Pages join without gaps or repeats, also where many are due at once."""
    sent = {}
    for number in range(1, 13):
        sent[number] = await send_half(client, number, wait_s=100 * (number % 3))
    # Delayed messages are not transactions.
    late = message("mixed", 99, message_type=definition_pb2.DELAY)
    late.system_properties.delivery_timestamp.seconds = 1
    await client.send(late)
    found = await listed(edge, page_size=page_size)
    assert sorted(one.transaction_id for one in found) == sorted(sent.values())
    assert {one.raft_group for one in found} == {1, 2}
    checks = [one.next_check_ms for one in found]
    assert checks == sorted(checks)
    first = found[0]
    assert (first.topic, first.check_count) == ("deals", 0)
    assert first.store_time_ms == 1_700_000_000_123
    assert first.message == b""


async def test_lists_of_a_topic_and_of_a_namespace(edge: FakeEdge, client: Client) -> None:
    """Other tenants' are seen only when all namespaces are asked for."""
    await send_half(client, 1)
    await send_half(client, 2, "mixed")
    client.metadata = {**client.metadata, "x-mq-namespace": "tenant"}
    await send_half(client, 3)
    assert len(await listed(edge)) == 3
    assert [one.message_id for one in await listed(edge, namespace="tenant", page_size=1)] == [
        id_of(3)
    ]
    mine = await listed(edge, namespace="", page_size=1)
    assert sorted(one.topic for one in mine) == ["deals", "mixed"]
    assert [one.topic for one in await listed(edge, namespace="", topic="mixed")] == ["mixed"]


async def test_show_by_either_id(edge: FakeEdge, client: Client) -> None:
    """The transaction id, or topic and message id; the message comes along."""
    transaction_id = await send_half(client, 1, tag="blue")
    await send_half(client, 2)
    for fields in ({"id": transaction_id}, {"id": id_of(1), "topic": "deals"}):
        shown = await show(edge, **fields)
        assert shown.transaction_id == transaction_id
        kept = definition_pb2.Message.FromString(shown.message)
        assert kept.system_properties.tag == "blue"


async def test_foreign_message_ids_are_found_too(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Storage keeps only a hash of them: the list names such a one by its place."""
    transaction_id = await send_half(client, 1, message_id="deal no. 7")
    (found,) = await listed(edge)
    assert (found.message_id, found.transaction_id != transaction_id) == ("", True)
    for fields in (
        {"id": found.transaction_id},
        {"id": transaction_id},
        {"id": "deal no. 7", "topic": "deals"},
    ):
        shown = await show(edge, **fields)
        kept = definition_pb2.Message.FromString(shown.message)
        assert kept.system_properties.message_id == "deal no. 7"
    await end(edge, id=found.transaction_id, resolution=COMMIT)
    assert len(storage.messages(103)) == 1


async def test_commit_and_rollback(edge: FakeEdge, client: Client, storage: FakeStorage) -> None:
    """By either id, again and again; what ended is no longer shown."""
    transaction_id = await send_half(client, 1)
    await send_half(client, 2)
    for _ in range(2):
        await end(edge, id=transaction_id, resolution=COMMIT)
    await end(edge, id=id_of(2), topic="deals", resolution=ROLLBACK)
    assert len(storage.messages(103)) == 1
    assert await listed(edge) == []
    for again in (
        show(edge, id=transaction_id),
        show(edge, id=id_of(2), topic="deals"),
        end(edge, id=transaction_id, resolution=ROLLBACK),
    ):
        with pytest.raises(CallError) as failure:
            await again
        assert failure.value.status == "NOT_FOUND"


async def test_bad_requests(edge: FakeEdge, client: Client) -> None:
    """Unknown ids and topics are NOT_FOUND, the rest is INVALID_ARGUMENT."""
    transaction_id = await send_half(client, 1)
    for call, status in (
        (show(edge, id=""), "NOT_FOUND"),
        (show(edge, id="nonsense"), "NOT_FOUND"),
        (show(edge, id="x", topic="nowhere"), "NOT_FOUND"),
        (listed(edge, topic="nowhere"), "NOT_FOUND"),
        (listed(edge, page_token="1-2-3"), "INVALID_ARGUMENT"),
        (listed(edge, page_token=f"{1 << 64}-1-1-1"), "INVALID_ARGUMENT"),
        (listed(edge, page_token=f"{'1' * 5_000}-1-1-1"), "INVALID_ARGUMENT"),
        (listed(edge, page_token="\u00b2-1-1-1"), "INVALID_ARGUMENT"),
        (end(edge, id=transaction_id), "INVALID_ARGUMENT"),
    ):
        with pytest.raises(CallError) as failure:
            await call
        assert failure.value.status == status
    assert len(await listed(edge)) == 1
