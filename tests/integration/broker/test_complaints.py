"""Complaints of users of RocketMQ about its POP, proxy, retry and leader change, not seen here.

One test per complaint, named after its number at apache/rocketmq; docs/testing.md lists them all.
Brokers and storage nodes are real, but for the wire in front of the brokers.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base.config import BrokerConfig
from strata_mq.slots import fifo_queue
from strata_testing import until
from strata_testing.broker.client import Client, message, receive_request, received, resource
from strata_testing.broker.fake_edge import ADMIN, MESSAGING
from tests.integration.broker.cluster_brokers import (
    ORDERS,
    ClusterBroker,
    brokers_over,
    drain,
    furnished_cluster,
    handles_of,
    number_of,
    send_numbers,
    topic_row,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest

CONFIG = BrokerConfig.model_validate(
    {
        "receive": {"min_polling_ms": 200, "min_invisible_ms": 0},
        "session": {"report_interval_ms": 200},
        "metadata": {"auto_create_group": False},
    }
)
OK = definition_pb2.OK


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    """Three storage nodes with two raft groups."""
    async for made in furnished_cluster(tmp_path):
        yield made


@pytest.fixture
async def brokers(cluster: ClusterUnderTest) -> AsyncIterator[Sequence[ClusterBroker]]:
    """Two brokers over them."""
    async with brokers_over(cluster, CONFIG) as made:
        yield made


@pytest.fixture
def clients(brokers: Sequence[ClusterBroker]) -> list[Client]:
    """A client of each broker."""
    return [broker.client for broker in brokers]


async def change_invisible(client: Client, handle: str, duration_ms: int) -> str:
    """Nack a message of topic `orders`; return the new handle."""
    request = service_pb2.ChangeInvisibleDurationRequest(
        group=resource("g"), topic=resource("orders"), receipt_handle=handle
    )
    request.invisible_duration.FromMilliseconds(duration_ms)
    response = await client.edge.call(
        MESSAGING + "ChangeInvisibleDuration",
        request,
        service_pb2.ChangeInvisibleDurationResponse,
    )
    assert response.status.code == OK, response.status.message
    return response.receipt_handle


async def one_leased(client: Client, **fields: object) -> definition_pb2.Message:
    """Send a message and receive it; it is in the first raft group or in the second one."""
    await send_numbers(client, "orders", range(1, 2))
    for _ in range(50):
        got = await client.receive_all("orders", "g", polling_s=0, **fields)
        if got:
            assert len(got) == 1
            return got[0]
    raise AssertionError("the message does not come")


async def park_everywhere(client: Client) -> list[asyncio.Future[Sequence[bytes]]]:
    """Begin a long poll of 20 s at either raft group."""
    return [
        client.begin_receive("orders", "g", broker=name, polling_s=20).answer
        for name in ("strata-1", "strata-2")
    ]


async def first_delivered(
    parked: list[asyncio.Future[Sequence[bytes]]],
) -> definition_pb2.Message:
    """Return the message that ends one of the polls."""
    for answer in asyncio.as_completed(parked, timeout=60):
        _, messages = received(await answer)
        if messages:
            return messages[0]
    raise AssertionError("all polls ended without a message")


async def test_3787_a_slow_consumer_gets_nothing_twice(clients: list[Client]) -> None:
    """A batch of 32 that takes 20 times as long as a message is acked one by one, none repeats."""
    slow, other = clients
    await send_numbers(slow, "orders", range(1, 49))
    seen: Counter[int] = Counter()
    async with asyncio.timeout(60):
        while len(seen) < 48:
            for got in await slow.receive_all("orders", "g", polling_s=0, auto_renew=True):
                seen[number_of(got)] += 1
                await asyncio.sleep(0.02)
                acked = await slow.ack("orders", "g", *handles_of([got]))
                assert acked.status.code == OK
    assert await other.receive_all("orders", "g", polling_s=0) == []
    assert set(seen.values()) == {1}


async def test_4815_a_retry_comes_when_the_consumer_said(clients: list[Client]) -> None:
    """A message nacked for 1 s is delivered again after 1 s: not after 2 minutes, nor before."""
    client, other = clients
    first = await one_leased(client)
    handle = first.system_properties.receipt_handle
    began_s = time.monotonic()
    await change_invisible(client, handle, 1_000)
    again = await first_delivered(await park_everywhere(other))
    assert time.monotonic() - began_s >= 1.0
    assert again.system_properties.delivery_attempt == 2


async def test_6681_a_retry_wakes_a_parked_receive(clients: list[Client]) -> None:
    """A nack with no delay reaches a receive that waits already, not the next one 15 s later."""
    client, other = clients
    first = await one_leased(client)
    parked = await park_everywhere(other)
    await asyncio.sleep(0.3)
    assert not any(answer.done() for answer in parked)
    await change_invisible(client, first.system_properties.receipt_handle, 0)
    again = await first_delivered(parked)
    assert number_of(again) == 1


async def test_3443_consumption_leaves_nothing_running(
    cluster: ClusterUnderTest, clients: list[Client]
) -> None:
    """Once all is acked no log grows, by acks or by what looks for lost ones, polls or not."""
    client, _ = clients
    await send_numbers(client, "orders", range(1, 21))
    assert sorted(await drain(client, "orders", "g", 20)) == list(range(1, 21))
    await cluster.until_quiet(1)
    await cluster.until_quiet(2)

    async def rests() -> bool:
        before = cluster.applied(1), cluster.applied(2)
        for _ in range(5):
            assert await client.receive_all("orders", "g", polling_s=0) == []
        await asyncio.sleep(0.5)
        return (cluster.applied(1), cluster.applied(2)) == before

    # On a busy machine the last acks and what follows them may be under way still.
    await until(rests)


async def test_7914_what_is_not_acked_comes_again_until_it_is(clients: list[Client]) -> None:
    """Acks of a random half each time: nothing is lost, and nothing acked comes again."""
    seed = int(os.environ.get("STRATA_TEST_SEED", random.randrange(2**32)))
    print(f"STRATA_TEST_SEED={seed}")
    chance = random.Random(seed)
    client, other = clients
    await send_numbers(client, "orders", range(1, 101))
    acked: set[int] = set()
    async with asyncio.timeout(60):
        while len(acked) < 100:
            who = chance.choice((client, other))
            got = await who.receive_all("orders", "g", polling_s=0, invisible_s=1)
            assert not acked & set(map(number_of, got))
            chosen = [one for one in got if chance.random() < 0.5]
            if chosen:
                response = await who.ack("orders", "g", *handles_of(chosen))
                assert response.status.code == OK
                acked |= set(map(number_of, chosen))
    assert acked == set(range(1, 101))


async def test_10278_handles_outlive_the_broker_that_gave_them(
    brokers: Sequence[ClusterBroker],
) -> None:
    """The client acks through another broker, with the handle it got first, and gets no repeat."""
    dying, living = brokers
    await send_numbers(dying.client, "orders", range(1, 21))
    got = await dying.client.receive_all("orders", "g", polling_s=0, auto_renew=True)
    while len(got) < 20:
        got += await dying.client.receive_all("orders", "g", polling_s=0, auto_renew=True)
    heartbeat = service_pb2.HeartbeatRequest(
        group=resource("g"), client_type=definition_pb2.PUSH_CONSUMER
    )
    beaten = await living.edge.call(
        MESSAGING + "Heartbeat", heartbeat, service_pb2.HeartbeatResponse
    )
    assert beaten.status.code == OK
    await asyncio.sleep(0.5)
    await dying.die()
    await asyncio.sleep(1)
    assert await living.client.receive_all("orders", "g", polling_s=0) == []
    acked = await living.client.ack("orders", "g", *handles_of(got))
    assert acked.status.code == OK
    assert await living.client.receive_all("orders", "g", polling_s=0) == []


async def test_7689_no_offset_is_used_twice_after_a_leader_change(
    cluster: ClusterUnderTest, clients: list[Client]
) -> None:
    """Under load, while leaders lose power: one message per offset, the one acked there."""
    group = next(name for name in map(str, range(100)) if fifo_queue(name, 4) == 0)
    stored: dict[int, int] = {}
    count = 0

    async def send_on(client: Client, until: asyncio.Event) -> None:
        nonlocal count
        while not until.is_set():
            count += 1
            number = count
            (offset,) = await send_numbers(client, "fifo", range(number, number + 1), group)
            assert offset not in stored, f"{number} and {stored[offset]} at offset {offset}"
            stored[offset] = number

    async def until_sent(wanted: int) -> None:
        await until(lambda: count > wanted)

    done = asyncio.Event()
    senders = [asyncio.ensure_future(send_on(client, done)) for client in clients for _ in "ab"]
    for _ in range(2):
        await until_sent(count + 40)
        victim = await cluster.until_led(1)
        await cluster.members[victim].lose_power()
        await until_sent(count + 40)
        await cluster.start(victim)
    done.set()
    await asyncio.gather(*senders)
    assert sorted(stored) == list(range(count))
    assert {stored[number - 1] for number in (1, count)} <= set(range(1, count + 1))
    fetched: dict[int, bytes] = {}
    while len(fetched) < count:
        request = storage_pb2.FetchRequest(
            raft_group=1, topic_id=8, queue=0, offset=len(fetched), max_messages=1_000
        )
        answer = await cluster.call(1, "Fetch", request, storage_pb2.FetchResponse)
        for one in answer.messages:
            fetched[one.offset] = definition_pb2.Message.FromString(one.message).body
    assert {offset: int(body) for offset, body in fetched.items()} == stored


async def test_3349_a_send_is_ok_only_when_a_majority_has_it(
    cluster: ClusterUnderTest, clients: list[Client]
) -> None:
    """The leader loses power at the very answer: every message that was OK is there."""
    client, _ = clients
    for victim_of in (1, 2):
        first = 1 + 100 * victim_of
        await send_numbers(client, "orders", range(first, first + 10))
        victim = await cluster.until_led(victim_of)
        await cluster.members[victim].lose_power()
        assert sorted(await drain(client, "orders", "g", 10)) == list(range(first, first + 10))
        await cluster.start(victim)


async def test_3210_7790_nothing_acked_comes_again_after_a_leader_change(
    cluster: ClusterUnderTest, clients: list[Client]
) -> None:
    """Acked messages stay acked, leased ones stay leased, by whichever leader."""
    client, other = clients
    await send_numbers(client, "orders", range(1, 41))
    acked = await drain(client, "orders", "g", 20)
    leased = await client.receive_all("orders", "g", polling_s=0, invisible_s=60)
    for _ in range(2):
        victim = await cluster.until_led(1)
        await cluster.members[victim].lose_power()
        await cluster.until_led(1)
        await cluster.until_led(2)
        rest = await other.receive_all("orders", "g", polling_s=0, invisible_s=60)
        assert not set(map(number_of, rest)) & {*acked, *map(number_of, leased)}
        leased += rest
        await cluster.start(victim)
    response = await other.ack("orders", "g", *handles_of(leased))
    assert response.status.code == OK


async def test_7923_a_dead_node_is_not_asked_to_lead(
    cluster: ClusterUnderTest, clients: list[Client]
) -> None:
    """With one node dead for good, every send and receive is served by those alive."""
    client, _ = clients
    dead = await cluster.until_led(1)
    await cluster.members[dead].lose_power()
    await send_numbers(client, "orders", range(1, 41))
    assert cluster.leader_of(1) not in (None, dead)
    assert cluster.leader_of(2) not in (None, dead)
    assert sorted(await drain(client, "orders", "g", 40)) == list(range(1, 41))


async def test_8479_a_topic_made_anew_has_nothing_of_the_old_one(
    cluster: ClusterUnderTest, brokers: Sequence[ClusterBroker]
) -> None:
    """Leases of a deleted topic neither block the new one nor deliver anything of the old."""
    client = brokers[0].client
    await send_numbers(client, "orders", range(1, 11))
    old = await client.receive_all("orders", "g", polling_s=0, invisible_s=1)
    new_row = topic_row(70, "orders", meta_pb2.TOPIC_TYPE_NORMAL)
    tombstone = meta_pb2.Tombstone(kind=meta_pb2.TOMBSTONE_KIND_TOPIC, id=ORDERS, name="orders")
    cluster.stub.write(
        meta_pb2.Change(deleted=True, topic=meta_pb2.Topic(name="orders")),
        meta_pb2.Change(tombstone=tombstone),
    )
    for raft_group in (1, 2):
        drop = storage_pb2.DropRequest(raft_group=raft_group, topic_id=ORDERS)
        await cluster.call(raft_group, "Drop", drop, storage_pb2.DropResponse)
    cluster.stub.write(meta_pb2.Change(topic=new_row))
    for broker in brokers:
        assert await broker.app.view.wait_for_revision(cluster.stub.cache.revision, 60)
    refused = await client.ack("orders", "g", *handles_of(old))
    assert refused.status.code == definition_pb2.INVALID_RECEIPT_HANDLE
    await asyncio.sleep(1.2)
    offsets = await send_numbers(client, "orders", range(100, 110))
    assert min(offsets) == 0
    assert sorted(await drain(client, "orders", "g", 10)) == list(range(100, 110))
    assert await client.receive_all("orders", "g", polling_s=0) == []


async def test_dashboard_185_clients_and_lag_are_visible_behind_the_brokers(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Any broker tells of all members of a consumer group, and of its lag."""
    first, second = brokers
    await send_numbers(first.client, "orders", range(1, 21))
    await first.client.receive_all("orders", "g", polling_s=0, batch_size=1)
    second.client.metadata = {"x-mq-client-id": "client-2", "x-mq-language": "GO"}
    await second.client.receive_all("orders", "g", polling_s=0, batch_size=1)
    for broker in brokers:
        shown = await broker.edge.call(
            ADMIN + "GetConsumerGroup",
            admin_pb2.GetConsumerGroupRequest(name="g"),
            admin_pb2.GetConsumerGroupResponse,
        )
        assert [one.client_id for one in shown.members] == ["client-1", "client-2"]
        assert sum(queue.lag for queue in shown.queues) == 20
        assert sum(queue.in_flight for queue in shown.queues) > 0


@pytest.mark.parametrize("seconds", [1, 2])
async def test_6496_a_long_poll_as_long_as_the_request_timeout(
    brokers: Sequence[ClusterBroker], seconds: int
) -> None:
    """It ends with the client's deadline, empty and without error; a message ends it at once."""
    edge, client = brokers[0].edge, brokers[0].client
    request = receive_request("orders", "g", polling_s=seconds)
    began_s = time.monotonic()
    status, messages = received(
        await edge.begin("ReceiveMessage", request, time_left_s=float(seconds)).answer
    )
    assert (status.code, messages) == (definition_pb2.MESSAGE_NOT_FOUND, [])
    # By how much it ends before is for the unit tests: this machine may be busy.
    assert seconds * 0.5 < time.monotonic() - began_s
    # A longer wait: on a busy machine the send below may take seconds.
    longer_s = 10 * seconds
    parked = [
        edge.begin(
            "ReceiveMessage",
            receive_request("orders", "g", broker=name, polling_s=longer_s),
            time_left_s=float(longer_s),
        ).answer
        for name in ("strata-1", "strata-2")
    ]
    await client.send(message("orders", 1, body=b"1"))
    assert number_of(await first_delivered(parked)) == 1
