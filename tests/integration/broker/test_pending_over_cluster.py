"""Delay, transactions and recall through two brokers over three real storage nodes."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_testing.broker.client import Client, message, resource
from strata_testing.broker.fake_edge import ADMIN, MESSAGING, FakeEdge
from strata_testing.storage_node import small_config
from tests.integration.broker.cluster_brokers import (
    ClusterBroker,
    brokers_over,
    drain,
    number_of,
    topic_row,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of
from tests.unit.broker.test_telemetry import Stream, producer

CONFIG = BrokerConfig.model_validate(
    {
        "receive": {"min_polling_ms": 200},
        "metadata": {"auto_create_group": False},
        "session": {"report_interval_ms": 200},
        "transaction": {"first_check_ms": 300},
    }
)
CHECK_INTERVAL_MS, CHECKS = 300, 3
COMMIT, ROLLBACK = definition_pb2.COMMIT, definition_pb2.ROLLBACK
LETTERS = "TRANS_CHECK_MAX_TIME_TOPIC"
# One second, and what a machine takes that does other things too.
LATE_MS = 2_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    """Three nodes, two raft groups, topics of every type that waits, consumer groups."""
    config = small_config(
        transaction_check_interval_ms=CHECK_INTERVAL_MS, max_transaction_checks=CHECKS
    )
    async for made in cluster_of(tmp_path, 3, groups=2, config=config):
        changes = []
        for number, row in made.stub.groups.items():
            row.broker_name = f"strata-{number}"
            changes.append(meta_pb2.Change(raft_group=row))
        for topic_id, name, kind in (
            (7, "orders", meta_pb2.TOPIC_TYPE_NORMAL),
            (8, "later", meta_pb2.TOPIC_TYPE_DELAY),
            (9, "deals", meta_pb2.TOPIC_TYPE_TRANSACTION),
            (10, "mixed", meta_pb2.TOPIC_TYPE_MIXED),
            (11, f"%DLQ%{LETTERS}", meta_pb2.TOPIC_TYPE_DEAD_LETTER),
        ):
            changes.append(meta_pb2.Change(topic=topic_row(topic_id, name, kind)))
        for group_id, name, fifo in ((20, "g", False), (21, "ordered", True), (22, LETTERS, False)):
            group = meta_pb2.ConsumerGroup(
                consumer_group_id=group_id, name=name, fifo=fifo, dead_letter_topic_id=11
            )
            changes.append(meta_pb2.Change(consumer_group=group))
        made.stub.write(*changes)
        yield made


@pytest.fixture
async def brokers(cluster: ClusterUnderTest) -> AsyncIterator[Sequence[ClusterBroker]]:
    """Two brokers."""
    async with brokers_over(cluster, CONFIG) as made:
        yield made


@pytest.fixture
def clients(brokers: Sequence[ClusterBroker]) -> list[Client]:
    """A client of each broker."""
    return [broker.client for broker in brokers]


def now_ms() -> int:
    """Wall time."""
    return time.time_ns() // 1_000_000


async def send(client: Client, sent: definition_pb2.Message) -> service_pb2.SendResultEntry:
    """Send one message that has to be taken."""
    response = await client.send(sent)
    assert response.status.code == definition_pb2.OK, response.status.message
    return response.entries[0]


def delayed(number: int, after_ms: int, topic: str = "later", **fields: Any) -> Any:
    """A delay message."""
    made = message(topic, number, body=b"%d" % number, message_type=definition_pb2.DELAY, **fields)
    made.system_properties.delivery_timestamp.FromMilliseconds(now_ms() + after_ms)
    return made


def half(number: int, topic: str = "deals", *, check_after_s: int = 60, **fields: Any) -> Any:
    """A transactional message that is not checked soon."""
    made = message(
        topic, number, body=b"%d" % number, message_type=definition_pb2.TRANSACTION, **fields
    )
    made.system_properties.orphaned_transaction_recovery_duration.seconds = check_after_s
    return made


async def end(
    edge: FakeEdge,
    entry: service_pb2.SendResultEntry,
    resolution: definition_pb2.TransactionResolution.ValueType,
    topic: str = "deals",
) -> definition_pb2.Status:
    """End a transaction."""
    request = service_pb2.EndTransactionRequest(
        topic=resource(topic),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=resolution,
        source=definition_pb2.SOURCE_CLIENT,
    )
    response = await edge.call(
        MESSAGING + "EndTransaction", request, service_pb2.EndTransactionResponse
    )
    return response.status


async def recall(edge: FakeEdge, topic: str, handle: str) -> service_pb2.RecallMessageResponse:
    """Recall a message."""
    request = service_pb2.RecallMessageRequest(topic=resource(topic), recall_handle=handle)
    return await edge.call(MESSAGING + "RecallMessage", request, service_pb2.RecallMessageResponse)


class Came(dict[int, tuple[definition_pb2.Message, int]]):
    """Received messages: number -> (message, when it came in ms)."""

    def __init__(self) -> None:
        super().__init__()
        self._asked_ms = [0]
        self._came_ms: list[int] = []

    def asked(self, asked_ms: int, came_ms: int) -> None:
        """Note when a receive began and ended."""
        self._asked_ms.append(asked_ms)
        self._came_ms.append(came_ms)

    def asked_before(self, came_ms: int) -> int:
        """When the last receive began that did not bring what came at this time."""
        return self._asked_ms[self._came_ms.index(came_ms)]


async def receive_until(
    client: Client, topic: str, count: int, group: str = "g", timeout_s: float = 15
) -> Came:
    """Receive and ack until so many came, none of them twice."""
    came = Came()
    async with asyncio.timeout(timeout_s):
        while len(came) < count:
            began_ms = now_ms()
            got = await client.receive_all(topic, group, polling_s=0)
            at_ms = now_ms()
            came.asked(began_ms, at_ms)
            for one in got:
                assert number_of(one) not in came, "delivered twice"
                came[number_of(one)] = (one, at_ms)
            if got:
                await client.ack(
                    topic, group, *(one.system_properties.receipt_handle for one in got)
                )
    return came


async def nothing_comes(client: Client, topic: str, group: str = "g") -> None:
    """Nothing is to be had now."""
    assert await client.receive_all(topic, group, polling_s=0) == []


# Delay ------------------------------------------------------------------------------------------


async def test_delay_messages_come_when_they_are_due(clients: list[Client]) -> None:
    """Never before their time, hardly after it, whatever the order they were sent in."""
    seed = int(os.environ.get("SEED", "0")) or random.randrange(1 << 32)
    print(f"SEED={seed}")
    numbers = random.Random(seed)
    due_ms = {}
    for number in range(1, 41):
        sent = delayed(number, numbers.randrange(-200, 2_000))
        due_ms[number] = sent.system_properties.delivery_timestamp.ToMilliseconds()
        await send(clients[number % 2], sent)
    came = await receive_until(clients[0], "later", 40)
    for number, (one, at_ms) in came.items():
        properties = one.system_properties
        assert properties.delivery_timestamp.ToMilliseconds() == due_ms[number]
        assert properties.message_type == definition_pb2.DELAY
        assert properties.store_timestamp.ToMilliseconds() <= at_ms
        assert (properties.delivery_attempt, one.topic.name) == (1, "later")
        # Nodes' clocks are one here, and group time is slewed.
        assert at_ms >= due_ms[number] - 2, "early"
        assert came.asked_before(at_ms) < due_ms[number] + LATE_MS, "late"


async def test_delayed_messages_of_a_message_group_keep_its_order(clients: list[Client]) -> None:
    """They are placed by time, in the queue of their group."""
    for number in range(1, 6):
        await send(clients[0], delayed(number, 200 + 20 * number, "mixed", message_group="group"))
    assert await drain(clients[1], "mixed", "ordered", 5) == [1, 2, 3, 4, 5]


async def test_recall_on_any_broker(
    brokers: Sequence[ClusterBroker], clients: list[Client]
) -> None:
    """A recalled message never comes; a delivered one is not recalled."""
    kept = await send(clients[0], delayed(1, 300))
    gone = await send(clients[0], delayed(2, 300))
    answer = await recall(brokers[1].edge, "later", gone.recall_handle)
    assert (answer.status.code, answer.message_id) == (definition_pb2.OK, gone.message_id)
    came = await receive_until(clients[1], "later", 1)
    assert list(came) == [1]
    late = await recall(brokers[0].edge, "later", kept.recall_handle)
    assert late.status.code == definition_pb2.INVALID_RECEIPT_HANDLE
    await nothing_comes(clients[0], "later")


async def test_recall_of_a_stored_message_by_its_id(
    brokers: Sequence[ClusterBroker], clients: list[Client]
) -> None:
    """Any type, as long as nobody was given it."""
    sent = [await send(clients[0], message("orders", n, body=b"%d" % n)) for n in (1, 2, 3)]
    answer = await recall(brokers[1].edge, "orders", sent[1].message_id)
    assert answer.status.code == definition_pb2.OK, answer.status.message
    assert sorted(await drain(clients[0], "orders", "g", 2)) == [1, 3]
    await nothing_comes(clients[0], "orders")
    late = await recall(brokers[0].edge, "orders", sent[0].message_id)
    assert late.status.code == definition_pb2.INVALID_RECEIPT_HANDLE


# Transactions -----------------------------------------------------------------------------------


async def test_a_transaction_ends_on_any_broker(
    brokers: Sequence[ClusterBroker], clients: list[Client]
) -> None:
    """Nothing is seen before the commit; a rollback is never seen; repeats are fine."""
    entries = {number: await send(clients[0], half(number)) for number in range(1, 9)}
    await nothing_comes(clients[0], "deals")
    for number, entry in entries.items():
        resolution = COMMIT if number % 2 else ROLLBACK
        for edge in (brokers[1].edge, brokers[0].edge):
            status = await end(edge, entry, resolution)
            assert status.code == definition_pb2.OK, (number, status.message)
        other = await end(brokers[0].edge, entry, ROLLBACK if number % 2 else COMMIT)
        assert other.code == definition_pb2.INVALID_TRANSACTION_ID
    came = await receive_until(clients[1], "deals", 4)
    assert sorted(came) == [1, 3, 5, 7]
    for number, (one, _) in came.items():
        assert one.user_properties["__transactionId__"] == entries[number].transaction_id
        assert one.system_properties.message_type == definition_pb2.TRANSACTION
        assert one.system_properties.message_id == entries[number].message_id
    await nothing_comes(clients[0], "deals")


async def test_a_producer_on_another_broker_is_asked(
    brokers: Sequence[ClusterBroker], clients: list[Client]
) -> None:
    """The one that sent is gone; the answer is given to a third party's broker."""
    for number in range(1, 5):
        await send(clients[0], half(number, check_after_s=0))
    stream = Stream(brokers[1].edge, "other-producer")
    stream.say(producer("deals"))
    assert (await stream.hear()).HasField("settings")
    async with asyncio.timeout(30):
        for _ in range(4):
            command = (await stream.hear()).recover_orphaned_transaction_command
            entry = service_pb2.SendResultEntry(
                message_id=command.message.system_properties.message_id,
                transaction_id=command.transaction_id,
            )
            status = await end(brokers[0].edge, entry, COMMIT)
            assert status.code == definition_pb2.OK, status.message
    assert sorted(await drain(clients[0], "deals", "g", 4)) == [1, 2, 3, 4]
    stream.hang_up()


async def test_checks_that_nobody_answers_end_in_the_dead_letter_topic(
    brokers: Sequence[ClusterBroker], clients: list[Client]
) -> None:
    """Asked as often as it says, no more; then the message is a dead letter, seen once."""
    stream = Stream(brokers[1].edge, "silent-producer")
    stream.say(producer("deals"))
    entry = await send(clients[0], half(1, check_after_s=0))
    checks = 0

    async def listen() -> None:
        nonlocal checks
        while True:
            command = await stream.hear()
            checks += command.HasField("recover_orphaned_transaction_command")

    listening = asyncio.ensure_future(listen())
    came = await receive_until(clients[0], f"%DLQ%{LETTERS}", 1)
    listening.cancel()
    assert checks == CHECKS
    origin = came[1][0].system_properties.dead_letter_queue
    assert (origin.topic, origin.message_id) == ("deals", entry.message_id)
    assert (await end(brokers[0].edge, entry, COMMIT)).code == (
        definition_pb2.INVALID_TRANSACTION_ID
    )
    await nothing_comes(clients[0], "deals")


async def test_operators_see_and_end_transactions(
    brokers: Sequence[ClusterBroker], clients: list[Client]
) -> None:
    """Listed on any broker until they end, by transaction id or message id."""
    entries = [await send(clients[0], half(number)) for number in range(1, 7)]
    await send(clients[0], delayed(7, 60_000, "mixed"))
    edge = brokers[1].edge
    listed: list[admin_pb2.Transaction] = []
    request = admin_pb2.ListTransactionsRequest(page_size=2)
    while True:
        response = await edge.call(
            ADMIN + "ListTransactions", request, admin_pb2.ListTransactionsResponse
        )
        listed.extend(response.transactions)
        request.page_token = response.next_page_token
        if not response.next_page_token:
            break
    assert sorted(one.transaction_id for one in listed) == sorted(
        entry.transaction_id for entry in entries
    )
    assert sorted(one.message_id for one in listed) == [entry.message_id for entry in entries]
    shown = await edge.call(
        ADMIN + "GetTransaction",
        admin_pb2.GetTransactionRequest(id=entries[0].message_id, topic="deals"),
        admin_pb2.GetTransactionResponse,
    )
    kept = definition_pb2.Message.FromString(shown.transaction.message)
    assert (kept.body, shown.transaction.topic) == (b"1", "deals")
    for name, resolution in (
        ({"id": entries[0].transaction_id}, admin_pb2.TRANSACTION_RESOLUTION_COMMIT),
        (
            {"id": entries[1].message_id, "topic": "deals"},
            admin_pb2.TRANSACTION_RESOLUTION_COMMIT,
        ),
        ({"id": entries[2].transaction_id}, admin_pb2.TRANSACTION_RESOLUTION_ROLLBACK),
    ):
        await edge.call(
            ADMIN + "EndTransaction",
            admin_pb2.EndTransactionRequest(resolution=resolution, **name),
            admin_pb2.EndTransactionResponse,
        )
    assert sorted(await drain(clients[0], "deals", "g", 2)) == [1, 2]
    request.page_token, request.page_size = "", 0
    left = await edge.call(ADMIN + "ListTransactions", request, admin_pb2.ListTransactionsResponse)
    assert sorted(one.message_id for one in left.transactions) == [
        entry.message_id for entry in entries[3:]
    ]


# Leader changes ---------------------------------------------------------------------------------


async def test_what_waits_survives_a_leader_that_loses_power(
    cluster: ClusterUnderTest, brokers: Sequence[ClusterBroker], clients: list[Client]
) -> None:
    """Delayed messages come once, transactions end as their producer says."""
    entries = {number: await send(clients[0], half(number)) for number in range(1, 9)}
    due = {}
    for number in range(1, 21):
        sent = delayed(number, 500 + 100 * number)
        due[number] = sent.system_properties.delivery_timestamp.ToMilliseconds()
        await send(clients[1], sent)
    victim = await cluster.until_led(1)
    await cluster.members[victim].lose_power()
    for number, entry in entries.items():
        resolution = COMMIT if number % 2 else ROLLBACK
        status = await end(brokers[number % 2].edge, entry, resolution)
        assert status.code == definition_pb2.OK, (number, status.message)
    came = await receive_until(clients[0], "later", 20)
    assert sorted(came) == list(range(1, 21))
    assert all(at_ms >= due[number] - 2 for number, (_, at_ms) in came.items()), "early"
    assert sorted(await drain(clients[1], "deals", "g", 4)) == [1, 3, 5, 7]
    await nothing_comes(clients[0], "deals")
    await nothing_comes(clients[0], "later")
