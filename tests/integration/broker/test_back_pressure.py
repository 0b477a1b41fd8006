"""Back-pressure end to end: slow storage fills the broker to its limits, and producers wait.

Producers do what the official ones do: on TOO_MANY_REQUESTS they wait, longer each time, and send
the same message again.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_testing.broker.client import message
from tests.integration.broker.faulty_node import Port, faulty_node

METADATA = (("x-mq-client-id", "producer"), ("x-mq-language", "JAVA"))
BODY_BYTES = 10_000
BROKER_BYTES = 200_000
PRODUCERS, MESSAGES_EACH = 40, 10


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Port]:
    """A node whose broker holds 20 messages, and one message group's storage hardly more."""
    limits = {"max_bytes_in_flight": BROKER_BYTES, "timeout_ms": 30_000}
    async with faulty_node(tmp_path / "node", {"send": limits}) as port:
        topic = meta_pb2.Topic(name="orders", type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=4)
        await port.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=topic))
        yield port


async def produce(port: Port, first: int, answers: Counter[str]) -> None:
    """Send messages one by one, each until it is stored."""
    for number in range(first, first + MESSAGES_EACH):
        one = message("orders", number, body=number.to_bytes(4) * (BODY_BYTES // 4))
        request = service_pb2.SendMessageRequest(messages=[one])
        pause_s = 0.01
        while True:
            sent = await port.messaging.SendMessage(request, metadata=METADATA)
            answers[definition_pb2.Code.Name(sent.status.code)] += 1
            if sent.status.code == definition_pb2.OK:
                break
            assert sent.status.code == definition_pb2.TOO_MANY_REQUESTS, sent.status.message
            assert sent.status.message == "flow limit"
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)


def bytes_in_flight(port: Port) -> float:
    """Return what the broker's metrics say that it holds."""
    port.node.metrics.read_gauges()
    found = re.search(
        r'^strata_limit_used\{[^}]*limit="sends in flight"[^}]*\} (\S+)$',
        port.node.metrics.render().decode(),
        re.MULTILINE,
    )
    assert found
    return float(found[1])


async def stored_count(port: Port) -> int:
    """Return how many messages the topic holds."""
    shown = await port.admin.GetTopic(admin_pb2.GetTopicRequest(name="orders"))
    return sum(queue.next_offset for queue in shown.queues)


async def test_slow_storage_slows_producers_down(port: Port) -> None:
    """The broker never holds more than its limit and refuses the rest; all is stored once."""
    answers: Counter[str] = Counter()
    used_bytes: list[float] = []
    async with asyncio.TaskGroup() as tasks, port.node.faults.hold("Append"):
        for producer in range(PRODUCERS):
            tasks.create_task(produce(port, producer * MESSAGES_EACH, answers))
        # Those that found no room have come again and found none.
        refused = PRODUCERS - BROKER_BYTES // BODY_BYTES
        async with asyncio.timeout(60):
            while answers["TOO_MANY_REQUESTS"] < 3 * refused:
                await asyncio.sleep(0.05)
                used_bytes.append(bytes_in_flight(port))
        assert answers["OK"] == 0
    assert 0 < max(used_bytes) <= BROKER_BYTES
    assert bytes_in_flight(port) == 0
    assert answers["OK"] == PRODUCERS * MESSAGES_EACH == await stored_count(port)


async def test_a_storage_node_at_its_limit_is_felt_by_producers(port: Port) -> None:
    """The producer hears of a send that the storage node refuses as too much, and repeats it."""
    answers: Counter[str] = Counter()
    port.node.faults.refuse("Append", storage_pb2.OUTCOME_OVERLOADED, times=3)
    await produce(port, 1, answers)
    assert answers == {"TOO_MANY_REQUESTS": 3, "OK": MESSAGES_EACH}
    assert await stored_count(port) == MESSAGES_EACH
