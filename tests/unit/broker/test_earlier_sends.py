"""A repeated send gets the answer of the first, also when its topic changed in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata_angelia.ports import UNAVAILABLE, AngeliaError
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_mq.layout.hashing import pack_message_id
from strata_mq.slots import preferred_group, slot_of
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, id_of, message
from strata_testing.broker.fake_edge import MESSAGING
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage

OK = definition_pb2.OK
NOW_MS = int(time.time() * 1000)


@pytest.fixture
def config() -> BrokerConfig:
    """Nothing is looked for after this."""
    return broker_config(send={"timeout_ms": 500})


@pytest.fixture
async def storage(meta: FakeMeta) -> FakeStorage:
    """Its clock is right."""
    node = FakeStorage(meta.slots)
    node.store_time_ms = NOW_MS
    return node


def one(number: int, *, born_ms: int = NOW_MS - 5_000, **properties: Any) -> definition_pb2.Message:
    """A message that was born a while ago."""
    made = message("orders", number, **properties)
    made.system_properties.born_timestamp.FromMilliseconds(born_ms)
    return made


def lookups(storage: FakeStorage) -> int:
    return storage.count("Query")


def one_later(number: int) -> definition_pb2.Message:
    """Return a message that waits in the topic `later`."""
    later = message("later", number, message_type=definition_pb2.DELAY)
    later.system_properties.born_timestamp.FromMilliseconds(NOW_MS - 5_000)
    later.system_properties.delivery_timestamp.FromMilliseconds(NOW_MS + 60_000)
    return later


async def move_all(
    app: BrokerApp,
    meta: FakeMeta,
    storage: FakeStorage,
    to: int,
    *,
    name: str = "orders",
    start_offset: int = 100,
    queues: Sequence[int] = range(4),
) -> None:
    """Move queues of a topic to one raft group, as the rows of moved queues say it."""
    topic = app.view.topic("", name)
    assert topic is not None
    for queue in queues:
        slot = slot_of(topic.slot_base, queue)
        owner = storage.slots[slot]
        if owner == to:
            continue
        override = meta_pb2.QueueOverride(topic_id=topic.topic_id, queue=queue)
        override.epochs.add(epoch=0, raft_group=owner)
        override.epochs.add(epoch=1, raft_group=to, start_offset=start_offset)
        meta.put(meta_pb2.Change(queue_override=override))
        storage.slots[slot] = to
    assert await app.view.wait_for_revision(meta.revision, 60)


async def give_slots(
    app: BrokerApp,
    meta: FakeMeta,
    storage: FakeStorage,
    to: int,
    *,
    name: str = "orders",
    queues: Sequence[int] = range(4),
) -> None:
    """Move the slots of empty queues of a topic to one raft group."""
    assert await app.view.wait_for_revision(meta.revision, 60)
    topic = app.view.topic("", name)
    assert topic is not None
    for queue in queues:
        slot = slot_of(topic.slot_base, queue)
        row = meta_pb2.SlotRange(first_slot=slot, slot_count=1, raft_group=to)
        row.revision = meta.revision + 1
        meta.put(meta_pb2.Change(slots=row))
        storage.slots[slot] = to
    assert await app.view.wait_for_revision(meta.revision, 60)


def number_at(raft_group: int) -> int:
    """Return the number of a message that goes to a raft group while both have queues."""
    return next(
        number
        for number in range(100)
        if preferred_group(pack_message_id(id_of(number)), (1, 2)) == raft_group
    )


async def test_a_repeat_after_a_move_gets_the_first_offset(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """It would go to another raft group, which does not know it."""
    number = number_at(1)
    first = await client.send(one(number))
    await move_all(app, meta, storage, 2)
    again = await client.send(one(number))
    assert again.status.code == OK
    assert again.entries[0].offset == first.entries[0].offset
    topic = app.view.topic("", "orders")
    assert topic is not None
    assert len(storage.messages(topic.topic_id)) == 1


@pytest.mark.parametrize("config", [broker_config(send={"max_repeat_lookups": 1})])
async def test_repeats_wait_for_room(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """None is stored without a look, also if a request has more messages than there is room for."""
    number = number_at(1)
    first = await client.send(one(number), one(1_000), one(1_001))
    await move_all(app, meta, storage, 2)
    again = await asyncio.gather(
        client.send(one(number), one(1_000)), client.send(one(1_001)), client.send(one(number))
    )
    offsets = [entry.offset for entry in first.entries]
    assert [[entry.offset for entry in each.entries] for each in again] == [
        offsets[:2],
        offsets[2:],
        offsets[:1],
    ]
    topic = app.view.topic("", "orders")
    assert topic is not None
    assert len(storage.messages(topic.topic_id)) == 3


async def test_a_repeat_whose_born_time_is_new_is_found_by_its_id(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """Official clients take the born time anew for every attempt, and keep the id."""
    seconds = NOW_MS // 1_000 - 5 - 1_609_459_200
    ids = (f"01{number:016X}{seconds:08X}{number:08X}" for number in range(100))
    message_id = next(each for each in ids if preferred_group(pack_message_id(each), (1, 2)) == 1)
    sent = one(1, born_ms=NOW_MS - 5_000)
    sent.system_properties.message_id = message_id
    first = await client.send(sent)
    await move_all(app, meta, storage, 2)
    sent.system_properties.born_timestamp.FromMilliseconds(NOW_MS + 60_000)
    again = await client.send(sent)
    assert again.status.code == OK
    assert again.entries[0].offset == first.entries[0].offset
    topic = app.view.topic("", "orders")
    assert topic is not None
    assert len(storage.messages(topic.topic_id)) == 1
    # Made after the move: nowhere else.
    before = lookups(storage)
    later = f"01{1:016X}{seconds + 60:08X}{7:08X}"
    sent.system_properties.message_id = later
    assert (await client.send(sent)).status.code == OK
    assert lookups(storage) == before


async def test_new_messages_are_not_looked_for(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """Neither those that were born later, nor any of a topic that never changed."""
    await client.send(one(1))
    assert lookups(storage) == 0
    await client.send(one(2))
    await move_all(app, meta, storage, 2)
    await client.send(one(3, born_ms=NOW_MS + 60_000))
    assert lookups(storage) == 0
    await client.send(one(number_at(1)))
    assert lookups(storage) > 0


async def test_nothing_is_looked_for_where_empty_queues_of_message_groups_were(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """New queues are put elsewhere before they hold anything; a wish to move is no move either."""
    meta.add_topic("ordered", meta_pb2.TOPIC_TYPE_FIFO)
    await give_slots(app, meta, storage, 1, name="ordered")
    topic = app.view.topic("", "ordered")
    assert topic is not None
    wish = meta_pb2.QueueOverride(topic_id=topic.topic_id, queue=0, moving_to=2)
    wish.epochs.add(epoch=0, raft_group=1)
    meta.put(meta_pb2.Change(queue_override=wish))
    await move_all(app, meta, storage, 2, name="ordered", start_offset=0)
    for number in range(10):
        grouped = message("ordered", number, message_group=f"g{number}")
        grouped.system_properties.born_timestamp.FromMilliseconds(NOW_MS - 5_000)
        assert (await client.send(grouped)).status.code == OK
    assert lookups(storage) == 0


@pytest.mark.parametrize("how", ["slots", "queues"])
async def test_an_empty_queue_that_leaves_may_route_a_repeat_elsewhere(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage, how: str
) -> None:
    """A message that may take any queue goes by all owners: another queue's move re-routes it."""
    await give_slots(app, meta, storage, 1)
    number = number_at(2)
    first = await client.send(one(number))
    topic = app.view.topic("", "orders")
    assert topic is not None
    assert app.view.owners(topic) == (1,)
    queues = [queue for queue in range(4) if not storage.queues[topic.topic_id, queue]]
    if how == "slots":
        await give_slots(app, meta, storage, 2, queues=queues[:1])
    else:
        await move_all(app, meta, storage, 2, queues=queues[:1], start_offset=0)
    assert app.view.owners(topic) == (1, 2)
    again = await client.send(one(number))
    assert again.status.code == OK
    assert again.entries[0].offset == first.entries[0].offset
    assert len(storage.messages(topic.topic_id)) == 1


async def test_a_repeat_is_looked_for_where_no_queue_is_any_more(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """A message that waits keeps no slot: its raft group may own nothing of the topic now."""
    meta.add_topic("later", meta_pb2.TOPIC_TYPE_DELAY)
    await give_slots(app, meta, storage, 1, name="later")
    later = one_later(1)
    first = await client.send(later)
    await give_slots(app, meta, storage, 2, name="later")
    topic = app.view.topic("", "later")
    assert topic is not None
    assert list(app.view.holders(topic)) == [2]
    again = await client.send(later)
    assert again.status.code == OK
    assert again.entries[0].recall_handle == first.entries[0].recall_handle
    assert [raft_group for raft_group, _, _ in storage.pending.waiting] == [1]


async def test_a_message_is_recalled_by_its_id_where_no_queue_is_any_more(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """Likewise, however long ago the slots left."""
    meta.add_topic("later", meta_pb2.TOPIC_TYPE_DELAY)
    await give_slots(app, meta, storage, 1, name="later")
    later = one_later(1)
    await client.send(later)
    await give_slots(app, meta, storage, 2, name="later")
    request = service_pb2.RecallMessageRequest(
        topic=later.topic, recall_handle=later.system_properties.message_id
    )
    answer = await client.edge.call(
        MESSAGING + "RecallMessage", request, service_pb2.RecallMessageResponse
    )
    assert answer.status.code == OK
    assert not storage.pending.waiting


async def test_what_waited_is_looked_for_although_the_queues_were_empty(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """A message that waits has no offset, so an empty queue proves nothing."""
    meta.add_topic("later", meta_pb2.TOPIC_TYPE_DELAY)
    assert await app.view.wait_for_revision(meta.revision, 60)
    await move_all(app, meta, storage, 2, name="later", start_offset=0)
    later = one_later(number_at(1))
    assert (await client.send(later)).status.code == OK
    assert lookups(storage) > 0


async def test_the_messages_of_a_request_are_looked_for_together(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """One after the other they would take longer than the client waits."""
    await move_all(app, meta, storage, 2)
    storage.gate, storage.gated_rpc = asyncio.Event(), "Query"
    sending = asyncio.ensure_future(client.send(*(one(number) for number in range(20))))
    await until(lambda: lookups(storage) == 20)
    storage.gate.set()
    answer = await sending
    assert [entry.status.code for entry in answer.entries] == [OK] * 20
    topic = app.view.topic("", "orders")
    assert topic is not None
    assert len(storage.messages(topic.topic_id)) == 20


async def test_beside_a_repeat_the_others_of_a_request_are_stored(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """Each message has its own answer."""
    number = number_at(1)
    first = await client.send(one(number))
    await move_all(app, meta, storage, 2)
    both = await client.send(one(number), one(1_000))
    assert [entry.status.code for entry in both.entries] == [OK, OK]
    assert both.entries[0].offset == first.entries[0].offset
    topic = app.view.topic("", "orders")
    assert topic is not None
    assert len(storage.messages(topic.topic_id)) == 2


@pytest.mark.parametrize("config", [broker_config(send={"max_repeat_lookups": 1})])
@pytest.mark.parametrize("fails", ["after the look", "after the wait for room"])
async def test_a_mistake_beside_a_look_ends_its_send(
    app: BrokerApp,
    client: Client,
    meta: FakeMeta,
    storage: FakeStorage,
    *,
    monkeypatch: pytest.MonkeyPatch,
    failed_requests: list[tuple[str, BaseException]],
    fails: str,
) -> None:
    """Neither the task of the look nor the timer of a wait would tell the sender."""
    await move_all(app, meta, storage, 2)
    storage.gate, storage.gated_rpc = asyncio.Event(), "Query"
    first = asyncio.ensure_future(client.send(one(0)))
    await until(lambda: lookups(storage) == 1)

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        if fails == "after the look":
            patched.setattr(app._sender, "topic_by_id", fail)
            storage.gate.set()
            answer = await first
        else:
            second = asyncio.ensure_future(client.send(one(1)))
            await asyncio.sleep(0)
            patched.setattr(app._sender.earlier, "try_begin", fail)
            answer = await second
    assert answer.status.code == definition_pb2.INTERNAL_SERVER_ERROR
    assert {type(failure) for _, failure in failed_requests} == {ZeroDivisionError}
    failed_requests.clear()
    storage.gate.set()
    if fails != "after the look":
        assert (await first).status.code == OK
    assert app.send_budget.used_bytes == 0


async def test_where_it_cannot_be_known_nobody_says_that_it_is_not_there(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """PROXY_TIMEOUT: the client tries again; what it charged is given back."""
    number = number_at(1)
    await client.send(one(number))
    await move_all(app, meta, storage, 2)
    storage.trouble["Query"].extend([AngeliaError(UNAVAILABLE, "away")] * 1_000)
    request = service_pb2.SendMessageRequest(messages=[one(number)])
    call = client.edge.begin("SendMessage", request, time_left_s=0.1)
    answer = service_pb2.SendMessageResponse.FromString((await call.answer)[0])
    assert answer.status.code == definition_pb2.PROXY_TIMEOUT
    assert app.send_budget.used_bytes == 0
    storage.trouble["Query"].clear()
    assert (await client.send(one(number))).status.code == OK


async def test_a_growth_is_a_change(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """The row says when; it holds for a broker that was not there then."""
    meta.grow_topic("orders", 8)
    assert await app.view.wait_for_revision(meta.revision, 60)
    row = app.view.topic("", "orders")
    assert row is not None
    # Now, not when this file was imported: a long run would be out of the window by then.
    row.changed_ms = int(time.time() * 1000)
    await client.send(one(1))
    assert lookups(storage) > 0


async def test_a_repeated_delay_keeps_its_handle(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """It waits where the first one waits, and is recalled there."""
    meta.add_topic("later", meta_pb2.TOPIC_TYPE_DELAY)
    assert await app.view.wait_for_revision(meta.revision, 60)
    later = one_later(number_at(1))
    first = await client.send(later)
    [(raft_group, _, _)] = storage.pending.waiting
    topic = app.view.topic("", "later")
    assert topic is not None
    topic.changed_ms = NOW_MS
    other = 3 - raft_group
    for queue in range(topic.queue_count):
        override = meta_pb2.QueueOverride(topic_id=topic.topic_id, queue=queue)
        override.epochs.add(epoch=0, raft_group=raft_group)
        override.epochs.add(epoch=1, raft_group=other, start_offset=100)
        meta.put(meta_pb2.Change(queue_override=override))
    assert await app.view.wait_for_revision(meta.revision, 60)
    again = await client.send(later)
    assert again.entries[0].recall_handle == first.entries[0].recall_handle
    assert len(storage.pending.waiting) == 1
