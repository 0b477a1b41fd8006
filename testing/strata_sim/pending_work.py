"""Clients of late or refused deliveries: delays, recalls, transactions, dead letters, bulk.

Each worker sends to its own topic, has one consumer group, and knows the required outcome of every
message. A call whose answer is lost is repeated with the same ids and handles; a repeat must get
the answer of the first call (rule 37).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from apache.rocketmq.v2 import definition_pb2 as definition
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_sim.client import LOST, Delivered, Refused, SimClient
from strata_sim.machine import EPOCH_MS

_FAILURES = (Refused, *LOST)
_RETRY_S = 0.2
# Group time is a leader's bounded clock; machines jump and drift within what is allowed (rule 4).
_EARLY_S = 1.0
_DELAY_S = (0.5, 8.0)
_THINK_S = 0.8
_RECALLED_SHARE = 0.3
_MAX_ATTEMPTS = 2
_BULK_BYTES = (4_000, 24_000)
_BULK_RETENTION_MS = 2_000


class Fate(Enum):
    """Fate that its sender wants for a message."""

    DELIVER = "it is delivered"
    RECALL = "its sender takes it back before it is due"
    COMMIT = "its producer commits it"
    ROLLBACK = "its producer rolls it back"
    POISON = "nobody can consume it: it becomes a dead letter"


@dataclass(slots=True)
class Work:
    """One message and what became of it.

    Attributes:
        due_s: not to be delivered before, in virtual time.
        stored: whether its send was answered.
        ended: whether its recall, commit or rollback was answered, and how.
        refusal: what it was refused with.
        places: where it was delivered from.
    """

    message_id: str
    fate: Fate
    due_s: float = 0.0
    stored: bool = False
    ended: bool | None = None
    end_begun: bool = False
    refusal: str = ""
    places: set[tuple[int, int]] = field(default_factory=set)
    first_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A topic of pending work.

    Attributes:
        topic: its name.
        type: of the topic.
        fates: what may be wanted of its messages.
        retention_ms: of the topic; 0: the default.
    """

    topic: str
    type: meta_pb2.TopicType.ValueType
    fates: tuple[Fate, ...]
    retention_ms: int = 0


DELAYED = Kind("later", meta_pb2.TOPIC_TYPE_DELAY, (Fate.DELIVER, Fate.DELIVER, Fate.RECALL))
TRANSACTIONS = Kind("halves", meta_pb2.TOPIC_TYPE_TRANSACTION, (Fate.COMMIT, Fate.ROLLBACK))
LETTERS = Kind("letters", meta_pb2.TOPIC_TYPE_NORMAL, (Fate.DELIVER, Fate.POISON))
BULK = Kind("bulk", meta_pb2.TOPIC_TYPE_NORMAL, (), _BULK_RETENTION_MS)
KINDS = (DELAYED, TRANSACTIONS, LETTERS, BULK)


class Worker:
    """One producer and one consumer of a kind of pending work.

    Args:
        kind: which.
        producer, consumer: clients of its own.
        chance: what is wanted.
    """

    def __init__(
        self, kind: Kind, producer: SimClient, consumer: SimClient, *, chance: random.Random
    ) -> None:
        self.kind = kind
        self.group = f"{kind.topic}-readers"
        self.all: dict[str, Work] = {}
        self.done: Counter[str] = Counter()
        # Messages of the dead-letter topic: attempts whose answers were lost count, too.
        self._dead: set[str] = set()
        self._producer = producer
        self._consumer = consumer
        self._chance = chance
        self._names: list[str] = []
        self._fates: list[Fate] = []
        self._sending = True
        self._open = 0

    async def create(self) -> None:
        """Create topic and consumer group; done already is done too.

        Raises:
            Refused, Disconnected, CallRefused, TimeoutError: not yet.
        """
        topic = meta_pb2.Topic(
            name=self.kind.topic,
            type=self.kind.type,
            queue_count=2,
            retention_ms=self.kind.retention_ms,
        )
        group = meta_pb2.ConsumerGroup(name=self.group, max_attempts=_attempts(self.kind))
        for rpc, request in (
            ("CreateTopic", admin_pb2.CreateTopicRequest(topic=topic)),
            ("CreateConsumerGroup", admin_pb2.CreateConsumerGroupRequest(consumer_group=group)),
        ):
            try:
                await self._producer.admin(rpc, request)
            except _FAILURES as failure:
                if "ALREADY_EXISTS" not in str(failure):
                    raise
        self._names = await self._consumer.broker_names(self.kind.topic)

    def stop_sending(self) -> None:
        """Begin nothing new."""
        self._sending = False

    def waiting(self) -> list[Work]:
        """Return what is not over: it is stored and what must become of it has not."""
        return [work for work in self.all.values() if work.stored and not self._is_over(work)]

    @property
    def idle(self) -> bool:
        """Whether no call of the producer is under way."""
        return self._open == 0

    def violations(self) -> Iterator[str]:
        """Find what must not be; everything had its time."""
        for work in self.all.values():
            name = f"{self.kind.topic} {work.message_id} ({work.fate.name.lower()})"
            if len(work.places) > 1 and work.fate is not Fate.POISON:
                yield f"pending stored twice: {name} at {sorted(work.places)}"
            if work.first_s and work.first_s < work.due_s - _EARLY_S:
                yield f"pending early: {name} {work.due_s - work.first_s:.3f} s"
            if work.places and work.fate is Fate.RECALL and work.ended:
                yield f"pending recalled and delivered: {name}"
            if work.places and work.fate is Fate.ROLLBACK:
                yield f"pending rolled back and delivered: {name}"
            if work.places and work.fate is Fate.COMMIT and not work.end_begun:
                yield f"pending delivered before its commit: {name}"
            if work.stored and not self._is_over(work):
                said = f", refused with {work.refusal}" if work.refusal else ""
                yield f"pending lost: {name}{said}"

    def _next_fate(self) -> Fate:
        """Draw without putting back: every run, however short, has some of each."""
        if not self._fates:
            self._fates = self._chance.sample(self.kind.fates, len(self.kind.fates))
        return self._fates.pop()

    def _is_over(self, work: Work) -> bool:
        match work.fate:
            case Fate.DELIVER:
                return bool(work.places) or work.message_id in self._dead
            case Fate.RECALL:
                # A refusal says that it was delivered.
                return bool(work.places) or work.ended is True
            case Fate.COMMIT:
                return bool(work.places)
            case Fate.ROLLBACK:
                return work.ended is not None
            case Fate.POISON:
                return True  # `dead_letters` says where it is

    # The producer ---------------------------------------------------------------------------------

    async def produce(self) -> None:
        """Send until told to stop."""
        while self._sending:
            await asyncio.sleep(self._chance.uniform(0, _THINK_S))
            self._open += 1
            try:
                await (self._send_bulk() if self.kind is BULK else self._send_one())
            finally:
                self._open -= 1

    async def _send_bulk(self) -> None:
        body = self._chance.randbytes(self._chance.randint(*_BULK_BYTES))
        for _ in range(3):
            try:
                await self._producer.send(self.kind.topic, self._producer.new_message_id(), body)
            except _FAILURES:
                continue
            self.done["bulk"] += 1

    async def _send_one(self) -> None:
        now_s = self._producer.now_s
        work = Work(self._producer.new_message_id(), self._next_fate())
        self.all[work.message_id] = work
        if self.kind is DELAYED:
            work.due_s = now_s + self._chance.uniform(*_DELAY_S)
        try:
            entry = await self._producer.send_pending(
                self.kind.topic,
                work.message_id,
                work.message_id.encode(),
                _message_type(self.kind),
                EPOCH_MS + int(work.due_s * 1_000) if work.due_s else 0,
            )
        except _FAILURES:
            return  # unknown: it may come, it need not
        work.stored = True
        self.done[work.fate.name.lower()] += 1
        if work.fate is Fate.RECALL:
            left_s = work.due_s - self._producer.now_s
            await asyncio.sleep(max(0.0, left_s * self._chance.uniform(0, 1.1)))
            await self._end(work, entry.recall_handle)
        elif work.fate in (Fate.COMMIT, Fate.ROLLBACK):
            await asyncio.sleep(self._chance.uniform(0, 0.5))
            await self._end(work, entry.transaction_id)

    async def _end(self, work: Work, handle: str) -> None:
        """Recall, commit or roll back until it is answered."""
        work.end_begun = True
        while work.ended is None:
            try:
                if work.fate is Fate.RECALL:
                    await self._producer.recall(self.kind.topic, handle)
                else:
                    await self._producer.end_transaction(
                        self.kind.topic, work.message_id, handle, work.fate is Fate.COMMIT
                    )
                work.ended = True
            except Refused as refused:
                if refused.code in _FINAL:
                    work.ended, work.refusal = False, str(refused)
            except LOST:
                pass
            await asyncio.sleep(_RETRY_S)

    # The consumer ---------------------------------------------------------------------------------

    async def consume(self) -> None:
        """Consume forever; poison is left lying until its lease runs out."""
        while True:
            try:
                delivered = await self._consumer.receive(
                    self.kind.topic,
                    self._chance.choice(self._names),
                    self.group,
                    invisible_s=1,
                    poll_s=1,
                )
                for message in delivered:
                    await self._take(message)
            except _FAILURES:
                await asyncio.sleep(_RETRY_S)

    async def _take(self, message: Delivered) -> None:
        work = self.all.get(message.body.decode(errors="replace"))
        if work is not None:
            work.places.add((message.queue, message.offset))
            work.first_s = work.first_s or self._consumer.now_s
            if work.fate is Fate.POISON:
                return
        await self._consumer.ack(self.kind.topic, self.group, message)

    async def dead_letters(self) -> tuple[Counter[str], list[str]]:
        """Return (what lies in the dead-letter topic, what of the poison is not there yet).

        Raises:
            Refused, Disconnected, CallRefused, TimeoutError: nobody knows.
        """
        request = admin_pb2.ListDeadLettersRequest(consumer_group=self.group, max_messages=1_000)
        data = await self._consumer.admin("ListDeadLetters", request)
        response = admin_pb2.ListDeadLettersResponse.FromString(data)
        found: Counter[str] = Counter(
            definition.Message.FromString(letter.stored.message).body.decode()
            for letter in response.dead_letters
        )
        self._dead = set(found)
        poison = [w.message_id for w in self.all.values() if w.fate is Fate.POISON and w.stored]
        return found, [message_id for message_id in poison if message_id not in found]


# The broker knows and says no: asking again cannot change it.
_FINAL = frozenset(
    (
        definition.INVALID_RECEIPT_HANDLE,
        definition.INVALID_TRANSACTION_ID,
        definition.MESSAGE_NOT_FOUND,
    )
)


def _attempts(kind: Kind) -> int:
    return _MAX_ATTEMPTS if kind is LETTERS else 1_000


def _message_type(kind: Kind) -> definition.MessageType.ValueType:
    if kind is DELAYED:
        return definition.DELAY
    return definition.TRANSACTION if kind is TRANSACTIONS else definition.NORMAL
