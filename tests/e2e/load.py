"""Client load that goes on through faults: senders that repeat until answered, consumers.

A sender repeats a message with its id until it is answered, as the official clients do, so every
send ends as answered or is the last one of its sender. Events go into a `History`; when each send
was answered, into `answers`, from which gaps and latencies are read.
"""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import grpc

from apache.rocketmq.v2.definition_pb2 import MessageQueue
from tests.e2e.client import (
    REQUEST_TIMEOUT_S,
    SHORT_INVISIBLE_S,
    SHORT_POLL_S,
    Client,
    RefusedError,
)
from tests.e2e.cluster import Cluster
from tests.e2e.history import History, Lease

SENDERS = 12
FIFO_SENDERS = 4
CONSUMERS = 2
NORMAL_QUEUES = 12
FIFO_QUEUES = 6
RETRY_S = 0.05
QUIET_S = 6.0  # longer than one long poll; only where an answer to an ack was lost
STUCK_S = 45.0
"""Nothing comes for so long: what is left never comes; longer than any stall of a busy machine."""
DRAIN_LIMIT_S = 120.0

FAILURES = (grpc.aio.AioRpcError, RefusedError)


@dataclass(frozen=True)
class Answer:
    """One answered send: when it was first tried, when it was answered, how often it was tried."""

    begun_s: float
    ended_s: float
    tries: int


@dataclass
class Load:
    """Senders and consumers on one endpoint.

    Attributes:
        endpoint: of the brokers.
        normal: topic of type NORMAL.
        fifo: topic of type FIFO.
        group: consumer group that consumes meanwhile.
        pause_s: between two sends of one sender.
        timeout_s: of one try of a send.
        keys: of the user whose clients they are; None: nobody signs.
        invisible_s: lease of what is received. An ack that comes later is refused, as it should be.
    """

    endpoint: str
    normal: str
    fifo: str
    group: str
    pause_s: float = 0.1
    timeout_s: float = REQUEST_TIMEOUT_S
    keys: tuple[str, str] | None = None
    invisible_s: int = SHORT_INVISIBLE_S
    history: History = field(default_factory=History)
    answers: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    """sender -> its answered sends in their order"""
    errors: list[str] = field(default_factory=list)
    """calls that failed and were repeated"""
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def fifo_group(self) -> str:
        """The consumer group that drains the FIFO topic; to be created with `--fifo`."""
        return f"{self.group}-fifo"

    def create_topics(self, cluster: Cluster) -> None:
        """Create what the load needs."""
        cluster.create_topic(self.normal, "--queues", str(NORMAL_QUEUES))
        cluster.create_topic(self.fifo, "--type", "FIFO", "--queues", str(FIFO_QUEUES))
        cluster.create_group(self.fifo_group, "--fifo")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send and consume inside the block."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(SENDERS):
                tasks.create_task(self._send(f"n{number}", self.normal, ""))
            for number in range(FIFO_SENDERS):
                tasks.create_task(self._send(f"f{number}", self.fifo, f"g{number}"))
            for number in range(CONSUMERS):
                tasks.create_task(self._consume(number))
            try:
                yield
            finally:
                self._stop.set()

    def count(self) -> int:
        """Return how many sends were answered."""
        return len(self.history.answered)

    def gap_s(self, since_s: float, until_s: float) -> float:
        """Return the longest time that a sender had to wait for an answer, within a span.

        Args:
            since_s: beginning of the span, `time.monotonic`.
            until_s: its end.
        """
        return max(self.latencies_s(since_s, until_s), default=0.0)

    def latencies_s(self, since_s: float, until_s: float) -> list[float]:
        """Return how long each send took that was under way within a span, repeats included."""
        return [
            answer.ended_s - answer.begun_s
            for answers in self.answers.values()
            for answer in answers
            if answer.ended_s >= since_s and answer.begun_s <= until_s
        ]

    async def drain(self) -> None:
        """Read both topics with new consumer groups, and what the old one has left.

        A group is done when it acknowledged every answered send and has nothing left to read. An
        ack whose answer was lost is not known to have been taken: then the cluster's word that
        nothing is left counts, and nothing may come for a while.
        """
        plans = [
            (self.normal, f"{self.group}-drain", QUIET_S),
            (self.fifo, self.fifo_group, QUIET_S),
            (self.normal, self.group, self.invisible_s + QUIET_S),  # its leases have to run out
        ]
        async with (
            Client(self.endpoint, invisible_s=self.invisible_s, keys=self.keys) as client,
            asyncio.timeout(DRAIN_LIMIT_S),
            asyncio.TaskGroup() as tasks,
        ):
            for topic, group, quiet_s in plans:
                for queue in await client.queues(topic):
                    tasks.create_task(self._until_quiet(topic, group, queue, client, quiet_s))

    async def _send(self, name: str, topic: str, message_group: str) -> None:
        async with Client(self.endpoint, self.timeout_s, keys=self.keys) as client:
            while not self._stop.is_set():
                message_id = client.new_message_id()
                body = f"{name} {message_id}".encode()
                self.history.attempt(topic, message_id, body, message_group)
                begun_s = time.monotonic()
                tries = await self._until_answered(client, topic, message_id, body, message_group)
                if tries:
                    self.answers[name].append(Answer(begun_s, time.monotonic(), tries))
                await asyncio.sleep(self.pause_s * random.uniform(0.5, 1.5))

    async def _until_answered(
        self, client: Client, topic: str, message_id: str, body: bytes, message_group: str
    ) -> int:
        """Send a message until it is answered; return the tries, 0 when the load ended first."""
        tries = 0
        # A message under way when the load ends gets its answer too, if the cluster answers.
        while not self._stop.is_set() or tries == 0:
            tries += 1
            try:
                [offset] = await client.send(topic, [(message_id, body)], message_group)
            except FAILURES as error:
                self.errors.append(_text(error))
                await asyncio.sleep(RETRY_S)
                continue
            self.history.answer(message_id, offset)
            return tries
        return 0

    async def _consume(self, number: int) -> None:
        async with Client(self.endpoint, invisible_s=self.invisible_s, keys=self.keys) as client:
            queues: list[MessageQueue] = []
            while not self._stop.is_set():
                try:
                    # Each consumer has its raft groups: together they read them all.
                    queues = queues or (await client.queues(self.normal))[number::CONSUMERS]
                    for queue in queues:
                        await self._consume_once(self.normal, self.group, queue, client, poll_s=5)
                except FAILURES as error:
                    self.errors.append(_text(error))
                    await asyncio.sleep(RETRY_S)

    async def _consume_once(
        self, topic: str, group: str, queue: MessageQueue, client: Client, poll_s: int
    ) -> int:
        asked, called_s = self.history.mark(), time.monotonic()
        delivered = await client.receive(queue, group, poll_s)
        lease = Lease(called_s, time.monotonic(), self.invisible_s)
        for message in delivered:
            self.history.deliver(
                group,
                topic,
                message.message_id,
                message.body,
                message.queue,
                message.offset,
                since=asked,
                lease=lease,
                attempt=message.attempt,
            )
        if delivered:
            await client.ack(topic, group, delivered)
            for message in delivered:
                self.history.acknowledge(group, message.message_id)
        return len(delivered)

    async def _until_quiet(
        self, topic: str, group: str, queue: MessageQueue, client: Client, quiet_s: float
    ) -> None:
        sends = self.history.sends
        answered = [each for each in self.history.answered if sends[each].topic == topic]
        last = time.monotonic()
        while (silent_s := time.monotonic() - last) < STUCK_S:
            with suppress(*FAILURES):
                acknowledged = self.history.acknowledged
                if (
                    silent_s >= quiet_s or all((group, each) in acknowledged for each in answered)
                ) and await client.is_consumed(topic, group, len(answered)):
                    return
                if await self._consume_once(topic, group, queue, client, poll_s=SHORT_POLL_S):
                    last = time.monotonic()


def percentile(values: list[float], share: float) -> float:
    """Return the value that a share of the values does not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _text(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
