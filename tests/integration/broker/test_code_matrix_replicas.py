"""Cells of the matrix that take real replicas: three storage nodes that lose each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2, service_pb2_grpc
from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_broker.storage_client.channels import cluster_network
from strata_testing import until
from strata_testing.broker import broker_under_test
from tests.integration.broker.matrix_calls import METADATA, new_message
from tests.integration.broker.plain_edge import plain_edge
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of

CONFIG = BrokerConfig.model_validate({"send": {"timeout_ms": 400}})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    """Three nodes, one raft group, one topic."""
    async for made in cluster_of(tmp_path, 3):
        row = made.stub.groups[1]
        row.broker_name = "strata-1"
        topic = meta_pb2.Topic(
            topic_id=7, name="orders", type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=4
        )
        made.stub.write(meta_pb2.Change(raft_group=row), meta_pb2.Change(topic=topic))
        yield made


@pytest.fixture
async def stub(
    cluster: ClusterUnderTest,
) -> AsyncIterator[service_pb2_grpc.MessagingServiceAsyncStub]:
    """A client of a broker of the cluster."""
    network = cluster_network((cluster.stub.endpoint,), (), CONFIG.storage_client)
    edge = plain_edge(CONFIG)
    async with broker_under_test(edge, network, config=CONFIG) as broker:
        assert await broker.app.view.wait_for_revision(cluster.stub.cache.revision, 60)
        async with grpc.aio.insecure_channel(broker.app.endpoint) as channel:
            yield service_pb2_grpc.MessagingServiceStub(channel)


async def send(stub: service_pb2_grpc.MessagingServiceAsyncStub) -> definition_pb2.Status:
    """Send one message; return the status, which its entry repeats."""
    request = service_pb2.SendMessageRequest(messages=[new_message()])
    response = await stub.SendMessage(request, metadata=METADATA)
    assert response.entries[0].status == response.status or response.status.code == 20_000
    return response.status


async def test_a_minority_stores_nothing(
    cluster: ClusterUnderTest, stub: service_pb2_grpc.MessagingServiceAsyncStub
) -> None:
    """SLAVE_PERSISTENCE_TIMEOUT without followers, HA_NOT_AVAILABLE without leader, then OK."""
    assert (await send(stub)).code == definition_pb2.OK
    leader = await cluster.until_led(1)
    followers = [name for name in cluster.members if name != leader]
    for name in followers:
        await cluster.members[name].lose_power()
    told = await send(stub)
    assert told.code == definition_pb2.SLAVE_PERSISTENCE_TIMEOUT, told.message
    assert told.message.startswith(
        "a majority of the replicas did not make it durable in time: raft group "
    )
    await until(lambda: cluster.leader_of(1) is None)
    told = await send(stub)
    while told.code == definition_pb2.SLAVE_PERSISTENCE_TIMEOUT:
        # On a busy machine the node that is left may not even say that it does not lead in time.
        told = await send(stub)
    assert told.code == definition_pb2.HA_NOT_AVAILABLE, told.message
    assert told.message.startswith("no majority of the replicas elects a leader: raft group ")
    for name in followers:
        await cluster.start(name)
    await cluster.until_led(1)
    assert (await send(stub)).code == definition_pb2.OK
