"""Sends that differ in their messages only are decided once, and each is answered by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base import wire
from strata_broker.base.config import BrokerConfig
from strata_broker.remoting.face_calls import FaceCaller, FaceSend
from strata_broker.sends import alike_sends
from strata_broker.sends.alike_sends import AlikeSend
from strata_broker.sends.answers import answer_each
from strata_broker.sends.send_pass import new_send_pass
from strata_edge.choice import HOW_TO_GET_IT, installed_passes
from strata_edge.passes import SendPass
from strata_edge.ports import HotCall
from strata_mq.layout import OutgoingMessage
from strata_mq.requests import Limits, MessageType
from strata_testing.broker import broker_config
from strata_testing.broker.client import id_of, message
from strata_testing.broker.fake_edge import METADATA, FakeCall, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from tests.parts.required import absent

OK = definition_pb2.OK
MAX_REQUEST_BYTES = 1_000
ENTRY_BYTES = 256 * 1024
MARK = "of-a-plugin"
Failed = list[tuple[str, BaseException]]


@pytest.fixture(scope="module")
def send_pass() -> SendPass[OutgoingMessage]:
    """The pass of a broker with one plugin."""
    passes = installed_passes()
    if passes is None:
        absent(f"the native edge: {HOW_TO_GET_IT}")
    return new_send_pass(passes, Limits(), 32, marks=(MARK,))


@pytest.fixture
def config() -> BrokerConfig:
    """With tables, whose messages are a plugin's, and large requests in entries."""
    send = {"large_request_bytes": 2 * ENTRY_BYTES}
    return broker_config(plugins=["kv"], send=send)


@pytest.fixture
def meta() -> FakeMeta:
    """The nameserver, with a topic in two raft groups, one of another type and a broker's own."""
    fake = FakeMeta()
    fake.add_topic("__strata_audit")
    fake.add_topic("orders")
    fake.add_topic("narrow", queue_count=1)
    fake.add_topic("fifo", meta_pb2.TOPIC_TYPE_FIFO)
    fake.add_topic("delay", meta_pb2.TOPIC_TYPE_DELAY)
    fake.add_topic("halves", meta_pb2.TOPIC_TYPE_TRANSACTION)
    return fake


@pytest.fixture
def alone(app: BrokerApp, monkeypatch: pytest.MonkeyPatch) -> list[HotCall]:
    """Calls that were taken one by one."""
    taken: list[HotCall] = []
    gather = app._sender.gather

    def watched(call: Any, *arguments: Any) -> None:
        taken.append(call)
        gather(call, *arguments)

    monkeypatch.setattr(app._sender, "gather", watched)
    return taken


def request_of(*messages: definition_pb2.Message) -> bytes:
    return service_pb2.SendMessageRequest(messages=messages).SerializeToString()


def send_of(*messages: definition_pb2.Message) -> tuple[str, bytes]:
    return "SendMessage", request_of(*messages)


def a_call(
    *messages: definition_pb2.Message,
    metadata: Mapping[str, str] = METADATA,
    time_left_s: float | None = 25.0,
) -> FakeCall:
    return FakeCall("SendMessage", request_of(*messages), metadata, time_left_s=time_left_s)


async def answers_of(calls: Sequence[FakeCall]) -> list[service_pb2.SendMessageResponse]:
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*(call.answer for call in calls))
    return [service_pb2.SendMessageResponse.FromString(answer) for (answer,) in answers]


async def codes_of(calls: Sequence[FakeCall]) -> list[int]:
    return [answer.status.code for answer in await answers_of(calls)]


async def test_calls_with_the_same_headers_topic_and_time_are_a_group(
    send_pass: SendPass[OutgoingMessage],
) -> None:
    """In the order in which they came; what one of them has differently makes another group."""
    other_client = MappingProxyType({**METADATA})
    calls = [
        a_call(message("orders", 1), time_left_s=3.001),
        a_call(message("orders", 2), message("orders", 3), time_left_s=3.009),
        a_call(message("narrow", 4), time_left_s=3.0),
        a_call(message("orders", 5, namespace="n"), time_left_s=3.0),
        a_call(message("orders", 6), time_left_s=None),
        a_call(message("orders", 7), metadata=other_client, time_left_s=3.0),
        a_call(message("orders", 8), time_left_s=2.99),
        a_call(message("orders", 9), time_left_s=3.005),
        a_call(message("orders", 10, message_group="g"), time_left_s=3.0),
    ]
    groups, others = send_pass.gather(calls, MAX_REQUEST_BYTES)
    assert not others
    assert [[calls.index(call) for call in group[5]] for group in groups] == [
        [0, 1, 7],
        [2],
        [3],
        [4],
        [5],
        [6],
        [8],
    ]
    metadata, peer, namespace, name, kind, _, message_ids, sizes_bytes, left_s = groups[0]
    assert metadata is METADATA
    assert (peer, namespace, name, left_s) == (calls[0].peer, "", "orders", 3.001)
    assert (kind, groups[6][4]) == (MessageType.NORMAL, MessageType.FIFO)
    assert message_ids == [[id_of(1)], [id_of(2), id_of(3)], [id_of(9)]]
    assert sizes_bytes == [len(calls[number].request) for number in (0, 1, 7)]
    assert (groups[2][2], groups[3][8], groups[4][0] is other_client) == ("n", None, True)


async def test_calls_that_are_not_usual_are_in_no_group(
    send_pass: SendPass[OutgoingMessage],
) -> None:
    """Mixed messages, large requests, and what the twin refuses or a plugin takes."""
    marked = message("orders", 1)
    marked.user_properties[MARK] = "x"
    usual = a_call(message("orders", 2))
    others = [
        a_call(message("orders", 3), message("orders", 3, message_group="g")),
        a_call(message("orders", 4), message("orders", 5, message_type=definition_pb2.TRANSACTION)),
        a_call(message("orders", 6, body=bytes(MAX_REQUEST_BYTES))),
        a_call(message("orders", 7, tag="a|b")),
        a_call(message("orders", 8), message("narrow", 9)),
        a_call(marked),
        a_call(),
    ]
    groups, left = send_pass.gather([*others, usual], MAX_REQUEST_BYTES)
    assert [group[5] for group in groups] == [[usual]]
    assert left == others


async def test_answers_of_the_pass_are_those_of_its_twin(
    send_pass: SendPass[OutgoingMessage],
) -> None:
    """And so are failures: a call that fails to take its answer leaves the others alone."""
    message_ids = [[id_of(1)], [id_of(2), id_of(3)], [id_of(4)]]
    offsets = [0, 7, 1 << 40, 9]
    twins: Sequence[Callable[..., list[tuple[int, Exception]]]] = (
        answer_each,
        send_pass.answer_each,
    )
    for twin in twins:
        calls = [a_call(message("orders", number)) for number in range(3)]
        odd = ValueError("odd")

        def fail(_: Sequence[bytes], failure: Exception = odd) -> None:
            raise failure

        calls[1].complete = fail  # type: ignore[method-assign, assignment]
        assert twin(calls, message_ids, offsets) == [(1, odd)]
        for call, ids, own in ((calls[0], message_ids[0], [0]), (calls[2], message_ids[2], [9])):
            assert tuple(call.answer.result()) == (wire.sent(ids, own),)
        assert not calls[1].done()
    for wrong in ((message_ids, offsets[1:]), (message_ids[1:], offsets[1:])):
        calls = [a_call(message("orders", number)) for number in range(3)]
        with pytest.raises(ValueError, match="an offset for each message is needed"):
            send_pass.answer_each(calls, *wrong)
        assert not any(call.done() for call in calls)


async def test_sends_that_are_alike_are_looked_at_once(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage, alone: list[HotCall]
) -> None:
    """A send that is not usual goes its own way between them; every call gets its own answer."""
    unusual = message("narrow", 3)
    unusual.user_properties["name"] = "\u00e9"
    calls = edge.begin_turn(
        send_of(message("narrow", 1)),
        send_of(message("narrow", 2), message("narrow", 4)),
        send_of(unusual),
        send_of(message("narrow", 5)),
    )
    if edge.passes is not None:
        assert alone == [calls[2]]
    answers = await answers_of(calls)
    assert [[entry.message_id for entry in answer.entries] for answer in answers] == [
        [id_of(1)],
        [id_of(2), id_of(4)],
        [id_of(3)],
        [id_of(5)],
    ]
    offsets = [[entry.offset for entry in answer.entries] for answer in answers]
    assert sorted(offsets) == [[0], [1, 2], [3], [4]]
    assert app.send_budget.used_bytes == 0
    assert app._sender.recorder.messages_in == 5


async def test_ordered_messages_of_a_client_keep_the_order_of_a_turn(
    app: BrokerApp, edge: FakeEdge, alone: list[HotCall]
) -> None:
    """They are taken together only where that is no other order."""

    def fifo(number: int, time_left_s: float = 3.0, **properties: Any) -> FakeCall:
        kind = definition_pb2.FIFO
        one = message("fifo", number, message_type=kind, message_group="g", **properties)
        return a_call(one, time_left_s=time_left_s)

    turns = (
        ([fifo(1), fifo(2), fifo(3)], False),
        ([fifo(4), fifo(5, 2.5), fifo(6)], True),
        ([fifo(7), fifo(8, keys=["\u00e9"]), fifo(9)], True),
    )
    first = 0
    for calls, is_alone in turns:
        alone.clear()
        assert edge.hot is not None
        edge.hot.handle(calls)
        offsets = [answer.entries[0].offset for answer in await answers_of(calls)]
        assert offsets == list(range(first, first + 3))
        first += 3
        if edge.passes is not None:
            assert alone == (calls if is_alone else [])


def fifo_send(first: int, *message_groups: int) -> tuple[str, bytes]:
    """A request with a message of each of the message groups."""
    kind = definition_pb2.FIFO
    return send_of(
        *(
            message("fifo", first + number, message_type=kind, message_group=f"g{message_group}")
            for number, message_group in enumerate(message_groups)
        )
    )


async def test_ordered_messages_of_a_turn_go_where_their_message_groups_say(
    edge: FakeEdge, storage: FakeStorage
) -> None:
    """In the order of the turn, also those of requests with several messages."""
    singles = [(number % 6,) for number in range(15)]
    for requests in (singles, [*singles[:7], (4, 0), (1, 1), *singles[7:]]):
        sends = [fifo_send(10 * number, *names) for number, names in enumerate(requests)]
        storage.queues.clear()
        await answers_of(edge.begin_turn(*sends))
        together = dict(storage.queues)
        storage.queues.clear()
        storage.ids.clear()
        for send in sends:
            await answers_of([edge.begin(*send, METADATA)])
        assert together == storage.queues
        storage.ids.clear()
        assert len(together) > 2


async def test_an_ordered_message_without_a_queue_is_refused_by_itself(
    edge: FakeEdge, app: BrokerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its turn that have one are stored."""
    view = app._sender._view
    owner = view.owner
    monkeypatch.setattr(view, "owner", lambda topic, queue: queue and owner(topic, queue))
    codes = await codes_of(edge.begin_turn(*(fifo_send(number, number) for number in range(20))))
    assert set(codes) == {OK, definition_pb2.FORBIDDEN}
    for number, code in enumerate(codes):
        assert await codes_of([edge.begin(*fifo_send(100 + number, number), METADATA)]) == [code]


async def test_a_message_that_waits_too_long_is_refused_by_itself(
    edge: FakeEdge, app: BrokerApp
) -> None:
    """The others of its group are stored; halves of several messages are refused as alone."""
    far, near = (1 << 40), int(time.time()) + 60
    kind = definition_pb2.DELAY

    def delayed(number: int, due_s: int) -> tuple[str, bytes]:
        due = Timestamp(seconds=due_s)
        return send_of(message("delay", number, message_type=kind, delivery_timestamp=due))

    calls = edge.begin_turn(delayed(1, near), delayed(2, far), delayed(3, near))
    codes = await codes_of(calls)
    assert codes == [OK, definition_pb2.ILLEGAL_DELIVERY_TIME, OK]
    halves = [
        message("halves", number, message_type=definition_pb2.TRANSACTION) for number in (1, 2)
    ]
    codes = await codes_of(edge.begin_turn(send_of(*halves), send_of(halves[0])))
    assert codes == [definition_pb2.MESSAGE_CORRUPTED, OK]
    assert app.send_budget.used_bytes == 0


async def test_what_speaks_against_sends_is_told_to_each_of_them(
    edge: FakeEdge, alone: list[HotCall]
) -> None:
    """Codes and texts are those of a send that comes alone."""
    no_client: Mapping[str, str] = MappingProxyType({})
    queued = MappingProxyType({**METADATA, "x-strata-queue": "77"})
    cases = (
        ("nowhere", METADATA, definition_pb2.TOPIC_NOT_FOUND),
        ("__strata_audit", METADATA, definition_pb2.ILLEGAL_TOPIC),
        ("fifo", METADATA, definition_pb2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("orders", no_client, definition_pb2.CLIENT_ID_REQUIRED),
        ("orders", queued, definition_pb2.BAD_REQUEST),
    )
    for topic, metadata, code in cases:
        alone.clear()
        sends = [send_of(message(topic, number)) for number in (1, 2)]
        together = await answers_of(edge.begin_turn(*sends, metadata=metadata))
        assert len(alone) == 2, topic
        by_itself = await answers_of([edge.begin(*sends[0], metadata)])
        assert [answer.status for answer in together] == [by_itself[0].status] * 2, topic
        assert by_itself[0].status.code == code


async def test_sends_of_remoting_clients_are_taken_by_themselves(
    edge: FakeEdge, alone: list[HotCall]
) -> None:
    """Each names a queue, which no header says."""
    caller = FaceCaller(METADATA, "127.0.0.1:5555")
    calls = [FaceSend(request_of(message("orders", queue)), caller, queue) for queue in (1, 2)]
    assert edge.hot is not None
    edge.hot.handle(calls)
    assert alone == calls
    answers = [service_pb2.SendMessageResponse.FromString((await c.answer)[0]) for c in calls]
    assert [answer.entries[0].offset for answer in answers] == [0, 0]


async def test_messages_of_a_plugin_are_the_plugins(edge: FakeEdge, alone: list[HotCall]) -> None:
    """A write of a table among sends is none; the topic of its name does not matter."""
    write = message("orders", 1)
    write.user_properties["kv_opType"] = "PUT"
    calls = edge.begin_turn(
        send_of(message("orders", 2)), send_of(write), send_of(message("orders", 3))
    )
    first, kv, last = await codes_of(calls)
    assert (first, last) == (OK, OK)
    assert kv != OK
    assert calls[1] not in alone


async def test_a_turn_fills_several_entries(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """No entry takes more once it is full, so none keeps the bytes of a whole turn."""
    storage.gate = asyncio.Event()
    calls = edge.begin_turn(
        *(send_of(message("narrow", number, body=bytes(100_000))) for number in range(7))
    )
    lanes = app._storage.appender._groups.values()
    entries = [entry for lane in lanes for batch in lane.waiting for entry in batch.entries]
    assert [len(entry.indexes) for entry in entries] == [3, 3, 1]
    storage.gate.set()
    answers = await answers_of(calls)
    assert [answer.entries[0].offset for answer in answers] == list(range(7))
    assert app.send_budget.used_bytes == 0


async def test_a_failure_of_the_pass_is_none_of_the_sends(
    app: BrokerApp, edge: FakeEdge, monkeypatch: pytest.MonkeyPatch, failed_requests: Failed
) -> None:
    """It is told; every send is read and prepared by itself."""
    if edge.passes is None:
        absent(f"the native edge: {HOW_TO_GET_IT}")

    def odd(*_: Any) -> None:
        raise ValueError("odd")

    sends = [send_of(message("orders", number)) for number in (1, 2, 3)]
    alike, preparer = app._sender._alike, app._sender._preparer
    assert alike is not None
    with monkeypatch.context() as patched:
        patched.setattr(alike, "_pass", None)
        assert await codes_of(edge.begin_turn(*sends)) == [OK] * 3
    for owner, name in ((alike_sends, "caller_of"), (preparer, "store_each")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, odd)
            assert await codes_of(edge.begin_turn(*sends)) == [OK] * 3
    failures = [type(failure) for _, failure in failed_requests]
    assert failures[0] is AttributeError
    assert set(failures[1:]) == {ValueError}
    failed_requests.clear()


async def test_a_failure_to_place_ordered_sends_is_none_of_the_others(
    app: BrokerApp, edge: FakeEdge, monkeypatch: pytest.MonkeyPatch, failed_requests: Failed
) -> None:
    """Each of them is refused by itself; sends of the same turn to other topics are stored."""
    destinations = app._sender.destinations

    def odd(topic: Any, *arguments: Any) -> Any:
        if topic.name == "fifo":
            raise ValueError("odd")
        return destinations(topic, *arguments)

    monkeypatch.setattr(app._sender, "destinations", odd)
    calls = edge.begin_turn(fifo_send(1, 1), fifo_send(2, 2), send_of(message("orders", 3)))
    internal = definition_pb2.INTERNAL_SERVER_ERROR
    assert await codes_of(calls) == [internal, internal, OK]
    assert {str(failure) for _, failure in failed_requests} == {"odd"}
    failed_requests.clear()


async def test_sends_of_a_connection_that_waits_go_into_its_line(
    app: BrokerApp, edge: FakeEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Being alike is no way around the pace of refused calls."""
    if edge.passes is None:
        absent(f"the native edge: {HOW_TO_GET_IT}")
    paced = edge.hot._paced  # type: ignore[union-attr]
    taken: list[AlikeSend] = []
    monkeypatch.setattr(paced, "lets_pass", lambda peer: False)
    monkeypatch.setattr(app._sender._alike, "_gather", taken.append)
    calls = edge.begin_turn(send_of(message("orders", 1)), send_of(message("orders", 2)))
    assert await codes_of(calls) == [OK, OK]
    assert not taken
