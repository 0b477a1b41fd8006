"""Clients of the remoting protocol: producers that name queues, consumers that pop, and pullers.

A producer repeats a message with its id, to the same queue, until it is answered. A popper acks
each message by itself. A puller reads a queue from its first offset on: what it reads has no gap,
and stays where it is.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from strata_remoting import PulledMessage, ResponseCode, decode_properties
from strata_testing import until
from strata_testing.remoting_client import RemotingClient, RemotingRefusedError
from tests.e2e.load import RETRY_S

TIMEOUT_S = 3.0
PAUSE_S = 0.2
INVISIBLE_MS = 4_000
WAIT_MS = 1_000
QUEUES = 6
PRODUCERS, POPPERS, PULLERS = 2, 2, 2
FAILURES = (OSError, TimeoutError, RemotingRefusedError)

Place = tuple[int, int]
"""Queue and offset."""


@dataclass
class RemotingMessage:
    """One message.

    Attributes:
        stored: where its producer was told that it is.
        popped: where poppers found it.
        pulled: where pullers found it.
        acknowledged: an ack of it was answered.
    """

    message_id: str
    queue: int
    stored: Place | None = None
    popped: set[Place] = field(default_factory=set)
    pulled: set[Place] = field(default_factory=set)
    acknowledged: bool = False


class _Connection:
    """A connection with the broker of a topic, made anew after a failure."""

    def __init__(self, brokers: Sequence[str], topic: str, chance: random.Random) -> None:
        self._brokers = brokers
        self._topic = topic
        self._chance = chance
        self._stack = AsyncExitStack()
        self._client: RemotingClient | None = None

    async def client(self) -> RemotingClient:
        """Return the client; any broker knows the route."""
        if self._client is None:
            async with asyncio.timeout(TIMEOUT_S):
                async with RemotingClient(self._chance.choice(self._brokers)) as first:
                    route = await first.route(self._topic)
                address = self._chance.choice(route["brokerDatas"])["brokerAddrs"]["0"]
                self._client = await self._stack.enter_async_context(RemotingClient(address))
        return self._client

    async def forget(self) -> None:
        """Close the connection."""
        self._client = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()


class RemotingClients:
    """Producers, poppers and pullers of one topic.

    Args:
        brokers: addresses of the brokers' ports for remoting clients.
        topic: of type NORMAL, with `QUEUES` queues.
        group: of the poppers, with many attempts.
        chance: which queue, which broker.
    """

    def __init__(
        self, brokers: Sequence[str], topic: str, group: str, chance: random.Random
    ) -> None:
        self._brokers = brokers
        self._topic = topic
        self._group = group
        self._chance = chance
        self.all: dict[str, RemotingMessage] = {}
        self.refusals: dict[str, int] = defaultdict(int)
        self._next = dict.fromkeys(range(QUEUES), 0)
        self._wrong: list[str] = []
        self._stop = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Send until told to stop; consume until `finish` is over."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(PRODUCERS):
                tasks.create_task(self._send_all(stop))
            for _ in range(POPPERS):
                tasks.create_task(self._consume(self._pop))
            for number in range(PULLERS):
                tasks.create_task(self._consume(self._puller(number)))

    async def finish(self, limit_s: float) -> None:
        """Wait until everything was popped and pulled; then stop consuming.

        Raises:
            NeverHeld: something did not come.
        """
        try:
            await until(lambda: not self.missing(), limit_s, step_s=RETRY_S)
        finally:
            self._stop.set()

    def missing(self) -> list[RemotingMessage]:
        """Return what was stored and did not come to a popper or to a puller so far."""
        return [one for one in self.all.values() if one.stored and not (one.popped and one.pulled)]

    def violations(self) -> list[str]:
        """Return what must not be."""
        wrong = list(self._wrong)
        wrong += [f"did not come: {one}" for one in self.missing()]
        for one in self.all.values():
            if len(one.popped | one.pulled | ({one.stored} if one.stored else set())) > 1:
                wrong.append(f"in several places: {one}")
        return wrong

    async def _send_all(self, stop: asyncio.Event) -> None:
        connection = _Connection(self._brokers, self._topic, self._chance)
        while not stop.is_set():
            one = RemotingMessage(os.urandom(16).hex().upper(), self._chance.randrange(QUEUES))
            self.all[one.message_id] = one
            while one.stored is None and not stop.is_set():
                try:
                    client = await connection.client()
                    async with asyncio.timeout(TIMEOUT_S):
                        sent = await client.send(
                            self._topic,
                            one.message_id.encode(),
                            one.queue,
                            UNIQ_KEY=one.message_id,
                        )
                    one.stored = int(sent.fields["queueId"]), int(sent.fields["queueOffset"])
                except FAILURES as failure:
                    await self._failed(connection, failure)
            await asyncio.sleep(PAUSE_S * self._chance.uniform(0.5, 1.5))
        await connection.forget()

    async def _consume(self, consume_once: Callable[[RemotingClient], object]) -> None:
        connection = _Connection(self._brokers, self._topic, self._chance)
        while not self._stop.is_set():
            try:
                client = await connection.client()
                await consume_once(client)  # type: ignore[misc]
            except FAILURES as failure:
                await self._failed(connection, failure)
        await connection.forget()

    async def _failed(self, connection: _Connection, failure: Exception) -> None:
        self.refusals[f"{type(failure).__name__} {failure}"[:80]] += 1
        await connection.forget()
        await asyncio.sleep(RETRY_S)

    async def _pop(self, client: RemotingClient) -> None:
        acknowledged = {one.message_id for one in self.all.values() if one.acknowledged}
        async with asyncio.timeout(TIMEOUT_S + WAIT_MS / 1_000):
            answer, messages = await client.pop(
                self._topic, self._group, invisible_ms=INVISIBLE_MS, wait_ms=WAIT_MS
            )
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT):
            raise RemotingRefusedError(answer)
        for message in messages:
            one = self._known(message)
            if one is None:
                continue
            one.popped.add((message.queue_id, message.queue_offset))
            if one.message_id in acknowledged:
                self._wrong.append(f"popped again after its ack: {one}")
        for message in messages:
            async with asyncio.timeout(TIMEOUT_S):
                acked = await client.ack_pop(self._group, message)
            one = self._known(message)
            if one is not None and acked.code == ResponseCode.SUCCESS:
                one.acknowledged = True

    def _puller(self, number: int) -> Callable[[RemotingClient], object]:
        async def pull(client: RemotingClient) -> None:
            for queue in range(number, QUEUES, PULLERS):
                await self._pull(client, queue)

        return pull

    async def _pull(self, client: RemotingClient, queue: int) -> None:
        first = self._next[queue]
        async with asyncio.timeout(TIMEOUT_S + WAIT_MS / 1_000):
            answer, messages = await client.pull(
                self._topic, "pullers", queue, first, wait_ms=WAIT_MS // QUEUES
            )
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            self._wrong.append(f"queue {queue} has no offset {first}: {json.dumps(answer.fields)}")
            self._next[queue] = int(answer.fields["nextBeginOffset"])
            return
        if answer.code not in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
        ):
            raise RemotingRefusedError(answer)
        for message in messages:
            if message.queue_offset != self._next[queue]:
                self._wrong.append(
                    f"queue {queue}: {message.queue_offset} came instead of {self._next[queue]}"
                )
            self._next[queue] = message.queue_offset + 1
            one = self._known(message)
            if one is not None:
                one.pulled.add((message.queue_id, message.queue_offset))

    def _known(self, message: PulledMessage) -> RemotingMessage | None:
        message_id = message.body.decode()
        one = self.all.get(message_id)
        if one is None or decode_properties(message.properties).get("UNIQ_KEY") != message_id:
            self._wrong.append(f"never sent: {message}")
        return one
