"""An unexpected error of a request's handler ends that request and nothing else (rule 33)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NoReturn

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.access.principals import Principal
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_broker.receives.ack import Acknowledger
from strata_broker.receives.pending_ack import PendingAck
from strata_broker.receives.receive import Receiver
from strata_broker.sends.pending_send import PendingSend
from strata_broker.sends.send import Sender
from strata_broker.storage_client.append_lanes import Appender
from strata_edge.ports import CallError
from strata_mq.requests import decode_handle
from strata_runtime.tasks import RequestTasks, TooManyTasksError
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, message, receive_request, received, resource
from strata_testing.broker.fake_edge import ADMIN, MESSAGING, METADATA, FakeCall, FakeEdge
from strata_testing.broker.fake_storage import FakeStorage

INTERNAL = definition_pb2.INTERNAL_SERVER_ERROR

Failed = list[tuple[str, BaseException]]


@pytest.fixture
def config() -> BrokerConfig:
    """With tables, whose messages are a plugin's."""
    return broker_config(plugins=["kv"])


class OddError(Exception):
    """Nobody expects this one."""


def odd(*_: Any, **__: Any) -> NoReturn:
    raise OddError("odd")


async def odd_later(*_: Any, **__: Any) -> NoReturn:
    await asyncio.sleep(0)
    raise OddError("odd later")


def taken_out(failed: Failed, *, count: int = 1) -> None:
    """So many requests failed by the odd error; they are no fault of the test's."""
    assert [type(failure) for _, failure in failed] == [OddError] * count
    failed.clear()


def send_request(*numbers: int) -> service_pb2.SendMessageRequest:
    return service_pb2.SendMessageRequest(
        messages=[message("orders", number) for number in numbers]
    )


def ack_request() -> service_pb2.AckMessageRequest:
    return service_pb2.AckMessageRequest(group=resource("g"), topic=resource("orders"))


async def send_status(call: FakeCall) -> definition_pb2.Status:
    return service_pb2.SendMessageResponse.FromString((await call.answer)[0]).status


async def ack_status(call: FakeCall) -> definition_pb2.Status:
    return service_pb2.AckMessageResponse.FromString((await call.answer)[0]).status


async def receive_status(call: FakeCall) -> definition_pb2.Status:
    return received(await call.answer)[0]


@pytest.mark.parametrize(
    ("method", "served_by", "takes", "status_of"),
    [
        ("SendMessage", Sender, "gather", send_status),
        ("AckMessage", Acknowledger, "gather", ack_status),
        ("ReceiveMessage", Receiver, "take", receive_status),
    ],
)
async def test_a_call_that_fails_leaves_the_others_of_its_turn_alone(
    edge: FakeEdge,
    monkeypatch: pytest.MonkeyPatch,
    failed_requests: Failed,
    method: str,
    served_by: type,
    takes: str,
    status_of: Callable[[FakeCall], Any],
) -> None:
    """The second of three fails: it is answered with an error, the first and third as always."""
    take = getattr(served_by, takes)

    def take_or_fail(server: Any, call: FakeCall, principal: Principal, *rest: Any) -> None:
        if call.request == b"odd":
            raise OddError("odd")
        take(server, call, principal, *rest)

    monkeypatch.setattr(served_by, takes, take_or_fail)
    first, odd_one, acked, last = edge.begin_turn(
        ("SendMessage", send_request(1)),
        (method, b"odd"),
        ("AckMessage", ack_request()),
        ("SendMessage", send_request(2)),
    )
    assert (await status_of(odd_one)).code == INTERNAL
    assert (await send_status(first)).code == definition_pb2.OK
    assert (await send_status(last)).code == definition_pb2.OK
    assert (await ack_status(acked)).code != INTERNAL
    taken_out(failed_requests)


async def test_a_turn_that_finds_no_room_for_its_tasks_says_so(
    edge: FakeEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is a limit, no failure."""

    def full(*_: Any) -> NoReturn:
        raise TooManyTasksError("full")

    monkeypatch.setattr(Sender, "gather", full)
    call = edge.begin("SendMessage", send_request(1))
    assert (await send_status(call)).code == definition_pb2.TOO_MANY_REQUESTS


async def test_a_receive_that_finds_no_room_for_its_task_is_not_counted_as_parked(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often that happens, the limits of its client and address stay as they were."""
    spawn = RequestTasks.spawn

    def full(tasks: Any, name: str, work: Any, on_failure: Any = None) -> Any:
        if name == "receive":
            work.close()
            raise TooManyTasksError("full")
        return spawn(tasks, name, work, on_failure)

    monkeypatch.setattr(RequestTasks, "spawn", full)
    for _ in range(3):
        call = edge.begin("ReceiveMessage", receive_request("orders", "g"))
        assert (await receive_status(call)).code == definition_pb2.TOO_MANY_REQUESTS
    assert app._receiver._admission.used == 0
    monkeypatch.undo()
    waiting = edge.begin("ReceiveMessage", receive_request("orders", "g"))
    await until(lambda: app._receiver._admission.used == 1)
    waiting.leave()
    await until(lambda: app._receiver._admission.used == 0)


async def test_a_receive_that_fails_later_is_answered(
    client: Client,
    app: BrokerApp,
    monkeypatch: pytest.MonkeyPatch,
    failed_requests: Failed,
) -> None:
    """Its task ends; the broker goes on, and nothing of the call is left."""
    monkeypatch.setattr("strata_broker.receives.popper.Popper.pop", odd_later)
    assert (await client.receive("orders", "g"))[0].code == INTERNAL
    taken_out(failed_requests)
    monkeypatch.undo()
    assert (await client.send(message("orders", 1))).status.code == definition_pb2.OK
    assert len(app.requests) == 0


async def test_a_send_that_cannot_be_staged_keeps_no_budget(
    client: Client, app: BrokerApp, monkeypatch: pytest.MonkeyPatch, failed_requests: Failed
) -> None:
    """The budget is given back, whatever goes wrong after it was charged."""
    monkeypatch.setattr(Appender, "stage", odd)
    assert (await client.send(message("orders", 1))).status.code == INTERNAL
    taken_out(failed_requests)
    assert app.send_budget.used_bytes == 0


async def test_a_waiter_that_fails_leaves_the_others_of_its_batch_alone(
    edge: FakeEdge, monkeypatch: pytest.MonkeyPatch, failed_requests: Failed
) -> None:
    """Both sends, of messages to two queues, are in one batch; one fails for one of its queues."""
    stored = PendingSend.stored
    met: list[PendingSend] = []

    def stored_or_fail(waiter: PendingSend, *args: Any) -> None:
        met.append(waiter)
        if len(met) == 1:
            raise OddError("odd")
        stored(waiter, *args)

    monkeypatch.setattr(PendingSend, "stored", stored_or_fail)
    ordered = [
        message("fifo", number, message_type=definition_pb2.FIFO, message_group=f"g{number}")
        for number in range(4)
    ]
    request = service_pb2.SendMessageRequest(messages=ordered)
    first, second = edge.begin_turn(("SendMessage", request), ("SendMessage", request))
    codes = sorted([(await send_status(first)).code, (await send_status(second)).code])
    assert codes == [definition_pb2.OK, definition_pb2.MULTIPLE_RESULTS]
    taken_out(failed_requests)


async def test_a_gathered_send_that_fails_leaves_the_others_of_its_entry_alone(
    edge: FakeEdge, app: BrokerApp, monkeypatch: pytest.MonkeyPatch, failed_requests: Failed
) -> None:
    """Both messages are stored as one entry; the send that fails is told so, the other is OK."""
    calls = edge.begin_turn(("SendMessage", send_request(1)), ("SendMessage", send_request(2)))

    def complete_or_fail(responses: Sequence[bytes]) -> None:
        monkeypatch.undo()
        raise OddError("odd")

    monkeypatch.setattr(calls[0], "complete", complete_or_fail)
    codes = [(await send_status(call)).code for call in calls]
    assert codes == [INTERNAL, definition_pb2.OK]
    assert app.send_budget.used_bytes == 0
    taken_out(failed_requests)


async def test_an_ack_that_fails_leaves_the_others_of_its_lane_alone(
    edge: FakeEdge,
    client: Client,
    app: BrokerApp,
    monkeypatch: pytest.MonkeyPatch,
    failed_requests: Failed,
) -> None:
    """Two acks go to storage in one call: the one that fails is told so; later acks are OK too."""
    acks = []
    for number in range(3):
        await client.send(message("orders", number))
        (got,) = await client.receive_all("orders", "g")
        ack = ack_request()
        ack.entries.add(receipt_handle=got.system_properties.receipt_handle)
        acks.append(ack)
    settled = PendingAck.settled
    met: list[PendingAck] = []

    def settled_or_fail(waiter: PendingAck, *args: Any) -> None:
        met.append(waiter)
        if waiter is met[0]:
            raise OddError("odd")
        settled(waiter, *args)

    monkeypatch.setattr(PendingAck, "settled", settled_or_fail)
    first, second = edge.begin_turn(("AckMessage", acks[0]), ("AckMessage", acks[1]))
    codes = sorted([(await ack_status(first)).code, (await ack_status(second)).code])
    assert codes == [definition_pb2.OK, INTERNAL]
    third = edge.begin("AckMessage", acks[2])
    assert (await ack_status(third)).code == definition_pb2.OK
    taken_out(failed_requests)
    app._metrics.read_gauges()
    held = 'strata_limit_used{limit="ack requests",of="bytes"} 0'
    assert held in app._metrics.render().decode()


@pytest.mark.parametrize("told", ["settled", "failed"])
async def test_an_ack_that_fails_twice_ends_no_lane(
    edge: FakeEdge,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    failed_requests: Failed,
    told: str,
) -> None:
    """Also of a request that is told of two raft groups, and when its refusal fails as well."""
    handles: dict[int, str] = {}
    last = ""
    for number in range(40):
        await client.send(message("orders", number))
        (got,) = await client.receive_all("orders", "g")
        last = got.system_properties.receipt_handle
        if len(handles) == 2:
            break
        handles[decode_handle(last).raft_group] = last
    both = ack_request()
    for handle in handles.values():
        both.entries.add(receipt_handle=handle)
    assert len(both.entries) == 2
    monkeypatch.setattr(PendingAck, "settled", odd)
    if told == "failed":
        monkeypatch.setattr(PendingAck, "failed", odd)
    call = edge.begin("AckMessage", both)
    count = 4 if told == "failed" else 2
    await until(lambda: len(failed_requests) == count)
    if told == "settled":
        assert (await ack_status(call)).code == INTERNAL
    monkeypatch.undo()
    again = ack_request()
    again.entries.add(receipt_handle=last)
    assert (await ack_status(edge.begin("AckMessage", again))).code == definition_pb2.OK
    taken_out(failed_requests, count=count)


async def test_a_batch_that_is_refused_tells_every_waiter(
    edge: FakeEdge,
    app: BrokerApp,
    storage: FakeStorage,
    monkeypatch: pytest.MonkeyPatch,
    failed_requests: Failed,
) -> None:
    """One waiter's failure leaves the others of its batch alone also when storage refuses it."""
    refused = PendingSend.refused
    met: list[PendingSend] = []

    def refused_or_fail(waiter: PendingSend, *args: Any) -> None:
        met.append(waiter)
        if waiter is met[0]:
            raise OddError("odd")
        refused(waiter, *args)

    monkeypatch.setattr(PendingSend, "refused", refused_or_fail)
    full = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_DISK_FULL)
    storage.trouble["Append"].append(full)
    first, second = edge.begin_turn(
        ("SendMessage", send_request(1)), ("SendMessage", send_request(1))
    )
    said = [(await send_status(call)).message for call in (first, second)]
    assert sum("failed unexpectedly" in text for text in said) == 1
    assert app.send_budget.used_bytes == 0
    taken_out(failed_requests)


async def test_a_rare_call_that_fails_is_answered_with_a_status(
    edge: FakeEdge, monkeypatch: pytest.MonkeyPatch, failed_requests: Failed
) -> None:
    """RocketMQ's clients are told in the response, operators by gRPC."""
    monkeypatch.setattr("strata_broker.clients.route.Routes.route", odd)
    request = service_pb2.QueryRouteRequest(topic=resource("orders"))
    request.endpoints.addresses.add(host="127.0.0.1", port=1)
    response = await edge.call(MESSAGING + "QueryRoute", request, service_pb2.QueryRouteResponse)
    assert response.status.code == INTERNAL
    taken_out(failed_requests)

    monkeypatch.setattr("strata_broker.operators.topics.Operations.topic", odd)
    with pytest.raises(CallError) as ended:
        await edge.call(
            ADMIN + "GetTopic", admin_pb2.GetTopicRequest(name="orders"), admin_pb2.GetTopicResponse
        )
    assert ended.value.status == "INTERNAL"
    taken_out(failed_requests)


async def frames(*commands: service_pb2.TelemetryCommand) -> AsyncIterator[bytes]:
    """Yield the commands of a client on its stream."""
    for command in commands:
        yield command.SerializeToString()
    await asyncio.Event().wait()


async def test_a_stream_whose_frame_fails_ends_alone(
    edge: FakeEdge, monkeypatch: pytest.MonkeyPatch, failed_requests: Failed
) -> None:
    """The broker goes on, the stream's client is told."""
    monkeypatch.setattr("strata_broker.clients.settings.check", odd)
    said = service_pb2.TelemetryCommand(settings=definition_pb2.Settings())
    stream = edge.open_stream(MESSAGING + "Telemetry", frames(said), METADATA)
    with pytest.raises(CallError) as ended:
        await anext(stream)
    assert ended.value.status == "INTERNAL"
    taken_out(failed_requests)


@pytest.mark.parametrize("key", ["base64:é", "base64:x", "base64:\ud7ff"])
async def test_a_key_that_is_no_base64_is_refused(client: Client, key: str) -> None:
    """Also text that is no ASCII, of which base64 says something else."""
    one = message("orders", 1)
    one.user_properties.update({"kv_opType": "PUT", "key": key})
    sent = await client.send(one)
    assert [entry.status.code for entry in sent.entries] == [definition_pb2.BAD_REQUEST]
    assert "not base64" in sent.entries[0].status.message


async def test_a_write_that_fails_unexpectedly_answers_its_send(
    client: Client, monkeypatch: pytest.MonkeyPatch, failed_requests: Failed
) -> None:
    """A message that is a write is a request like others."""
    monkeypatch.setattr("strata_broker.kv.message_form._operation", odd)
    one = message("orders", 1)
    one.user_properties.update({"kv_opType": "PUT", "key": "k"})
    assert (await client.send(one)).status.code == INTERNAL
    taken_out(failed_requests)
