"""Messages that nobody can consume: after their attempts they are dead letters, once each."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from tests.chaos.cluster import ChaosCluster
from tests.e2e.client import Client
from tests.e2e.load import FAILURES, RETRY_S

TIMEOUT_S = 3.0
PAUSE_S = 0.25
POISONED_ONE_IN = 3
MAX_ATTEMPTS = 3
INVISIBLE_S = 1
PAGE = 100
CONSUMERS = 2


class DeadLetters:
    """A sender whose every third message is poison, and consumers who leave those lie.

    Args:
        endpoint: of the brokers.
        topic: of type NORMAL.
        group: created with MAX_ATTEMPTS attempts.
    """

    def __init__(self, endpoint: str, topic: str, group: str) -> None:
        self._endpoint = endpoint
        self._topic = topic
        self._group = group
        self.poisoned: set[str] = set()
        self._answered: set[str] = set()
        self._acknowledged: set[str] = set()
        self._attempts: Counter[str] = Counter()
        self._stop = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Send until told to stop; consume until `finish` is over."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send(stop))
            for number in range(CONSUMERS):
                tasks.create_task(self._consume(number))

    async def finish(self, cluster: ChaosCluster, limit_s: float) -> list[str]:
        """Wait until all poison is where it belongs; return what must not be."""
        wanted = self.poisoned & self._answered
        letters: Counter[str] = Counter()
        try:
            async with asyncio.timeout(limit_s):
                while not wanted <= letters.keys():
                    await asyncio.sleep(1.0)
                    letters = Counter(await asyncio.to_thread(self._letters, cluster))
        except TimeoutError:
            pass
        finally:
            self._stop.set()
        wrong = [f"no dead letter: {one}" for one in sorted(wanted - letters.keys())]
        wrong += [f"{count} dead letters: {one}" for one, count in letters.items() if count > 1]
        # An acknowledged message, with an answer, is nobody's dead letter.
        wrong += [
            f"acknowledged and a dead letter: {one}"
            for one in sorted(letters.keys() & self._acknowledged)
        ]
        return wrong

    def _letters(self, cluster: ChaosCluster) -> list[str]:
        found: list[str] = []
        page: list[str] = []
        while True:
            shown: Any = cluster.strata("dlq", "show", self._group, "--count", str(PAGE), *page)
            letters = shown["dead_letters"]
            found += [letter["body"] for letter in letters]
            if not shown.get("next_page"):
                return found
            page = ["--page", shown["next_page"]]

    async def _send(self, stop: asyncio.Event) -> None:
        async with Client(self._endpoint, TIMEOUT_S) as client:
            number = 0
            while not stop.is_set():
                number += 1
                message_id = client.new_message_id()
                body = f"letter {message_id}"
                if number % POISONED_ONE_IN == 0:
                    self.poisoned.add(body)
                while body not in self._answered and not stop.is_set():
                    try:
                        await client.send(self._topic, [(message_id, body.encode())])
                        self._answered.add(body)
                    except FAILURES:
                        await asyncio.sleep(RETRY_S)
                await asyncio.sleep(PAUSE_S)

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
        request = service.ReceiveMessageRequest(message_queue=queue, batch_size=16)
        request.group.name = self._group
        request.filter_expression.type = definition.TAG
        request.filter_expression.expression = "*"
        request.invisible_duration.seconds = INVISIBLE_S
        request.long_polling_timeout.seconds = 1
        entries = []
        call = client.stub.ReceiveMessage(
            request, metadata=client.metadata, timeout=client.timeout_s
        )
        async for part in call:
            if part.HasField("message"):
                body = part.message.body.decode()
                self._attempts[body] += 1
                if body not in self.poisoned:
                    properties = part.message.system_properties
                    entries.append((body, properties.message_id, properties.receipt_handle))
        if not entries:
            return
        ack = service.AckMessageRequest()
        ack.topic.name, ack.group.name = self._topic, self._group
        for _, message_id, handle in entries:
            ack.entries.add(message_id=message_id, receipt_handle=handle)
        response = await client.stub.AckMessage(
            ack, metadata=client.metadata, timeout=client.timeout_s
        )
        for (body, _, _), entry in zip(entries, response.entries, strict=True):
            if entry.status.code == definition.OK:
                self._acknowledged.add(body)
