"""Complaints of users of RocketMQ: delays and addresses. A whole node, called over gRPC."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2, service_pb2_grpc
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_testing.broker.client import message, receive_request, resource
from tests.integration.broker.faulty_node import Port, faulty_node
from tests.limits import within

METADATA = (("x-mq-client-id", "complaint"), ("x-mq-language", "JAVA"))


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Port]:
    """A node with a topic for delay messages."""
    async with faulty_node(tmp_path / "node", {"receive": {"min_polling_ms": 200}}) as port:
        topic = meta_pb2.Topic(name="delayed", type=meta_pb2.TOPIC_TYPE_DELAY, queue_count=4)
        await port.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=topic))
        yield port


def due_message(number: int, due_ms: int) -> definition_pb2.Message:
    """A delay message whose body says when it is due."""
    one = message("delayed", number, body=b"%d" % due_ms, message_type=definition_pb2.DELAY)
    one.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
    return one


async def test_8765_delays_are_on_time(port: Port) -> None:
    """2,000 messages due over 3 s: none comes early, and 99 of 100 within a second."""
    count, spread_ms = 2_000, 3_000
    start_ms = time.time_ns() // 1_000_000 + 1_500
    messages = [due_message(n, start_ms + n * spread_ms // count) for n in range(count)]
    for first in range(0, count, 200):
        request = service_pb2.SendMessageRequest(messages=messages[first : first + 200])
        sent = await port.messaging.SendMessage(request, metadata=METADATA, timeout=10)
        assert sent.status.code == definition_pb2.OK, sent.status.message
    late_ms: list[int] = []

    async def consume(broker_name: str) -> None:
        while len(late_ms) < count:
            request = receive_request("delayed", "g", broker=broker_name, polling_s=1)
            stream = port.messaging.ReceiveMessage(request, metadata=METADATA, timeout=10)
            got = [one.message async for one in stream if one.WhichOneof("content") == "message"]
            now_ms = time.time_ns() // 1_000_000
            late_ms.extend(now_ms - int(one.body) for one in got)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for broker_name in ("strata-1", "strata-2"):
            tasks.create_task(consume(broker_name))
    late_ms.sort()
    print(f"late by {late_ms[0]} to {late_ms[-1]} ms, median {late_ms[count // 2]} ms")
    assert late_ms[0] >= 0
    within("99 of 100 delays", late_ms[count * 99 // 100] / 1_000, 1.0)


async def test_9077_ipv6_endpoints(tmp_path: Path) -> None:
    """A node at an IPv6 address names it as one, and is reached under what it names."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    async with faulty_node(tmp_path / "node", {}, host="::1") as port:
        topic = meta_pb2.Topic(name="orders", type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=2)
        await port.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=topic))
        route = await port.messaging.QueryRoute(
            service_pb2.QueryRouteRequest(topic=resource("orders")), metadata=METADATA
        )
        for queue in route.message_queues:
            assert queue.broker.endpoints.scheme == definition_pb2.IPv6
            (address,) = queue.broker.endpoints.addresses
            assert address.host == "::1"
        async with grpc.aio.insecure_channel(f"ipv6:[{address.host}]:{address.port}") as channel:
            stub = service_pb2_grpc.MessagingServiceStub(channel)
            sent = await stub.SendMessage(
                service_pb2.SendMessageRequest(messages=[message("orders", 1)]), metadata=METADATA
            )
            assert sent.status.code == definition_pb2.OK
