"""Asks producers for the decision on their transactions, and gives up transactions without one.

Storage decides when and how often a half message is checked, and sends each check to a broker with
a producer of the topic. This broker puts it on a producer's telemetry stream. The producer answers
with EndTransaction, on any broker. A check that cannot be sent is forgotten: storage sends the next
one, and counts those that it is told of (`GivenChecks`). Invariants: waiting checks are bounded in
number and bytes; a stream gets a check only when its client took all earlier frames, so that a
slow client holds one message and not a full queue. When there is no room, producers with more of it
than others lose the checks that waited longest, so that those that do not read keep no room from
others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base.config import TransactionSection
from strata_broker.base.failures import contained, passed_over
from strata_broker.clients.producers import Producers, ProducersOf
from strata_broker.clients.provision import Provisioner
from strata_broker.metadata.metadata import MetadataView
from strata_broker.sends.transactions import Transactions
from strata_mq.requests import (
    TRANSACTION_DEAD_LETTER_GROUP,
    HandleForm,
    PendingHandle,
    RequestError,
)
from strata_runtime.clock import Clock
from strata_runtime.limits import Limit
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks
from strata_runtime.timeouts import Timeout

PRODUCER_GROUP_PROPERTY = "__remoting.PGROUP"
"""User property with the producer group of a message of the remoting protocol."""

OnGiven = Callable[[str, storage_pb2.TransactionCheck], None]
"""Told of a storage node and of a check of it that a producer was given."""

# Checks sent before other tasks get their turn.
_CHECKS_PER_TURN = 64


class _Waiting(NamedTuple):
    node_id: str
    check: storage_pb2.TransactionCheck
    until_s: float

    @property
    def size_bytes(self) -> int:
        return len(self.check.message)


class _Queue:
    """Checks that wait for the producers of a topic, oldest first."""

    __slots__ = ("checks", "size_bytes")

    def __init__(self) -> None:
        self.checks: deque[_Waiting] = deque()
        self.size_bytes = 0

    def add(self, waiting: _Waiting) -> None:
        self.checks.append(waiting)
        self.size_bytes += waiting.size_bytes

    def take(self) -> _Waiting:
        waiting = self.checks.popleft()
        self.size_bytes -= waiting.size_bytes
        return waiting


class TransactionChecker:
    """See the module docstring. Used on the event loop only."""

    def __init__(
        self,
        view: MetadataView,
        producers: Producers,
        provisioner: Provisioner,
        *,
        transactions: Transactions,
        config: TransactionSection,
        clock: Clock,
        requests: RequestTasks,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._producers = producers
        self._provisioner = provisioner
        self._transactions = transactions
        self._on_given: OnGiven = lambda *_: None
        self._patience_s = config.check_patience_ms / 1000
        self._clock = clock
        self._requests = requests
        self._store_host = ""
        # A topic stands here as long as there is one of it.
        self._waiting: dict[ProducersOf, _Queue] = {}
        self._wake = asyncio.Event()
        self._count = Limit(
            "transaction checks", config.max_checks_waiting, "checks", metrics=metrics
        )
        self._bytes = Limit(
            "transaction checks", config.max_check_bytes_waiting, "bytes", metrics=metrics
        )
        self._given_up: deque[storage_pb2.TransactionCheck] = deque()
        self._given_up_count = Limit(
            "transactions given up", config.max_given_up_waiting, "messages", metrics=metrics
        )
        self._give_up_wake = asyncio.Event()
        self._checks = metrics.counter("strata_broker_transaction_checks_total")
        self._log = get_logger("broker")

    def set_store_host(self, store_host: str) -> None:
        """Set the host that messages name as the one that stored them."""
        self._store_host = store_host

    def on_given(self, listener: OnGiven) -> None:
        """Call back with each check that a producer was given."""
        self._on_given = listener

    @property
    def waiting_count(self) -> int:
        """How many checks wait for a stream."""
        return self._count.used

    def wake(self) -> None:
        """Note that a client took all its frames: it may have room for a check."""
        if self._waiting:
            self._wake.set()

    def take(self, node_id: str, checks: Iterable[storage_pb2.TransactionCheck]) -> None:
        """Take checks of a storage node; drop those without room: it sends the next check."""
        until_s = self._clock.monotonic_s() + self._patience_s
        for check in checks:
            if check.exhausted:
                self._take_exhausted(check)
                continue
            topic = self._view.topic_by_id(check.topic_id)
            if topic is None:
                # The topic is deleted or not known here yet.
                self._counted("unknown topic")
                continue
            waiting = _Waiting(node_id, check, until_s)
            name = ProducersOf((topic.namespace, topic.name), _producer_group(check))
            of_topic = self._waiting.get(name) or _Queue()
            if self._try_hold(waiting, of_topic):
                of_topic.add(waiting)
                self._waiting[name] = of_topic
            else:
                self._counted("no room")
        self._wake.set()

    async def send_checks(self) -> None:
        """Send checks until cancelled."""
        while True:
            timeout_s = self._patience_s if self._waiting else None
            try:
                async with Timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                # Drop checks that waited too long.
                pass
            self._wake.clear()
            await self._send_round()

    async def give_up(self) -> None:
        """Turn transactions without a decision into dead letters, until cancelled."""
        while True:
            await self._give_up_wake.wait()
            self._give_up_wake.clear()
            while self._given_up:
                check = self._given_up.popleft()
                try:
                    with contained(self._requests, "give up transaction"):
                        await self._give_one_up(check)
                except RequestError as failure:
                    # Storage asks again.
                    self._log.warning("transaction not given up", reason=failure.text)
                finally:
                    self._given_up_count.give_back()

    async def _send_round(self) -> None:
        """Send checks that streams have room for; drop checks that waited too long."""
        sent = 0
        for topic in list(self._waiting):
            of_topic = self._waiting[topic]
            checks = of_topic.checks
            while checks and (result := self._try_send(topic, checks[0])):
                self._let_go(of_topic, result)
                sent += 1
                if sent % _CHECKS_PER_TURN == 0:
                    await asyncio.sleep(0)
            if not checks:
                del self._waiting[topic]

    def _try_send(self, topic: ProducersOf, waiting: _Waiting) -> str:
        """Send a check; return the result, "" if it still waits."""
        stream = self._producers.next_idle(topic)
        if stream is not None:
            with passed_over(self._requests, "check transaction"):
                stream.push(self._frame(waiting.check))
                self._on_given(waiting.node_id, waiting.check)
                return "sent"
            return "failed"
        if not self._producers.has(topic):
            return "no producer"
        return "" if self._clock.monotonic_s() < waiting.until_s else "no stream was idle"

    def _frame(self, check: storage_pb2.TransactionCheck) -> bytes:
        """Return the command: the message as a delivery would show it, without a receipt handle."""
        message = definition_pb2.Message.FromString(check.message)
        properties = message.system_properties
        properties.store_timestamp.FromMilliseconds(check.store_time_ms)
        properties.store_host = self._store_host
        properties.delivery_attempt = 1
        handle = PendingHandle(
            check.raft_group,
            check.topic_id,
            properties.message_id,
            HandleForm.PENDING,
            check.pending.index,
            check.pending.ordinal,
        )
        command = service_pb2.RecoverOrphanedTransactionCommand(
            message=message, transaction_id=self._transactions.handles.pending(handle)
        )
        return service_pb2.TelemetryCommand(
            recover_orphaned_transaction_command=command
        ).SerializeToString()

    def _try_hold(self, waiting: _Waiting, of_topic: _Queue) -> bool:
        """Take room for a check, from producers with more of it than its own have; or return False.

        Args:
            waiting: the check.
            of_topic: those that wait for the same producers.
        """
        size_bytes = waiting.size_bytes
        wanted = self._share(len(of_topic.checks) + 1, of_topic.size_bytes + size_bytes)
        while not self._has_room(size_bytes):
            shares = (
                (self._share(len(each.checks), each.size_bytes), each)
                for each in self._waiting.values()
            )
            share, largest = max(shares, key=lambda of_one: of_one[0], default=(0.0, of_topic))
            if share <= wanted:
                break
            self._let_go(largest, "no room")
        if not self._count.try_take():
            return False
        if self._bytes.try_take(size_bytes):
            return True
        self._count.give_back()
        return False

    def _has_room(self, size_bytes: int) -> bool:
        count, in_bytes = self._count, self._bytes
        return count.used < count.maximum and in_bytes.used + size_bytes <= in_bytes.maximum

    def _share(self, count: int, size_bytes: int) -> float:
        """Return which part of the room checks have, by their number or by their bytes."""
        return max(count / self._count.maximum, size_bytes / self._bytes.maximum)

    def _let_go(self, of_topic: _Queue, result: str) -> None:
        """Let the first check of producers wait no more."""
        size_bytes = of_topic.take().size_bytes
        self._count.give_back()
        self._bytes.give_back(size_bytes)
        self._counted(result)

    def _take_exhausted(self, check: storage_pb2.TransactionCheck) -> None:
        if not self._given_up_count.try_take():
            self._counted("no room")
            return
        # Giving up needs no message; the received check is not changed.
        name = storage_pb2.TransactionCheck()
        name.CopyFrom(check)
        name.ClearField("message")
        self._given_up.append(name)
        self._give_up_wake.set()

    async def _give_one_up(self, check: storage_pb2.TransactionCheck) -> None:
        """Move a transaction to the dead-letter topic of its namespace, made on first use.

        Raises:
            RequestError: the transaction stays where it is.
        """
        topic = self._view.topic_by_id(check.topic_id)
        if topic is None:
            self._counted("unknown topic")
            return
        dead_letters = await self._provisioner.system_group(
            topic.namespace, TRANSACTION_DEAD_LETTER_GROUP
        )
        handle = PendingHandle(
            check.raft_group,
            check.topic_id,
            "",
            HandleForm.PENDING,
            check.pending.index,
            check.pending.ordinal,
        )
        await self._transactions.resolve(
            handle,
            storage_pb2.TRANSACTION_END_GIVE_UP,
            dead_letter_topic_id=dead_letters.dead_letter_topic_id,
        )
        self._counted("given up")

    def _counted(self, result: str) -> None:
        self._checks.add(1, {"result": result})


def _producer_group(check: storage_pb2.TransactionCheck) -> str:
    """Return the group whose producers alone know the transaction; empty: any producer may."""
    if PRODUCER_GROUP_PROPERTY.encode() not in check.message:
        return ""
    message = definition_pb2.Message.FromString(check.message)
    return message.user_properties.get(PRODUCER_GROUP_PROPERTY, "")
