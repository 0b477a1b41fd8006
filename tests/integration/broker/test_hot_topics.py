"""Many consumers of one topic: each consumer group gets each message, each consumer its share."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_testing import until
from strata_testing.broker.client import Client, message, received
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
GROUPS, CONSUMERS, PER_CONSUMER, REQUEST = 50, 200, 4, 20
NAMES = ("strata-1", "strata-2")
# Far longer than the test: a receive that is not woken ends it.
POLLING_S, LIMIT_S = 120, 60


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    """Three nodes, two raft groups, a topic of four queues and fifty consumer groups."""
    async for made in furnished_cluster(tmp_path):
        groups = (
            meta_pb2.ConsumerGroup(consumer_group_id=100 + number, name=f"group-{number}")
            for number in range(GROUPS)
        )
        made.stub.write(*(meta_pb2.Change(consumer_group=group) for group in groups))
        yield made


@pytest.fixture
async def brokers(cluster: ClusterUnderTest) -> AsyncIterator[Sequence[ClusterBroker]]:
    """Two brokers."""
    async with brokers_over(cluster, CONFIG) as made:
        yield made


def client_of(brokers: Sequence[ClusterBroker], number: int) -> Client:
    """Return one of many clients; they take turns at the brokers."""
    client = Client(brokers[number % len(brokers)].client.edge)
    client.metadata = {**client.metadata, "x-mq-client-id": f"client-{number}"}
    return client


async def work(
    client: Client, name: str, group: str, take: Callable[[definition_pb2.Message], None]
) -> None:
    """Receive one message after the other forever, and acknowledge each."""
    while True:
        call = client.begin_receive("orders", group, broker=name, batch_size=1, polling_s=POLLING_S)
        status, messages = received(await call.answer)
        assert status.code == definition_pb2.OK, status.message
        for one in messages:
            assert one.system_properties.delivery_attempt == 1
            take(one)
        acked = await client.ack("orders", group, *handles_of(messages))
        assert acked.status.code == definition_pb2.OK


def have_all(got: Mapping[str, Sequence[int]], count: int) -> bool:
    """Whether each consumer group has got so many messages."""
    return len(got) == GROUPS and set(map(len, got.values())) == {count}


async def test_each_consumer_group_gets_each_message_and_none_lags(
    brokers: Sequence[ClusterBroker],
) -> None:
    """No group is ahead of another by more than the messages that were sent since."""
    got: defaultdict[str, list[int]] = defaultdict(list)

    def taker(group: str) -> Callable[[definition_pb2.Message], None]:
        return lambda one: got[group].append(number_of(one))

    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        working = [
            tasks.create_task(
                work(client_of(brokers, number), NAMES[number % 2], group, taker(group))
            )
            for number in range(GROUPS)
            for group in (f"group-{number}",)
        ]
        for number in range(1, 11):
            await send_numbers(brokers[0].client, "orders", range(number, number + 1))
            # The slowest has it before there is another one, so that nobody is served twice first.
            await until(partial(have_all, got, number))
        for task in working:
            task.cancel()
    assert {group: sorted(numbers) for group, numbers in got.items()} == {
        f"group-{number}": list(range(1, 11)) for number in range(GROUPS)
    }


async def test_each_consumer_of_a_group_gets_its_share(brokers: Sequence[ClusterBroker]) -> None:
    """The receive that waits longest is served first, so nobody is left out."""
    got: Counter[int] = Counter()
    numbers: list[int] = []

    def taker(consumer: int) -> Callable[[definition_pb2.Message], None]:
        def take(one: definition_pb2.Message) -> None:
            got[consumer] += 1
            numbers.append(number_of(one))

        return take

    count = CONSUMERS * PER_CONSUMER
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        working = [
            tasks.create_task(
                work(client_of(brokers, consumer), NAMES[consumer // 2 % 2], "g", taker(consumer))
            )
            for consumer in range(CONSUMERS)
        ]
        for first in range(1, count + 1, REQUEST):
            requests = [
                message("orders", number, body=b"%d" % number)
                for number in range(first, first + REQUEST)
            ]
            sent = await brokers[0].client.send(*requests)
            assert sent.status.code == definition_pb2.OK, sent.status.message
        await until(lambda: len(numbers) >= count)
        for task in working:
            task.cancel()
    assert sorted(numbers) == list(range(1, count + 1))
    # A line of receives is served in its order; how two brokers share the messages is not said.
    shares = [[got[number] for number in range(at, CONSUMERS, 2)] for at in (0, 1)]
    assert all(min(share) and max(share) - min(share) <= PER_CONSUMER for share in shares), shares
