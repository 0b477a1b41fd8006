"""`strata.admin.v1` as any broker serves it."""

from __future__ import annotations

import asyncio
import json
import tomllib
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.app import BrokerApp
from strata_edge.ports import CallError
from strata_mq.requests import REDRIVE_GROUP
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_edge import ADMIN, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from tests.unit.broker.test_telemetry import Stream, consumer, producer


async def create(edge: FakeEdge, name: str, namespace: str = "") -> meta_pb2.Topic:
    """Make a topic."""
    response = await edge.call(
        ADMIN + "CreateTopic",
        admin_pb2.CreateTopicRequest(
            topic=meta_pb2.Topic(
                name=name, namespace=namespace, type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=4
            )
        ),
        admin_pb2.CreateTopicResponse,
    )
    return response.topic


async def test_a_topic_is_usable_when_its_creation_returns(edge: FakeEdge, client: Client) -> None:
    """No client sees TOPIC_NOT_FOUND after the answer."""
    topic = await create(edge, "made")
    assert topic.topic_id
    assert (await client.send(message("made", 1))).status.code == 20000


async def test_existing_and_missing_topics_are_grpc_statuses(edge: FakeEdge) -> None:
    """ALREADY_EXISTS and NOT_FOUND, with a line for people."""
    with pytest.raises(CallError) as twice:
        await create(edge, "orders")
    assert twice.value.status == "ALREADY_EXISTS"
    for rpc in ("GetTopic", "DeleteTopic"):
        with pytest.raises(CallError) as missing:
            request = getattr(admin_pb2, f"{rpc}Request")(name="nowhere")
            await edge.call(ADMIN + rpc, request, admin_pb2.GetTopicResponse)
        assert missing.value.status == "NOT_FOUND"
        assert missing.value.reason


async def test_a_list_of_topics_takes_none_into_use(edge: FakeEdge, app: BrokerApp) -> None:
    """A broker keeps the topics that clients use as objects; a list must not evict them."""
    before = app.view.topics().in_use
    request, answer = admin_pb2.ListTopicsRequest(), admin_pb2.ListTopicsResponse
    response = await edge.call(ADMIN + "ListTopics", request, answer)
    assert {"orders", "fifo"} <= {topic.name for topic in response.topics}
    assert app.view.topics().in_use == before


async def test_a_topic_shows_its_queues(edge: FakeEdge, client: Client) -> None:
    """Every queue once, by number, with raft group, broker name and offsets."""
    await client.send(*(message("orders", number) for number in range(1, 4)))
    response = await edge.call(
        ADMIN + "GetTopic", admin_pb2.GetTopicRequest(name="orders"), admin_pb2.GetTopicResponse
    )
    assert [status.queue for status in response.queues] == [0, 1, 2, 3]
    assert sum(status.next_offset for status in response.queues) == 3
    assert {status.broker_name for status in response.queues} == {"strata-1", "strata-2"}


async def test_topics_are_listed_by_pages(edge: FakeEdge) -> None:
    """Sorted by namespace and name; pages join without gaps; dead-letter topics on demand."""
    for number in range(5):
        await create(edge, f"t{number}", "tenant")
    request = admin_pb2.ListTopicsRequest(namespace="tenant", page_size=2)
    names = []
    while True:
        response = await edge.call(ADMIN + "ListTopics", request, admin_pb2.ListTopicsResponse)
        names.append([topic.name for topic in response.topics])
        request.page_token = response.next_page_token
        if not response.next_page_token:
            break
    assert names == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    everything = await edge.call(
        ADMIN + "ListTopics", admin_pb2.ListTopicsRequest(), admin_pb2.ListTopicsResponse
    )
    assert len(everything.topics) == 7


async def test_a_deleted_topic_is_gone_with_its_data(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Storage drops it; sends find no topic."""
    await client.send(message("orders", 1))
    await edge.call(
        ADMIN + "DeleteTopic",
        admin_pb2.DeleteTopicRequest(name="orders"),
        admin_pb2.DeleteTopicResponse,
    )
    assert storage.messages(101) == []
    assert (await client.send(message("orders", 2))).status.code == 40402


@pytest.mark.parametrize("kind", ["topic", "consumer_group"])
async def test_a_deletion_ends_although_the_name_is_taken_again(
    kind: str, edge: FakeEdge, meta: FakeMeta, app: BrokerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer or another operator makes it anew at once: this broker never sees it missing."""
    meta.add_group(meta_pb2.ConsumerGroup(name="billing"))
    assert await app.view.wait_for_revision(meta.revision, 60)
    carry_out = meta.call

    async def delete_and_make(method: str, *given: Any, **more: Any) -> Any:
        """The broker hears of the deletion together with what was made after it."""
        if not method.endswith(("/DeleteTopic", "/DeleteConsumerGroup")):
            return await carry_out(method, *given, **more)
        watchers, meta.watchers = meta.watchers, []
        first = len(meta.rows)
        if kind == "topic":
            answer = await carry_out(method, *given, **more)
            meta.add_topic("orders")
        else:
            answer = meta_pb2.DeleteConsumerGroupResponse()
            answer.status.outcome = meta_pb2.META_OUTCOME_OK
            gone = meta_pb2.ConsumerGroup(name="billing")
            meta.put(meta_pb2.Change(deleted=True, consumer_group=gone))
            meta.add_group(gone)
        meta.watchers = watchers
        told = meta_pb2.WatchResponse(revision=meta.revision, changes=meta.rows[first:])
        for watcher in watchers:
            watcher.put_nowait(told)
        return answer

    monkeypatch.setattr(meta, "call", delete_and_make)

    async def go_on() -> None:
        """The metadata of a cluster that is used changes all the time."""
        while True:
            meta.put(meta_pb2.Change(quota=meta_pb2.Quota(namespace="busy")))
            await asyncio.sleep(0.01)

    others = asyncio.ensure_future(go_on())
    try:
        async with asyncio.timeout(30):
            if kind == "topic":
                request: Any = admin_pb2.DeleteTopicRequest(name="orders")
                await edge.call(ADMIN + "DeleteTopic", request, admin_pb2.DeleteTopicResponse)
                made = app.view.topic("", "orders")
                assert made is not None
                assert made.topic_id == meta.next_id
            else:
                request = admin_pb2.DeleteConsumerGroupRequest(name="billing")
                await edge.call(
                    ADMIN + "DeleteConsumerGroup", request, admin_pb2.DeleteConsumerGroupResponse
                )
                group = app.view.consumer_group("", "billing")
                assert group is not None
                assert group.consumer_group_id == meta.next_id
    finally:
        others.cancel()


async def test_only_topics_with_state_or_members_are_asked_for(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Show and reset ask each raft group once for a group's topics, then those topics alone."""
    for name in ("a", "b", "c"):
        await create(edge, name)
    await client.send(*(message("orders", number) for number in range(1, 5)))
    await client.receive_all("orders", "g")
    subscribed = Client(edge)
    subscribed.metadata = {**client.metadata, "x-mq-client-id": "c2"}
    await subscribed.receive("b", "g")
    storage.calls.clear()
    shown = await edge.call(
        ADMIN + "GetConsumerGroup",
        admin_pb2.GetConsumerGroupRequest(name="g"),
        admin_pb2.GetConsumerGroupResponse,
    )
    assert {queue.topic for queue in shown.queues} == {"orders", "b"}
    assert storage.count("GetConsumerTopics") == 2
    asked = [
        request.topic.topic_id
        for _, request in storage.calls
        if isinstance(request, storage_pb2.GetConsumerStateRequest)
    ]
    # Both topics have queues in both raft groups.
    assert len(asked) == 4
    assert len(set(asked)) == 2
    reset = await edge.call(
        ADMIN + "ResetConsumerGroup",
        admin_pb2.ResetConsumerGroupRequest(name="g", earliest=True),
        admin_pb2.ResetConsumerGroupResponse,
    )
    assert {queue.topic for queue in reset.queues} == {"orders", "b"}
    assert storage.count("ResetConsumer") == 4
    assert sum(queue.lag for queue in reset.queues) == 4


async def test_a_consumer_group_shows_lag_and_members(edge: FakeEdge, client: Client) -> None:
    """Lag counts un-acked messages; members are those heard of."""
    await client.send(*(message("orders", number) for number in range(1, 5)))
    await client.receive("orders", "g", batch_size=3)
    response = await edge.call(
        ADMIN + "GetConsumerGroup",
        admin_pb2.GetConsumerGroupRequest(name="g"),
        admin_pb2.GetConsumerGroupResponse,
    )
    assert response.consumer_group.name == "g"
    assert {queue.topic for queue in response.queues} == {"orders"}
    assert sum(queue.lag for queue in response.queues) == 4
    assert sum(queue.in_flight for queue in response.queues) == 3
    (member,) = response.members
    assert member.client_id == "client-1"
    assert dict(member.subscriptions) == {"orders": "*"}


async def test_a_message_is_found_by_position(edge: FakeEdge, client: Client) -> None:
    """The bytes are a Message; nothing is consumed."""
    await client.send(message("orders", 1, body=b"find me"))
    found: list[admin_pb2.FoundMessage] = []
    for queue in range(4):
        request = admin_pb2.FindMessagesRequest(topic="orders")
        request.position.queue = queue
        response = await edge.call(ADMIN + "FindMessages", request, admin_pb2.FindMessagesResponse)
        found.extend(response.messages)
    assert [b"find me" in one.message for one in found] == [True]


@pytest.mark.parametrize("rpc", ["FindMessages", "ResetConsumerGroup"])
async def test_requests_that_name_nothing_are_invalid(edge: FakeEdge, rpc: str) -> None:
    """INVALID_ARGUMENT rather than a guess."""
    request = getattr(admin_pb2, f"{rpc}Request")(topic="orders")
    with pytest.raises(CallError) as failure:
        await edge.call(ADMIN + rpc, request, admin_pb2.FindMessagesResponse)
    assert failure.value.status == "INVALID_ARGUMENT"


async def test_the_configuration_is_shown_as_toml_and_json(edge: FakeEdge) -> None:
    """Both hold every section."""
    response = await edge.call(
        ADMIN + "GetConfig", admin_pb2.GetConfigRequest(), admin_pb2.GetConfigResponse
    )
    assert tomllib.loads(response.text)["send"]["max_body_bytes"] == 4 * 1024 * 1024
    assert json.loads(response.json).keys() == tomllib.loads(response.text).keys()


async def test_the_cluster_is_shown(edge: FakeEdge, meta: FakeMeta) -> None:
    """Nodes, this broker among them, and the health of every raft group."""
    response = await edge.call(
        ADMIN + "GetCluster", admin_pb2.GetClusterRequest(), admin_pb2.GetClusterResponse
    )
    assert {node.node_id for node in response.nodes} == {"broker-a", "storage-a"}
    assert [(row.broker_name, row.state) for row in response.raft_groups] == [
        ("strata-1", "SERVING"),
        ("strata-2", "SERVING"),
    ]


async def test_the_cluster_tells_how_many_names_there_are(
    edge: FakeEdge, meta: FakeMeta, app: BrokerApp
) -> None:
    """As many as lists have; a million topics are not listed to be counted."""

    async def counts() -> tuple[int, int]:
        response = await edge.call(
            ADMIN + "GetCluster", admin_pb2.GetClusterRequest(), admin_pb2.GetClusterResponse
        )
        return response.topic_count, response.consumer_group_count

    async def listed() -> tuple[int, int]:
        topics = await edge.call(
            ADMIN + "ListTopics", admin_pb2.ListTopicsRequest(), admin_pb2.ListTopicsResponse
        )
        groups = await edge.call(
            ADMIN + "ListConsumerGroups",
            admin_pb2.ListConsumerGroupsRequest(),
            admin_pb2.ListConsumerGroupsResponse,
        )
        return len(topics.topics), len(groups.consumer_groups)

    before = await counts()
    assert before == await listed()
    meta.add_topic("%KV%t")
    meta.add_topic("more")
    for name in ("more", REDRIVE_GROUP):
        meta.add_group(meta_pb2.ConsumerGroup(namespace="shop", name=name))
    assert await app.view.wait_for_revision(meta.revision, 60)
    assert await counts() == await listed() == (before[0] + 1, before[1] + 1)
    meta.delete_topic("", "more")
    assert await app.view.wait_for_revision(meta.revision, 60)
    assert await counts() == await listed() == (before[0], before[1] + 1)


async def test_a_purge_deletes_what_is_there_and_keeps_the_topic(
    edge: FakeEdge, client: Client
) -> None:
    """Every queue begins at its end; the next message is stored as if nothing had happened."""
    await client.send(*(message("orders", number) for number in range(1, 8)))
    request = admin_pb2.PurgeTopicRequest(name="orders")
    purged = await edge.call(ADMIN + "PurgeTopic", request, admin_pb2.PurgeTopicResponse)
    assert purged.deleted_messages == 7
    assert len(purged.queues) == 4
    assert all(queue.min_offset == queue.next_offset for queue in purged.queues)
    again = await edge.call(ADMIN + "PurgeTopic", request, admin_pb2.PurgeTopicResponse)
    assert again.deleted_messages == 0
    assert (await client.send(message("orders", 9))).status.code == 20000


async def test_a_purge_needs_a_topic_that_clients_write(edge: FakeEdge) -> None:
    """NOT_FOUND for a missing one; brokers' own topics are refused."""
    for name, status in (("nowhere", "NOT_FOUND"), ("__strata_audit", "INVALID_ARGUMENT")):
        with pytest.raises(CallError) as refused:
            request = admin_pb2.PurgeTopicRequest(name=name)
            await edge.call(ADMIN + "PurgeTopic", request, admin_pb2.PurgeTopicResponse)
        assert refused.value.status == status


async def test_clients_are_listed_by_kind_and_topic(edge: FakeEdge) -> None:
    """A producer with the topics that it declared, a consumer with what it subscribes to."""
    await _settle(edge, "producer-1", producer("orders"))
    await _settle(edge, "consumer-1", consumer("g"))

    async def listed(**wanted: object) -> list[admin_pb2.ConnectedClient]:
        request = admin_pb2.ListClientsRequest(**wanted)  # type: ignore[arg-type]
        answer = await edge.call(ADMIN + "ListClients", request, admin_pb2.ListClientsResponse)
        return list(answer.clients)

    everybody = await listed()
    assert [one.client_id for one in everybody] == ["consumer-1", "producer-1"]
    (made,) = await listed(kind=admin_pb2.CLIENT_KIND_PRODUCER, topic="orders")
    assert (made.client_id, made.client_type, list(made.topics)) == (
        "producer-1",
        "PRODUCER",
        ["orders"],
    )
    (took,) = await listed(kind=admin_pb2.CLIENT_KIND_CONSUMER)
    assert (took.consumer_group, dict(took.subscriptions)) == ("g", {"orders": "*"})
    assert await listed(kind=admin_pb2.CLIENT_KIND_PRODUCER, topic="other") == []
    assert await listed(namespace="elsewhere") == []
    first = await edge.call(
        ADMIN + "ListClients",
        admin_pb2.ListClientsRequest(page_size=1),
        admin_pb2.ListClientsResponse,
    )
    assert len(first.clients) == 1
    assert [one.client_id for one in await listed(page_token=first.next_page_token)] == [
        "producer-1"
    ]


async def _settle(edge: FakeEdge, client_id: str, told: definition_pb2.Settings) -> None:
    """Open a client's stream of settings and wait for the broker's answer."""
    stream = Stream(edge, client_id)
    stream.say(told)
    await stream.hear()


async def test_many_topics_are_created_by_one_call(edge: FakeEdge, meta: FakeMeta) -> None:
    """One call goes to the nameserver; reserved and existing names fail by name."""
    wanted = ["a", "__strata_mine", "orders", "b"]
    before = len(meta.calls)
    response = await edge.call(
        ADMIN + "CreateTopics",
        admin_pb2.CreateTopicsRequest(
            topics=[meta_pb2.Topic(name=name, queue_count=1) for name in wanted]
        ),
        admin_pb2.CreateTopicsResponse,
    )
    assert (response.created, response.existing) == (2, 0)
    failures = [(each.position, each.name, each.reason) for each in response.failures]
    assert failures == [
        (1, "__strata_mine", "names that begin with __strata are reserved"),
        (2, "orders", "exists"),
    ]
    assert meta.calls[before:].count("CreateTopics") == 1
    shown = await edge.call(
        ADMIN + "ListTopics",
        admin_pb2.ListTopicsRequest(namespace="", prefix="b"),
        admin_pb2.ListTopicsResponse,
    )
    assert [topic.name for topic in shown.topics] == ["b"]
