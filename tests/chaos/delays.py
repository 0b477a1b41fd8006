"""Delayed messages, some of them recalled before they are due."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from strata_testing import until
from tests.e2e.client import Client, RefusedError, check_status
from tests.e2e.load import FAILURES, RETRY_S

TIMEOUT_S = 3.0
PAUSE_S = 0.15
DELAY_S = (1.0, 15.0)
RECALLED_SHARE = 0.2
# Group time may lie behind the clients' by what clocks of nodes may differ (rule 4).
EARLY_S = 0.3
SENDERS, CONSUMERS = 3, 2


@dataclass
class Delayed:
    """One delayed message; times are seconds since 1970, 0: not yet.

    Attributes:
        recalled: None: nobody asked; True: taken back; False: refused.
    """

    message_id: str
    due_s: float
    handle: str = ""
    answered: bool = False
    recalled: bool | None = None
    refusal: str = ""
    places: set[tuple[int, int]] = field(default_factory=set)
    first_delivered_s: float = 0.0


class Delays:
    """Senders, recallers and consumers of one topic.

    Args:
        endpoint: of the brokers.
        topic: of type DELAY.
        group: of the consumers.
        chance: how long, and which ones are recalled.
    """

    def __init__(self, endpoint: str, topic: str, group: str, chance: random.Random) -> None:
        self._endpoint = endpoint
        self._topic = topic
        self._group = group
        self._chance = chance
        self.all: dict[str, Delayed] = {}
        self._stop = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Send and recall until told to stop; consume until `finish` is over."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(SENDERS):
                tasks.create_task(self._send_all(stop))
            for number in range(CONSUMERS):
                tasks.create_task(self._consume(number))

    async def finish(self, limit_s: float) -> None:
        """Wait until everything that is to come came; then stop consuming.

        Raises:
            NeverHeld: it did not come.
        """
        try:
            await until(lambda: not self.missing(), limit_s, step_s=RETRY_S)
        finally:
            self._stop.set()

    def missing(self) -> list[Delayed]:
        """Return what was answered, not taken back, and did not come so far."""
        return [one for one in self.all.values() if one.answered and not _over(one)]

    def violations(self) -> list[str]:
        """Return what must not be."""
        wrong = []
        for one in self.all.values():
            if one.places and one.recalled:
                wrong.append(f"recalled and delivered: {one}")
            if one.first_delivered_s and one.first_delivered_s < one.due_s - EARLY_S:
                wrong.append(f"delivered early: {one}")
            if len(one.places) > 1:
                wrong.append(f"stored twice: {one}")
            if one.answered and not one.places and one.recalled is not True:
                said = "recall refused, and " if one.recalled is False else ""
                wrong.append(f"{said}never delivered: {one}")
        return wrong

    async def _send_all(self, stop: asyncio.Event) -> None:
        async with Client(self._endpoint, TIMEOUT_S) as client, asyncio.TaskGroup() as recalls:
            while not stop.is_set():
                due_s = time.time() + self._chance.uniform(*DELAY_S)
                one = Delayed(client.new_message_id(), due_s)
                self.all[one.message_id] = one
                while not one.answered and not stop.is_set():
                    try:
                        one.handle = await self._send(client, one)
                        one.answered = True
                    except FAILURES:
                        await asyncio.sleep(RETRY_S)
                if one.answered and self._chance.random() < RECALLED_SHARE:
                    recalls.create_task(self._recall(client, one))
                await asyncio.sleep(PAUSE_S * self._chance.uniform(0.5, 1.5))

    async def _send(self, client: Client, one: Delayed) -> str:
        message = definition.Message(body=one.message_id.encode())
        message.topic.name = self._topic
        properties = message.system_properties
        properties.message_id = one.message_id
        properties.message_type = definition.DELAY
        properties.body_encoding = definition.IDENTITY
        properties.born_timestamp.GetCurrentTime()
        properties.delivery_timestamp.FromMilliseconds(int(one.due_s * 1_000))
        response = await client.stub.SendMessage(
            service.SendMessageRequest(messages=[message]),
            metadata=client.metadata,
            timeout=client.timeout_s,
        )
        check_status(response.status)
        return str(response.entries[0].recall_handle)

    async def _recall(self, client: Client, one: Delayed) -> None:
        """Take a message back; a call without an answer is made again."""
        left_s = one.due_s - time.time()
        await asyncio.sleep(max(0.0, left_s * self._chance.uniform(0.0, 1.1)))
        request = service.RecallMessageRequest(recall_handle=one.handle)
        request.topic.name = self._topic
        while one.recalled is None:
            try:
                response = await client.stub.RecallMessage(
                    request, metadata=client.metadata, timeout=client.timeout_s
                )
                check_status(response.status)
                one.recalled = True
            except RefusedError as refused:
                if refused.code in (
                    definition.INVALID_RECEIPT_HANDLE,
                    definition.MESSAGE_NOT_FOUND,
                    definition.BAD_REQUEST,
                ):
                    one.recalled, one.refusal = False, str(refused)
            except FAILURES:
                pass
            await asyncio.sleep(RETRY_S)

    async def _consume(self, number: int) -> None:
        async with Client(self._endpoint, TIMEOUT_S) as client:
            queues: list[definition.MessageQueue] = []
            while not self._stop.is_set():
                try:
                    queues = queues or (await client.queues(self._topic))[number::CONSUMERS]
                    for queue in queues:
                        await self._consume_once(client, queue)
                except FAILURES:
                    await asyncio.sleep(RETRY_S)

    async def _consume_once(self, client: Client, queue: definition.MessageQueue) -> None:
        delivered = await client.receive(queue, self._group, poll_s=1)
        for message in delivered:
            one = self.all[message.body.decode()]
            one.places.add((message.queue, message.offset))
            one.first_delivered_s = one.first_delivered_s or time.time()
        if delivered:
            await client.ack(self._topic, self._group, delivered)


def _over(one: Delayed) -> bool:
    # A refused recall says that the message was delivered, or recalled by somebody else: nobody
    # else recalls here, so it must have come.
    return bool(one.places) or one.recalled is True
