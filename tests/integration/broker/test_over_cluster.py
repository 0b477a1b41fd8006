"""Two brokers over three real storage nodes: any broker serves anything, failovers lose nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_mq.slots import fifo_queue
from strata_testing import until
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_edge import ADMIN
from tests.integration.broker.cluster_brokers import (
    ClusterBroker,
    brokers_over,
    drain,
    furnished_cluster,
    number_of,
    reading_from,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest

CONFIG = BrokerConfig.model_validate(
    {
        "receive": {"min_polling_ms": 200},
        "metadata": {"auto_create_group": False, "rehash_interval_ms": 50},
    }
)
# Queue 0 of a topic whose slots begin at 0 is in the first raft group.
SOURCE, DESTINATION = 1, 2


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    """Three nodes, two raft groups, a NORMAL and a FIFO topic, a plain and a FIFO group."""
    async for made in furnished_cluster(tmp_path):
        yield made


@pytest.fixture(params=["leader", "replicas"])
async def brokers(
    cluster: ClusterUnderTest, request: pytest.FixtureRequest
) -> AsyncIterator[Sequence[ClusterBroker]]:
    """Two brokers, which read messages from the leader only, or from all replicas."""
    async with brokers_over(cluster, reading_from(request.param, CONFIG)) as made:
        yield made


@pytest.fixture
def clients(brokers: Sequence[ClusterBroker]) -> list[Client]:
    """A client of each broker."""
    return [broker.client for broker in brokers]


async def test_any_broker_serves_what_another_one_began(clients: list[Client]) -> None:
    """Sent through one, received through the other, acked through the first."""
    first, second = clients
    for number in range(1, 9):
        sent = await first.send(message("orders", number, body=b"%d" % number))
        assert sent.status.code == definition_pb2.OK
    got = await second.receive_all("orders", "g", polling_s=0)
    while len(got) < 8:
        got += await second.receive_all("orders", "g", polling_s=0)
    assert sorted(map(number_of, got)) == list(range(1, 9))
    handles = [one.system_properties.receipt_handle for one in got]
    acked = await first.ack("orders", "g", *handles)
    assert acked.status.code == definition_pb2.OK
    again = await second.ack("orders", "g", *handles)
    assert again.status.code == definition_pb2.OK


async def test_a_leader_that_loses_power_costs_latency_only(
    cluster: ClusterUnderTest, clients: list[Client]
) -> None:
    """Every send is answered OK, everything is delivered, nothing twice."""
    count, gap_s = 0, 0.0

    async def send_on(until: asyncio.Event) -> None:
        nonlocal count, gap_s
        while not until.is_set():
            count += 1
            began_s = time.monotonic()
            sent = await clients[count % 2].send(message("orders", count, body=b"%d" % count))
            assert sent.status.code == definition_pb2.OK, sent.status.message
            gap_s = max(gap_s, time.monotonic() - began_s)

    done = asyncio.Event()
    sending = asyncio.ensure_future(send_on(done))
    await until(lambda: count > 20)
    victim = await cluster.until_led(1)
    await cluster.members[victim].lose_power()
    before = count
    await until(lambda: count > before + 50)
    done.set()
    await sending
    print(f"longest send {gap_s * 1000:.0f} ms of {count}")
    numbers = await drain(clients[0], "orders", "g", count)
    assert sorted(numbers) == list(range(1, count + 1))


async def test_a_queue_moves_under_its_clients(
    cluster: ClusterUnderTest, brokers: Sequence[ClusterBroker], clients: list[Client]
) -> None:
    """Messages of a message group keep their order, offsets go on, public names stay."""
    group = next(name for name in map(str, range(100)) if fifo_queue(name, 4) == 0)
    first, second = clients

    async def send(numbers: range) -> list[int]:
        offsets = []
        for number in numbers:
            sent = await first.send(
                message(
                    "fifo",
                    number,
                    body=b"%d" % number,
                    message_group=group,
                    message_type=definition_pb2.FIFO,
                )
            )
            assert sent.status.code == definition_pb2.OK, sent.status.message
            offsets.append(sent.entries[0].offset)
        return offsets

    offsets = await send(range(1, 11))
    cluster.stub.move_queue(8, 0, DESTINATION, SOURCE)
    offsets += await send(range(11, 31))
    override = cluster.stub.overrides[8, 0]
    await until(lambda: len(override.epochs) == 2 and not override.moving_to)
    offsets += await send(range(31, 41))
    assert offsets == list(range(40))
    assert override.epochs[1].raft_group == DESTINATION
    shown = await brokers[1].edge.call(
        ADMIN + "GetTopic", admin_pb2.GetTopicRequest(name="fifo"), admin_pb2.GetTopicResponse
    )
    (queue,) = [one for one in shown.queues if one.queue == 0]
    assert (queue.raft_group, queue.broker_name) == (DESTINATION, "strata-1")
    assert (queue.min_offset, queue.next_offset) == (0, 40)
    numbers = await drain(second, "fifo", "ordered", 40)
    assert numbers == list(range(1, 41))


async def test_order_holds_while_the_queue_count_grows(
    cluster: ClusterUnderTest, clients: list[Client]
) -> None:
    """4 -> 8 with a backlog, sent and consumed through two brokers (rule 23).

    Each message group's messages come in order, none is lost; at the end all go by the new count.
    """
    groups = [f"group-{number}" for number in range(16)]
    sent: dict[str, list[int]] = {group: [] for group in groups}
    got: dict[str, list[int]] = {group: [] for group in groups}

    async def send(group: str, rounds: int, pause_s: float = 0.0) -> None:
        for number in range(rounds):
            body = len(sent[group])
            one = message(
                "fifo",
                groups.index(group) * 1_000 + body,
                body=b"%d" % body,
                message_group=group,
                message_type=definition_pb2.FIFO,
            )
            answer = await clients[(number + body) % 2].send(one)
            assert answer.status.code == definition_pb2.OK, answer.status
            sent[group].append(body)
            await asyncio.sleep(pause_s)

    async def consume(client: Client) -> None:
        while True:
            for one in await client.receive_all("fifo", "ordered", polling_s=0):
                handle = one.system_properties.receipt_handle
                got[one.system_properties.message_group].append(number_of(one))
                assert (await client.ack("fifo", "ordered", handle)).status.code == 20_000

    await asyncio.gather(*(send(group, 8) for group in groups))
    # The consumer group counts once it has consumed something.
    for first in await clients[0].receive_all("fifo", "ordered", polling_s=0, batch_size=1):
        await clients[0].ack("fifo", "ordered", first.system_properties.receipt_handle)
        got[first.system_properties.message_group].append(number_of(first))
    topic = cluster.stub.topics[8]
    grown = meta_pb2.Topic()
    grown.CopyFrom(topic)
    grown.queue_count, grown.previous_queue_count = 8, 4
    for home, more in zip(grown.homes, ([4, 6], [5, 7]), strict=True):
        home.queues.extend(more)
    cluster.stub.write(meta_pb2.Change(topic=grown))
    await asyncio.gather(*(send(group, 4) for group in groups))
    assert cluster.stub.topics[8].previous_queue_count == 4, "there is a backlog"
    async with asyncio.timeout(100):
        consumers = [asyncio.ensure_future(consume(client)) for client in clients]
        await asyncio.gather(*(send(group, 30, 0.01) for group in groups))
        await until(lambda: not cluster.stub.topics[8].previous_queue_count)
        await asyncio.gather(*(send(group, 2) for group in groups))
        await until(lambda: got == sent)
    for consumer in consumers:
        consumer.cancel()
    results = await asyncio.gather(*consumers, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results), results
    places = {group: fifo_queue(group, 8) for group in groups}
    assert max(places.values()) > 3, "some message groups go to new queues"
    for group, queue in places.items():
        fetched = await cluster.fetch(SOURCE if queue % 2 == 0 else DESTINATION, queue, topic_id=8)
        newest = [
            definition_pb2.Message.FromString(stored.message).system_properties.message_group
            for stored in fetched.messages
        ]
        assert group in newest
