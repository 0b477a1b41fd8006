"""What the broker knows of topics, consumer groups, raft groups, nodes and slots.

Role: a read-only copy of the nameserver's rows, fed by `WatchResponse`s in order of revision.
Invariants: (namespace, name) is the key of topics and consumer groups (namespaces isolate); a
response is taken in whole before anyone looks; a row costs one small object, so that 10,000
topics cost a few megabytes; no move changes a public name (rule 20). It does not know how the
responses get here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar
from zlib import crc32

from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata_mq.slots import SLOT_COUNT

Name = tuple[str, str]
"""(namespace, name)."""

Row = TypeVar("Row", bound=Message)

_NO_OVERRIDES: Mapping[int, meta_pb2.QueueOverride] = {}

LEADER_CHOOSES = -1
"""Queue number of messages that may take any queue the raft group's slots give it (rule 23)."""

NO_RAFT_GROUP = 0
"""Raft group ids start at 1; a slot that nobody owns has this one."""


class TopicRow:
    """A topic. `row` is the serialised `meta.v1.Topic`, for what is rarely asked."""

    __slots__ = (
        "_groups",
        "_groups_at",
        "_homes",
        "_homes_at",
        "name",
        "namespace",
        "queue_count",
        "row",
        "slot_base",
        "topic_id",
        "topic_type",
    )

    def __init__(self, topic: meta_pb2.Topic) -> None:
        self.topic_id = topic.topic_id
        self.namespace = topic.namespace
        self.name = topic.name
        self.topic_type = topic.type
        self.queue_count = topic.queue_count
        self.slot_base = topic.slot_base
        self.row = topic.SerializeToString()
        self._groups: tuple[int, ...] = ()
        self._groups_at = -1
        self._homes: tuple[Home, ...] = ()
        self._homes_at = -1

    @property
    def is_dead_letter(self) -> bool:
        """Whether its queue numbers are raft group ids (rule 26)."""
        return self.topic_type == meta_pb2.TOPIC_TYPE_DEAD_LETTER

    def parsed(self) -> meta_pb2.Topic:
        """Return the whole row."""
        return meta_pb2.Topic.FromString(self.row)


class Home(NamedTuple):
    """The public names of a topic's queues under one broker name (rule 20).

    A route lists local ids 0 .. len(queues) - 1. Id 0 means any of the queues, id i > 0 means
    `queues[i - 1]`; the last queue is therefore reached through "any" (docs/adr/0002).
    """

    raft_group: int
    broker_name: str
    queues: Sequence[int]


class MetadataView:
    """See the module docstring. Used on the event loop only."""

    def __init__(self) -> None:
        self.revision = 0
        # Raised whenever slots, raft groups or nodes change: what was derived from them is stale.
        self.placement_version = 0
        self._ready = False
        self._topics: dict[Name, TopicRow] = {}
        self._topics_by_id: dict[int, TopicRow] = {}
        self._consumer_groups: dict[Name, meta_pb2.ConsumerGroup] = {}
        self._raft_groups: dict[int, meta_pb2.RaftGroup] = {}
        self._nodes: dict[str, meta_pb2.Node] = {}
        # Those that are not done; the nameserver bounds their number.
        self._tombstones: dict[tuple[int, int], meta_pb2.Tombstone] = {}
        self._slots = [NO_RAFT_GROUP] * SLOT_COUNT
        # topic id -> queue -> where it is, for queues that are not where their slot is
        self._overrides: dict[int, dict[int, meta_pb2.QueueOverride]] = {}
        self._placement_listeners: list[Callable[[], None]] = []
        self._move_listeners: list[Callable[[int], None]] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._on_consumer_groups: list[Callable[[Collection[Name]], None]] = []

    @property
    def ready(self) -> bool:
        """Whether the first snapshot is here."""
        return self._ready

    def topic(self, namespace: str, name: str) -> TopicRow | None:
        """Find a topic by name."""
        return self._topics.get((namespace, name))

    def topic_by_id(self, topic_id: int) -> TopicRow | None:
        """Find a topic by the number the nameserver gave."""
        return self._topics_by_id.get(topic_id)

    def topics(self) -> Collection[TopicRow]:
        """Return all topics, in no order."""
        return self._topics.values()

    def consumer_group(self, namespace: str, name: str) -> meta_pb2.ConsumerGroup | None:
        """Find a consumer group by name."""
        return self._consumer_groups.get((namespace, name))

    def consumer_groups(self) -> Collection[meta_pb2.ConsumerGroup]:
        """Return all consumer groups, in no order."""
        return self._consumer_groups.values()

    def raft_group(self, raft_group: int) -> meta_pb2.RaftGroup | None:
        """Find a raft group."""
        return self._raft_groups.get(raft_group)

    def raft_groups(self) -> Sequence[meta_pb2.RaftGroup]:
        """Return all raft groups by number."""
        return [self._raft_groups[number] for number in sorted(self._raft_groups)]

    def node(self, node_id: str) -> meta_pb2.Node | None:
        """Find a node."""
        return self._nodes.get(node_id)

    def nodes(self, kind: meta_pb2.NodeKind.ValueType | None = None) -> list[meta_pb2.Node]:
        """Return the nodes of a kind (None: all) by id."""
        return [
            self._nodes[node_id]
            for node_id in sorted(self._nodes)
            if kind is None or self._nodes[node_id].kind == kind
        ]

    def pending_drops(self) -> list[meta_pb2.Tombstone]:
        """Return what was deleted and is not dropped everywhere yet, in no order."""
        return list(self._tombstones.values())

    def owner(self, topic: TopicRow, queue: int) -> int:
        """Return the raft group that a queue's appends go to: of its last epoch, else its slot."""
        if topic.is_dead_letter:
            return queue
        override = self.overrides(topic).get(queue)
        if override is not None:
            return override.epochs[-1].raft_group
        return self.slot_owner(topic, queue)

    def slot_owner(self, topic: TopicRow, queue: int) -> int:
        """Return the raft group of a queue's slot."""
        return self._slots[(topic.slot_base + queue) % SLOT_COUNT]

    def overrides(self, topic: TopicRow) -> Mapping[int, meta_pb2.QueueOverride]:
        """Return the queues of a topic that are, or were, not where their slot is (rule 18)."""
        return self._overrides.get(topic.topic_id, _NO_OVERRIDES)

    def owners(self, topic: TopicRow) -> tuple[int, ...]:
        """Return the raft groups that take appends for queues of a topic, by number."""
        if topic._groups_at != self.placement_version:
            if topic.is_dead_letter:
                groups = set(self._raft_groups)
            else:
                groups = {self.owner(topic, queue) for queue in range(topic.queue_count)}
            topic._groups = tuple(sorted(groups - {NO_RAFT_GROUP}))
            topic._groups_at = self.placement_version
        return topic._groups

    def queue_at(self, topic: TopicRow, raft_group: int, key: bytes) -> int:
        """Return the queue for a message that may take any queue of a topic in a raft group.

        The leader spreads over the queues whose slots it has; those that moved to it take their
        share by name, chosen by the key, so that a repeat gives the same answer.
        """
        overrides = self.overrides(topic)
        if not overrides:
            return LEADER_CHOOSES
        here = [
            queue for queue in range(topic.queue_count) if self.owner(topic, queue) == raft_group
        ]
        moved_in = [queue for queue in here if self.slot_owner(topic, queue) != raft_group]
        if not moved_in:
            return LEADER_CHOOSES
        number = crc32(key) % len(here)
        return moved_in[number] if number < len(moved_in) else LEADER_CHOOSES

    def holders(self, topic: TopicRow) -> dict[int, list[int]]:
        """Return every raft group that holds an epoch of a queue -> those queues, by number.

        Like `owners`, with the epochs that take no append any more.
        """
        if topic.is_dead_letter:
            return {number: [number] for number in sorted(self._raft_groups)}
        overrides = self.overrides(topic)
        holders: dict[int, list[int]] = {}
        for queue in range(topic.queue_count):
            override = overrides.get(queue)
            if override is None:
                groups = [self.slot_owner(topic, queue)]
            else:
                groups = [epoch.raft_group for epoch in override.epochs]
            for raft_group in groups:
                if raft_group != NO_RAFT_GROUP:
                    holders.setdefault(raft_group, []).append(queue)
        return dict(sorted(holders.items()))

    def homes(self, topic: TopicRow) -> tuple[Home, ...]:
        """Return the public names of a topic's queues, by raft group number."""
        if topic._homes_at != self.placement_version:
            topic._homes = self._homes_of(topic)
            topic._homes_at = self.placement_version
        return topic._homes

    def home(self, topic: TopicRow, broker_name: str) -> Home | None:
        """Return a topic's queues under one broker name; None: it is home of none."""
        return next((h for h in self.homes(topic) if h.broker_name == broker_name), None)

    def on_placement(self, listener: Callable[[], None]) -> None:
        """Call back after slots, queues, raft groups or nodes have changed."""
        self._placement_listeners.append(listener)

    def on_move(self, listener: Callable[[int], None]) -> None:
        """Call back with the topic id after a queue of the topic has moved."""
        self._move_listeners.append(listener)

    def apply(self, response: meta_pb2.WatchResponse) -> None:
        """Take in one event of the watch."""
        placement_before = self.placement_version
        changed_groups: set[Name] = set()
        if response.snapshot:
            changed_groups.update(self._consumer_groups)
            self._forget_all()
        moved_topics: set[int] = set()
        for change in response.changes:
            self._apply_change(change)
            match change.WhichOneof("row"):
                case "consumer_group":
                    group = change.consumer_group
                    changed_groups.add((group.namespace, group.name))
                case "queue_override":
                    moved_topics.add(change.queue_override.topic_id)
        self.revision = response.revision
        self._ready = True
        if self.placement_version != placement_before:
            for listener in self._placement_listeners:
                listener()
        for moved in self._move_listeners:
            for topic_id in moved_topics:
                moved(topic_id)
        if changed_groups:
            for callback in self._on_consumer_groups:
                callback(changed_groups)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        still_waiting = []
        for revision, waiter in self._waiters:
            if revision > self.revision:
                still_waiting.append((revision, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiters = still_waiting

    def on_consumer_groups(self, callback: Callable[[Collection[Name]], None]) -> None:
        """Call back with the names of consumer groups whose rows came, changed or went.

        After a snapshot these are all that were known before and all that are known now.
        """
        self._on_consumer_groups.append(callback)

    async def wait_for_revision(self, revision: int, timeout_s: float) -> bool:
        """Wait until everything up to `revision` is taken in; False: not within the time."""
        if self._ready and self.revision >= revision:
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((revision, waiter))
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters = [pair for pair in self._waiters if pair[1] is not waiter]
        return True

    def _homes_of(self, topic: TopicRow) -> tuple[Home, ...]:
        rows: dict[int, tuple[int, ...]]
        if topic.is_dead_letter:
            rows = {number: (number,) for number in self._raft_groups}
        else:
            rows = {home.raft_group: tuple(home.queues) for home in topic.parsed().homes}
            if not rows:
                rows = self._homes_by_slot(topic)
        return tuple(
            Home(number, self._raft_groups[number].broker_name, rows[number])
            for number in sorted(rows)
            if number in self._raft_groups and rows[number]
        )

    def _homes_by_slot(self, topic: TopicRow) -> dict[int, tuple[int, ...]]:
        # A moved queue keeps the name that it had before.
        rows: dict[int, tuple[int, ...]] = {}
        for queue in range(topic.queue_count):
            owner = self.slot_owner(topic, queue)
            rows[owner] = (*rows.get(owner, ()), queue)
        return rows

    def _forget_all(self) -> None:
        for table in (
            self._topics,
            self._topics_by_id,
            self._consumer_groups,
            self._raft_groups,
            self._nodes,
            self._tombstones,
            self._overrides,
        ):
            table.clear()
        self._slots = [NO_RAFT_GROUP] * SLOT_COUNT
        self.placement_version += 1

    def _apply_change(self, change: meta_pb2.Change) -> None:
        match change.WhichOneof("row"):
            case "topic":
                self._apply_topic(change.topic, deleted=change.deleted)
            case "consumer_group":
                self._apply_consumer_group(change.consumer_group, deleted=change.deleted)
            case "raft_group":
                number = change.raft_group.raft_group
                self._raft_groups.pop(number, None)
                if not change.deleted:
                    self._raft_groups[number] = _copy(change.raft_group)
                self.placement_version += 1
            case "node":
                self._nodes.pop(change.node.node_id, None)
                if not change.deleted:
                    self._nodes[change.node.node_id] = _copy(change.node)
                self.placement_version += 1
            case "slots":
                owner = NO_RAFT_GROUP if change.deleted else change.slots.raft_group
                first, count = change.slots.first_slot, change.slots.slot_count
                self._slots[first : first + count] = [owner] * count
                self.placement_version += 1
            case "tombstone":
                key = (change.tombstone.kind, change.tombstone.id)
                self._tombstones.pop(key, None)
                if not (change.deleted or change.tombstone.done):
                    self._tombstones[key] = _copy(change.tombstone)
            case "queue_override":
                self._apply_override(change.queue_override, deleted=change.deleted)
                self.placement_version += 1

    def _apply_topic(self, topic: meta_pb2.Topic, *, deleted: bool) -> None:
        old = self._topics.pop((topic.namespace, topic.name), None)
        if old is not None:
            self._topics_by_id.pop(old.topic_id, None)
        if not deleted:
            row = TopicRow(topic)
            self._topics[row.namespace, row.name] = row
            self._topics_by_id[row.topic_id] = row

    def _apply_override(self, override: meta_pb2.QueueOverride, *, deleted: bool) -> None:
        of_topic = self._overrides.setdefault(override.topic_id, {})
        # A move that has only begun names no epoch yet: the queue is where its slot is.
        if deleted or not override.epochs:
            of_topic.pop(override.queue, None)
        else:
            of_topic[override.queue] = _copy(override)
        if not of_topic:
            del self._overrides[override.topic_id]

    def _apply_consumer_group(self, group: meta_pb2.ConsumerGroup, *, deleted: bool) -> None:
        if deleted:
            self._consumer_groups.pop((group.namespace, group.name), None)
        else:
            row = _copy(group)
            self._consumer_groups[row.namespace, row.name] = row


def _copy(row: Row) -> Row:
    """Return a row that does not keep the whole response it came in alive."""
    copy = type(row)()
    copy.CopyFrom(row)
    return copy
