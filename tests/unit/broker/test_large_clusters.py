"""Calls of operators in a cluster with very many consumer groups or clients.

A broker is one event loop: a step that looks at all of them would stop every client.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from apache.rocketmq.v2 import admin_pb2 as rocketmq_admin_pb2
from strata.admin.v1 import admin_pb2
from strata.broker.v1 import peer_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.slices import SLICE
from strata_broker.metadata.metadata import MetadataView
from strata_broker.operators.message_queries import MessageQueries
from strata_broker.remoting.admin.bodies import LONG_SLICE
from strata_broker.remoting.admin.groups import AdminGroups
from strata_broker.remoting.admin.topic_lists import AdminTopicLists
from strata_broker.remoting.admin.topics import AdminTopics
from strata_broker.servicers.admin import AdminServicer
from strata_remoting import RemotingCommand
from strata_testing.broker.client import resource
from strata_testing.broker.fake_edge import ADMIN, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage


@pytest.fixture
def no_walk() -> Iterator[None]:
    """A walk over all consumer groups fails."""
    with patch.object(MetadataView, "consumer_groups", side_effect=AssertionError):
        yield


class Turns:
    """How often other work had its turn."""

    count = 0


@asynccontextmanager
async def other_work() -> AsyncIterator[Turns]:
    """Work that is done beside the call of a test."""
    turns = Turns()

    async def work() -> None:
        while True:
            turns.count += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(work())
    try:
        yield turns
    finally:
        task.cancel()


async def add_groups(app: BrokerApp, meta: FakeMeta, *names: str) -> list[meta_pb2.ConsumerGroup]:
    """Make consumer groups of a tenant."""
    wanted = [meta_pb2.ConsumerGroup(namespace="tenant", name=name) for name in names]
    made = [meta.add_group(one) for one in wanted]
    assert await app.view.wait_for_revision(meta.revision, 60)
    return made


@pytest.mark.usefixtures("no_walk")
async def test_dead_letter_topics_are_listed_by_pages_of_groups(
    app: BrokerApp, edge: FakeEdge, meta: FakeMeta, storage: FakeStorage
) -> None:
    """Only the page's consumer groups are looked at; those without dead letters are not shown."""
    groups = await add_groups(app, meta, "c", "a", "d", "b")
    for group in groups[:3]:
        topic = app.view.topic_by_id(group.dead_letter_topic_id)
        assert topic is not None
        queue = next(iter(app.view.holders(topic)))
        storage.queues[topic.topic_id, queue].append(cast(Any, None))
    request = admin_pb2.ListDeadLetterTopicsRequest(namespace="tenant", page_size=2)
    pages = []
    while True:
        answer = await edge.call(
            ADMIN + "ListDeadLetterTopics", request, admin_pb2.ListDeadLetterTopicsResponse
        )
        pages.append([(one.consumer_group, one.messages) for one in answer.topics])
        request.page_token = answer.next_page_token
        if not request.page_token:
            break
    assert pages == [[("a", 1)], [("c", 1), ("d", 1)]]


async def test_a_trace_looks_up_the_consumer_groups_that_it_names() -> None:
    """A deleted one has no name."""
    event = storage_pb2.TraceEvent
    kind = storage_pb2.TRACE_EVENT_KIND_ACKED
    trace = storage_pb2.MessageTrace(
        events=[event(consumer_group_id=number, kind=kind) for number in (3, 4)]
    )
    groups = {3: SimpleNamespace(name="g")}
    topic = SimpleNamespace(topic_id=1, name="orders")
    view = SimpleNamespace(consumer_group_by_id=groups.get, topic=lambda *_: topic)

    async def of_chosen(*_: object) -> list[tuple[int, storage_pb2.TraceResponse]]:
        return [(7, storage_pb2.TraceResponse(messages=[trace]))]

    queries = MessageQueries(
        cast(Any, view), cast(Any, None), cast(Any, SimpleNamespace(of_chosen=of_chosen))
    )
    (traced,) = await queries.trace(admin_pb2.TraceMessageRequest(message_id="m"))
    assert [(step.consumer_group, step.what) for step in traced.steps] == [
        ("g", "acked"),
        ("", "acked"),
    ]


@pytest.mark.usefixtures("no_walk")
async def test_who_reads_a_topic_is_asked_once_per_raft_group(
    app: BrokerApp, edge: FakeEdge, meta: FakeMeta, storage: FakeStorage
) -> None:
    """However many consumer groups there are; a deleted one is not shown."""
    meta.add_topic("deals", meta_pb2.TOPIC_TYPE_NORMAL, namespace="tenant")
    first, second, _ = await add_groups(app, meta, "first", "second", "third")
    topic = app.view.topic("tenant", "deals")
    assert topic is not None
    numbers = [row.raft_group for row in app.view.raft_groups()]
    storage.consumers[numbers[0], topic.topic_id] = [second.consumer_group_id, 99_999]
    storage.consumers[numbers[-1], topic.topic_id] = [
        first.consumer_group_id,
        second.consumer_group_id,
    ]
    wanted = resource("deals")
    wanted.resource_namespace = "tenant"
    answer = await edge.call(
        "/apache.rocketmq.v2.Admin/ListSubscription",
        rocketmq_admin_pb2.ListSubscriptionRequest(topic=wanted),
        rocketmq_admin_pb2.ListSubscriptionResponse,
    )
    found = [(one.group.name, one.topic.name, one.online) for one in answer.subscription_info]
    assert found == [("first", "deals", False), ("second", "deals", False)]
    assert storage.count("GetConsumers") == len(numbers)
    assert storage.count("GetConsumerTopics") == 0


async def test_other_work_goes_on_while_clients_are_listed() -> None:
    """Only the page's clients are converted, some hundreds without a pause."""
    count = 4 * SLICE
    clients = [
        peer_pb2.ConnectedClient(client_id=f"c{at:05d}", topics=["t"]) for at in range(count + 1)
    ]

    async def ask(_: object) -> Sequence[peer_pb2.ConnectedClient]:
        return clients

    peers = cast(Any, SimpleNamespace(clients=ask))
    servicer = AdminServicer(cast(Any, None), cast(Any, None), peers, config=cast(Any, None))
    async with other_work() as turns:
        answer = await servicer.list_clients(admin_pb2.ListClientsRequest(page_size=count))
        assert turns.count >= 3
    assert [one.client_id for one in answer.clients] == [f"c{at:05d}" for at in range(count)]
    assert answer.next_page_token == f"c{count - 1:05d}/"
    assert answer.clients[0].topics == ["t"]


class FakeListing:
    """The listing of a cluster with many topics and consumer groups."""

    def __init__(self, count: int) -> None:
        self.topic_rows = [meta_pb2.Topic(name=f"t{at:05d}", queue_count=1) for at in range(count)]
        self.group_rows = [meta_pb2.ConsumerGroup(name=f"g{at:05d}") for at in range(count)]
        self.checked_bytes = 0

    async def topics(self, _: object, show: Callable[[meta_pb2.Topic], Any]) -> list[Any]:
        return [show(row) for row in self.topic_rows]

    async def groups(self, _: object, show: Callable[[meta_pb2.ConsumerGroup], Any]) -> list[Any]:
        return [show(row) for row in self.group_rows]

    def check_bytes(self, size_bytes: int) -> None:
        self.checked_bytes = size_bytes


COUNT = 4 * LONG_SLICE
TOPICS = [f"t{at:05d}" for at in range(COUNT)]
GROUPS = [f"g{at:05d}" for at in range(COUNT)]
RETRIES = [f"%RETRY%{name}" for name in GROUPS]


async def long_answer(
    listing: FakeListing, ask: Callable[[Any, Any], Awaitable[RemotingCommand]]
) -> Any:
    """Return the body of an answer, once other work had its turns while it was made."""
    names = SimpleNamespace(cluster_name="c", names_here=lambda: _Everything())
    request = RemotingCommand(1, fields={"cluster": "c"})
    parts = SimpleNamespace(places=cast(Any, names), listing=cast(Any, listing))
    async with other_work() as turns:
        answer = await ask(parts, SimpleNamespace(request=request))
        assert turns.count >= 3
    return json.loads(answer.body)


class _Everything:
    def __contains__(self, _: object) -> bool:
        return True


async def test_other_work_goes_on_while_all_topics_are_listed() -> None:
    """In order, each once: a topic may have the name that stands for a consumer group."""
    listing = FakeListing(COUNT)
    listing.topic_rows.insert(0, meta_pb2.Topic(name=RETRIES[0]))
    body = await long_answer(
        listing, lambda parts, asked: AdminTopicLists(parts.places, parts.listing).every(asked)
    )
    assert body == {"brokerAddr": None, "topicList": [*RETRIES, *TOPICS]}
    assert listing.checked_bytes == len(json.dumps(body["topicList"], separators=(",", ":"))) - 1
    body = await long_answer(
        listing, lambda parts, asked: AdminTopicLists(parts.places, parts.listing).of_cluster(asked)
    )
    assert body == {"brokerAddr": None, "topicList": [RETRIES[0], *TOPICS]}


async def test_other_work_goes_on_while_all_configurations_are_shown() -> None:
    """Topics and consumer groups, by name."""
    body = await long_answer(
        FakeListing(COUNT),
        lambda parts, asked: AdminTopics(
            cast(Any, None), parts.places, parts.listing, max_json_bytes=1
        ).configs(asked),
    )
    assert list(body) == ["dataVersion", "topicConfigTable"]
    assert list(body["topicConfigTable"]) == TOPICS
    assert body["topicConfigTable"][TOPICS[-1]]["writeQueueNums"] == 1
    body = await long_answer(
        FakeListing(COUNT),
        lambda parts, asked: AdminGroups(
            cast(Any, None), parts.places, parts.listing, max_json_bytes=1
        ).configs(asked),
    )
    assert list(body) == ["dataVersion", "forbiddenTable", "subscriptionGroupTable"]
    assert list(body["subscriptionGroupTable"]) == GROUPS
    assert body["subscriptionGroupTable"][GROUPS[-1]]["groupName"] == GROUPS[-1]


async def test_short_and_empty_lists_are_whole_bodies() -> None:
    """A cluster may have no consumer group yet."""
    exchange = cast(Any, SimpleNamespace(request=RemotingCommand(1)))
    for count in (0, 1):
        listing = cast(Any, FakeListing(count))
        groups = AdminGroups(cast(Any, None), cast(Any, None), listing, max_json_bytes=1)
        table = json.loads((await groups.configs(exchange)).body)["subscriptionGroupTable"]
        assert list(table) == GROUPS[:count]
    lists = AdminTopicLists(cast(Any, None), cast(Any, FakeListing(0)))
    assert json.loads((await lists.every(exchange)).body)["topicList"] == []
