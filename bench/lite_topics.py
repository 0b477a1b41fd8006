"""Lite topics by the million on three replicas: `python -m bench.lite_topics [--lite-topics N]`.

Three nameservers, three storage nodes and a broker on this machine get a parent topic of type LITE
and a message for each of many lite topics, 32 in a request, which makes the lite topics. Then a
client subscribes to some of them and waits for messages, which are sent one after the other to one
lite topic at a time. At the end a storage node is killed (kill -9): `failover_s` is the time from
the kill until a message to each of a hundred lite topics is stored again, and `restarted_s` the
time from the start of the killed one until the cluster is healthy. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import grpc

from apache.rocketmq.v2 import definition_pb2, service_pb2
from bench.many_topics import RETRY_S, several
from bench.run import machine
from tests.e2e.client import Client, RefusedError, check_status
from tests.e2e.cluster import Cluster
from tests.e2e.process import cpu_seconds, resident_bytes

PARENT, GROUP = "sessions", "readers"
QUEUES = 48
BODY = b"x" * 100
IN_REQUEST = 32
WOKEN, FAILOVER_TOPICS = 200, 100
POLL_S = 5
NOT_FOUND = definition_pb2.MESSAGE_NOT_FOUND


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lite-topics", type=int, default=1_000_000)
    parser.add_argument("--at-once", type=int, default=16, help="requests under way")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder) / "cluster", brokers=1)
        try:
            cluster.up()
            figures = measure(cluster, arguments)
        finally:
            cluster.down()
    print(json.dumps({"machine": machine(), **figures}, indent=2))


def name_of(number: int) -> str:
    """Return the name of a lite topic."""
    return f"session-{number:07d}"


def measure(cluster: Cluster, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return all figures."""
    cluster.create_topic(PARENT, "--type", "LITE", "--queues", str(QUEUES))
    cluster.create_group(GROUP)
    figures: dict[str, Any] = {
        "lite_topics": arguments.lite_topics,
        "rss_mib_before": held(cluster),
    }
    figures["create"] = asyncio.run(create(cluster, arguments))
    figures["rss_mib_after"] = held(cluster)
    figures["woken"] = asyncio.run(woken(cluster.endpoint, arguments.lite_topics))
    figures |= failover(cluster, arguments.lite_topics)
    figures["rss_mib_at_the_end"] = held(cluster)
    return figures


def held(cluster: Cluster) -> dict[str, int]:
    """Return the resident memory of each process."""
    return {
        each["name"]: round(resident_bytes(each["pid"]) / 2**20) for each in cluster.local("status")
    }


def used_s(cluster: Cluster) -> dict[str, float]:
    """Return the CPU time of each process."""
    return {each["name"]: cpu_seconds(each["pid"]) for each in cluster.local("status")}


async def create(cluster: Cluster, arguments: argparse.Namespace) -> dict[str, Any]:
    """Send a message to each lite topic."""
    count = arguments.lite_topics
    before_s, began_s = used_s(cluster), time.monotonic()
    took_ms: list[float] = []
    async with Client(cluster.endpoint) as client:

        async def send(first: int) -> None:
            asked_s = time.monotonic()
            await send_to(client, range(first, min(first + IN_REQUEST, count)))
            took_ms.append((time.monotonic() - asked_s) * 1_000)

        await several(send, range(0, count, IN_REQUEST), arguments.at_once)
    took_s = time.monotonic() - began_s
    percentiles = statistics.quantiles(took_ms, n=100)
    return {
        "s": round(took_s, 1),
        "per_s": round(count / took_s),
        "request_p50_ms": round(percentiles[49], 1),
        "request_p99_ms": round(percentiles[98], 1),
        "cpu_us": {
            name: round((each_s - before_s[name]) * 1e6 / count, 1)
            for name, each_s in used_s(cluster).items()
        },
    }


async def send_to(client: Client, numbers: Iterable[int], limit_s: float = 60.0) -> None:
    """Send a message to each of some lite topics in one request, again until it is stored."""
    request = service_pb2.SendMessageRequest()
    for number in numbers:
        message = request.messages.add(body=BODY)
        message.topic.name = PARENT
        properties = message.system_properties
        properties.message_id = client.new_message_id()
        properties.message_type = definition_pb2.LITE
        properties.lite_topic = name_of(number)
        properties.body_encoding = definition_pb2.IDENTITY
        properties.born_timestamp.GetCurrentTime()
        properties.born_host = "bench"
    ends_s = time.monotonic() + limit_s
    while True:
        try:
            answer = await client.stub.SendMessage(request, metadata=client.metadata, timeout=10)
            check_status(answer.status)
            for entry in answer.entries:
                check_status(entry.status)
        except (RefusedError, grpc.aio.AioRpcError):
            if time.monotonic() > ends_s:
                raise
            await asyncio.sleep(RETRY_S)
        else:
            return


async def woken(endpoint: str, count: int) -> dict[str, float]:
    """Return how long messages take to the receive that waits for them."""
    numbers = random.Random(count).sample(range(count), WOKEN)
    async with Client(endpoint) as receiver, Client(endpoint) as sender:
        request = service_pb2.SyncLiteSubscriptionRequest(
            action=definition_pb2.COMPLETE_ADD,
            topic=definition_pb2.Resource(name=PARENT),
            group=definition_pb2.Resource(name=GROUP),
            lite_topic_set=map(name_of, numbers),
        )
        began_s = time.monotonic()
        answer = await receiver.stub.SyncLiteSubscription(request, metadata=receiver.metadata)
        check_status(answer.status)
        subscribed_s = time.monotonic() - began_s
        queue = (await receiver.queues(PARENT))[0]
        # The messages that made the lite topics.
        for _ in numbers:
            await received(receiver, queue)
        took_ms = []
        for number in numbers:
            waiting = asyncio.ensure_future(received(receiver, queue))
            await asyncio.sleep(RETRY_S)
            sent_s = time.monotonic()
            await send_to(sender, [number])
            await waiting
            took_ms.append((time.monotonic() - sent_s) * 1_000)
    percentiles = statistics.quantiles(took_ms, n=100)
    return {
        "subscribed_s": round(subscribed_s, 2),
        "p50_ms": round(percentiles[49], 1),
        "p99_ms": round(percentiles[98], 1),
        "longest_ms": round(max(took_ms), 1),
    }


async def received(client: Client, queue: definition_pb2.MessageQueue) -> None:
    """Receive one message and acknowledge it; any queue of the parent does."""
    request = service_pb2.ReceiveMessageRequest(batch_size=1, message_queue=queue)
    request.group.name = GROUP
    request.filter_expression.type = definition_pb2.TAG
    request.filter_expression.expression = "*"
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = POLL_S
    for number in itertools.count():
        async for answer in client.stub.ReceiveMessage(request, metadata=client.metadata):
            if answer.HasField("status") and answer.status.code != NOT_FOUND:
                check_status(answer.status)
            if answer.HasField("message"):
                ack = service_pb2.AckMessageRequest(
                    group=request.group, topic=request.message_queue.topic
                )
                ack.entries.add(
                    message_id=answer.message.system_properties.message_id,
                    receipt_handle=answer.message.system_properties.receipt_handle,
                )
                await client.stub.AckMessage(ack, metadata=client.metadata)
                return
        assert number < 10, "no message came"


def failover(cluster: Cluster, count: int) -> dict[str, float]:
    """Kill a storage node and start it again."""
    killed = cluster.names("storage")[0]
    numbers = random.Random(count).sample(range(count), FAILOVER_TOPICS)
    began_s = time.monotonic()
    cluster.local("kill", killed)
    asyncio.run(sends(cluster.endpoint, numbers))
    failover_s = time.monotonic() - began_s
    began_s = time.monotonic()
    cluster.local("start", killed)
    cluster.settle(300)
    return {
        "failover_s": round(failover_s, 2),
        "restarted_s": round(time.monotonic() - began_s, 2),
    }


async def sends(endpoint: str, numbers: Sequence[int]) -> None:
    """Send a message to each of some lite topics, at once."""
    async with Client(endpoint) as client:
        await several(lambda number: send_to(client, [number]), numbers, len(numbers))


if __name__ == "__main__":
    main()
