"""Leases through several brokers: who holds them, who may repeat them, what a reset does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata_broker.base.config import BrokerConfig
from strata_testing.broker.client import Client, resource
from strata_testing.broker.fake_edge import ADMIN, MESSAGING
from tests.integration.broker.cluster_brokers import (
    ClusterBroker,
    brokers_over,
    drain,
    furnished_cluster,
    handles_of,
    number_of,
    reading_from,
    send_numbers,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest

CONFIG = BrokerConfig.model_validate(
    {
        "receive": {"min_polling_ms": 100, "min_invisible_ms": 0},
        "session": {"report_interval_ms": 100, "silent_ms": 500},
        "metadata": {"auto_create_group": False},
    }
)
SILENCE_S = 2.5
COUNT = 10


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    """Three storage nodes that believe in a client's death after SILENCE_S."""
    async for made in furnished_cluster(tmp_path):
        for member in made.members.values():
            member.node.brokers.holders._silence_s = SILENCE_S
        yield made


@pytest.fixture(params=["leader", "replicas", "places"])
async def brokers(
    cluster: ClusterUnderTest, request: pytest.FixtureRequest
) -> AsyncIterator[Sequence[ClusterBroker]]:
    """Two brokers over them, which read messages from the leader only, or from all replicas."""
    async with brokers_over(cluster, reading_from(request.param, CONFIG)) as made:
        yield made


def client_of(broker: ClusterBroker, client_id: str) -> Client:
    """A client of its own name."""
    client = Client(broker.edge)
    client.metadata = {"x-mq-client-id": client_id, "x-mq-language": "JAVA"}
    return client


async def take_all(client: Client, count: int = COUNT) -> list[definition_pb2.Message]:
    """Lease so many messages for as long as the client lives."""
    got: list[definition_pb2.Message] = []
    async with asyncio.timeout(60):
        while len(got) < count:
            got += await client.receive_all("orders", "g", polling_s=0, auto_renew=True)
    return got


async def beat(client: Client) -> None:
    """Send a heartbeat."""
    request = service_pb2.HeartbeatRequest(
        group=resource("g"), client_type=definition_pb2.PUSH_CONSUMER
    )
    path = MESSAGING + "Heartbeat"
    response = await client.edge.call(path, request, service_pb2.HeartbeatResponse, client.metadata)
    assert response.status.code == definition_pb2.OK


async def test_a_lease_is_renewed_while_any_broker_hears_its_client(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Heartbeats at another broker keep what one broker gave; after the last one it is free."""
    first, second = brokers
    await send_numbers(first.client, "orders", range(COUNT))
    consumer, elsewhere = client_of(first, "consumer"), client_of(second, "consumer")
    got = await take_all(consumer)
    other = client_of(second, "other")
    until_s = time.monotonic() + 1.5 * SILENCE_S
    while (beaten_s := time.monotonic()) < until_s:
        await beat(elsewhere)
        assert await other.receive_all("orders", "g", polling_s=0, auto_renew=True) == []
    again = await take_all(other)
    assert time.monotonic() - beaten_s > 0.5 * SILENCE_S
    assert sorted(map(number_of, again)) == sorted(map(number_of, got))
    assert {one.system_properties.delivery_attempt for one in again} == {2}
    late = await elsewhere.ack("orders", "g", *handles_of(got))
    assert late.status.code == definition_pb2.INVALID_RECEIPT_HANDLE


async def test_a_goodbye_frees_leases_at_once(brokers: Sequence[ClusterBroker]) -> None:
    """Said to one broker, it frees what the client got, long before its silence would."""
    first, second = brokers
    await send_numbers(first.client, "orders", range(COUNT))
    leaving, staying = client_of(first, "leaving"), client_of(second, "staying")
    got = await take_all(leaving)
    await asyncio.sleep(0.3)
    await first.edge.call(
        MESSAGING + "NotifyClientTermination",
        service_pb2.NotifyClientTerminationRequest(group=resource("g")),
        service_pb2.NotifyClientTerminationResponse,
        leaving.metadata,
    )
    again = await take_all(staying)
    assert sorted(map(number_of, again)) == sorted(map(number_of, got))


async def test_an_attempt_is_repeated_through_another_broker(
    brokers: Sequence[ClusterBroker],
) -> None:
    """FIFO: the same attempt id gets the same messages again, any other one nothing."""
    first, second = (broker.client for broker in brokers)
    await send_numbers(first, "fifo", range(4), message_group="a")

    async def receive(client: Client, attempt_id: str) -> list[int]:
        got = []
        for name in ("strata-1", "strata-2"):
            _, messages = await client.receive(
                "fifo", "ordered", broker=name, polling_s=0, attempt_id=f"{attempt_id}/{name}"
            )
            got += messages
        return [number_of(one) for one in got]

    async with asyncio.timeout(60):
        while not (taken := await receive(first, "one")):
            pass
    assert taken == [0, 1, 2, 3]
    assert await receive(second, "one") == taken
    assert await receive(second, "two") == []


async def test_a_reset_by_time_delivers_what_came_since(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Earlier messages stay consumed, later ones come again, acked or not; old handles are void."""
    first, second = brokers
    await send_numbers(first.client, "orders", range(COUNT))
    assert sorted(await drain(first.client, "orders", "g", COUNT)) == list(range(COUNT))
    between_ms = time.time_ns() // 1_000_000 + 1
    # Group time follows the clocks of all nodes and may be behind this one on a busy machine.
    await asyncio.sleep(1)
    await send_numbers(first.client, "orders", range(COUNT, 2 * COUNT))
    later = await take_all(client_of(first, "consumer"))
    acked = await first.client.ack("orders", "g", *handles_of(later[: COUNT // 2]))
    assert acked.status.code == definition_pb2.OK
    reset = admin_pb2.ResetConsumerGroupRequest(name="g", topic="orders", time_ms=between_ms)
    answer = await second.edge.call(
        ADMIN + "ResetConsumerGroup", reset, admin_pb2.ResetConsumerGroupResponse
    )
    assert sum(queue.lag for queue in answer.queues) == COUNT
    again = await drain(second.client, "orders", "g", COUNT)
    assert sorted(again) == list(range(COUNT, 2 * COUNT))
    void = await first.client.ack("orders", "g", *handles_of(later[COUNT // 2 :]))
    assert void.status.code == definition_pb2.INVALID_RECEIPT_HANDLE
    assert await second.client.receive_all("orders", "g", polling_s=0) == []
