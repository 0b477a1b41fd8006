"""Priorities over two brokers and three storage nodes: higher first, nothing lost, none starved."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_mq.requests.names import REDRIVE_GROUP
from strata_testing import until
from strata_testing.broker.client import Client, message, received, resource
from strata_testing.broker.fake_edge import ADMIN, MESSAGING
from tests.integration.broker.cluster_brokers import (
    ClusterBroker,
    brokers_over,
    furnished_cluster,
    handles_of,
    number_of,
    reading_from,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest

TOPIC, GROUP, LEVELS = "levels", "g", 8
PERCENT = 10
CONFIG = BrokerConfig.model_validate(
    {
        "receive": {
            "min_polling_ms": 0,
            "min_invisible_ms": 0,
            "lower_levels_percent": 0,
            "level_look_ms": 1,
        }
    }
)
SHARING = CONFIG.model_copy(
    update={"receive": CONFIG.receive.model_copy(update={"lower_levels_percent": PERCENT})}
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    """Eight levels; raft group 1 has the even ones, raft group 2 the odd ones."""
    async for made in furnished_cluster(tmp_path):
        topic = meta_pb2.Topic(
            topic_id=12, name=TOPIC, type=meta_pb2.TOPIC_TYPE_PRIORITY, queue_count=LEVELS
        )
        topic.homes.add(raft_group=1, queues=range(0, LEVELS, 2))
        topic.homes.add(raft_group=2, queues=range(1, LEVELS, 2))
        redrives = meta_pb2.ConsumerGroup(consumer_group_id=30, name=REDRIVE_GROUP)
        made.stub.write(meta_pb2.Change(topic=topic), meta_pb2.Change(consumer_group=redrives))
        yield made


@pytest.fixture(params=["leader", "replicas"])
async def brokers(
    cluster: ClusterUnderTest, request: pytest.FixtureRequest
) -> AsyncIterator[Sequence[ClusterBroker]]:
    """Two brokers without a share of lower levels."""
    async with brokers_over(cluster, reading_from(request.param, CONFIG)) as made:
        yield made


@pytest.fixture
def clients(brokers: Sequence[ClusterBroker]) -> list[Client]:
    return [broker.client for broker in brokers]


async def send(
    client: Client, priorities: Sequence[int], *, first: int = 0, **properties: Any
) -> None:
    """Send numbers from `first` on with these priorities, in one request."""
    response = await client.send(
        *(
            message(
                TOPIC,
                first + number,
                body=b"%d" % (first + number),
                message_type=definition_pb2.PRIORITY,
                priority=priority,
                **properties,
            )
            for number, priority in enumerate(priorities)
        )
    )
    assert response.status.code == definition_pb2.OK, response.status.message


async def take(
    client: Client, count: int, *, batch_size: int = 1, **fields: Any
) -> list[definition_pb2.Message]:
    """Receive and ack until there are as many messages."""
    got: list[definition_pb2.Message] = []
    async with asyncio.timeout(60):
        while len(got) < count:
            _, messages = await client.receive(TOPIC, GROUP, batch_size=batch_size, **fields)
            got += messages
            if messages:
                await client.ack(TOPIC, GROUP, *handles_of(messages))
    return got


async def has_no_lease(client: Client) -> bool:
    """Whether no message of the consumer group is leased."""
    request = admin_pb2.GetConsumerGroupRequest(name=GROUP)
    shown = await client.edge.call(
        ADMIN + "GetConsumerGroup", request, admin_pb2.GetConsumerGroupResponse
    )
    return not any(queue.in_flight for queue in shown.queues)


def priorities_of(messages: Sequence[definition_pb2.Message]) -> list[int]:
    assert all(one.system_properties.HasField("priority") for one in messages)
    return [one.system_properties.priority for one in messages]


async def test_higher_priorities_come_first(clients: list[Client]) -> None:
    """Across raft groups, through either broker, under either broker name."""
    priorities = [3, 0, 7, 5, 1, 6, 2, 4] * 3
    await send(clients[0], priorities)
    got = []
    for number in range(len(priorities)):
        got += await take(clients[number % 2], 1, broker=f"strata-{1 + number // 2 % 2}")
        await asyncio.sleep(0.002)
    assert priorities_of(got) == sorted(priorities, reverse=True)
    for level in range(LEVELS):
        numbers = [number_of(one) for one in got if one.system_properties.priority == level]
        assert numbers == sorted(numbers), f"order of priority {level}"
    kinds = {one.system_properties.message_type for one in got}
    assert kinds == {definition_pb2.PRIORITY}


async def test_priorities_above_the_last_level_are_of_the_last_level(
    clients: list[Client],
) -> None:
    """As in RocketMQ; the message keeps the priority it was sent with."""
    await send(clients[0], [0, 7, 1_000_000, 8])
    got = await take(clients[1], 4)
    assert priorities_of(got) == [7, 1_000_000, 8, 0]
    assert [one.system_properties.queue_id for one in got][:3] == [
        got[0].system_properties.queue_id
    ] * 3


async def test_a_waiting_receive_gets_any_level(clients: list[Client]) -> None:
    """Both receives wait; each message ends one wait, wherever its level is."""
    for priority in range(LEVELS):
        call = clients[0].begin_receive(TOPIC, GROUP, batch_size=1, polling_s=60)
        await asyncio.sleep(0.02)
        await send(clients[1], [priority], first=priority)
        async with asyncio.timeout(20):
            _, messages = received(await call.answer)
        assert priorities_of(messages) == [priority]
        await clients[0].ack(TOPIC, GROUP, *handles_of(messages))


async def test_a_retry_keeps_its_priority(clients: list[Client]) -> None:
    """A message whose time is over comes before all lower ones, and behind higher ones."""
    await send(clients[0], [4, 2, 2])
    status, first = await clients[0].receive(TOPIC, GROUP, batch_size=1, invisible_s=1)
    assert priorities_of(first) == [4], status
    # Group time, which ends the lease, may be behind the clock here on a busy machine.
    await until(partial(has_no_lease, clients[1]))
    await send(clients[1], [6], first=10)
    got = await take(clients[1], 4)
    assert priorities_of(got) == [6, 4, 2, 2]
    attempts = [one.system_properties.delivery_attempt for one in got]
    assert attempts == [1, 2, 1, 1]


async def test_a_filter_sees_the_highest_level_that_matches(clients: list[Client]) -> None:
    """Levels without a match are passed over."""
    await send(clients[0], [7, 5, 7], tag="other")
    await send(clients[0], [3, 6, 1], first=3, tag="wanted")
    got = await take(clients[1], 3, tags="wanted")
    assert priorities_of(got) == [6, 3, 1]
    status, rest = await clients[0].receive(TOPIC, GROUP)
    assert (status.code, rest) == (definition_pb2.MESSAGE_NOT_FOUND, [])


async def test_a_redriven_letter_goes_back_to_its_level(
    brokers: Sequence[ClusterBroker], clients: list[Client]
) -> None:
    """A dead letter keeps its priority, and so does what is sent back."""
    await send(clients[0], [5])
    _, (given_up,) = await clients[0].receive(TOPIC, GROUP)
    forwarded = await brokers[0].edge.call(
        MESSAGING + "ForwardMessageToDeadLetterQueue",
        service_pb2.ForwardMessageToDeadLetterQueueRequest(
            group=resource(GROUP),
            topic=resource(TOPIC),
            receipt_handle=given_up.system_properties.receipt_handle,
            message_id=given_up.system_properties.message_id,
        ),
        service_pb2.ForwardMessageToDeadLetterQueueResponse,
    )
    assert forwarded.status.code == definition_pb2.OK
    await send(clients[0], [6, 4], first=1)
    done = await brokers[1].edge.call(
        ADMIN + "RedriveDeadLetters",
        admin_pb2.RedriveDeadLettersRequest(consumer_group=GROUP),
        admin_pb2.RedriveDeadLettersResponse,
    )
    assert [one.error for one in done.messages] == [""]
    got = await take(clients[1], 3)
    assert priorities_of(got) == [6, 5, 4]


async def test_an_ordered_consumer_group_takes_the_queues_in_turn(clients: list[Client]) -> None:
    """As in RocketMQ, priorities do not matter to it: it gets all, in order within a queue."""
    await send(clients[0], [0, 7] * 4)
    got: list[definition_pb2.Message] = []
    async with asyncio.timeout(60):
        while len(got) < 8:
            messages = await clients[0].receive_all(TOPIC, "ordered")
            got += messages
            await clients[0].ack(TOPIC, "ordered", *handles_of(messages))
    assert sorted(map(number_of, got)) == list(range(8))


async def test_a_leader_that_loses_power_costs_no_message(
    cluster: ClusterUnderTest, clients: list[Client]
) -> None:
    """Its levels are served again by the next leader."""
    await send(clients[0], [number % LEVELS for number in range(32)])
    victim = await cluster.until_led(1)
    await cluster.members[victim].lose_power()
    await send(clients[1], [number % LEVELS for number in range(32)], first=32)
    got = await take(clients[0], 64, batch_size=8)
    assert sorted(map(number_of, got)) == list(range(64))


async def test_lower_levels_get_their_share_of_a_backlog(cluster: ClusterUnderTest) -> None:
    """The highest level never ends; the others have at least the configured part."""
    async with brokers_over(cluster, SHARING, count=1) as (broker,):
        for first in range(0, 320, 32):
            await send(broker.client, [7] * 32, first=first)
        await send(broker.client, [2] * 32, first=1_000)
        await send(broker.client, [1] * 32, first=2_000)
        counts = Counter(priorities_of(await take(broker.client, 250, batch_size=1)))
    low = counts[1] + counts[2]
    assert 250 * PERCENT // 100 - 1 <= low <= 250 * PERCENT // 100 + 2, counts
    assert counts[1] and counts[2]
