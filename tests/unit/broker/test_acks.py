"""Acks of one client that could harm all: forged handles, endless deadlines, huge requests."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.app import BrokerApp
from strata_mq.requests.handle import ReceiptHandle, decode_handle, encode_handle
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, message, resource
from strata_testing.broker.fake_edge import MESSAGING, METADATA, FakeCall, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage

YEARS_S = 99_999_999 * 3_600.0
NOBODY_LEADS = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_LEADER)
OTHER = METADATA | {"x-mq-client-id": "client-2"}


def ack_request(*handles: str) -> service_pb2.AckMessageRequest:
    """Acks for the consumer group `g` of `orders`."""
    request = service_pb2.AckMessageRequest(group=resource("g"), topic=resource("orders"))
    for handle in handles:
        request.entries.add(receipt_handle=handle)
    return request


async def answered(call: FakeCall) -> service_pb2.AckMessageResponse:
    """The answer of an ack."""
    return service_pb2.AckMessageResponse.FromString((await call.answer)[0])


async def take_one(client: Client, number: int = 1) -> str:
    """Send a message and receive it; return its handle."""
    await client.send(message("orders", number))
    (got,) = await client.receive_all("orders", "g")
    return got.system_properties.receipt_handle


def forged(handle: str, **fields: int) -> str:
    """A handle with other numbers and a right checksum."""
    return encode_handle(ReceiptHandle(**(decode_handle(handle)._asdict() | fields)))


async def test_a_handle_of_no_raft_group_is_refused_at_once(
    edge: FakeEdge, client: Client, app: BrokerApp, storage: FakeStorage
) -> None:
    """Any deadline is the same: no lane is made and no timer runs."""
    handle = await take_one(client)
    lies = [forged(handle, raft_group=2**32 - 1 - number) for number in range(1_000)]
    response = await answered(edge.begin("AckMessage", ack_request(*lies), time_left_s=YEARS_S))
    assert {entry.status.code for entry in response.entries} == {
        definition_pb2.INVALID_RECEIPT_HANDLE
    }
    assert app._storage.acker.lane_count == 0
    assert storage.count("Ack") == 0
    assert (await client.ack("orders", "g", handle)).status.code == definition_pb2.OK
    await until(lambda: app._storage.acker.lane_count == 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": queue, "offset": offset, "lease_number": number, "visible_at_ms": at_ms}
        for queue, offset, number, at_ms in product(
            (0, 2**31 - 1, 2**32 - 1), (0, 2**63 - 1, 2**64 - 1), (0, 2**32 - 1), (0, 2**64 - 1)
        )
    ],
)
async def test_forged_numbers_are_refused_by_whoever_knows(
    client: Client, fields: dict[str, int]
) -> None:
    """Every field at its ends reaches storage as it is, and the answer has a code of the list."""
    handle = await take_one(client)
    response = await client.ack("orders", "g", forged(handle, **fields))
    assert response.status.code == definition_pb2.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize("config", [broker_config(calls={"max_timeout_ms": 1_000})])
async def test_an_endless_deadline_ends(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """A client's deadline of years is no longer than what the broker gives to any call."""
    handle = await take_one(client)
    for rpc in ("Ack", "Append", "ChangeInvisible"):
        storage.trouble[rpc].extend([NOBODY_LEADS] * 100_000)
    ack = edge.begin("AckMessage", ack_request(handle), time_left_s=YEARS_S)
    send = service_pb2.SendMessageRequest(messages=[message("orders", 9)])
    sent = edge.begin("SendMessage", send, time_left_s=YEARS_S)
    change = service_pb2.ChangeInvisibleDurationRequest(
        group=resource("g"), topic=resource("orders"), receipt_handle=handle
    )
    info = FakeCall("", b"", time_left_s=YEARS_S)
    changed = await edge.unary[MESSAGING + "ChangeInvisibleDuration"](
        change.SerializeToString(), info
    )
    response = service_pb2.ChangeInvisibleDurationResponse.FromString(changed)
    assert response.status.code == definition_pb2.PROXY_TIMEOUT
    assert (await answered(ack)).status.code == definition_pb2.PROXY_TIMEOUT
    result = service_pb2.SendMessageResponse.FromString((await sent.answer)[0])
    assert result.status.code == definition_pb2.HA_NOT_AVAILABLE


async def test_what_is_late_is_answered_wherever_it_stands(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """A patient ack at the head of the lane keeps nobody behind it."""
    first, second = await take_one(client, 1), await take_one(client, 2)
    same = decode_handle(first).raft_group
    second = forged(second, raft_group=same)
    storage.trouble["Ack"].extend([NOBODY_LEADS] * 100_000)
    patient = edge.begin("AckMessage", ack_request(first), time_left_s=YEARS_S)
    hasty = edge.begin("AckMessage", ack_request(second), time_left_s=0.01)
    assert (await answered(hasty)).status.code == definition_pb2.PROXY_TIMEOUT
    assert not patient.done()
    storage.trouble["Ack"].clear()
    assert (await answered(patient)).status.code == definition_pb2.OK


async def test_an_ack_for_a_raft_group_without_replicas_ends_in_time(
    edge: FakeEdge, client: Client, meta: FakeMeta, app: BrokerApp
) -> None:
    """There is nobody to ask: it waits, and is answered at its deadline."""
    meta.put(meta_pb2.Change(raft_group=meta_pb2.RaftGroup(raft_group=77, broker_name="none")))
    assert await app.view.wait_for_revision(meta.revision, 60)
    handle = forged(await take_one(client), raft_group=77)
    call = edge.begin("AckMessage", ack_request(handle), time_left_s=0.05)
    assert (await answered(call)).status.code == definition_pb2.PROXY_TIMEOUT
    await until(lambda: app._storage.acker.lane_count == 0)


async def test_an_ack_of_a_gone_client_is_not_repeated(
    edge: FakeEdge, client: Client, storage: FakeStorage, app: BrokerApp
) -> None:
    """It was sent once; what it held is free for others."""
    handle = await take_one(client)
    storage.trouble["Ack"].extend([NOBODY_LEADS] * 100_000)
    call = edge.begin("AckMessage", ack_request(handle), time_left_s=YEARS_S)
    await storage.called("Ack")
    call.leave()
    await until(lambda: app._storage.acker.lane_count == 0)
    assert storage.count("Ack") < 20, "it was not repeated to the end of its time"
    app._metrics.read_gauges()
    assert 'strata_limit_used{limit="acks waiting",of="acks"} 0' in app._metrics.render().decode()
    storage.trouble["Ack"].clear()
    assert (await client.ack("orders", "g", handle)).status.code == definition_pb2.OK


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (b"\x1a\x00" * 7_900_000, definition_pb2.PAYLOAD_TOO_LARGE),
        (b"\x1a\x00" * 500_000, definition_pb2.BAD_REQUEST),
        (b"\x1a\x00" * 4_097, definition_pb2.BAD_REQUEST),
        (b"\xff" * 9_000, definition_pb2.BAD_REQUEST),
    ],
    ids=["15 MiB", "1 MB", "one too many", "garbage"],
)
async def test_a_request_is_bounded_before_it_is_parsed(
    edge: FakeEdge, request_bytes: bytes, code: definition_pb2.Code.ValueType
) -> None:
    """Millions of empty entries would be gigabytes of objects; the answer names no entry."""
    response = await answered(edge.begin("AckMessage", request_bytes))
    assert response.status.code == code
    assert not response.entries


async def test_the_largest_request_is_served(edge: FakeEdge) -> None:
    """4,096 entries have an answer each."""
    request = ack_request(*["nonsense"] * 4_096)
    response = await answered(edge.begin("AckMessage", request))
    assert len(response.entries) == 4_096
    assert response.status.code == definition_pb2.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize(
    "config",
    [
        broker_config(ack={"max_waiting_per_client": 3}),
        broker_config(ack={"max_bytes_waiting_per_client": 1_024}),
    ],
    ids=["entries", "bytes"],
)
async def test_one_client_holds_a_share_of_what_may_wait(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Beyond it this client is refused, others are not; then it has its share again."""
    handles = [await take_one(client, number) for number in range(1, 7)]
    storage.trouble["Ack"].extend([NOBODY_LEADS] * 100_000)
    waiting = [edge.begin("AckMessage", ack_request(*[handles[0]] * 3))]
    while not waiting[-1].done():
        waiting.append(edge.begin("AckMessage", ack_request(*[handles[0]] * 3)))
        await asyncio.sleep(0)
    surplus = await answered(waiting.pop())
    assert surplus.status.code == definition_pb2.TOO_MANY_REQUESTS
    other = FakeCall("AckMessage", ack_request(handles[5]).SerializeToString(), OTHER)
    other.peer = "127.0.0.1:6666"
    assert edge.hot is not None
    edge.hot.handle([other])
    assert not other.done()
    storage.trouble["Ack"].clear()
    assert (await answered(other)).status.code == definition_pb2.OK
    await asyncio.gather(*(call.answer for call in waiting))
    assert (await client.ack("orders", "g", *handles[1:3])).status.code == definition_pb2.OK


async def test_a_mistake_at_one_request_leaves_nothing_charged(
    client: Client,
    app: BrokerApp,
    failed_requests: list[tuple[str, BaseException]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client is told INTERNAL_SERVER_ERROR, and its share is whole again."""
    handle = await take_one(client)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(app._storage.acker, "ack", fail)
        response = await client.ack("orders", "g", handle)
    assert response.status.code == definition_pb2.INTERNAL_SERVER_ERROR
    ((name, _),) = failed_requests
    assert name.endswith("AckMessage")
    failed_requests.clear()
    app._metrics.read_gauges()
    held = 'strata_limit_used{limit="ack requests",of="bytes"} 0'
    assert held in app._metrics.render().decode()
    assert (await client.ack("orders", "g", handle)).status.code == definition_pb2.OK


async def test_a_change_of_no_raft_group_is_refused_at_once(
    client: Client, storage: FakeStorage
) -> None:
    """Like an ack: the handle is forged."""
    handle = await take_one(client)
    request = service_pb2.ChangeInvisibleDurationRequest(
        group=resource("g"),
        topic=resource("orders"),
        receipt_handle=forged(handle, raft_group=77),
    )
    request.invisible_duration.seconds = 10
    response = await client.edge.call(
        MESSAGING + "ChangeInvisibleDuration",
        request,
        service_pb2.ChangeInvisibleDurationResponse,
    )
    assert response.status.code == definition_pb2.INVALID_RECEIPT_HANDLE
    assert storage.count("ChangeInvisible") == 0


def test_a_handle_carries_64_bits() -> None:
    """The tests above forge the ends of the fields, and a handle carries them."""
    u32, u64 = 2**32 - 1, 2**64 - 1
    most = ReceiptHandle(u32, u32, u32, u32, u64, u32, u32, u64, True)
    assert decode_handle(encode_handle(most)) == most
