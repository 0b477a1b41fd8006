"""A modest load of every kind, for hours: what it keeps of a message ends with the message."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from strata_kv.aio import AsyncKvClient
from strata_kv.errors import KvError
from strata_testing import NeverHeld, until
from tests.e2e.client import Client, check_status
from tests.e2e.cluster import Cluster
from tests.e2e.load import FAILURES, percentile

BODY_BYTES = 1_000
KINDS = {"normal": 0.5, "fifo": 0.2, "delayed": 0.15, "transactions": 0.1, "table": 0.05}
"""Share of the rate."""
TYPES = {"normal": "NORMAL", "fifo": "FIFO", "delayed": "DELAY", "transactions": "TRANSACTION"}
QUEUES = 6
TABLE_KEYS = 500
DELAY_S = (1.0, 10.0)
MESSAGE_GROUPS = 8
ROLLED_BACK_SHARE = 0.2
CONNECTION_S = 60.0
"""So long lives a connection of a sender: others take its place."""
LONG_POLL_S = 5
DRAIN_LIMIT_S = 120.0
MAX_ERRORS = 20


class SoakLoad:
    """Senders and consumers.

    Args:
        endpoint: of the brokers.
        rate: operations per second of all senders together.

    Attributes:
        sent: messages that will be delivered, by topic.
        delivered: messages that were acknowledged, by topic.
        operations: operations that were answered, of all kinds.
        failed: calls that failed.
        errors: the last of them.
    """

    def __init__(self, endpoint: str, rate: float) -> None:
        self._endpoint = endpoint
        self._rate = rate
        self._stop = asyncio.Event()
        self._stop_consuming = asyncio.Event()
        self._took_s: list[float] = []
        self.sent: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self.operations = 0
        self.failed = 0
        self.errors: deque[str] = deque(maxlen=MAX_ERRORS)

    def create(self, cluster: Cluster, retention: str) -> None:
        """Create topics, consumer groups and a table."""
        for topic, kind in TYPES.items():
            options = ("--type", kind, "--queues", str(QUEUES), "--retention", retention)
            cluster.create_topic(topic, *options)
            cluster.create_group(f"{topic}-consumers", *(("--fifo",) if topic == "fifo" else ()))
        cluster.strata("kv", "create", "table")

    async def run(self, seconds: float) -> None:
        """Work for so long; then let consumers finish."""
        async with asyncio.TaskGroup() as tasks:
            for topic in TYPES:
                tasks.create_task(self._again(lambda topic=topic: self._consume(topic)))  # type: ignore[misc]
            async with asyncio.TaskGroup() as senders:
                for kind, share in KINDS.items():
                    work = self._write if kind == "table" else self._send
                    senders.create_task(self._paced(kind, share * self._rate, work))
                await asyncio.sleep(seconds)
                self._stop.set()
            await self._drain()
            self._stop_consuming.set()

    def latencies_ms(self) -> tuple[float, float]:
        """Return median and p99 of the answers since the last call; 0 without any."""
        took_s, self._took_s = self._took_s, []
        return 1_000 * percentile(took_s, 0.5), 1_000 * percentile(took_s, 0.99)

    def missing(self) -> dict[str, int]:
        """Return topic -> messages that were answered and not delivered."""
        return {
            topic: count - self.delivered[topic]
            for topic, count in self.sent.items()
            if count > self.delivered[topic]
        }

    async def _drain(self) -> None:
        with suppress(NeverHeld):
            await until(lambda: not self.missing(), DRAIN_LIMIT_S, step_s=0.5)

    async def _paced(
        self, kind: str, rate: float, work: Callable[[str, float], Awaitable[None]]
    ) -> None:
        """Work on one connection after the other, each for a while."""
        await self._again(lambda: work(kind, 1 / rate), self._stop)

    async def _again(
        self, work: Callable[[], Awaitable[None]], stop: asyncio.Event | None = None
    ) -> None:
        stop = stop or self._stop_consuming
        while not stop.is_set():
            try:
                await work()
            except (*FAILURES, KvError) as error:
                self.failed += 1
                self.errors.append(f"{type(error).__name__}: {error}".splitlines()[0][:200])
                await asyncio.sleep(0.2)

    async def _send(self, topic: str, pause_s: float) -> None:
        ends_s = time.monotonic() + CONNECTION_S
        async with Client(self._endpoint) as client:
            while time.monotonic() < ends_s and not self._stop.is_set():
                began_s = time.monotonic()
                await self._send_one(client, topic)
                self._answered(began_s)
                await asyncio.sleep(max(0.0, pause_s - (time.monotonic() - began_s)))

    async def _send_one(self, client: Client, topic: str) -> None:
        """Send a message; repeat it with its id, and count it once."""
        message = definition.Message(body=random.randbytes(BODY_BYTES))
        message.topic.name = topic
        properties = message.system_properties
        properties.message_id = client.new_message_id()
        properties.message_type = definition.MessageType.Value(TYPES[topic])
        properties.body_encoding = definition.IDENTITY
        properties.born_timestamp.GetCurrentTime()
        if topic == "fifo":
            properties.message_group = f"g{random.randrange(MESSAGE_GROUPS)}"
        if topic == "delayed":
            due_ms = int(1_000 * (time.time() + random.uniform(*DELAY_S)))
            properties.delivery_timestamp.FromMilliseconds(due_ms)
        response = await client.stub.SendMessage(
            service.SendMessageRequest(messages=[message]),
            metadata=client.metadata,
            timeout=client.timeout_s,
        )
        check_status(response.status)
        if topic == "transactions":
            await self._end(client, properties.message_id, response.entries[0].transaction_id)
        else:
            self.sent[topic] += 1

    async def _end(self, client: Client, message_id: str, transaction_id: str) -> None:
        commits = random.random() >= ROLLED_BACK_SHARE
        request = service.EndTransactionRequest(
            message_id=message_id, transaction_id=transaction_id
        )
        request.topic.name = "transactions"
        request.resolution = definition.COMMIT if commits else definition.ROLLBACK
        response = await client.stub.EndTransaction(
            request, metadata=client.metadata, timeout=client.timeout_s
        )
        check_status(response.status)
        self.sent["transactions"] += commits

    async def _write(self, _: str, pause_s: float) -> None:
        ends_s = time.monotonic() + CONNECTION_S
        async with AsyncKvClient(self._endpoint) as client:
            table = client.table("table")
            while time.monotonic() < ends_s and not self._stop.is_set():
                began_s = time.monotonic()
                key = f"key-{random.randrange(TABLE_KEYS)}".encode()
                await table.put(key, random.randbytes(BODY_BYTES))
                await table.get(key)
                self._answered(began_s)
                await asyncio.sleep(max(0.0, pause_s - (time.monotonic() - began_s)))

    async def _consume(self, topic: str) -> None:
        ends_s = time.monotonic() + CONNECTION_S
        group = f"{topic}-consumers"
        async with Client(self._endpoint) as client:
            queues = await client.queues(topic)
            while time.monotonic() < ends_s and not self._stop_consuming.is_set():
                delivered = await client.receive(random.choice(queues), group, LONG_POLL_S)
                if delivered:
                    await client.ack(topic, group, delivered)
                    self.delivered[topic] += len(delivered)

    def _answered(self, began_s: float) -> None:
        self.operations += 1
        self._took_s.append(time.monotonic() - began_s)
