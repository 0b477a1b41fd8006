"""Names that only StrataMQ itself makes and uses: no client and no operator makes or uses them."""

from __future__ import annotations

from typing import Any

import pytest

from apache.rocketmq.v2 import admin_pb2 as rocketmq_admin_pb2
from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_edge.ports import CallError
from strata_mq.requests.names import REDRIVE_GROUP, TRANSACTION_DEAD_LETTER_GROUP
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, message, resource
from strata_testing.broker.fake_edge import ADMIN, MESSAGING, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta

OWN_TOPICS = ["%KV%mine", "%DLQ%g", "__strata_x", "__strata"]
OWN_GROUPS = [REDRIVE_GROUP, TRANSACTION_DEAD_LETTER_GROUP, "__strata_x"]


@pytest.fixture
def config() -> BrokerConfig:
    """Everything may be made on first use, and few consumer groups."""
    metadata = {
        "auto_create_topic": True,
        "auto_creations_per_s_per_namespace": 0.1,
        "max_auto_groups_per_namespace": 5,
    }
    quotas = {"namespace_consumer_groups": 4}
    return broker_config(metadata=metadata, quotas=quotas)


@pytest.mark.parametrize("name", OWN_TOPICS)
async def test_topics_of_strata_are_not_made(client: Client, edge: FakeEdge, name: str) -> None:
    """By an operator, by a send or by a look at its route."""
    with pytest.raises(CallError, match="reserved"):
        await edge.call(
            ADMIN + "CreateTopic",
            admin_pb2.CreateTopicRequest(topic=meta_pb2.Topic(name=name)),
            admin_pb2.CreateTopicResponse,
        )
    assert (await client.send(message(name, 1))).status.code == definition_pb2.ILLEGAL_TOPIC
    request = service_pb2.QueryRouteRequest(topic=resource(name))
    routed = await edge.call(MESSAGING + "QueryRoute", request, service_pb2.QueryRouteResponse)
    assert routed.status.code == definition_pb2.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", OWN_GROUPS)
async def test_consumer_groups_of_strata_are_not_made(
    client: Client, edge: FakeEdge, name: str
) -> None:
    """By an operator or by a receive."""
    with pytest.raises(CallError, match="reserved"):
        await edge.call(
            ADMIN + "CreateConsumerGroup",
            admin_pb2.CreateConsumerGroupRequest(consumer_group=meta_pb2.ConsumerGroup(name=name)),
            admin_pb2.CreateConsumerGroupResponse,
        )
    status, _ = await client.receive("orders", name)
    assert status.code == definition_pb2.ILLEGAL_CONSUMER_GROUP


async def test_a_table_holds_no_messages(
    app: BrokerApp, client: Client, meta: FakeMeta, edge: FakeEdge
) -> None:
    """Nothing is sent to what stands for it, received from it or routed to it."""
    meta.add_topic("%KV%users")
    assert await app.view.wait_for_revision(meta.revision, 60)
    assert (
        await client.send(message("%KV%users", 1))
    ).status.code == definition_pb2.TOPIC_NOT_FOUND
    status, _ = await client.receive("%KV%users", "g")
    assert status.code == definition_pb2.TOPIC_NOT_FOUND
    request = service_pb2.QueryRouteRequest(topic=resource("%KV%users"))
    routed = await edge.call(MESSAGING + "QueryRoute", request, service_pb2.QueryRouteResponse)
    assert routed.status.code == definition_pb2.TOPIC_NOT_FOUND


async def test_what_the_broker_needs_is_in_nobodys_quota(
    app: BrokerApp, client: Client, edge: FakeEdge
) -> None:
    """A full quota of consumer groups keeps no transaction half forever; no list shows these."""
    for number in range(3):
        assert (await client.receive("orders", f"g{number}"))[0].code != 42900
    provisioner = app._provisioner
    for name in (TRANSACTION_DEAD_LETTER_GROUP, REDRIVE_GROUP):
        assert (await provisioner.system_group("", name)).name == name
    assert app.view.consumer_group_count("") == 3
    listed = await edge.call(
        ADMIN + "ListConsumerGroups",
        admin_pb2.ListConsumerGroupsRequest(),
        admin_pb2.ListConsumerGroupsResponse,
    )
    assert [group.name for group in listed.consumer_groups] == ["g0", "g1", "g2"]


async def test_receives_make_few_consumer_groups(client: Client) -> None:
    """Names cost a client nothing; what they make stays."""
    codes = [(await client.receive("orders", f"g{number}"))[0] for number in range(5)]
    refused = [status for status in codes if status.code == definition_pb2.TOO_MANY_REQUESTS]
    assert 0 < len(refused) < 5
    assert {status.message for status in refused} <= {
        "too many consumer groups are being created in this namespace "
        "(metadata.auto_creations_per_s_per_namespace)",
        "the quota of the default namespace is 4 consumer groups",
    }


@pytest.mark.parametrize("name", ["__strata_audit", "__strata_metrics"])
async def test_topics_of_strata_that_exist_are_for_brokers_alone(
    app: BrokerApp, client: Client, meta: FakeMeta, edge: FakeEdge, name: str
) -> None:
    """Without access control, too: nobody sends to them, changes, deletes or makes them again."""
    row = meta.add_topic(name)
    assert await app.view.wait_for_revision(meta.revision, 60)
    answer = await client.send(message(name, 1))
    assert answer.status.code == definition_pb2.ILLEGAL_TOPIC
    assert answer.status.message == "names that begin with __strata are reserved"
    sent = await edge.call(
        "/apache.rocketmq.v2.Admin/AdminSendMessage",
        rocketmq_admin_pb2.AdminSendMessageRequest(topic=resource(name), body=b"{}"),
        rocketmq_admin_pb2.AdminSendMessageResponse,
    )
    assert sent.status.code == definition_pb2.ILLEGAL_TOPIC
    topic = meta_pb2.Topic(name=name, retention_ms=1_000)
    changes: list[tuple[str, Any, Any]] = [
        (
            "UpdateTopic",
            admin_pb2.UpdateTopicRequest(topic=topic, update_mask=["retention_ms"]),
            admin_pb2.UpdateTopicResponse,
        ),
        ("DeleteTopic", admin_pb2.DeleteTopicRequest(name=name), admin_pb2.DeleteTopicResponse),
        ("CreateTopic", admin_pb2.CreateTopicRequest(topic=topic), admin_pb2.CreateTopicResponse),
    ]
    for rpc, request, response_type in changes:
        with pytest.raises(CallError, match="reserved"):
            await edge.call(ADMIN + rpc, request, response_type)
    found = app.view.topic("", name)
    assert found is not None
    assert found.topic_id == row.topic_id
    # Readers go on: placement takes its numbers from such a topic.
    status, _ = await client.receive(name, "readers")
    assert status.code == definition_pb2.MESSAGE_NOT_FOUND


@pytest.mark.parametrize("name", OWN_GROUPS)
async def test_consumer_groups_of_strata_that_exist_are_for_brokers_alone(
    app: BrokerApp, client: Client, meta: FakeMeta, edge: FakeEdge, name: str
) -> None:
    """Nobody consumes with them, changes them or deletes them with what they keep."""
    meta.add_group(meta_pb2.ConsumerGroup(name=name))
    assert await app.view.wait_for_revision(meta.revision, 60)
    status, _ = await client.receive("orders", name)
    assert status.code == definition_pb2.ILLEGAL_CONSUMER_GROUP
    acked = await client.ack("orders", name, "handle")
    assert acked.status.code == definition_pb2.ILLEGAL_CONSUMER_GROUP
    moved = await edge.call(
        MESSAGING + "UpdateOffset",
        service_pb2.UpdateOffsetRequest(
            group=resource(name),
            message_queue=definition_pb2.MessageQueue(topic=resource("orders")),
            offset=7,
        ),
        service_pb2.UpdateOffsetResponse,
    )
    assert moved.status.code != definition_pb2.OK
    group = meta_pb2.ConsumerGroup(name=name, max_attempts=1)
    changes: list[tuple[str, Any, Any]] = [
        (
            "UpdateConsumerGroup",
            admin_pb2.UpdateConsumerGroupRequest(
                consumer_group=group, update_mask=["max_attempts"]
            ),
            admin_pb2.UpdateConsumerGroupResponse,
        ),
        (
            "DeleteConsumerGroup",
            admin_pb2.DeleteConsumerGroupRequest(name=name),
            admin_pb2.DeleteConsumerGroupResponse,
        ),
    ]
    for rpc, request, response_type in changes:
        with pytest.raises(CallError, match="reserved"):
            await edge.call(ADMIN + rpc, request, response_type)
    assert app.view.consumer_group("", name) is not None
