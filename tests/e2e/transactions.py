"""Transactions of a fault test, and what must hold of them.

Each transaction has a fate that was chosen before it began: its producer commits it, rolls it back,
or forgets it until it is asked. A consumer reads all the time. Calls without an answer are made
again with the same ids, as the official clients' callers do.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

import grpc

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from strata.admin.v1 import admin_pb2
from strata_testing import until
from tests.e2e.client import REQUEST_TIMEOUT_S, Client, Delivered, RefusedError, check_status

RETRY_S = 0.1
QUIET_S = 12.0  # only where something stays that should not
FAILURES = (RefusedError, grpc.aio.AioRpcError)

Result = TypeVar("Result")


class Fate(Enum):
    """Fate of a transaction."""

    COMMIT = "its producer commits it"
    ROLLBACK = "its producer rolls it back"
    COMMIT_WHEN_ASKED = "its producer commits it when it is asked"
    ROLLBACK_WHEN_ASKED = "its producer rolls it back when it is asked"

    @property
    def commits(self) -> bool:
        """Whether its message is to be delivered."""
        return self in (Fate.COMMIT, Fate.COMMIT_WHEN_ASKED)

    @property
    def when_asked(self) -> bool:
        """Whether its producer waits until it is asked."""
        return self in (Fate.COMMIT_WHEN_ASKED, Fate.ROLLBACK_WHEN_ASKED)


@dataclass
class Transaction:
    """One transaction; times are `time.monotonic`, 0: not yet."""

    message_id: str
    fate: Fate
    transaction_id: str = ""
    sent_s: float = 0.0
    # When its commit was asked for first, and when that was answered.
    commit_begun_s: float = 0.0
    ended_s: float = 0.0
    checks: int = 0
    deliveries: list[Delivered] = field(default_factory=list)
    delivered_s: float = 0.0


class Transactions:
    """Transactions on one topic.

    Args:
        endpoint: of the brokers.
        topic: of type TRANSACTION.
        group: of the consumer.
    """

    def __init__(self, endpoint: str, topic: str, group: str) -> None:
        self.endpoint = endpoint
        self.topic = topic
        self.group = group
        self.all: dict[str, Transaction] = {}
        self.errors: list[str] = []
        self.first_check = asyncio.Event()
        self._last_delivery_s = time.monotonic()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Client]:
        """Consume and answer checks; gives the client of the producer."""
        async with Client(self.endpoint) as client, asyncio.TaskGroup() as tasks:
            readers = [
                tasks.create_task(self._consume(number), name=f"consumer {number}")
                for number in range(2)
            ]
            readers.append(tasks.create_task(self._answer_checks(client)))
            yield client
            for reader in readers:
                reader.cancel()

    async def begin(self, client: Client, fate: Fate) -> Transaction:
        """Send a half message until it is answered."""
        one = Transaction(client.new_message_id(), fate)
        self.all[one.message_id] = one
        one.transaction_id = await self._until_answered(lambda: self._send(client, one))
        one.sent_s = time.monotonic()
        return one

    async def end(self, client: Client, one: Transaction, transaction_id: str = "") -> None:
        """Commit or roll back, as its fate is, until that is answered."""
        if one.fate.commits and not one.commit_begun_s:
            one.commit_begun_s = time.monotonic()
        repeated = False

        async def try_once() -> bool:
            nonlocal repeated
            try:
                await self._end(client, one, transaction_id or one.transaction_id)
            except RefusedError as refused:
                # Nothing is left of a rollback: when its answer was lost, a repeat is refused.
                if one.fate.commits or not repeated or not _ended(refused):
                    raise
            finally:
                repeated = True
            return True

        await self._until_answered(try_once)
        one.ended_s = one.ended_s or time.monotonic()

    async def settle(self, limit_s: float) -> None:
        """Wait until all have ended, what was committed came, and nothing more comes.

        Raises:
            NeverHeld: not within the limit.
        """
        async with Client(self.endpoint) as client:

            async def has_settled() -> bool:
                return self._is_over() and (self._is_quiet() or await self._is_empty(client))

            await until(has_settled, limit_s, step_s=RETRY_S)

    def violations(self) -> list[str]:
        """Return what must not be: seen too early, seen though rolled back, never seen."""
        wrong = []
        for one in self.all.values():
            if one.deliveries and not one.fate.commits:
                wrong.append(f"rolled back and delivered: {one}")
            elif one.deliveries and not 0 < one.commit_begun_s < one.delivered_s:
                wrong.append(f"delivered before its commit: {one}")
            elif one.fate.commits and not one.deliveries:
                wrong.append(f"committed and lost: {one}")
            elif len({(each.queue, each.offset) for each in one.deliveries}) > 1:
                wrong.append(f"placed twice: {one}")
        return wrong

    def _is_over(self) -> bool:
        return all(
            one.ended_s and (one.deliveries or not one.fate.commits) for one in self.all.values()
        )

    def _is_quiet(self) -> bool:
        return time.monotonic() - self._last_delivery_s > QUIET_S

    async def _is_empty(self, client: Client) -> bool:
        """Whether nothing more can come: no transaction is open, everything is acknowledged."""
        try:
            listed = await client.admin.ListTransactions(
                admin_pb2.ListTransactionsRequest(topic=self.topic), timeout=REQUEST_TIMEOUT_S
            )
            delivered = sum(bool(one.deliveries) for one in self.all.values())
            return not listed.transactions and await client.is_consumed(
                self.topic, self.group, delivered
            )
        except FAILURES:
            return False

    async def _send(self, client: Client, one: Transaction) -> str:
        message = definition.Message(body=one.message_id.encode())
        message.topic.name = self.topic
        properties = message.system_properties
        properties.message_id = one.message_id
        properties.message_type = definition.TRANSACTION
        properties.body_encoding = definition.IDENTITY
        properties.born_timestamp.GetCurrentTime()
        properties.born_host = "e2e"
        response = await client.stub.SendMessage(
            service.SendMessageRequest(messages=[message]),
            metadata=client.metadata,
            timeout=REQUEST_TIMEOUT_S,
        )
        check_status(response.status)
        return str(response.entries[0].transaction_id)

    async def _end(self, client: Client, one: Transaction, transaction_id: str) -> None:
        request = service.EndTransactionRequest(
            topic=definition.Resource(name=self.topic),
            message_id=one.message_id,
            transaction_id=transaction_id,
            resolution=definition.COMMIT if one.fate.commits else definition.ROLLBACK,
        )
        response = await client.stub.EndTransaction(
            request, metadata=client.metadata, timeout=REQUEST_TIMEOUT_S
        )
        check_status(response.status)

    async def _answer_checks(self, client: Client) -> None:
        """Keep a producer's stream open; end what its producer waits to be asked about."""
        settings = definition.Settings(client_type=definition.PRODUCER)
        settings.publishing.topics.add(name=self.topic)
        said = service.TelemetryCommand(settings=settings)
        async with asyncio.TaskGroup() as answers:
            while True:
                stream = client.stub.Telemetry(metadata=client.metadata)
                try:
                    await stream.write(said)
                    async for command in stream:
                        if command.HasField("recover_orphaned_transaction_command"):
                            check = command.recover_orphaned_transaction_command
                            answers.create_task(self._answer(client, check))
                except grpc.aio.AioRpcError as error:
                    self.errors.append(_text(error))
                finally:
                    stream.cancel()
                await asyncio.sleep(RETRY_S)

    async def _answer(
        self, client: Client, check: service.RecoverOrphanedTransactionCommand
    ) -> None:
        one = self.all[check.message.system_properties.message_id]
        one.checks += 1
        self.first_check.set()
        if one.fate.when_asked and not one.ended_s:
            await self.end(client, one, check.transaction_id)

    async def _consume(self, number: int) -> None:
        async with Client(self.endpoint) as client:
            queues: list[definition.MessageQueue] = []
            while True:
                try:
                    # Each consumer has its raft groups: together they read them all.
                    queues = queues or (await client.queues(self.topic))[number::2]
                    for queue in queues:
                        await self._consume_once(client, queue)
                except FAILURES as error:
                    self.errors.append(_text(error))
                    await asyncio.sleep(RETRY_S)

    async def _consume_once(self, client: Client, queue: definition.MessageQueue) -> None:
        delivered = await client.receive(queue, self.group)
        now_s = time.monotonic()
        for each in delivered:
            self._last_delivery_s = now_s
            one = self.all[each.message_id]
            one.deliveries.append(each)
            one.delivered_s = one.delivered_s or now_s
        if delivered:
            await client.ack(self.topic, self.group, delivered)

    async def _until_answered(self, call: Callable[[], Awaitable[Result]]) -> Result:
        while True:
            try:
                return await call()
            except FAILURES as error:
                self.errors.append(_text(error))
                await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.5))


def _ended(refused: RefusedError) -> bool:
    return refused.code == definition.INVALID_TRANSACTION_ID


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:120]
