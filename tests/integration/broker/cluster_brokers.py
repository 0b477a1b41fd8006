"""Brokers over three real storage nodes: what clients see of them, and how brokers die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from apache.rocketmq.v2 import definition_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_broker.base.identity import BrokerIdentity
from strata_broker.storage_client.channels import cluster_network
from strata_runtime.metrics import Metrics
from strata_testing.broker import BrokerUnderTest, broker_under_test
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_edge import EdgeChannel, FakeEdge
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of

ORDERS, FIFO = 7, 8
DEAD_LETTERS = 9
# Queue 0 of a topic whose slots begin at 0 is in the first raft group.
HOMES = {1: [0, 2], 2: [1, 3]}


async def furnished_cluster(folder: Path) -> AsyncIterator[ClusterUnderTest]:
    """Yield three nodes, two raft groups, a NORMAL and a FIFO topic, a plain and a FIFO group."""
    async for cluster in cluster_of(folder, 3, groups=2):
        changes = []
        for number, row in cluster.stub.groups.items():
            row.broker_name = f"strata-{number}"
            changes.append(meta_pb2.Change(raft_group=row))
        for topic_id, name, kind in (
            (ORDERS, "orders", meta_pb2.TOPIC_TYPE_NORMAL),
            (FIFO, "fifo", meta_pb2.TOPIC_TYPE_FIFO),
            (DEAD_LETTERS, "%DLQ%g", meta_pb2.TOPIC_TYPE_DEAD_LETTER),
        ):
            changes.append(meta_pb2.Change(topic=topic_row(topic_id, name, kind)))
        for group_id, name, fifo in ((20, "g", False), (21, "ordered", True)):
            group = meta_pb2.ConsumerGroup(
                consumer_group_id=group_id, name=name, fifo=fifo, dead_letter_topic_id=DEAD_LETTERS
            )
            changes.append(meta_pb2.Change(consumer_group=group))
        cluster.stub.write(*changes)
        yield cluster


def topic_row(topic_id: int, name: str, kind: meta_pb2.TopicType.ValueType) -> meta_pb2.Topic:
    """A topic of 4 queues, or one that has the dead letters."""
    if kind == meta_pb2.TOPIC_TYPE_DEAD_LETTER:
        return meta_pb2.Topic(topic_id=topic_id, name=name, type=kind)
    topic = meta_pb2.Topic(topic_id=topic_id, name=name, type=kind, queue_count=4)
    for raft_group, queues in HOMES.items():
        topic.homes.add(raft_group=raft_group, queues=queues)
    return topic


ClusterBroker = BrokerUnderTest[FakeEdge]
"""A broker whose edge is in memory, over real storage nodes."""


def cluster_broker(
    cluster: ClusterUnderTest, config: BrokerConfig, number: int, edges: dict[str, FakeEdge]
) -> ClusterBroker:
    """Return one of several brokers, which reach each other by their edges; it is not started."""
    host = f"127.0.0.{number + 1}"
    edge = edges[f"{host}:18081"] = FakeEdge()
    network = replace(
        cluster_network((cluster.stub.endpoint,), (), config.storage_client),
        broker_channels=lambda endpoints, headers: EdgeChannel(edges, endpoints[0], headers),
    )
    identity = BrokerIdentity(f"broker-{number}", 50 + number, host)
    return broker_under_test(
        edge, network, config=config, identity=identity, metrics=Metrics.disabled()
    )


def reading_from(who: str, config: BrokerConfig) -> BrokerConfig:
    """Return a config whose brokers read messages from the leader, or from all replicas.

    `places`: from the leader, but the bytes of one answer at a time, when their sizes are known.
    """
    if who == "leader":
        return config
    if who == "places":
        room = {"max_bytes_in_flight": 1}
        sections = {
            "receive": config.receive.model_copy(update=room),
            "pull": config.pull.model_copy(update=room),
        }
        return config.model_copy(update=sections)
    client = config.storage_client.model_copy(update={"spread_from_groups": 1})
    return config.model_copy(update={"storage_client": client})


@asynccontextmanager
async def brokers_over(
    cluster: ClusterUnderTest, config: BrokerConfig, count: int = 2
) -> AsyncIterator[Sequence[ClusterBroker]]:
    """Start brokers; nothing in them may have failed when the block ends."""
    edges: dict[str, FakeEdge] = {}
    brokers = [cluster_broker(cluster, config, number, edges) for number in range(count)]
    for broker in brokers:
        await broker.start()
        assert await broker.app.view.wait_for_revision(cluster.stub.cache.revision, 60)
    yield brokers
    for broker in brokers:
        await broker.stop(0.5)


def number_of(one: definition_pb2.Message) -> int:
    """The number that a message was sent with."""
    return int(one.body)


def handles_of(messages: Sequence[definition_pb2.Message]) -> list[str]:
    """Return the handles that acks name."""
    return [one.system_properties.receipt_handle for one in messages]


async def send_numbers(
    client: Client, topic: str, numbers: range, message_group: str = ""
) -> list[int]:
    """Send one message per number, one by one; return their offsets."""
    offsets = []
    for number in numbers:
        fields = {"message_group": message_group} if message_group else {}
        kind = definition_pb2.FIFO if message_group else definition_pb2.NORMAL
        sent = await client.send(
            message(topic, number, body=b"%d" % number, message_type=kind, **fields)
        )
        assert sent.status.code == definition_pb2.OK, sent.status.message
        offsets.append(sent.entries[0].offset)
    return offsets


async def drain(client: Client, topic: str, group: str, count: int) -> list[int]:
    """Receive and ack until `count` messages were delivered; return their numbers in order."""
    numbers: list[int] = []
    async with asyncio.timeout(60):
        while len(numbers) < count:
            got = await client.receive_all(topic, group, polling_s=0)
            numbers += map(number_of, got)
            if got:
                response = await client.ack(topic, group, *handles_of(got))
                assert response.status.code == definition_pb2.OK
    return numbers
