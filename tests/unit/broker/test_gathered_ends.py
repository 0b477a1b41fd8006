"""Ends of transactions that arrive together share a call; each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, id_of, message, resource
from strata_testing.broker.fake_edge import MESSAGING, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage

OK, INVALID = definition_pb2.OK, definition_pb2.INVALID_TRANSACTION_ID
COMMIT, ROLLBACK = definition_pb2.COMMIT, definition_pb2.ROLLBACK
MAX_PER_CALL = 4

Ends = Iterable[tuple[int, str, definition_pb2.TransactionResolution.ValueType]]


@pytest.fixture
def config() -> BrokerConfig:
    """Four ends in a call."""
    return broker_config(storage_client={"max_ends_per_call": MAX_PER_CALL})


@pytest.fixture
def meta() -> FakeMeta:
    """The nameserver; the topic `deals` has one queue."""
    fake = FakeMeta()
    fake.add_topic("deals", meta_pb2.TOPIC_TYPE_TRANSACTION, queue_count=1)
    return fake


async def halves(client: Client, numbers: Iterable[int]) -> list[str]:
    """Send half messages; return their transaction ids."""
    ids = []
    for number in numbers:
        half = message("deals", number, message_type=definition_pb2.TRANSACTION)
        ids.append((await client.send(half)).entries[0].transaction_id)
    return ids


async def end_together(edge: FakeEdge, ends: Ends) -> list[int]:
    """End transactions in one turn; return the codes of the answers."""

    async def end(
        number: int, transaction_id: str, how: definition_pb2.TransactionResolution.ValueType
    ) -> int:
        request = service_pb2.EndTransactionRequest(
            topic=resource("deals"),
            message_id=id_of(number),
            transaction_id=transaction_id,
            resolution=how,
        )
        response = await edge.call(
            MESSAGING + "EndTransaction", request, service_pb2.EndTransactionResponse
        )
        return response.status.code

    async with asyncio.timeout(10), asyncio.TaskGroup() as turn:
        tasks = [turn.create_task(end(*each)) for each in ends]
    return [task.result() for task in tasks]


def calls_of(storage: FakeStorage) -> list[int]:
    """Return how many transactions each call ended."""
    return [
        len(request.halves) or 1
        for _, request in storage.calls
        if isinstance(request, storage_pb2.EndTransactionRequest)
    ]


async def test_ends_of_a_turn_share_a_call(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """As many as a call takes; a rollback among them is none for the others."""
    ids = await halves(client, range(5))
    how = [COMMIT, ROLLBACK, COMMIT, COMMIT, COMMIT]
    codes = await end_together(edge, list(zip(range(5), ids, how, strict=True)))
    assert codes == [OK] * 5
    assert sorted(calls_of(storage)) == [1, MAX_PER_CALL]
    ended = storage.pending.ended
    assert [place is None for place in ended.values()] == [False, True, False, False, False]


async def test_an_end_of_the_other_way_is_refused_alone(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """And a repeat is answered as the first one was."""
    ids = await halves(client, range(3))
    assert await end_together(edge, [(0, ids[0], COMMIT)]) == [OK]
    ends = [(0, ids[0], ROLLBACK), (0, ids[0], COMMIT), (1, ids[1], COMMIT), (2, ids[2], ROLLBACK)]
    assert await end_together(edge, ends) == [INVALID, OK, OK, OK]
    assert calls_of(storage) == [1, 4]


@pytest.mark.parametrize("is_old", [False, True])
async def test_an_end_without_an_answer_is_asked_for_again_alone(
    edge: FakeEdge, client: Client, storage: FakeStorage, *, is_old: bool
) -> None:
    """Its raft group had no room, or the node is of a version that ends one at a time."""
    ids = await halves(client, range(3))
    storage.pending.is_old = is_old
    storage.pending.end_refusals = [storage_pb2.OUTCOME_OVERLOADED]
    ends = [(number, each, COMMIT) for number, each in enumerate(ids)]
    assert await end_together(edge, ends) == [OK] * 3
    assert calls_of(storage) == ([3, 1, 1, 1] if is_old else [3, 1])


async def test_a_refusal_of_the_call_reaches_every_end(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """A full disk refuses all of them."""
    ids = await halves(client, range(2))
    storage.trouble["EndTransaction"].append(
        storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_DISK_FULL, reason="no space")
    )
    ends = [(number, each, COMMIT) for number, each in enumerate(ids)]
    assert OK not in await end_together(edge, ends)
    assert await end_together(edge, ends) == [OK] * 2


async def test_a_client_that_goes_leaves_the_other_ends_alone(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Its transaction ends, too: the call is under way."""
    ids = await halves(client, range(2))
    storage.gate, storage.gated_rpc = asyncio.Event(), "EndTransaction"
    first = asyncio.ensure_future(end_together(edge, [(0, ids[0], COMMIT)]))
    second = asyncio.ensure_future(end_together(edge, [(1, ids[1], COMMIT)]))
    await storage.called("EndTransaction")
    first.cancel()
    storage.gate.set()
    assert await second == [OK]
    assert all(place is not None for place in storage.pending.ended.values())
    assert len(storage.pending.ended) == 2
    assert app.endpoint


async def test_ends_that_a_stop_interrupts_are_answered(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Those under way, and those that come when no further task is taken, of whatever form."""
    ids = await halves(client, range(4))
    storage.gate, storage.gated_rpc = asyncio.Event(), "EndTransaction"
    ends = [(number, each, COMMIT) for number, each in enumerate(ids)]
    under_way = asyncio.ensure_future(end_together(edge, ends[:2]))
    await storage.called("EndTransaction")
    await app.requests.stop(1.0)
    assert await under_way == [definition_pb2.PROXY_TIMEOUT] * 2
    late = [*ends[2:], (0, "no id", COMMIT)]
    assert await end_together(edge, late) == [definition_pb2.TOO_MANY_REQUESTS] * 3
    storage.gate.set()
