"""Receives that wait in two brokers over three real storage nodes, while leaders change (rule 35).

Each wait is far longer than a test: a receive that looks at the wrong place, or was not told, ends
it with its own limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata_broker.base.config import BrokerConfig
from strata_testing.broker.client import Client, received
from strata_testing.broker.fake_edge import FakeCall
from tests.integration.broker.cluster_brokers import (
    ClusterBroker,
    brokers_over,
    furnished_cluster,
    handles_of,
    number_of,
    send_numbers,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest

CONFIG = BrokerConfig.model_validate({"metadata": {"auto_create_group": False}})
POLLING_S, LIMIT_S = 120, 30
NAMES = ("strata-1", "strata-2")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    """Three nodes, two raft groups, a topic of four queues."""
    async for made in furnished_cluster(tmp_path):
        yield made


@pytest.fixture
async def brokers(cluster: ClusterUnderTest) -> AsyncIterator[Sequence[ClusterBroker]]:
    """Two brokers."""
    async with brokers_over(cluster, CONFIG) as made:
        yield made


def begin(client: Client, name: str, **fields: object) -> FakeCall:
    """Begin a receive that waits for minutes."""
    return client.begin_receive("orders", "g", broker=name, polling_s=POLLING_S, **fields)


async def got(call: FakeCall) -> list[definition_pb2.Message]:
    """Wait for the answer of a receive."""
    async with asyncio.timeout(LIMIT_S):
        status, messages = received(await call.answer)
    assert status.code == definition_pb2.OK, status.message
    return messages


async def take_one_by_one(client: Client, sender: Client, numbers: range) -> None:
    """Send each number while one receive waits at each name in turn; it gets that message."""
    for number in numbers:
        call = begin(client, NAMES[number % 2], batch_size=1)
        await asyncio.sleep(0.02)
        await send_numbers(sender, "orders", range(number, number + 1))
        (message,) = await got(call)
        assert number_of(message) == number
        assert message.system_properties.delivery_attempt == 1
        acked = await client.ack("orders", "g", *handles_of([message]))
        assert acked.status.code == definition_pb2.OK


async def test_a_waiting_receive_gets_what_any_raft_group_has(
    brokers: Sequence[ClusterBroker],
) -> None:
    """The receive may ask any name, and any broker may have stored the message."""
    first, second = (broker.client for broker in brokers)
    await take_one_by_one(first, second, range(1, 13))
    await take_one_by_one(second, second, range(13, 25))


@pytest.mark.parametrize("raft_group", [1, 2])
async def test_receives_that_wait_outlive_a_leader(
    cluster: ClusterUnderTest, brokers: Sequence[ClusterBroker], raft_group: int
) -> None:
    """The node that promised to tell loses power; what the next leader stores arrives."""
    first, second = (broker.client for broker in brokers)
    calls = [begin(first, name) for name in NAMES]
    await asyncio.sleep(0.2)
    victim = await cluster.until_led(raft_group)
    await cluster.members[victim].lose_power()
    assert await cluster.until_led(raft_group) != victim
    # Each of four queues gets some.
    await send_numbers(second, "orders", range(1, 21))
    numbers = set(map(number_of, await got(calls[0])))
    numbers |= set(map(number_of, await got(calls[1])))
    while len(numbers) < 20:
        numbers |= set(map(number_of, await got(begin(first, NAMES[0]))))
    assert numbers == set(range(1, 21))


async def test_receives_that_wait_outlive_a_restart_of_every_node(
    cluster: ClusterUnderTest, brokers: Sequence[ClusterBroker]
) -> None:
    """One node after the other; afterwards both receives get messages without asking again."""
    first, second = (broker.client for broker in brokers)
    calls = [begin(first, NAMES[0], batch_size=1), begin(second, NAMES[1], batch_size=1)]
    await asyncio.sleep(0.2)
    for node_id, member in list(cluster.members.items()):
        await member.stop()
        await cluster.start(node_id)
        for raft_group in (1, 2):
            await cluster.until_led(raft_group)
    await send_numbers(first, "orders", range(1, 9))
    messages = [*await got(calls[0]), *await got(calls[1])]
    assert len({number_of(message) for message in messages}) == 2


async def test_each_message_is_leased_once_however_many_wait(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Receives wait in both brokers at both names: nothing twice, nothing a second attempt."""
    calls = [
        begin(broker.client, name, batch_size=1)
        for broker in brokers
        for name in NAMES
        for _ in range(10)
    ]
    await asyncio.sleep(0.2)
    await send_numbers(brokers[0].client, "orders", range(1, 41))
    messages = [message for call in calls for message in await got(call)]
    assert sorted(map(number_of, messages)) == list(range(1, 41))
    assert {message.system_properties.delivery_attempt for message in messages} == {1}
