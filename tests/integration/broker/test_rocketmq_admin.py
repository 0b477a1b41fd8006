"""`apache.rocketmq.v2.Admin` over two brokers and three storage nodes: each of the 16 RPCs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2
from strata_broker.base.config import BrokerConfig
from strata_runtime import logs
from strata_testing.broker.client import id_of, message, resource
from strata_testing.broker.fake_edge import MESSAGING, FakeCall
from tests.integration.broker.cluster_brokers import (
    ClusterBroker,
    brokers_over,
    furnished_cluster,
    handles_of,
    send_numbers,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest

ROCKETMQ_ADMIN = "/apache.rocketmq.v2.Admin/"
SERVICE = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
CONFIG = BrokerConfig.model_validate(
    {"receive": {"min_polling_ms": 0}, "peer": {"command_timeout_ms": 300}}
)
GROUP, TOPIC = "g", "orders"
CLIENT = "host-9@17@0@abc"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async for made in furnished_cluster(tmp_path):
        yield made


@pytest.fixture
async def brokers(cluster: ClusterUnderTest) -> AsyncIterator[Sequence[ClusterBroker]]:
    async with brokers_over(cluster, CONFIG) as started:
        yield started


async def ask(broker: ClusterBroker, rpc: str, **fields: Any) -> Any:
    """Call an RPC of the Admin service as a tool without client id."""
    method = SERVICE.methods_by_name[rpc]
    request = getattr(admin_pb2, method.input_type.name)(**fields)
    response_type = getattr(admin_pb2, method.output_type.name)
    return await broker.edge.call(ROCKETMQ_ADMIN + rpc, request, response_type, {})


async def ok(broker: ClusterBroker, rpc: str, **fields: Any) -> Any:
    """Call an RPC that must be served."""
    response = await ask(broker, rpc, **fields)
    assert response.status.code == definition_pb2.OK, response.status
    return response


class ConnectedConsumer:
    """A push consumer's telemetry stream; answers commands as the test says."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[bytes] = asyncio.Queue()
        self.commands: asyncio.Queue[service_pb2.TelemetryCommand] = asyncio.Queue()

    def say(self, **fields: Any) -> None:
        self.says.put_nowait(service_pb2.TelemetryCommand(**fields).SerializeToString())

    async def requests(self) -> AsyncIterator[bytes]:
        while True:
            yield await self.says.get()


@asynccontextmanager
async def connected(
    broker: ClusterBroker, expression: str = "*", client_id: str = CLIENT
) -> AsyncIterator[ConnectedConsumer]:
    """Connect a push consumer of the group to a broker."""
    consumer = ConnectedConsumer()
    settings = definition_pb2.Settings(client_type=definition_pb2.PUSH_CONSUMER)
    settings.user_agent.language = definition_pb2.JAVA
    settings.user_agent.version = "5.2.1"
    settings.user_agent.hostname = "host-9"
    settings.subscription.group.name = GROUP
    entry = settings.subscription.subscriptions.add(topic=resource(TOPIC))
    entry.expression.type = definition_pb2.TAG
    entry.expression.expression = expression
    consumer.say(settings=settings)
    call = FakeCall("Telemetry", b"", {"x-mq-client-id": client_id})
    stream = broker.edge.streams[MESSAGING + "Telemetry"](consumer.requests(), call)

    async def read() -> None:
        async for frame in stream:
            command = service_pb2.TelemetryCommand.FromString(frame)
            if not command.HasField("settings"):
                consumer.commands.put_nowait(command)
            told.set()

    told = asyncio.Event()
    reading = asyncio.ensure_future(read())
    async with asyncio.timeout(30):
        await told.wait()
    yield consumer
    reading.cancel()
    await asyncio.wait((reading,))


async def receive(broker: ClusterBroker, count: int) -> list[definition_pb2.Message]:
    """Receive at least so many messages without acking them."""
    got: list[definition_pb2.Message] = []
    async with asyncio.timeout(60):
        while len(got) < count:
            got += await broker.client.receive_all(TOPIC, GROUP, polling_s=0)
    return got


def test_all_rpcs_are_tried_here() -> None:
    """No RPC of the service is without a test in this file."""
    text = Path(__file__).read_text()
    missing = [method.name for method in SERVICE.methods if f'"{method.name}"' not in text]
    assert (missing, len(SERVICE.methods)) == ([], 16)


async def test_every_rpc_is_served(brokers: Sequence[ClusterBroker]) -> None:
    """16 RPCs; whatever is unknown is a Status, not a gRPC error."""
    assert {ROCKETMQ_ADMIN + method.name for method in SERVICE.methods} <= set(
        brokers[0].edge.unary
    )
    named = {"topic": resource("nowhere"), "group": resource("nobody")}
    for method in SERVICE.methods:
        fields = {
            name: value for name, value in named.items() if name in method.input_type.fields_by_name
        }
        response = await ask(brokers[0], method.name, **fields)
        if not fields:
            continue
        assert response.status.code in (
            definition_pb2.BAD_REQUEST,
            definition_pb2.TOPIC_NOT_FOUND,
            definition_pb2.CONSUMER_GROUP_NOT_FOUND,
            definition_pb2.NOT_FOUND,
        ), (method.name, response.status)
        assert response.status.message


async def test_the_log_level_changes(brokers: Sequence[ClusterBroker]) -> None:
    """The level holds for lines that are written from now on, and the remark names it."""
    before = logs.set_level("info")
    try:
        changed = await ask(
            brokers[0], "ChangeLogLevel", level=admin_pb2.ChangeLogLevelRequest.ERROR
        )
        assert changed.remark == "log level of broker-0 was info and is error"
        assert logging.getLogger().level == logging.ERROR
        assert logs.set_level("info") == "error"
    finally:
        logs.set_level(before)


async def test_topics_are_described(brokers: Sequence[ClusterBroker]) -> None:
    """Type of a topic, and where it is as RocketMQ's tools read it."""
    for topic, kind in (("orders", definition_pb2.NORMAL), ("fifo", definition_pb2.FIFO)):
        described = await ok(brokers[0], "DescribeTopicStatus", topic=resource(topic))
        assert described.topic_message_type == kind
    route = await ok(brokers[1], "GetTopicRoute", topic=resource(TOPIC))
    data = json.loads(route.topic_route_data)
    queues = {one["brokerName"]: one["readQueueNums"] for one in data["queueDatas"]}
    assert queues == {"strata-1": 2, "strata-2": 2}
    assert {one["perm"] for one in data["queueDatas"]} == {6}
    addresses = {address for one in data["brokerDatas"] for address in one["brokerAddrs"].values()}
    assert addresses <= {"127.0.0.1:18081", "127.0.0.2:18081"}


async def test_subscriptions_of_clients_of_all_brokers(
    brokers: Sequence[ClusterBroker],
) -> None:
    """The answers tell who subscribes to what, whether all agree, and where each connects from."""
    async with connected(brokers[0], "a"), connected(brokers[1], "b", "other@1@2@3"):
        for broker in brokers:
            for fields in ({"group": resource(GROUP)}, {"topic": resource(TOPIC)}):
                (info,) = (await ok(broker, "ListSubscription", **fields)).subscription_info
                assert (info.group.name, info.topic.name, info.online) == (GROUP, TOPIC, True)
                assert not info.subscription_consistency
                assert info.message_model == admin_pb2.CLUSTERING
            described = await ok(broker, "DescribeSubscription", group=resource(GROUP))
            expressions = {
                one.client_info.client_id: one.subscription_info.expression.expression
                for one in described.client_subscription_info
            }
            assert expressions == {CLIENT: "a", "other@1@2@3": "b"}
            connections = await ok(broker, "ListConsumerConnection", group=resource(GROUP))
            assert [one.client_id for one in connections.client_info] == [CLIENT, "other@1@2@3"]
            first = connections.client_info[0]
            assert (first.language, first.version, first.hostname, first.egress_ip) == (
                "JAVA",
                "5.2.1",
                "host-9",
                "127.0.0.1",
            )


async def test_a_subscription_is_deleted_when_nobody_uses_it(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Refused while a client on any broker subscribes; then the group begins anew."""
    named = {"topic": resource(TOPIC), "group": resource(GROUP)}
    await send_numbers(brokers[0].client, TOPIC, range(1, 5))
    async with connected(brokers[1]):
        refused = await ask(brokers[0], "DeleteSubscription", **named)
        assert refused.status.code == definition_pb2.PRECONDITION_FAILED
        assert CLIENT in refused.status.message
    await brokers[1].client.ack(TOPIC, GROUP, *handles_of(await receive(brokers[1], 4)))
    brokers[1].app.sessions.terminated("client-1")
    brokers[1].app.sessions.terminated(CLIENT)
    (offline,) = (await ok(brokers[0], "ListSubscription", **named)).subscription_info
    assert not offline.online
    await ok(brokers[0], "DeleteSubscription", **named)
    assert not (await ok(brokers[0], "ListSubscription", **named)).subscription_info
    assert len(await receive(brokers[1], 4)) == 4


async def test_accumulation_and_time_spans(brokers: Sequence[ClusterBroker]) -> None:
    """The answers tell what is in flight, what is ready, since when; a reset by time moves it."""
    await send_numbers(brokers[0].client, TOPIC, range(1, 11))
    first = await brokers[1].client.receive_all(TOPIC, GROUP, polling_s=0, batch_size=2)
    await brokers[1].client.ack(TOPIC, GROUP, handles_of(first)[0])
    for topics in ([], [resource(TOPIC)]):
        told = await ok(
            brokers[0], "DescribeGroupAccumulation", group=resource(GROUP), topics=topics
        )
        total = told.accumulation
        assert total.inflight_messages == len(first) - 1
        assert total.ready_messages == 10 - len(first)
        assert total.accumulation == 9
        assert total.deliver_delay_time.ToMilliseconds() >= 0
        assert told.topic_accumulation[TOPIC] == total
    spans = (await ok(brokers[1], "QueryTimeSpan", group=resource(GROUP))).queue_time_span_list
    assert {(one.message_queue.broker.name, one.message_queue.id) for one in spans} == {
        (name, number) for name in ("strata-1", "strata-2") for number in (0, 1)
    }
    filled = [one for one in spans if one.max_timestamp]
    assert filled
    assert all(0 < one.min_timestamp <= one.max_timestamp for one in filled)
    assert all(one.delay_time_ms >= 0 for one in filled)
    await ok(
        brokers[0],
        "ResetGroupOffset",
        group=resource(GROUP),
        topic=resource(TOPIC),
        reset_timestamp={"seconds": 1},
    )
    again = await ok(brokers[1], "DescribeGroupAccumulation", group=resource(GROUP))
    assert (again.accumulation.ready_messages, again.accumulation.inflight_messages) == (10, 0)


async def test_messages_are_sent_and_queried(brokers: Sequence[ClusterBroker]) -> None:
    """By id, key, tags and time; pages by number and by scroll."""
    ids = []
    for number in range(6):
        sent = await ok(
            brokers[0],
            "AdminSendMessage",
            topic=resource(TOPIC),
            tag="even" if number % 2 == 0 else "odd",
            key=f"key-{number}",
            body=b"%d" % number,
            user_properties={"number": str(number)},
        )
        ids.append(sent.message_id)
    (by_id,) = (
        await ok(brokers[1], "QueryMessage", topic=resource(TOPIC), message_id=ids[3])
    ).messages
    assert (by_id.body, by_id.system_properties.tag) == (b"3", "odd")
    assert by_id.user_properties["number"] == "3"
    assert by_id.system_properties.HasField("store_timestamp")
    (by_key,) = (
        await ok(brokers[1], "QueryMessage", topic=resource(TOPIC), message_key="key-3")
    ).messages
    assert by_key == by_id
    tagged = await ok(brokers[1], "QueryMessage", topic=resource(TOPIC), subscription="even")
    assert sorted(one.body for one in tagged.messages) == [b"0", b"2", b"4"]
    pages = [
        await ok(brokers[1], "QueryMessage", topic=resource(TOPIC), page_num=number, page_size=4)
        for number in (1, 2, 3)
    ]
    assert [len(page.messages) for page in pages] == [4, 2, 0]
    scrolled = await ok(
        brokers[0], "QueryMessage", topic=resource(TOPIC), scroll_id=pages[0].scroll_id
    )
    bodies = [one.body for page in (*pages[:1], scrolled) for one in page.messages]
    assert sorted(bodies) == [b"%d" % number for number in range(6)]
    refused = await ask(brokers[0], "AdminSendMessage", topic=resource(TOPIC))
    assert refused.status.code == definition_pb2.MESSAGE_BODY_EMPTY


async def test_a_client_of_another_broker_prints_its_threads(
    brokers: Sequence[ClusterBroker],
) -> None:
    """The command goes where the client is; its answer, or its silence, comes back."""
    async with connected(brokers[1]) as consumer:
        for code, text in (
            (definition_pb2.OK, "main: sleeping"),
            (definition_pb2.NOT_IMPLEMENTED, ""),
        ):
            asking = asyncio.ensure_future(
                ask(brokers[0], "PrintThreadStackTrace", client_id=CLIENT, group=resource(GROUP))
            )
            async with asyncio.timeout(30):
                command = await consumer.commands.get()
            nonce = command.print_thread_stack_trace_command.nonce
            trace = {"nonce": nonce, "thread_stack_trace": text}
            consumer.say(status={"code": code}, thread_stack_trace=trace)
            answer = await asking
            assert (answer.status.code, answer.thread_stack_trace) == (code, text)
        silent = await ask(brokers[0], "PrintThreadStackTrace", client_id=CLIENT)
        assert silent.status.code == definition_pb2.REQUEST_TIMEOUT
    unknown = await ask(brokers[0], "PrintThreadStackTrace", client_id="nobody")
    assert unknown.status.code == definition_pb2.NOT_FOUND


async def test_a_client_verifies_a_stored_message(brokers: Sequence[ClusterBroker]) -> None:
    """It is given the message; what it says of it is the answer."""
    await brokers[0].client.send(message(TOPIC, 1, body=b"to verify"))
    async with connected(brokers[1]) as consumer:
        for code in (
            definition_pb2.OK,
            definition_pb2.FAILED_TO_CONSUME_MESSAGE,
            definition_pb2.VERIFY_FIFO_MESSAGE_UNSUPPORTED,
            definition_pb2.MESSAGE_CORRUPTED,
        ):
            asking = asyncio.ensure_future(
                ask(
                    brokers[0],
                    "VerifyMessage",
                    client_id=CLIENT,
                    group=resource(GROUP),
                    topic=resource(TOPIC),
                    message_id=id_of(1),
                )
            )
            async with asyncio.timeout(30):
                command = (await consumer.commands.get()).verify_message_command
            assert command.message.body == b"to verify"
            consumer.say(status={"code": code}, verify_message_result={"nonce": command.nonce})
            assert (await asking).status.code == code


async def test_running_info_of_a_consumer(brokers: Sequence[ClusterBroker]) -> None:
    """Brokers tell what they know of it: who it is, its subscriptions, its group's queues."""
    await send_numbers(brokers[0].client, TOPIC, range(1, 5))
    await brokers[0].client.ack(TOPIC, GROUP, *handles_of(await receive(brokers[0], 4)))
    async with connected(brokers[1], "a||b"):
        info = (
            await ok(brokers[0], "GetConsumerRunningInfo", client_id=CLIENT, group=resource(GROUP))
        ).consumer_running_info
    assert info.properties["client_id"] == CLIENT
    assert info.properties["client_type"] == "PUSH_CONSUMER"
    assert info.subscriptions[TOPIC].expression == "a||b"
    offsets = [one.process_queue_info.commit_offset for one in info.message_queue_table]
    assert (len(offsets), sum(offsets)) == (4, 4)
    nobody = await ask(brokers[0], "GetConsumerRunningInfo", group=resource(GROUP))
    assert nobody.status.code == definition_pb2.NOT_FOUND, "no client is named"


async def test_the_brokers_own_figures(brokers: Sequence[ClusterBroker]) -> None:
    """Messages per second and connections."""
    await send_numbers(brokers[0].client, TOPIC, range(1, 4))
    async with connected(brokers[0]):
        told = await ok(brokers[0], "GetProxyRuntimeStats")
    assert told.proxy_name == "broker-0"
    assert told.version
    assert told.in_tps > 0
    assert told.consumers == 1
