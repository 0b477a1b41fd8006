"""Consumers of a FIFO topic, and the promise they hold the cluster to.

Nothing of a message group is delivered before what lies before it was acknowledged; what comes in
one answer is in order.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field

from apache.rocketmq.v2 import definition_pb2 as definition
from tests.e2e.client import INVISIBLE_S, Client, Delivered
from tests.e2e.history import History, Lease
from tests.e2e.load import FAILURES, RETRY_S

CONSUMERS = 2

# Topic's queue and message group.
Line = tuple[int, str]


@dataclass
class FifoConsumers:
    """Consumers of one topic by one consumer group.

    Attributes:
        endpoint: of the brokers.
        topic: of type FIFO.
        group: created with `--fifo`.
        history: takes deliveries and acknowledgements.
        violations: what was delivered too early.
    """

    endpoint: str
    topic: str
    group: str
    history: History
    violations: list[str] = field(default_factory=list)
    _seen: dict[Line, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """offset -> message id of what was delivered"""
    _ack_begun: set[str] = field(default_factory=set)

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until told to stop."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(CONSUMERS):
                tasks.create_task(self._consume(number, stop))

    async def _consume(self, number: int, stop: asyncio.Event) -> None:
        async with Client(self.endpoint) as client:
            queues: list[definition.MessageQueue] = []
            while not stop.is_set():
                try:
                    queues = queues or await client.queues(self.topic)
                    for queue in queues[number::CONSUMERS]:
                        await self._consume_once(client, queue)
                except FAILURES:
                    await asyncio.sleep(RETRY_S)

    async def _consume_once(self, client: Client, queue: definition.MessageQueue) -> None:
        asked, called_s = self.history.mark(), time.monotonic()
        delivered = await client.receive(queue, self.group, poll_s=1)
        lease = Lease(called_s, time.monotonic(), INVISIBLE_S)
        in_answer = {message.message_id for message in delivered}
        for message in delivered:
            self._judge(message, in_answer)
            self.history.deliver(
                self.group,
                self.topic,
                message.message_id,
                message.body,
                message.queue,
                message.offset,
                since=asked,
                lease=lease,
                attempt=message.attempt,
            )
        if delivered:
            self._ack_begun |= in_answer
            await client.ack(self.topic, self.group, delivered)
            for message in delivered:
                self.history.acknowledge(self.group, message.message_id)

    def _judge(self, message: Delivered, in_answer: set[str]) -> None:
        line = self._seen[message.queue, message.message_group]
        for offset, message_id in line.items():
            is_before = offset < message.offset
            if is_before and message_id not in self._ack_begun and message_id not in in_answer:
                self.violations.append(
                    f"{message.message_id} at {message.offset} of {message.message_group} came "
                    f"though {message_id} at {offset} was not acknowledged"
                )
        line[message.offset] = message.message_id
