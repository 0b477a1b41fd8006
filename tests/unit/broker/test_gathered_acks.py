"""Acks that arrive together go to storage together; each is answered as if it came alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import UNAVAILABLE, AngeliaError
from strata_broker.app import BrokerApp
from strata_broker.base import wire
from strata_broker.receives.handles import HandleReader
from strata_edge.choice import HOW_TO_GET_IT
from strata_mq.requests.handle import decode_handle, encode_handle
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, message, resource
from strata_testing.broker.fake_edge import METADATA, FakeCall, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from tests.parts.required import absent

OK = definition_pb2.OK
INVALID = definition_pb2.INVALID_RECEIPT_HANDLE
TOO_MANY = definition_pb2.TOO_MANY_REQUESTS
INTERNAL = definition_pb2.INTERNAL_SERVER_ERROR
OTHER = METADATA | {"x-mq-client-id": "client-2"}
NOBODY_LEADS = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_LEADER)
DISK_FULL = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_DISK_FULL, reason="full")


@pytest.fixture
def meta() -> FakeMeta:
    """The nameserver; the topic `narrow` is in one raft group, `orders` in two."""
    fake = FakeMeta()
    fake.add_topic("orders")
    fake.add_topic("narrow", queue_count=1)
    return fake


def ack_of(
    *handles: str, topic: str = "narrow", group: str = "g"
) -> tuple[str, service_pb2.AckMessageRequest]:
    """Return an ack as official clients write it."""
    request = service_pb2.AckMessageRequest(group=resource(group), topic=resource(topic))
    for handle in handles:
        request.entries.add(message_id=f"id of {handle[-8:]}", receipt_handle=handle)
    return "AckMessage", request


async def take(client: Client, count: int, topic: str = "narrow") -> list[str]:
    """Send messages and receive them; return their handles."""
    for number in range(count):
        await client.send(message(topic, number))
    got = await client.receive_all(topic, "g")
    assert len(got) == count
    return [one.system_properties.receipt_handle for one in got]


async def answers_of(calls: Sequence[FakeCall]) -> list[service_pb2.AckMessageResponse]:
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*(call.answer for call in calls))
    return [service_pb2.AckMessageResponse.FromString(answer) for (answer,) in answers]


async def codes_of(calls: Sequence[FakeCall]) -> list[int]:
    """Return the status of each answer; the entries that it names have it too."""
    answers = await answers_of(calls)
    for answer in answers:
        assert {entry.status.code for entry in answer.entries} <= {answer.status.code}
    return [answer.status.code for answer in answers]


def waiters(app: BrokerApp) -> int:
    """Return how many waiters have acks that were not sent yet."""
    return sum(len(lane.acks) for lane in app._storage.acker._groups.values())


def assert_nothing_is_charged(app: BrokerApp) -> None:
    app._metrics.read_gauges()
    shown = app._metrics.render().decode()
    for series in ('limit="ack requests",of="bytes"', 'limit="acks waiting",of="acks"'):
        assert f"strata_limit_used{{{series}}} 0" in shown
    room = app._edge.hot._acknowledger.room  # type: ignore[attr-defined]
    assert len(room._byte_shares) == len(room._entry_shares) == 0


async def test_acks_of_a_turn_have_one_waiter_and_their_own_answers(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Ids and handles belong together, in the order in which the calls came."""
    handles = await take(client, 6)
    parts = [handles[:1], handles[1:2], handles[2:5], handles[5:]]
    calls = edge.begin_turn(*(ack_of(*part) for part in parts))
    assert waiters(app) == 1
    for part, answer in zip(parts, await answers_of(calls), strict=True):
        assert answer.status == definition_pb2.Status(code=OK, message="OK")
        assert [entry.receipt_handle for entry in answer.entries] == part
        assert [entry.message_id for entry in answer.entries] == [
            f"id of {handle[-8:]}" for handle in part
        ]
        assert [entry.status.code for entry in answer.entries] == [OK] * len(part)
    assert storage.count("Ack") == 1
    assert not storage.leases
    latency = app._metrics.histogram("rocketmq_rpc_latency")
    assert latency.count({"request_code": "ack_message", "response_code": "ok"}) == 4
    assert_nothing_is_charged(app)


async def test_acks_to_several_raft_groups_are_an_entry_for_each(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """One call with handles of both is answered when both are settled."""
    handles = await take(client, 8, "orders")
    groups = {decode_handle(handle).raft_group for handle in handles}
    assert len(groups) == 2
    calls = edge.begin_turn(
        *(ack_of(handle, topic="orders") for handle in handles[:-2]),
        ack_of(*handles[-2:], topic="orders"),
    )
    assert await codes_of(calls) == [OK] * 7
    assert not storage.leases
    assert_nothing_is_charged(app)


async def test_bad_handles_among_good_ones_are_refused_alone(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Damaged, forged, of another topic, of no raft group, or of a lease that is not."""
    handles = await take(client, 4)
    (foreign,) = await take(client, 1, "orders")
    nowhere = encode_handle(decode_handle(handles[0])._replace(raft_group=77))
    no_lease = encode_handle(decode_handle(handles[0])._replace(offset=10_000, lease_number=9))
    calls = edge.begin_turn(
        ack_of(handles[0]),
        ack_of(handles[0][:-1] + "!"),
        ack_of(foreign),
        ack_of(handles[1]),
        ack_of(nowhere),
        ack_of(no_lease),
        ack_of("nonsense"),
        ack_of(handles[2]),
    )
    assert await codes_of(calls) == [OK, INVALID, INVALID, OK, INVALID, INVALID, INVALID, OK]
    mixed = edge.begin(*ack_of(handles[3], "nonsense"))
    (answer,) = await answers_of([mixed])
    assert [entry.status.code for entry in answer.entries] == [OK, INVALID]
    assert answer.status.code == definition_pb2.MULTIPLE_RESULTS
    assert len(storage.leases) == 1, "only that of the other topic is left"
    assert_nothing_is_charged(app)


async def test_groups_topics_clients_and_connections_are_not_mixed(
    app: BrokerApp, edge: FakeEdge, client: Client
) -> None:
    """A handle of one consumer group is no handle of another; unknown names are refused."""
    handles = await take(client, 3)
    assert await client.receive_all("narrow", "h") != []
    calls = edge.begin_turn(
        ack_of(handles[0]),
        ack_of(handles[1], group="h"),
        ack_of(handles[1], group="illegal group!"),
        ack_of(handles[1], topic="unknown"),
    )
    elsewhere = [
        FakeCall("AckMessage", ack_of(handle)[1].SerializeToString(), metadata)
        for handle, metadata in ((handles[1], OTHER), (handles[2], {}))
    ]
    assert edge.hot is not None
    edge.hot.handle(elsewhere)
    assert await codes_of([*calls, *elsewhere]) == [
        OK,
        INVALID,
        definition_pb2.ILLEGAL_CONSUMER_GROUP,
        definition_pb2.TOPIC_NOT_FOUND,
        OK,
        definition_pb2.CLIENT_ID_REQUIRED,
    ]
    assert_nothing_is_charged(app)


async def test_a_refusal_of_storage_reaches_each_ack(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """The raft group refuses all of them for good; then the same acks are fine."""
    handles = await take(client, 3)
    storage.trouble["Ack"].append(DISK_FULL)
    requests = [ack_of(handle) for handle in handles]
    assert await codes_of(edge.begin_turn(*requests)) == [INTERNAL] * 3
    assert_nothing_is_charged(app)
    assert await codes_of(edge.begin_turn(*requests)) == [OK] * 3


async def test_gathered_acks_are_repeated_together(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Nobody leads, then a connection breaks, then they are carried out."""
    handles = await take(client, 3)
    storage.trouble["Ack"].extend([NOBODY_LEADS, AngeliaError(UNAVAILABLE, "broken"), NOBODY_LEADS])
    assert await codes_of(edge.begin_turn(*(ack_of(handle) for handle in handles))) == [OK] * 3
    sent = [request for name, request in storage.calls if name == "Ack"]
    assert len(sent) == 4
    for request in sent:
        assert isinstance(request, storage_pb2.AckRequest)
        assert [len(group.leases) for group in request.groups] == [3]
    assert_nothing_is_charged(app)


async def test_the_ack_of_a_gone_client_is_not_repeated_with_the_others(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """The others of its turn go on, and are answered at their deadline or before."""
    handles = await take(client, 3)
    storage.trouble["Ack"].extend([NOBODY_LEADS] * 100_000)
    calls = edge.begin_turn(*(ack_of(handle) for handle in handles))
    await storage.called("Ack")
    calls[1].leave()

    def last_leases() -> int:
        request = [request for name, request in storage.calls if name == "Ack"][-1]
        assert isinstance(request, storage_pb2.AckRequest)
        return len(request.groups[0].leases)

    await until(lambda: last_leases() == 2)
    storage.trouble["Ack"].clear()
    assert await codes_of([calls[0], calls[2]]) == [OK, OK]
    assert not calls[1].answer.done()
    assert len(storage.leases) == 1
    assert_nothing_is_charged(app)


@pytest.mark.parametrize(
    "config",
    [
        broker_config(ack={"max_waiting_per_client": 3}),
        broker_config(ack={"max_waiting": 3}),
    ],
    ids=["of a client", "of all"],
)
async def test_of_a_turn_as_many_acks_are_taken_as_have_room(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """The first ones fit; the rest is refused, one by one, and may come again."""
    handles = await take(client, 5)
    requests = [ack_of(handle) for handle in handles]
    assert await codes_of(edge.begin_turn(*requests)) == [OK] * 3 + [TOO_MANY] * 2
    assert len(storage.leases) == 2
    assert_nothing_is_charged(app)
    assert await codes_of(edge.begin_turn(*requests[3:])) == [OK] * 2


@pytest.mark.parametrize("config", [broker_config(storage_client={"max_acks_per_call": 2})])
async def test_acks_that_are_settled_in_parts_are_answered_once(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """A call has room for two; one request has entries in two calls."""
    handles = await take(client, 5)
    parts = [handles[:1], handles[1:4], handles[4:]]
    assert await codes_of(edge.begin_turn(*(ack_of(*part) for part in parts))) == [OK] * 3
    assert storage.count("Ack") == 3
    assert not storage.leases
    assert_nothing_is_charged(app)


async def test_acks_of_several_deadlines_do_not_share_one(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """A hasty ack is answered at its own deadline; a patient one of the same turn waits on."""
    handles = await take(client, 2)
    storage.trouble["Ack"].extend([NOBODY_LEADS] * 100_000)
    calls = [
        FakeCall("AckMessage", ack_of(handle)[1].SerializeToString(), time_left_s=left_s)
        for handle, left_s in zip(handles, (0.05, 3_600.0), strict=True)
    ]
    assert edge.hot is not None
    edge.hot.handle(calls)
    assert await codes_of(calls[:1]) == [definition_pb2.PROXY_TIMEOUT]
    assert not calls[1].done()
    storage.trouble["Ack"].clear()
    assert await codes_of(calls[1:]) == [OK]
    assert_nothing_is_charged(app)


@pytest.mark.parametrize("fails", ["reading", "sending", "answering"])
async def test_a_mistake_leaves_nothing_charged_and_nobody_without_answer(
    app: BrokerApp,
    edge: FakeEdge,
    client: Client,
    failed_requests: list[tuple[str, BaseException]],
    monkeypatch: pytest.MonkeyPatch,
    fails: str,
) -> None:
    """Each ack of the turn is told, and the next turn is served."""
    handles = await take(client, 4)

    def fail(*_: object, **__: object) -> Any:
        raise ZeroDivisionError

    failed: set[FakeCall] = set()
    complete = FakeCall.complete

    def fail_at_first(call: FakeCall, *answer: Any) -> None:
        if call not in failed:
            failed.add(call)
            fail()
        complete(call, *answer)

    with monkeypatch.context() as patched:
        match fails:
            case "reading":
                patched.setattr(HandleReader, "leases", fail)
            case "sending":
                patched.setattr(app._storage.acker, "ack", fail)
            case _:
                patched.setattr(FakeCall, "complete", fail_at_first)
        codes = await codes_of(edge.begin_turn(*(ack_of(handle) for handle in handles[:3])))
    assert codes == [INTERNAL] * 3
    assert failed_requests
    failed_requests.clear()
    assert_nothing_is_charged(app)
    assert await codes_of(edge.begin_turn(*map(ack_of, handles[3:]))) == [OK]


# The group or the topic ends within a field.
MALFORMED_TOPICS = (b"\x0a\x01\x08\x12\x00", b"\x0a\x00\x12\x01\x0a", b"\x0a\x02\x0a\x05\x12\x00")


@pytest.mark.parametrize("is_native", [True, False])
async def test_an_ack_of_which_only_the_entries_can_be_read_is_a_bad_request(
    app: BrokerApp, edge: FakeEdge, client: Client, *, is_native: bool
) -> None:
    """Alone or among good ones it is the client's error, which counts for its pace."""
    if is_native and edge.passes is None:
        absent(f"the native edge: {HOW_TO_GET_IT}")
    assert edge.hot is not None
    acknowledger = edge.hot._acknowledger  # type: ignore[attr-defined]
    if not is_native:
        acknowledger.plain_ack = wire.plain_ack
    handles = await take(client, 2)
    good = [FakeCall("AckMessage", ack_of(handle)[1].SerializeToString()) for handle in handles]
    entry = b"\x1a\x06\x0a\x01a\x12\x01h"
    bad = [FakeCall("AckMessage", head + entry) for head in MALFORMED_TOPICS]
    # Too large for being gathered.
    bad += [FakeCall("AckMessage", head + entry * 200) for head in MALFORMED_TOPICS[:1]]
    assert all(acknowledger.plain_ack(call.request) for call in bad), "it can be read"
    refused = app._metrics.counter("strata_broker_refused_entries_total")
    before = refused.value()
    edge.hot.handle([good[0], *bad, good[1]])
    assert await codes_of([*good, *bad]) == [OK] * 2 + [definition_pb2.BAD_REQUEST] * len(bad)
    assert refused.value() - before == len(bad)
    acknowledger.take(alone := FakeCall("AckMessage", bad[0].request), None)
    assert await codes_of([alone]) == [definition_pb2.BAD_REQUEST]
    assert_nothing_is_charged(app)
