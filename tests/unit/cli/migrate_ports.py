"""A source and a target of a migration in memory, and faults at any of their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from apache.rocketmq.v2 import definition_pb2
from strata_cli.migrate.copier import Copier, CopyOptions
from strata_cli.migrate.migration import Migration
from strata_cli.migrate.pace import CopyPace
from strata_cli.migrate.plan import Choices, PlannedGroup
from strata_cli.migrate.positions import SetCursors
from strata_cli.migrate.source import PulledBatch, Retained
from strata_cli.migrate.source_rows import (
    BrokerDescription,
    SourceBroker,
    SourceGroup,
    SourceQueue,
    SourceTopic,
)
from strata_cli.migrate.state import MigrationState
from strata_cli.migrate.target import Scanned, TargetBusyError, TargetTopic
from strata_mq.slots import fifo_queue
from strata_remoting import PulledMessage, Store, encode_properties
from strata_testing.clock import ManualClock

BORN_MS = 1_700_000_000_000


class KilledError(BaseException):
    """Stands for kill -9: nothing of the run goes on."""


@dataclass
class Faults:
    """Counts the calls of both sides, and fails one of them.

    Attributes:
        kill_at: number of the call at which the run is killed; 0: none.
        busy_at: numbers of the calls at which the target is busy.
        after: whether a call that fails is carried out before.
        calls: made so far.
    """

    kill_at: int = 0
    busy_at: frozenset[int] = frozenset()
    after: bool = False
    calls: int = 0

    def begin(self) -> None:
        """Note a call."""
        self.calls += 1
        if not self.after:
            self._fail()

    def end(self) -> None:
        """Note that it was carried out."""
        if self.after:
            self._fail()

    def _fail(self) -> None:
        if self.calls == self.kill_at:
            raise KilledError
        if self.calls in self.busy_at:
            raise TargetBusyError("busy")


def pulled(queue: SourceQueue, offset: int, properties: Mapping[str, str]) -> PulledMessage:
    """Return a message of the source."""
    known = {"UNIQ_KEY": f"{queue.broker}-{queue.queue}-{offset}", **properties}
    return PulledMessage(
        queue_id=queue.queue,
        queue_offset=offset,
        physical_offset=0,
        born_ms=BORN_MS + offset,
        born=Store.of("10.1.2.3", 5_000),
        stored_ms=BORN_MS + 10 * offset,
        store=Store.of("10.0.0.1", 10_911),
        topic=queue.topic,
        body=f"{queue}/{offset}".encode(),
        properties=encode_properties({name: text for name, text in known.items() if text}),
    )


class MemorySource:
    """Implements `MigrationSource`.

    Attributes:
        topics: (broker, topic) -> its row.
        groups: by name, of all brokers.
        positions: (consumer group, source queue) -> offset.
        messages: of each queue; begins at the queue's first retained offset.
        most_pulled: messages of one pull.
        silent: so many pulls that find nothing, although something is there.
    """

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.topics: dict[tuple[str, str], SourceTopic] = {}
        self.groups: dict[str, SourceGroup] = {}
        self.positions: dict[tuple[str, SourceQueue], int] = {}
        self.messages: dict[SourceQueue, list[PulledMessage]] = {}
        self.most_pulled = 3
        self.silent = 0

    def add_topic(self, broker: str, name: str, queues: int, message_type: str = "") -> None:
        """Make a topic at a broker."""
        self.topics[broker, name] = SourceTopic(name, queues, queues, 6, message_type)
        for queue in range(queues):
            self.messages.setdefault(SourceQueue(name, broker, queue), [])

    def add(self, queue: SourceQueue, count: int = 1, **properties: str) -> None:
        """Append messages to a queue."""
        for _ in range(count):
            held = self.messages[queue]
            offset = held[-1].queue_offset + 1 if held else 0
            held.append(pulled(queue, offset, properties))

    async def describe(self) -> Sequence[BrokerDescription]:
        """See `MigrationSource`."""
        self.faults.begin()
        rows = []
        for broker in sorted({broker for broker, _ in self.topics}):
            positions: dict[tuple[str, str], dict[int, int]] = {}
            for (group, queue), offset in self.positions.items():
                if queue.broker == broker:
                    positions.setdefault((group, queue.topic), {})[queue.queue] = offset
            topics = {name: row for (at, name), row in self.topics.items() if at == broker}
            cluster = SourceBroker(broker, "old", f"{broker}:10911")
            rows.append(BrokerDescription(cluster, topics, self.groups, positions))
        self.faults.end()
        return rows

    async def window(self, queue: SourceQueue) -> Retained:
        """See `MigrationSource`."""
        self.faults.begin()
        held = self.messages.get(queue, [])
        self.faults.end()
        return Retained(held[0].queue_offset, held[-1].queue_offset + 1) if held else Retained(0, 0)

    async def pull(self, queue: SourceQueue, offset: int, count: int) -> PulledBatch:
        """See `MigrationSource`."""
        self.faults.begin()
        held = self.messages[queue]
        window = (
            Retained(held[0].queue_offset, held[-1].queue_offset + 1) if held else Retained(0, 0)
        )
        some = [one for one in held if one.queue_offset >= offset][: min(count, self.most_pulled)]
        if offset < window.begin:
            some = []
        if self.silent:
            self.silent -= 1
            self.faults.end()
            return PulledBatch([], offset, window)
        following = some[-1].queue_offset + 1 if some else max(offset, window.begin)
        self.faults.end()
        return PulledBatch(some, following, window)


@dataclass
class MemoryTopic:
    """A topic of the target: messages by queue."""

    topic_type: str
    queues: list[list[definition_pb2.Message]] = field(default_factory=list)


class MemoryTarget:
    """Implements `MigrationTarget`: without a dedupe window unless a test wants one.

    Attributes:
        topics: by name.
        groups: by name.
        set: (group, topic, queue) -> cursor.
        sends: (queue, how many messages) of each send.
        dedupes: whether a message id is stored once.
        refuses: bodies that are refused, with the reason.
    """

    namespace = ""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.topics: dict[str, MemoryTopic] = {}
        self.groups: dict[str, PlannedGroup] = {}
        self.set: dict[tuple[str, str, int], int] = {}
        self.sends: list[tuple[int, int]] = []
        self.dedupes = False
        self.refuses: dict[bytes, str] = {}

    async def topic(self, name: str) -> TargetTopic | None:
        """See `MigrationTarget`."""
        self.faults.begin()
        found = self.topics.get(name)
        self.faults.end()
        if found is None:
            return None
        ends = {number: (0, len(queue)) for number, queue in enumerate(found.queues)}
        return TargetTopic(found.topic_type, len(found.queues), ends)

    async def make_topic(self, name: str, topic_type: str, queue_count: int) -> None:
        """See `MigrationTarget`."""
        self.faults.begin()
        assert name not in self.topics
        self.topics[name] = MemoryTopic(topic_type, [[] for _ in range(queue_count)])
        self.faults.end()

    async def grow_topic(self, name: str, queue_count: int) -> None:
        """See `MigrationTarget`."""
        self.faults.begin()
        queues = self.topics[name].queues
        queues += [[] for _ in range(queue_count - len(queues))]
        self.faults.end()

    async def cursors(self, group: str) -> Mapping[tuple[str, int], int] | None:
        """See `MigrationTarget`."""
        self.faults.begin()
        self.faults.end()
        if group not in self.groups:
            return None
        return {
            (topic, queue): at for (name, topic, queue), at in self.set.items() if name == group
        }

    async def make_group(self, group: PlannedGroup) -> None:
        """See `MigrationTarget`."""
        self.faults.begin()
        assert group.name not in self.groups
        self.groups[group.name] = group
        self.faults.end()

    async def set_cursor(self, group: str, topic: str, queue: int, offset: int) -> int:
        """See `MigrationTarget`."""
        self.faults.begin()
        assert group in self.groups
        assert 0 <= offset <= len(self.topics[topic].queues[queue])
        self.set[group, topic, queue] = offset
        self.faults.end()
        return offset

    async def send(self, queue: int, messages: Sequence[definition_pb2.Message]) -> Sequence[str]:
        """See `MigrationTarget`."""
        self.faults.begin()
        self.sends.append((queue, len(messages)))
        # A request with one bad message is refused whole.
        reason = next(filter(None, (self.refuses.get(each.body) for each in messages)), "")
        for message in () if reason else messages:
            topic = self.topics[message.topic.name]
            if self.dedupes and self._has(topic, message):
                continue
            group = message.system_properties.message_group
            place = fifo_queue(group, len(topic.queues)) if group else queue
            topic.queues[place].append(message)
        self.faults.end()
        return [reason] * len(messages)

    async def scan(self, topic: str, queue: int, offset: int) -> Scanned:
        """See `MigrationTarget`."""
        self.faults.begin()
        held = self.topics[topic].queues[queue]
        some = list(enumerate(held))[offset : offset + 5]
        self.faults.end()
        return Scanned(some, offset + len(some), len(held), 0)

    async def has_message(self, topic: str, message_id: str) -> bool:
        """See `MigrationTarget`."""
        self.faults.begin()
        self.faults.end()
        return any(
            one.system_properties.message_id == message_id
            for queue in self.topics[topic].queues
            for one in queue
        )

    @staticmethod
    def _has(topic: MemoryTopic, message: definition_pb2.Message) -> bool:
        wanted = message.system_properties.message_id
        return any(
            one.system_properties.message_id == wanted for queue in topic.queues for one in queue
        )

    def bodies(self, topic: str) -> list[list[bytes]]:
        """Return the bodies of a topic by queue."""
        return [[one.body for one in queue] for queue in self.topics[topic].queues]


def no_pause(seconds: float) -> Awaitable[None]:
    """Repeat at once."""
    return asyncio.sleep(0)


def unlimited() -> CopyPace:
    return CopyPace(0, 0, clock=ManualClock(), sleep=no_pause)


async def run(
    source: MemorySource,
    target: MemoryTarget,
    path: Path,
    *,
    pace: CopyPace | None = None,
    skips_refused: bool = False,
    choices: Choices = Choices(),  # noqa: B008 - a value
) -> SetCursors:
    """Run a migration once with a state file."""
    state = MigrationState(path)
    try:
        options = CopyOptions(workers=2, skips_refused=skips_refused)
        copier = Copier(
            source, target, state, pace=pace or unlimited(), options=options, sleep=no_pause
        )
        return await Migration(source, target, choices).run(state, copier)
    finally:
        state.close()
