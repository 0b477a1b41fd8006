"""Lite topics over two brokers and three storage nodes: to their subscribers, in order, once."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_edge.ports import CallError
from strata_testing.broker.client import Client, message, received, resource
from strata_testing.broker.fake_edge import ADMIN, MESSAGING
from tests.integration.broker.cluster_brokers import (
    ClusterBroker,
    brokers_over,
    furnished_cluster,
    handles_of,
    number_of,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest

PARENT, GROUP, EXCLUSIVE, ORDERS_GROUP = "sessions", "g", "one", "bound"
PARTIAL_ADD, PARTIAL_REMOVE = definition_pb2.PARTIAL_ADD, definition_pb2.PARTIAL_REMOVE
COMPLETE_ADD, COMPLETE_REMOVE = definition_pb2.COMPLETE_ADD, definition_pb2.COMPLETE_REMOVE
QUOTA = 50
CONFIG = BrokerConfig.model_validate(
    {
        "receive": {"min_polling_ms": 0, "min_invisible_ms": 0},
        "telemetry": {"lite_subscription_quota": QUOTA},
        "lite": {"look_pause_ms": 1, "max_subscriptions": 70},
    }
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    """A parent with four queues in two raft groups."""
    async for made in furnished_cluster(tmp_path):
        topic = meta_pb2.Topic(
            topic_id=12, name=PARENT, type=meta_pb2.TOPIC_TYPE_LITE, queue_count=4
        )
        topic.homes.add(raft_group=1, queues=(0, 2))
        topic.homes.add(raft_group=2, queues=(1, 3))
        groups = (
            meta_pb2.ConsumerGroup(consumer_group_id=30, name=EXCLUSIVE, lite_exclusive=True),
            meta_pb2.ConsumerGroup(consumer_group_id=31, name=ORDERS_GROUP, lite_topic="orders"),
        )
        made.stub.write(
            meta_pb2.Change(topic=topic),
            *(meta_pb2.Change(consumer_group=group) for group in groups),
        )
        yield made


@pytest.fixture
async def brokers(cluster: ClusterUnderTest) -> AsyncIterator[Sequence[ClusterBroker]]:
    async with brokers_over(cluster, CONFIG) as made:
        yield made


@pytest.fixture
def clients(brokers: Sequence[ClusterBroker]) -> list[Client]:
    return [broker.client for broker in brokers]


def lite(number: int, lite_topic: str | None, topic: str = PARENT) -> definition_pb2.Message:
    """The message with a number."""
    fields = {} if lite_topic is None else {"lite_topic": lite_topic}
    kind = definition_pb2.NORMAL if lite_topic is None else definition_pb2.LITE
    return message(topic, number, body=b"%d" % number, message_type=kind, **fields)


async def send(client: Client, numbers: Sequence[int], lite_topic: str) -> None:
    """Send messages to one lite topic, in one request."""
    response = await client.send(*(lite(number, lite_topic) for number in numbers))
    assert response.status.code == definition_pb2.OK, response.status.message


async def sync(
    client: Client,
    action: definition_pb2.LiteSubscriptionAction.ValueType,
    *lite_topics: str,
    group: str = GROUP,
    topic: str = PARENT,
    client_id: str = "",
    **fields: object,
) -> definition_pb2.Status:
    """Subscribe; return the answer."""
    request = service_pb2.SyncLiteSubscriptionRequest(
        action=action,
        topic=resource(topic),
        group=resource(group),
        lite_topic_set=lite_topics,
        **fields,  # type: ignore[arg-type]
    )
    metadata = named(client, client_id).metadata if client_id else client.metadata
    response = await client.edge.call(
        f"{MESSAGING}SyncLiteSubscription",
        request,
        service_pb2.SyncLiteSubscriptionResponse,
        metadata,
    )
    return response.status


def named(client: Client, client_id: str) -> Client:
    """Another client of the same broker."""
    other = Client(client.edge)
    other.metadata = {**client.metadata, "x-mq-client-id": client_id}
    return other


async def subscribe(client: Client, *lite_topics: str, **fields: object) -> None:
    status = await sync(client, PARTIAL_ADD, *lite_topics, **fields)  # type: ignore[arg-type]
    assert status.code == definition_pb2.OK, status.message


async def take(
    client: Client, count: int, group: str = GROUP, **fields: object
) -> list[definition_pb2.Message]:
    """Receive and ack until there are as many messages."""
    got: list[definition_pb2.Message] = []
    async with asyncio.timeout(30):
        while len(got) < count:
            _, messages = await client.receive(PARENT, group, **fields)  # type: ignore[arg-type]
            got += messages
            if messages:
                await client.ack(PARENT, group, *handles_of(messages))
    return got


async def list_page(
    client: Client, *, topic: str, size: int, token: str
) -> admin_pb2.ListLiteTopicsResponse:
    """Return a page of the lite topics of a parent."""
    request = admin_pb2.ListLiteTopicsRequest(topic=topic, page_size=size, page_token=token)
    return await client.edge.call(
        f"{ADMIN}ListLiteTopics", request, admin_pb2.ListLiteTopicsResponse
    )


def by_lite_topic(messages: Sequence[definition_pb2.Message]) -> dict[str, list[int]]:
    """Return the numbers of messages, in order of delivery, by lite topic."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for one in messages:
        assert one.system_properties.message_type == definition_pb2.LITE
        numbers[one.system_properties.lite_topic].append(number_of(one))
    return dict(numbers)


async def test_messages_come_to_subscribers_in_order(
    cluster: ClusterUnderTest, clients: list[Client]
) -> None:
    """Only those of subscribed lite topics, whichever broker was sent to, told or asked.

    All replicas have the same rows afterwards.
    """
    names = [f"chat-{number}" for number in range(12)]
    for number in range(36):
        await send(clients[number % 2], [number], names[number % 12])
    await subscribe(clients[0], *names[:6])
    got = await take(clients[1], 9) + await take(clients[0], 9)
    assert by_lite_topic(got) == {names[at]: [at, at + 12, at + 24] for at in range(6)}
    assert await clients[1].receive_all(PARENT, GROUP) == [], "nobody subscribed to the rest"
    await subscribe(clients[1], *names[6:])
    got = await take(clients[0], 18)
    assert by_lite_topic(got) == {names[at]: [at, at + 12, at + 24] for at in range(6, 12)}
    for raft_group in (1, 2):
        await cluster.check_rows_equal(raft_group)


async def test_a_message_wakes_the_receive_of_a_subscriber(clients: list[Client]) -> None:
    """Also at the broker that was not told, and before the lite topic has any message."""
    call = clients[1].begin_receive(PARENT, GROUP, polling_s=20)
    await subscribe(clients[0], "late")
    await send(clients[0], [1], "other")
    assert not call.done()
    await send(clients[0], [2], "late")
    async with asyncio.timeout(60):
        _, messages = received(await call.answer)
    assert by_lite_topic(messages) == {"late": [2]}


async def test_the_next_message_waits_for_the_ack_of_the_one_before(
    clients: list[Client],
) -> None:
    """Per lite topic: another one is not held up."""
    await send(clients[0], [1, 2], "a")
    await send(clients[0], [3], "b")
    await subscribe(clients[0], "a", "b")
    first = [await clients[0].receive(PARENT, GROUP, batch_size=1) for _ in range(3)]
    got = [one for _, messages in first for one in messages]
    assert by_lite_topic(got) == {"a": [1], "b": [3]}
    await clients[1].ack(PARENT, GROUP, *handles_of(got))
    assert by_lite_topic(await take(clients[1], 1)) == {"a": [2]}


async def test_a_message_that_is_not_acked_comes_again(clients: list[Client]) -> None:
    """After its invisible time, as a second attempt, before the messages behind it."""
    await send(clients[0], [1, 2], "a")
    await subscribe(clients[0], "a")
    _, (first,) = await clients[0].receive(PARENT, GROUP, batch_size=1, invisible_s=1)
    again = await take(clients[1], 2, batch_size=1, polling_s=5)
    assert by_lite_topic([first, *again]) == {"a": [1, 1, 2]}
    assert [one.system_properties.delivery_attempt for one in again] == [2, 1]


async def test_what_a_parent_refuses(clients: list[Client]) -> None:
    """A message without a lite topic, or to another type of topic, and names that are none."""
    conflict = definition_pb2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    illegal = definition_pb2.ILLEGAL_LITE_TOPIC
    for wrong, code in (
        (lite(1, None), conflict),
        (lite(1, "a", "orders"), conflict),
        (lite(1, ""), illegal),
        (lite(1, "n" * 65), illegal),
    ):
        response = await clients[0].send(wrong)
        assert response.status.code == code, response.status.message
    for status, code in (
        (await sync(clients[0], PARTIAL_ADD, "a", topic="orders"), definition_pb2.ILLEGAL_TOPIC),
        (await sync(clients[0], PARTIAL_ADD, "a", topic="none"), definition_pb2.TOPIC_NOT_FOUND),
        (
            await sync(clients[0], PARTIAL_ADD, "a", group=ORDERS_GROUP),
            definition_pb2.ILLEGAL_CONSUMER_GROUP,
        ),
        (await sync(clients[0], COMPLETE_ADD, "n" * 65), illegal),
        (await sync(clients[0], PARTIAL_ADD, " "), illegal),
    ):
        assert status.code == code, status.message


async def test_subscriptions_are_added_removed_and_replaced(clients: list[Client]) -> None:
    """A request with an older version than the last one changes nothing."""
    await subscribe(clients[0], "a", "b")
    assert (await sync(clients[0], PARTIAL_REMOVE, "a")).code == definition_pb2.OK
    for number, name in enumerate("abc"):
        await send(clients[0], [number], name)
    assert by_lite_topic(await take(clients[1], 1)) == {"b": [1]}
    assert (await sync(clients[0], COMPLETE_ADD, "a", "c", version=5)).code == definition_pb2.OK
    assert (await sync(clients[0], COMPLETE_ADD, "b", version=4)).code == definition_pb2.OK
    await send(clients[0], [9], "b")
    assert by_lite_topic(await take(clients[1], 2)) == {"a": [0], "c": [2]}
    assert await clients[0].receive_all(PARENT, GROUP) == []
    assert (await sync(clients[0], COMPLETE_REMOVE)).code == definition_pb2.OK
    await send(clients[0], [10], "a")
    assert await clients[1].receive_all(PARENT, GROUP) == []


async def test_quotas_of_a_client_and_of_all(clients: list[Client]) -> None:
    """A request that would pass a quota changes nothing."""
    exceeded = definition_pb2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    names = [f"n{number}" for number in range(QUOTA)]
    await subscribe(clients[0], *names)
    status = await sync(clients[0], PARTIAL_ADD, "more")
    assert (status.code, "50 lite topics" in status.message) == (exceeded, True), status.message
    await send(clients[0], [1], "more")
    await send(clients[0], [2], names[7])
    assert by_lite_topic(await take(clients[0], 1)) == {names[7]: [2]}
    assert await clients[0].receive_all(PARENT, GROUP) == []
    status = await sync(clients[0], PARTIAL_ADD, *names[:21], client_id="second")
    assert (status.code, "max_subscriptions" in status.message) == (exceeded, True), status.message
    await subscribe(clients[0], *names[:20], client_id="second")


async def test_sends_to_new_lite_topics_keep_to_the_quota_of_sends(
    clients: list[Client], brokers: Sequence[ClusterBroker], cluster: ClusterUnderTest
) -> None:
    """Sends that are looked up at the same time are charged one after the other."""
    cluster.stub.write(meta_pb2.Change(quota=meta_pb2.Quota(bytes_per_s=1)))
    for broker in brokers:
        assert await broker.app.view.wait_for_revision(cluster.stub.cache.revision, 60)
    answers = await asyncio.gather(
        *(clients[0].send(lite(number, f"new-{number}")) for number in range(5))
    )
    codes = sorted(answer.status.code for answer in answers)
    assert codes == [definition_pb2.OK] + [definition_pb2.TOO_MANY_REQUESTS] * 4


async def test_an_exclusive_group_has_one_client_per_lite_topic(
    clients: list[Client], brokers: Sequence[ClusterBroker]
) -> None:
    """The last one that subscribes has it, the one before is told; a repeat claims nothing."""
    await subscribe(clients[0], "a", "b", group=EXCLUSIVE, client_id="first")
    await subscribe(clients[0], "b", group=EXCLUSIVE, client_id="second")
    status = await sync(clients[1], COMPLETE_ADD, "a", "b", group=EXCLUSIVE, client_id="first")
    assert status.code == definition_pb2.OK
    for number, (one, other) in enumerate((clients, clients[::-1])):
        first, second = named(one, "first"), named(other, "second")
        await send(one, [2 * number], "a")
        await send(one, [2 * number + 1], "b")
        assert by_lite_topic(await take(second, 1, EXCLUSIVE)) == {"b": [2 * number + 1]}
        assert by_lite_topic(await take(first, 1, EXCLUSIVE)) == {"a": [2 * number]}


async def test_lite_topics_are_listed_in_pages(clients: list[Client]) -> None:
    """Each once, whichever raft group has it and however large the pages are."""
    names = [f"n{number}" for number in range(12)]
    for number, name in enumerate(names):
        await send(clients[number % 2], [number], name)
    await send(clients[0], [100, 101], "n3")
    for size in (0, 1, 5, 12):
        listed: list[admin_pb2.LiteTopicStatus] = []
        token, pages = "", 0
        while pages == 0 or token:
            page = await list_page(clients[pages % 2], topic=PARENT, size=size, token=token)
            listed += page.lite_topics
            token, pages = page.next_page_token, pages + 1
            assert len(page.lite_topics) <= (size or 12)
        assert sorted(each.name for each in listed) == sorted(names)
        assert {each.raft_group for each in listed} == {1, 2}
        places = [(each.raft_group, each.name) for each in listed]
        assert places == sorted(places)
    counts = {each.name: each.next_offset for each in listed}
    assert counts == dict.fromkeys(names, 1) | {"n3": 3}
    assert len({each.queue for each in listed}) == 12


@pytest.mark.parametrize(
    ("topic", "token", "text"),
    [
        ("orders", "", "not of type LITE"),
        ("nothing", "", "nothing"),
        (PARENT, "x/y", "no page token"),
        (PARENT, "7", "no page token"),
        (PARENT, "9" * 5_000 + "/x", "no page token"),
    ],
)
async def test_a_list_of_no_lite_topics_is_refused(
    clients: list[Client], topic: str, token: str, text: str
) -> None:
    """The error says what is wrong."""
    with pytest.raises(CallError, match=text):
        await list_page(clients[0], topic=topic, size=0, token=token)


async def _settings(
    client: Client, client_type: definition_pb2.ClientType.ValueType
) -> definition_pb2.Settings:
    """Tell the settings of a consumer of the parent; return what the broker makes of them."""
    told = definition_pb2.Settings(client_type=client_type)
    told.user_agent.language = definition_pb2.JAVA
    told.subscription.group.CopyFrom(resource(GROUP))
    entry = told.subscription.subscriptions.add(topic=resource(PARENT))
    entry.expression.CopyFrom(
        definition_pb2.FilterExpression(type=definition_pb2.TAG, expression="*")
    )

    async def requests() -> AsyncIterator[bytes]:
        yield service_pb2.TelemetryCommand(settings=told).SerializeToString()

    answers = client.edge.open_stream(f"{MESSAGING}Telemetry", requests(), client.metadata)
    command = service_pb2.TelemetryCommand.FromString(await anext(answers))
    assert command.status.code == definition_pb2.OK, command.status.message
    return command.settings


async def test_a_lite_simple_consumer_receives_postpones_and_acks(clients: list[Client]) -> None:
    """It names its invisible time itself; its calls name the lite topic, and any broker serves."""
    consumer, other = (named(client, "simple") for client in clients)
    told = await _settings(consumer, definition_pb2.LITE_SIMPLE_CONSUMER)
    assert told.client_type == definition_pb2.LITE_SIMPLE_CONSUMER
    limits = told.subscription.lite_subscription_quota, told.subscription.max_lite_topic_size
    assert limits == (QUOTA, 64)
    await send(clients[0], [1, 2], "a")
    await send(clients[0], [3], "b")
    await subscribe(consumer, "a", client_id="simple")

    _, (first,) = await other.receive(PARENT, GROUP, batch_size=1, invisible_s=60)
    request = service_pb2.ChangeInvisibleDurationRequest(
        group=resource(GROUP),
        topic=resource(PARENT),
        message_id=first.system_properties.message_id,
        receipt_handle=first.system_properties.receipt_handle,
        lite_topic="a",
    )
    answer = await consumer.edge.call(
        f"{MESSAGING}ChangeInvisibleDuration",
        request,
        service_pb2.ChangeInvisibleDurationResponse,
        consumer.metadata,
    )
    assert answer.status.code == definition_pb2.OK, answer.status.message
    _, (again,) = await consumer.receive(PARENT, GROUP, invisible_s=60)
    assert by_lite_topic([first, again]) == {"a": [1, 1]}
    assert again.system_properties.delivery_attempt == 2

    acked = service_pb2.AckMessageRequest(group=resource(GROUP), topic=resource(PARENT))
    for handle in handles_of([first, again]):
        acked.entries.add(receipt_handle=handle, lite_topic="a")
    call = other.edge.begin("AckMessage", acked, other.metadata)
    response = service_pb2.AckMessageResponse.FromString((await call.answer)[0])
    codes = [entry.status.code for entry in response.entries]
    assert codes == [definition_pb2.INVALID_RECEIPT_HANDLE, definition_pb2.OK]
    assert by_lite_topic(await take(consumer, 1)) == {"a": [2]}
    assert await consumer.receive_all(PARENT, GROUP) == []


async def test_a_simple_consumer_without_lite_topics_gets_none_of_a_parent(
    clients: list[Client],
) -> None:
    """It cannot say which it wants; its receives end without a message and take nothing away."""
    plain, lite_consumer = named(clients[0], "plain"), named(clients[0], "lite")
    told = await _settings(plain, definition_pb2.SIMPLE_CONSUMER)
    assert told.client_type == definition_pb2.SIMPLE_CONSUMER
    await send(clients[0], [1, 2], "a")
    await subscribe(lite_consumer, "a", client_id="lite")
    status, messages = await plain.receive(PARENT, GROUP)
    assert (status.code, messages) == (definition_pb2.MESSAGE_NOT_FOUND, [])
    assert by_lite_topic(await take(lite_consumer, 2)) == {"a": [1, 2]}
    status, messages = await plain.receive(PARENT, GROUP)
    assert (status.code, messages) == (definition_pb2.MESSAGE_NOT_FOUND, [])


Option = definition_pb2.OffsetOption


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (Option(policy=Option.MIN), [0, 1, 2, 3]),
        (Option(policy=Option.LAST), [0, 1, 2, 3]),
        (Option(policy=Option.MAX), []),
        (Option(offset=3), [3]),
        (Option(offset=99), []),
        (Option(tail_n=2), [2, 3]),
        (Option(tail_n=99), [0, 1, 2, 3]),
        (Option(timestamp=1), [0, 1, 2, 3]),
    ],
    ids=lambda value: str(value).strip().replace(" ", ""),
)
async def test_a_group_begins_new_lite_topics_where_the_client_says(
    clients: list[Client], option: definition_pb2.OffsetOption, expected: list[int]
) -> None:
    """Those that it subscribes to later begin where their own request says."""
    first = {"a": 100, "b": 200, "c": 300}
    for name, number in first.items():
        await send(clients[0], range(number, number + 4), name)
    await subscribe(clients[0], "a", "b", offset_option=option)
    await subscribe(clients[0], "c")
    # Messages that come after the subscription are delivered with every option.
    for name, number in first.items():
        await send(clients[0], [number + 10], name)
    got = by_lite_topic(await take(clients[1], 2 * (len(expected) + 1) + 5))
    places = {"a": [*expected, 10], "b": [*expected, 10], "c": [0, 1, 2, 3, 10]}
    assert got == {name: [first[name] + at for at in numbers] for name, numbers in places.items()}


async def test_a_message_after_the_subscription_is_new_to_a_group_that_begins_at_new_ones(
    cluster: ClusterUnderTest,
) -> None:
    """Also if nobody received in between: a lite topic that ends begins anew as if it were new."""
    config = CONFIG.model_copy(
        update={"receive": CONFIG.receive.model_copy(update={"start_from_latest": True})}
    )
    async with brokers_over(cluster, config) as brokers:
        client = brokers[0].client
        await subscribe(client, "a")
        await send(client, (1, 2), "a")
        assert [number_of(one) for one in await take(client, 2)] == [1, 2]


async def test_a_negative_offset_option_is_refused(clients: list[Client]) -> None:
    """Nothing is subscribed to."""
    for option in (Option(offset=-1), Option(tail_n=-1), Option(timestamp=-1)):
        status = await sync(clients[0], PARTIAL_ADD, "a", offset_option=option)
        assert status.code == definition_pb2.BAD_REQUEST, status
    await send(clients[0], [1], "a")
    assert await clients[0].receive_all(PARENT, GROUP) == []


async def test_nothing_is_lost_when_a_leader_dies(
    cluster: ClusterUnderTest, clients: list[Client]
) -> None:
    """Names, order and messages are those of before."""
    names = [f"s{number}" for number in range(8)]
    await subscribe(clients[0], *names)
    for number in range(24):
        await send(clients[0], [number], names[number % 8])
    got = await take(clients[1], 8, batch_size=1)
    await cluster.members[await cluster.until_led(1)].lose_power()
    for number in range(24, 32):
        await send(clients[1], [number], names[number % 8])
    got += await take(clients[1], 24)
    seen = by_lite_topic(got)
    assert {name: sorted(set(numbers)) for name, numbers in seen.items()} == {
        names[at]: [at, at + 8, at + 16, at + 24] for at in range(8)
    }
    assert Counter(map(number_of, got)).most_common(1)[0][1] == 1
