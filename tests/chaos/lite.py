"""Lite topics: senders, subscribers that repeat what they want, and what must hold.

Each lite topic has one sender, which sends the next message when the one before was answered. So
the order of its messages is known: nothing comes before what lies before it was acknowledged.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from strata_testing import until
from tests.e2e.client import Client, Delivered, check_status
from tests.e2e.load import FAILURES, RETRY_S

TIMEOUT_S = 3.0
PAUSE_S = 0.2
INVISIBLE_S = 4
# Clients repeat all subscriptions every 30 s; a run is short.
REPEAT_S = 5.0
NEW_NAME_EVERY = 25
NAMES_EACH = 3
SENDERS, CONSUMERS = 3, 2


@dataclass
class LiteMessage:
    """One message; `number` is its place in its lite topic.

    Attributes:
        offsets: where it was delivered from.
    """

    lite_topic: str
    number: int
    message_id: str
    answered: bool = False
    ack_begun: bool = False
    acknowledged: bool = False
    offsets: set[tuple[int, int]] = field(default_factory=set)

    @property
    def body(self) -> str:
        """Body, by which it is found."""
        return f"{self.lite_topic} {self.number}"


class LiteTopics:
    """Senders and subscribers of the lite topics of one parent.

    Args:
        endpoint: of the brokers.
        parent: of type LITE.
        group: of the consumers, with many attempts.
        chance: which lite topic is next.
    """

    def __init__(self, endpoint: str, parent: str, group: str, chance: random.Random) -> None:
        self._endpoint = endpoint
        self._parent = parent
        self._group = group
        self._chance = chance
        self.all: dict[str, LiteMessage] = {}
        self._by_name: dict[str, list[LiteMessage]] = defaultdict(list)
        self._wrong: list[str] = []
        self._stop = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Send until told to stop; consume until `finish` is over."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(SENDERS):
                tasks.create_task(self._send_all(number, stop))
            for _ in range(CONSUMERS):
                tasks.create_task(self._consume())

    async def finish(self, limit_s: float) -> None:
        """Wait until everything was delivered; then stop consuming.

        Raises:
            NeverHeld: something did not come.
        """
        try:
            await until(lambda: not self.missing(), limit_s, step_s=RETRY_S)
        finally:
            self._stop.set()

    def missing(self) -> list[LiteMessage]:
        """Return what was stored and did not come to anybody who could acknowledge it so far."""
        return [one for one in self.all.values() if one.answered and not one.ack_begun]

    def violations(self) -> list[str]:
        """Return what must not be."""
        wrong = list(self._wrong)
        wrong += [f"never delivered: {one}" for one in self.missing()]
        wrong += [f"stored twice: {one}" for one in self.all.values() if len(one.offsets) > 1]
        return wrong

    async def _send_all(self, sender: int, stop: asyncio.Event) -> None:
        names = [f"chat-{sender}-{number}" for number in range(NAMES_EACH)]
        async with Client(self._endpoint, TIMEOUT_S) as client:
            sent = 0
            while not stop.is_set():
                sent += 1
                if sent % NEW_NAME_EVERY == 0:
                    # It begins while everything goes on.
                    names[self._chance.randrange(NAMES_EACH)] = f"chat-{sender}-{sent}"
                name = self._chance.choice(names)
                of_name = self._by_name[name]
                one = LiteMessage(name, len(of_name), client.new_message_id())
                of_name.append(one)
                self.all[one.body] = one
                # Its successor must not overtake it: it is repeated until it is answered.
                while not one.answered and not (stop.is_set() and self._stop.is_set()):
                    try:
                        await self._send(client, one)
                        one.answered = True
                    except FAILURES:
                        await asyncio.sleep(RETRY_S)
                await asyncio.sleep(PAUSE_S * self._chance.uniform(0.5, 1.5))

    async def _send(self, client: Client, one: LiteMessage) -> None:
        message = definition.Message(body=one.body.encode())
        message.topic.name = self._parent
        properties = message.system_properties
        properties.message_id = one.message_id
        properties.message_type = definition.LITE
        properties.lite_topic = one.lite_topic
        properties.body_encoding = definition.IDENTITY
        properties.born_timestamp.GetCurrentTime()
        response = await client.stub.SendMessage(
            service.SendMessageRequest(messages=[message]),
            metadata=client.metadata,
            timeout=client.timeout_s,
        )
        check_status(response.status)

    async def _consume(self) -> None:
        async with Client(self._endpoint, TIMEOUT_S, INVISIBLE_S) as client:
            told_s = float("-inf")
            names: set[str] = set()
            queues: list[definition.MessageQueue] = []
            clock = asyncio.get_running_loop().time
            while not self._stop.is_set():
                try:
                    queues = queues or await client.queues(self._parent)
                    if names != self._by_name.keys() or clock() - told_s > REPEAT_S:
                        names = set(self._by_name)
                        await self._subscribe(client, names)
                        told_s = clock()
                    await self._consume_once(client, queues[0])
                except FAILURES:
                    told_s = float("-inf")
                    await asyncio.sleep(RETRY_S)

    async def _subscribe(self, client: Client, names: set[str]) -> None:
        request = service.SyncLiteSubscriptionRequest(
            action=definition.COMPLETE_ADD, lite_topic_set=sorted(names)
        )
        request.topic.name, request.group.name = self._parent, self._group
        response = await client.stub.SyncLiteSubscription(
            request, metadata=client.metadata, timeout=client.timeout_s
        )
        check_status(response.status)

    async def _consume_once(self, client: Client, queue: definition.MessageQueue) -> None:
        acknowledged = {one.body for one in self.all.values() if one.acknowledged}
        delivered = await client.receive(queue, self._group, poll_s=1)
        in_answer: set[str] = set()
        for message in delivered:
            body = message.body.decode()
            if body not in self.all:
                self._wrong.append(f"never sent: {message}")
                continue
            self._judge(message, in_answer, acknowledged)
            in_answer.add(body)
        if not delivered:
            return
        messages = [self.all[body] for body in in_answer]
        for one in messages:
            one.ack_begun = True
        await client.ack(self._parent, self._group, delivered)
        for one in messages:
            one.acknowledged = True

    def _judge(self, message: Delivered, in_answer: set[str], acknowledged: set[str]) -> None:
        """Note what is wrong with a delivery.

        Args:
            message: the delivery.
            in_answer: bodies that came before it in the same answer.
            acknowledged: bodies that were acknowledged before the receive began.
        """
        body = message.body.decode()
        one = self.all[body]
        one.offsets.add((message.queue, message.offset))
        if body in acknowledged:
            self._wrong.append(f"came again after its ack: {one}")
        for earlier in self._by_name[one.lite_topic][: one.number]:
            if not earlier.ack_begun and earlier.body not in in_answer:
                self._wrong.append(f"{one} came though {earlier} was not acknowledged")
