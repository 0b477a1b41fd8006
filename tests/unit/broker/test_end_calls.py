"""EndTransaction calls that arrive in batches, as the edge hands them over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_edge.ports import CallError
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, id_of, message, resource
from strata_testing.broker.fake_edge import MESSAGING, FakeCall, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage

END = "EndTransaction"
OK, TOO_MANY = definition_pb2.OK, definition_pb2.TOO_MANY_REQUESTS
COMMIT, ROLLBACK = definition_pb2.COMMIT, definition_pb2.ROLLBACK
UNDECIDED = definition_pb2.TRANSACTION_RESOLUTION_UNSPECIFIED
MAX_PER_CLIENT = 3


@pytest.fixture
def config() -> BrokerConfig:
    """Three calls of a client at a time."""
    return broker_config(calls={"max_in_flight_per_client": MAX_PER_CLIENT})


@pytest.fixture
def meta() -> FakeMeta:
    """The nameserver; the topic `deals` has one queue."""
    fake = FakeMeta()
    fake.add_topic("deals", meta_pb2.TOPIC_TYPE_TRANSACTION, queue_count=1)
    return fake


async def halves(client: Client, count: int) -> list[service_pb2.EndTransactionRequest]:
    """Send half messages; return the requests that commit them."""
    requests = []
    for number in range(count):
        half = message("deals", number, message_type=definition_pb2.TRANSACTION)
        transaction_id = (await client.send(half)).entries[0].transaction_id
        requests.append(
            service_pb2.EndTransactionRequest(
                topic=resource("deals"),
                message_id=id_of(number),
                transaction_id=transaction_id,
                resolution=COMMIT,
            )
        )
    return requests


async def codes_of(calls: Iterable[FakeCall]) -> list[int]:
    """Return the codes of the answers."""
    codes: list[int] = []
    for call in calls:
        [answer] = await asyncio.wait_for(call.answer, 10)
        codes.append(service_pb2.EndTransactionResponse.FromString(answer).status.code)
    return codes


async def test_ends_of_a_batch_are_one_call(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Commits and rollbacks together; what is not usual beside them is answered as alone."""
    requests = await halves(client, 3)
    requests[1].resolution = ROLLBACK
    requests[2].transaction_id = "no id"
    calls = edge.begin_turn(*[(END, request) for request in requests])
    assert await codes_of(calls) == [OK, OK, definition_pb2.INVALID_TRANSACTION_ID]
    assert storage.count(END) == 1
    assert [place is None for place in storage.pending.ended.values()] == [False, True]


async def test_a_producer_without_a_decision_changes_nothing(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """It is told OK, and storage is not asked."""
    [request] = await halves(client, 1)
    request.resolution = UNDECIDED
    assert await codes_of(edge.begin_turn((END, request))) == [OK]
    assert storage.count(END) == 0


async def test_ends_under_way_are_bounded_and_make_room_again(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """One too many is refused; an answer, a refusal and a client that left give their room back."""
    requests = await halves(client, 5)
    storage.gate, storage.gated_rpc = asyncio.Event(), END
    under_way = edge.begin_turn(*[(END, request) for request in requests[:3]])
    await storage.called(END)
    under_way[0].leave()
    assert await codes_of(edge.begin_turn((END, requests[3]))) == [TOO_MANY]
    storage.gate.set()
    assert await codes_of(under_way[1:]) == [OK, OK]
    calls = edge.begin_turn(*[(END, request) for request in requests[3:]], (END, requests[3]))
    assert await codes_of(calls) == [OK] * 3
    assert len(storage.pending.ended) == 5


async def test_a_call_whose_answer_fails_leaves_the_others_alone(
    edge: FakeEdge,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    failed_requests: list[tuple[str, BaseException]],
) -> None:
    """Its mistake is its own; it holds no room either."""
    requests = await halves(client, 3)
    calls = edge.begin_turn(*[(END, request) for request in requests])
    complete = FakeCall.complete

    def fails(call: FakeCall, *answer: object) -> None:
        if call is calls[1] and fails.first:  # type: ignore[attr-defined]
            fails.first = False  # type: ignore[attr-defined]
            raise ZeroDivisionError
        complete(call, *answer)  # type: ignore[arg-type]

    fails.first = True  # type: ignore[attr-defined]
    monkeypatch.setattr(FakeCall, "complete", fails)
    assert await codes_of(calls) == [OK, definition_pb2.INTERNAL_SERVER_ERROR, OK]
    again = edge.begin_turn(*[(END, request) for request in requests])
    assert await codes_of(again) == [OK] * 3
    ((name, _),) = failed_requests
    assert name == "broker.tell who ends a transaction"
    failed_requests.clear()


async def test_bytes_that_are_no_request_end_the_call(edge: FakeEdge) -> None:
    """There is nothing to answer."""
    [call] = edge.begin_turn((END, b"\xff\xff"))
    with pytest.raises(CallError, match="INVALID_ARGUMENT"):
        await asyncio.wait_for(call.answer, 10)


async def test_ends_are_counted(edge: FakeEdge, client: Client, app: BrokerApp) -> None:
    """By how they ended, and with RocketMQ's names by topic."""
    metrics = app._metrics
    requests = await halves(client, 3)
    requests[2].resolution = ROLLBACK
    await codes_of(edge.begin_turn(*[(END, request) for request in requests]))
    ended = metrics.counter("strata_broker_transactions_ended_total")
    assert [ended.value({"end": end}) for end in ("commit", "rollback", "give up")] == [2, 1, 0]
    labels = {"namespace": "", "topic": "deals"}
    assert metrics.counter("rocketmq_commit_messages_total").value(labels) == 2
    assert metrics.counter("rocketmq_rollback_messages_total").value(labels) == 1


async def test_an_end_names_its_unary_path_for_other_protocols(edge: FakeEdge) -> None:
    """The edge has one handler for it: that of batches."""
    assert MESSAGING + END not in edge.unary
