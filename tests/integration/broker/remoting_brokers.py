"""Brokers with a remoting port over real storage nodes, and clients of that port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_remoting import PulledMessage, ResponseCode, Serialization
from strata_testing.remoting_client import RemotingClient
from tests.integration.broker.cluster_brokers import (
    ClusterBroker,
    brokers_over,
    furnished_cluster,
    topic_row,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest

GROUP = "g"
RETRIES = 11
KEY = "7F00000100002A9F0000000000000102"


def remoting_config(**remoting: Any) -> BrokerConfig:
    """A broker's configuration with a remoting port."""
    return BrokerConfig.model_validate(
        {"receive": {"min_polling_ms": 0}, "remoting": {"port": 0, **remoting}}
    )


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    """Three nodes; a module with others has a fixture of this name."""
    async for made in remoting_cluster(tmp_path):
        yield made


@pytest.fixture
def config() -> BrokerConfig:
    """The configuration of both brokers; a module with another has a fixture of this name."""
    return remoting_config()


@pytest.fixture
async def brokers(
    cluster: ClusterUnderTest, config: BrokerConfig
) -> AsyncIterator[Sequence[ClusterBroker]]:
    """Two brokers over the cluster."""
    async with brokers_over(cluster, config) as started:
        yield started


async def remoting_cluster(folder: Path) -> AsyncIterator[ClusterUnderTest]:
    """Yield a furnished cluster with the topic of the retries of group `g`."""
    async for made in furnished_cluster(folder):
        retries = topic_row(RETRIES, "%RETRY%g", meta_pb2.TOPIC_TYPE_MIXED)
        made.stub.write(meta_pb2.Change(topic=retries))
        yield made


@asynccontextmanager
async def clients(
    brokers: Sequence[ClusterBroker], count: int = 1, topic: str = "orders"
) -> AsyncIterator[list[RemotingClient]]:
    """Clients of the broker behind a topic, as a route names it."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(client_of(brokers[0]))
        route = await first.route(topic)
        address = route["brokerDatas"][0]["brokerAddrs"]["0"]
        yield [
            await stack.enter_async_context(
                RemotingClient(address, Serialization(number % len(Serialization)))
            )
            for number in range(count)
        ]


def client_of(broker: ClusterBroker) -> RemotingClient:
    """A client of a broker, not connected yet."""
    return RemotingClient(broker.app.shown()["nameserver"])


async def pulled_from(
    client: RemotingClient, topic: str, queues: Sequence[int] = range(4)
) -> list[PulledMessage]:
    """Everything in some queues of a topic."""
    found = []
    for queue in queues:
        answer, messages = await client.pull(topic, GROUP, queue, 0)
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND), answer.remark
        found += messages
    return found
