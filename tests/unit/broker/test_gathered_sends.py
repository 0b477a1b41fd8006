"""Sends that arrive together are staged together; each one is answered as if it came alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_broker.metadata.topic_rows import TopicRow
from strata_broker.sends.gathered_entry import GatheredEntry
from strata_broker.sends.outgoing import ParsedSend
from strata_broker.storage_client.append_batches import StagedMessages
from strata_mq.layout import OutgoingMessage, pack_message_id
from strata_mq.slots import preferred_group
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.client import id_of, message
from strata_testing.broker.fake_edge import FakeCall, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage

OK = definition_pb2.OK
MAX_BYTES = 4_000_000


@pytest.fixture
def config() -> BrokerConfig:
    """With room for a few large messages, which are gathered as small ones are."""
    send = {"max_raft_group_bytes_in_flight": MAX_BYTES, "large_request_bytes": 2 * MAX_BYTES}
    return broker_config(send=send)


@pytest.fixture
def meta() -> FakeMeta:
    """The nameserver; the topic `narrow` is in one raft group, `orders` in two."""
    fake = FakeMeta()
    fake.add_topic("orders")
    fake.add_topic("fifo", meta_pb2.TOPIC_TYPE_FIFO)
    fake.add_topic("narrow", queue_count=1)
    return fake


def send_of(*messages: definition_pb2.Message) -> tuple[str, service_pb2.SendMessageRequest]:
    return "SendMessage", service_pb2.SendMessageRequest(messages=messages)


async def answers_of(calls: Sequence[FakeCall]) -> list[service_pb2.SendMessageResponse]:
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*(call.answer for call in calls))
    return [service_pb2.SendMessageResponse.FromString(answer) for (answer,) in answers]


async def topic_of(app: BrokerApp, meta: FakeMeta, name: str) -> TopicRow:
    """Return a topic once the broker has it."""
    assert await app.view.wait_for_revision(meta.revision, 60)
    topic = app.view.topic("", name)
    assert topic is not None
    return topic


def entries_of(app: BrokerApp) -> list[StagedMessages]:
    """Return the entries of all batches that wait or are under way."""
    lanes = app._storage.appender._groups.values()
    return [entry for lane in lanes for batch in lane.waiting for entry in batch.entries]


async def test_sends_of_a_turn_are_one_entry_and_get_their_own_answers(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """Ids and offsets belong together, in the order in which the calls came."""
    storage.gate = asyncio.Event()
    requests = [range(0, 1), range(1, 2), range(2, 5), range(5, 6), range(6, 9)]
    calls = edge.begin_turn(
        *(send_of(*(message("narrow", number) for number in numbers)) for numbers in requests)
    )
    assert [len(entry.indexes) for entry in entries_of(app)] == [9]
    storage.gate.set()
    for numbers, answer in zip(requests, await answers_of(calls), strict=True):
        assert answer.status.code == OK
        assert [entry.status.code for entry in answer.entries] == [OK] * len(numbers)
        assert [entry.offset for entry in answer.entries] == list(numbers)
        ids = [id_of(number) for number in numbers]
        assert [entry.message_id for entry in answer.entries] == ids
        assert [entry.transaction_id for entry in answer.entries] == ids
    assert app.send_budget.used_bytes == 0
    assert app._sender.recorder.messages_in == 9
    latency = app._metrics.histogram("rocketmq_rpc_latency")
    assert latency.count({"request_code": "send_message", "response_code": "ok"}) == 5


async def test_successive_messages_of_a_client_are_one_entry(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """Though two raft groups have queues of the topic; messages of many clients use both."""
    storage.gate = asyncio.Event()
    ids = [f"01{7:016X}{9:08X}{number:08X}" for number in range(12)]
    calls = edge.begin_turn(*(send_of(message("orders", 1, message_id=each)) for each in ids))
    assert [len(entry.indexes) for entry in entries_of(app)] == [12]
    storage.gate.set()
    answers = await answers_of(calls)
    assert [answer.entries[0].message_id for answer in answers] == ids
    storage.gate.clear()
    others = edge.begin_turn(*(send_of(message("orders", number)) for number in range(1, 13)))
    assert sorted(len(entry.indexes) for entry in entries_of(app)) == [5, 7]
    storage.gate.set()
    assert {answer.status.code for answer in await answers_of(others)} == {OK}


async def test_sends_that_are_settled_in_parts_are_answered_once(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """Their messages do not fit into one batch; one send has messages in both of them."""
    bodies = (400_000, 200_000, 600_000)
    calls = edge.begin_turn(
        send_of(*(message("narrow", n, body=bytes(size)) for n, size in enumerate(bodies))),
        send_of(message("narrow", 3)),
    )
    long, short = await answers_of(calls)
    assert storage.count("Append") == 2
    assert [entry.offset for entry in long.entries] == [0, 1, 2]
    assert [entry.offset for entry in short.entries] == [3]
    assert app.send_budget.used_bytes == 0
    assert app._sender.recorder.messages_in == 4


async def test_a_message_that_is_refused_leaves_the_others_of_its_turn_alone(
    edge: FakeEdge, storage: FakeStorage
) -> None:
    """Sends with mistakes and sends to other topics are between those that are gathered."""
    calls = edge.begin_turn(
        send_of(message("orders", 1)),
        send_of(message("orders", 2, tag="a|b")),
        send_of(message("nowhere", 3)),
        send_of(message("fifo", 4, message_type=definition_pb2.FIFO, message_group="g")),
        send_of(message("orders", 5), message("orders", 6)),
        send_of(message("orders", 7)),
    )
    answers = await answers_of(calls)
    assert [answer.status.code for answer in answers] == [
        OK,
        definition_pb2.ILLEGAL_MESSAGE_TAG,
        definition_pb2.TOPIC_NOT_FOUND,
        OK,
        OK,
        OK,
    ]
    assert len(storage.messages(101)) == 4


async def test_a_mistake_in_preparing_a_turn_ends_only_its_send(
    app: BrokerApp,
    edge: FakeEdge,
    storage: FakeStorage,
    *,
    monkeypatch: pytest.MonkeyPatch,
    failed_requests: list[tuple[str, BaseException]],
) -> None:
    """The pass over all of them fails for one: the others are prepared each by itself."""
    preparer = app._sender._preparer
    prepare_each, store_each = preparer.prepare_each, preparer.store_each

    def failing(
        sends: Sequence[ParsedSend], topics: Sequence[TopicRow]
    ) -> Sequence[Sequence[OutgoingMessage]]:
        if any(id_of(2) in send.message_ids for send in sends):
            raise RuntimeError("made by a test")
        return prepare_each(sends, topics)

    def failing_together(
        requests: Sequence[bytes], client_ids: Sequence[str]
    ) -> Sequence[Sequence[OutgoingMessage]]:
        if any(id_of(2).encode() in request for request in requests):
            raise RuntimeError("made by a test")
        return store_each(requests, client_ids)

    monkeypatch.setattr(preparer, "prepare_each", failing)
    monkeypatch.setattr(preparer, "store_each", failing_together)
    topics = ("orders", "orders", "narrow")
    calls = edge.begin_turn(
        *(send_of(message(topic, number)) for number, topic in enumerate(topics, 1))
    )
    codes = [answer.status.code for answer in await answers_of(calls)]
    assert codes == [OK, definition_pb2.INTERNAL_SERVER_ERROR, OK]
    # Once for all of them, once for the one.
    assert [str(failure) for _, failure in failed_requests] == ["made by a test"] * 2
    failed_requests.clear()
    assert len(storage.messages(101)) == 1
    assert app.send_budget.used_bytes == 0


INTERNAL = definition_pb2.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize("fails", ["charging", "staging", "counting"])
async def test_a_mistake_in_staging_leaves_nothing_charged_and_nobody_without_answer(
    app: BrokerApp,
    edge: FakeEdge,
    monkeypatch: pytest.MonkeyPatch,
    failed_requests: list[tuple[str, BaseException]],
    *,
    fails: str,
) -> None:
    """Sends whose messages are stored are told so, whatever fails behind it."""

    def fail(*_: object, **__: object) -> Any:
        raise ZeroDivisionError

    owner, name = {
        "charging": (app.send_budget, "try_take"),
        "staging": (app._sender.appender, "stage"),
        "counting": (app._sender.recorder, "sent_together"),
    }[fails]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, fail)
        calls = edge.begin_turn(*(send_of(message("orders", number)) for number in range(1, 4)))
        codes = [answer.status.code for answer in await answers_of(calls)]
    assert codes == [OK if fails == "counting" else INTERNAL] * 3
    assert {type(failure) for _, failure in failed_requests} == {ZeroDivisionError}
    failed_requests.clear()
    assert app.send_budget.used_bytes == 0


async def test_of_sends_without_room_a_mistake_ends_only_its_own(
    app: BrokerApp,
    edge: FakeEdge,
    monkeypatch: pytest.MonkeyPatch,
    failed_requests: list[tuple[str, BaseException]],
) -> None:
    """They are staged one by one; the second one fails before it is charged."""
    monkeypatch.setattr(GatheredEntry, "charge", lambda _: False)
    destinations = app._sender.destinations

    def failing(topic: TopicRow, outgoing: Sequence[OutgoingMessage], *rest: Any) -> Any:
        if outgoing[0].message_id == pack_message_id(id_of(2)):
            raise ZeroDivisionError
        return destinations(topic, outgoing, *rest)

    monkeypatch.setattr(app._sender, "destinations", failing)
    calls = edge.begin_turn(*(send_of(message("orders", number)) for number in range(1, 4)))
    codes = [answer.status.code for answer in await answers_of(calls)]
    assert codes == [OK, INTERNAL, OK]
    assert [type(failure) for _, failure in failed_requests] == [ZeroDivisionError]
    failed_requests.clear()
    assert app.send_budget.used_bytes == 0


async def test_a_call_that_cannot_be_answered_is_counted_once(
    app: BrokerApp,
    edge: FakeEdge,
    monkeypatch: pytest.MonkeyPatch,
    failed_requests: list[tuple[str, BaseException]],
) -> None:
    """Neither its answer nor the error after it gets through; the others do."""
    complete = FakeCall.complete

    def failing(call: FakeCall, *answer: Any) -> None:
        if id_of(2).encode() in call.request:
            raise ZeroDivisionError
        complete(call, *answer)

    monkeypatch.setattr(FakeCall, "complete", failing)
    calls = edge.begin_turn(*(send_of(message("orders", number)) for number in range(1, 5)))
    others = [calls[0], *calls[2:]]
    assert [answer.status.code for answer in await answers_of(others)] == [OK] * 3
    assert len(failed_requests) == 2
    failed_requests.clear()
    assert app.send_budget.used_bytes == 0
    assert app._sender.recorder.messages_in == 3


async def test_the_budget_takes_of_a_turn_what_has_room(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """The first messages fit, a large one does not, a small one after it does."""
    storage.gate = asyncio.Event()
    sizes = (100_000, 100_000, 2_000_000, 1_000)
    calls = edge.begin_turn(
        *(send_of(message("orders", number, body=bytes(size))) for number, size in enumerate(sizes))
    )
    assert app.send_budget.used_bytes <= MAX_BYTES
    storage.gate.set()
    codes = [answer.status.code for answer in await answers_of(calls)]
    assert codes == [OK, OK, definition_pb2.TOO_MANY_REQUESTS, OK]
    assert app.send_budget.used_bytes == 0


async def test_a_refusal_reaches_every_send_of_an_entry(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """Each call has the code and the text, in its status and its entry."""
    refusal = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_DISK_FULL, reason="why")
    storage.trouble["Append"].append(refusal)
    calls = edge.begin_turn(*(send_of(message("orders", number)) for number in range(3)))
    for answer in await answers_of(calls):
        assert answer.status.code == definition_pb2.INTERNAL_SERVER_ERROR
        assert answer.entries[0].status == answer.status
    assert app.send_budget.used_bytes == 0


async def test_gathered_sends_follow_a_queue_that_moved(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage, meta: FakeMeta
) -> None:
    """The raft group refuses them; they go where the metadata says then, each message once."""
    for slot in range(len(storage.slots)):
        storage.slots[slot] = 2
    sent = [message("orders", number) for number in range(5)]
    calls = edge.begin_turn(*map(send_of, sent[:3]), send_of(*sent[3:]))
    await storage.called("Append")
    meta.put(meta_pb2.Change(slots=meta_pb2.SlotRange(first_slot=0, slot_count=4096, raft_group=2)))
    answers = await answers_of(calls)
    assert [answer.status.code for answer in answers] == [OK] * 4
    assert len(storage.messages(101)) == 5
    assert app.send_budget.used_bytes == 0


async def test_a_mistake_after_the_pause_for_a_moved_queue_ends_its_send(
    app: BrokerApp,
    edge: FakeEdge,
    storage: FakeStorage,
    monkeypatch: pytest.MonkeyPatch,
    failed_requests: list[tuple[str, BaseException]],
) -> None:
    """A timer calls: nobody else would tell the sender, or give its budget back."""
    topic_by_id, asked = app._sender.topic_by_id, 0

    def fail_after_the_pause(topic_id: int) -> TopicRow | None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise ZeroDivisionError
        return topic_by_id(topic_id)

    for slot in range(len(storage.slots)):
        storage.slots[slot] = 2
    monkeypatch.setattr(app._sender, "topic_by_id", fail_after_the_pause)
    calls = edge.begin_turn(send_of(message("orders", 1)))
    assert [answer.status.code for answer in await answers_of(calls)] == [INTERNAL]
    assert [type(failure) for _, failure in failed_requests] == [ZeroDivisionError]
    failed_requests.clear()
    assert app.send_budget.used_bytes == 0


async def test_sends_to_a_topic_with_moved_queues_are_gathered_by_destination(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage, meta: FakeMeta
) -> None:
    """A queue that moved is named; only a message that may be a repeat is looked for, alone."""
    topic = await topic_of(app, meta, "orders")
    first = meta_pb2.Epoch(epoch=0, raft_group=storage.slots[topic.slot_base])
    second = meta_pb2.Epoch(epoch=1, raft_group=3 - first.raft_group)
    row = meta_pb2.QueueOverride(topic_id=topic.topic_id, queue=0, epochs=[first, second])
    meta.put(meta_pb2.Change(queue_override=row))
    assert await app.view.wait_for_revision(meta.revision, 60)
    storage.slots[topic.slot_base] = second.raft_group
    assert set(app.view.moved_in(topic)) == {second.raft_group}

    storage.gate = asyncio.Event()
    young = [message("orders", number) for number in range(100)]
    for each in young:
        each.system_properties.born_timestamp.GetCurrentTime()
        each.system_properties.born_timestamp.seconds += 60
    suspect = message("orders", 100)
    calls = edge.begin_turn(*map(send_of, [*young[:50], suspect, *young[50:]]))
    entries = [len(entry.indexes) for entry in entries_of(app)]
    assert len(entries) == 3
    assert sum(entries) == len(young)
    storage.gate.set()
    answers = await answers_of(calls)
    assert {answer.status.code for answer in answers} == {OK}
    assert len(storage.messages(topic.topic_id)) == len(young) + 1
    looked_for = {
        request.message_id
        for _, request in storage.calls
        if isinstance(request, storage_pb2.QueryRequest)
    }
    assert looked_for == {suspect.system_properties.message_id}
    named = {id_of(number) for number in range(101)}
    queue = {stored.message_id for stored in storage.queues[topic.topic_id, 0]}
    assert queue == {
        pack_message_id(each)
        for each in named
        if app.view.queue_at(topic, second.raft_group, pack_message_id(each)) == 0
        and preferred_group(pack_message_id(each), (1, 2)) == second.raft_group
    }
    assert app.send_budget.used_bytes == 0


async def test_sends_with_different_deadlines_are_no_entry(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """An impatient sender is told when its time is over, a patient one waits on."""
    storage.gate = asyncio.Event()
    requests = [send_of(message("narrow", number)) for number in range(2)]
    patient, hasty = (
        FakeCall(method, request.SerializeToString(), time_left_s=time_left_s)
        for (method, request), time_left_s in zip(requests, (25.0, 0.05), strict=True)
    )
    assert edge.hot is not None
    edge.hot.handle([patient, hasty])
    (late,) = await answers_of([hasty])
    assert late.status.code != OK
    assert not patient.done()
    storage.gate.set()
    (answer,) = await answers_of([patient])
    assert answer.status.code == OK
    await until(lambda: app.send_budget.used_bytes == 0)


async def test_large_gathered_sends_are_several_entries(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """An entry holds the bytes of all of its messages until the last one is settled."""
    storage.gate = asyncio.Event()
    calls = edge.begin_turn(
        *(send_of(message("narrow", number, body=bytes(50_000))) for number in range(8))
    )
    counts = [len(entry.indexes) for entry in entries_of(app)]
    assert len(counts) > 1
    assert sum(counts) == 8
    storage.gate.set()
    offsets = [answer.entries[0].offset for answer in await answers_of(calls)]
    assert offsets == list(range(8))
