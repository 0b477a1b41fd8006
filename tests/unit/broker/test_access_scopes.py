"""Reach of policies: the cluster's own topics, a consumer's leases, the border of a tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from apache.rocketmq.v2 import admin_pb2 as rocketmq_admin_pb2
from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_edge.ports import CallError
from strata_testing import until
from strata_testing.broker.client import message, resource
from strata_testing.broker.fake_edge import MESSAGING, FakeCall, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.keys import policy_row, user_row
from tests.unit.broker.test_access_checks import As, headers, listed
from tests.unit.broker.test_access_checks import as_user as as_user
from tests.unit.broker.test_access_checks import config as config
from tests.unit.broker.test_access_checks import meta as meta

ADMIN_SEND = "/apache.rocketmq.v2.Admin/AdminSendMessage"


async def add_own_topic(name: str, meta: FakeMeta, app: BrokerApp) -> None:
    """Make a topic of the cluster, and users with all rights on everything that is like it."""
    meta.add_topic(name)
    meta.put(
        user_row("greedy"),
        policy_row(20, "greedy", "topic:*/*", "all"),
        policy_row(21, "greedy", "topic:*", "all"),
        policy_row(22, "greedy", "group:*", "all"),
        policy_row(23, "greedy", "namespace:*", "all"),
        user_row("auditor"),
        policy_row(24, "auditor", f"cluster:{name.removeprefix('__strata_')}", "sub"),
        policy_row(25, "auditor", "group:*", "sub"),
        user_row("everything"),
        policy_row(26, "everything", "*", "all"),
    )
    await until(lambda: app.view.revision >= meta.revision)


def changes_of(name: str) -> list[tuple[str, Any, Any]]:
    """Calls that would change a topic, with the types of their answers."""
    topic = meta_pb2.Topic(name=name, retention_ms=1_000)
    return [
        (
            "UpdateTopic",
            admin_pb2.UpdateTopicRequest(topic=topic, update_mask=["retention_ms"]),
            admin_pb2.UpdateTopicResponse,
        ),
        ("DeleteTopic", admin_pb2.DeleteTopicRequest(name=name), admin_pb2.DeleteTopicResponse),
        ("CreateTopic", admin_pb2.CreateTopicRequest(topic=topic), admin_pb2.CreateTopicResponse),
    ]


@pytest.mark.parametrize("name", ["__strata_audit", "__strata_metrics"])
async def test_topics_of_the_cluster_are_in_no_pattern_of_topics(
    as_user: As, edge: FakeEdge, meta: FakeMeta, app: BrokerApp, name: str
) -> None:
    """All rights on all topics neither forge, read nor remove the trail; admins read it."""
    await add_own_topic(name, meta, app)
    greedy = as_user("greedy")
    forbidden = [
        (await greedy.send(message(name, 1))).status,
        (await greedy.receive(name, "readers"))[0],
    ]
    sent = rocketmq_admin_pb2.AdminSendMessageRequest(topic=resource(name), body=b"{}")
    answer: Any = await edge.call(
        ADMIN_SEND,
        sent,
        rocketmq_admin_pb2.AdminSendMessageResponse,
        headers("greedy"),
    )
    forbidden.append(answer.status)
    part = f"Cluster:{name.removeprefix('__strata_')}"
    for status in forbidden:
        assert status.code == definition_pb2.FORBIDDEN
        assert part in status.message
    reads: list[tuple[str, Any, Any]] = [
        (
            "FindMessages",
            admin_pb2.FindMessagesRequest(topic=name, message_id="x"),
            admin_pb2.FindMessagesResponse,
        ),
        ("ScanQueue", admin_pb2.ScanQueueRequest(topic=name), admin_pb2.ScanQueueResponse),
    ]
    # One topic that is forbidden refuses the batch.
    batch = admin_pb2.CreateTopicsRequest(
        topics=[meta_pb2.Topic(name="plain"), meta_pb2.Topic(name=name)]
    )
    many = [("CreateTopics", batch, admin_pb2.CreateTopicsResponse)]
    for rpc, request, response_type in changes_of(name) + reads + many:
        with pytest.raises(CallError, match=part):
            await listed(edge, "greedy", rpc, request, response_type)
    assert app.view.topic("", "plain") is None


@pytest.mark.parametrize("name", ["__strata_audit", "__strata_metrics"])
async def test_nobody_writes_topics_of_the_cluster(
    as_user: As, edge: FakeEdge, meta: FakeMeta, app: BrokerApp, name: str
) -> None:
    """Not who may do everything either; but these, and who has the right on the part, read."""
    await add_own_topic(name, meta, app)
    sent = rocketmq_admin_pb2.AdminSendMessageRequest(topic=resource(name), body=b"{}")
    for user in ("everything", "root"):
        assert (await as_user(user).send(message(name, 1))).status.code == (
            definition_pb2.ILLEGAL_TOPIC
        )
        answer: Any = await edge.call(
            ADMIN_SEND,
            sent,
            rocketmq_admin_pb2.AdminSendMessageResponse,
            headers(user),
        )
        assert answer.status.code == definition_pb2.ILLEGAL_TOPIC
        for rpc, request, response_type in changes_of(name):
            with pytest.raises(CallError, match="reserved"):
                await listed(edge, user, rpc, request, response_type)
    for user in ("root", "auditor", "everything"):
        status, _ = await as_user(user).receive(name, "readers")
        assert status.code == definition_pb2.MESSAGE_NOT_FOUND
    shown = {}
    for user in ("greedy", "root"):
        request = admin_pb2.ListTopicsRequest(include_system=True)
        page = await listed(edge, user, "ListTopics", request, admin_pb2.ListTopicsResponse)
        shown[user] = name in {one.name for one in page.topics}
    assert shown == {"greedy": False, "root": True}


async def test_9862_leases_take_the_rights_of_a_consumer(
    as_user: As, edge: FakeEdge, meta: FakeMeta, app: BrokerApp
) -> None:
    """With `sub` on topic and group a user pops, acks and changes invisibility; lacking one, not.

    RocketMQ's ACL looked at POP's retry topics, which no policy of a user names.
    """
    meta.put(user_row("cat"), policy_row(30, "cat", "topic:orders", "sub"))
    await until(lambda: app.view.revision >= meta.revision)
    ann = as_user("ann")
    await ann.send(message("orders", 1))
    (got,) = await ann.receive_all("orders", "readers")
    handle = got.system_properties.receipt_handle

    async def changed(user: str) -> service_pb2.ChangeInvisibleDurationResponse:
        request = service_pb2.ChangeInvisibleDurationRequest(
            topic=resource("orders"), group=resource("readers"), receipt_handle=handle
        )
        request.invisible_duration.seconds = 60
        return await edge.call(
            MESSAGING + "ChangeInvisibleDuration",
            request,
            service_pb2.ChangeInvisibleDurationResponse,
            headers(user),
        )

    # `cat` may not use the consumer group, `bob` not the topic.
    for user, missing in (("cat", "Group:readers"), ("bob", "Topic:orders")):
        status, _ = await as_user(user).receive("orders", "readers")
        acked = await as_user(user).ack("orders", "readers", handle)
        for refused in (status, acked.status):
            assert refused.code == definition_pb2.FORBIDDEN
            assert missing in refused.message
    assert (await changed("cat")).status.code == definition_pb2.FORBIDDEN
    again = await changed("ann")
    assert again.status.code == definition_pb2.OK
    acked = await ann.ack("orders", "readers", again.receipt_handle)
    assert acked.status.code == definition_pb2.OK


async def test_the_admin_of_a_tenant_is_bound_by_its_namespace(
    edge: FakeEdge, meta: FakeMeta, app: BrokerApp
) -> None:
    """`tess` creates and deletes in `shop`; elsewhere, and what is the cluster's, is refused."""

    async def make(namespace: str) -> None:
        topic = meta_pb2.Topic(
            namespace=namespace, name="made", type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=1
        )
        create = admin_pb2.CreateTopicRequest(topic=topic)
        await listed(edge, "tess", "CreateTopic", create, admin_pb2.CreateTopicResponse)

    async def delete(namespace: str, name: str) -> None:
        request = admin_pb2.DeleteTopicRequest(namespace=namespace, name=name)
        await listed(edge, "tess", "DeleteTopic", request, admin_pb2.DeleteTopicResponse)

    async def make_group(namespace: str) -> None:
        group = meta_pb2.ConsumerGroup(namespace=namespace, name="made")
        await listed(
            edge,
            "tess",
            "CreateConsumerGroup",
            admin_pb2.CreateConsumerGroupRequest(consumer_group=group),
            admin_pb2.CreateConsumerGroupResponse,
        )

    await make("shop")
    assert app.view.topic("shop", "made") is not None
    await make_group("shop")
    assert app.view.consumer_group("shop", "made") is not None
    await delete("shop", "made")
    assert app.view.topic("shop", "made") is None
    for outside in ("", "shopping", "other"):
        for refused in (make(outside), delete(outside, "orders"), make_group(outside)):
            with pytest.raises(CallError) as caught:
                await refused
            assert caught.value.status == "PERMISSION_DENIED"
    assert app.view.topic("", "orders") is not None
    user = admin_pb2.CreateUserRequest(name="mate")
    with pytest.raises(CallError) as caught:
        await listed(edge, "tess", "CreateUser", user, admin_pb2.CreateUserResponse)
    assert caught.value.status == "PERMISSION_DENIED"


async def test_garbage_in_a_stream_that_is_checked_is_an_invalid_argument(edge: FakeEdge) -> None:
    """The guard reads a frame before its handler; the client is told of its own mistake."""

    async def frames() -> AsyncIterator[bytes]:
        yield b"\xff"

    with pytest.raises(CallError) as told:
        async for _ in edge.open_stream(MESSAGING + "Telemetry", frames(), headers("ann")):
            pass
    assert str(told.value).startswith("INVALID_ARGUMENT")


async def test_garbage_without_a_signature_is_unauthorized(edge: FakeEdge) -> None:
    """A refusal that carries the request's handle needs no request that can be read."""
    change = edge.unary[MESSAGING + "ChangeInvisibleDuration"]
    answer = await change(b"\xff", FakeCall("", b"", {"x-mq-client-id": "c"}))
    response = service_pb2.ChangeInvisibleDurationResponse.FromString(answer)
    assert response.status.code == definition_pb2.UNAUTHORIZED
    assert response.receipt_handle == ""
