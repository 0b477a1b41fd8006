"""The topics that a broker knows: all of them in few bytes, and those in use as objects.

A broker knows every topic, but clients use few of them. A topic is its serialised row, its name and
its id; neither of these is an object that the garbage collector walks. A `TopicRow` is made when a
topic is asked for and is kept with the topics that were asked for last. So a million topics take
some 300 bytes each, and the topics that clients use cost what they cost with one topic.

Two generations of rows are kept: a row that is asked for moves to the young one, and a young
generation that is full becomes the old one. So a look-up that hits changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata_broker.metadata.name_index import Name, NameIndex, key_of, name_of
from strata_mq.requests import ORDERED_TYPES, TopicType, is_table_topic

MAX_TOPICS_IN_USE = 40_000
"""Rows kept as objects by default, in both generations."""

_TRANSACTIONAL_TYPES: frozenset[int] = frozenset((TopicType.TRANSACTION, TopicType.MIXED))


class Home(NamedTuple):
    """The public names of a topic's queues under one broker name (rule 20).

    A route lists local ids 0 .. len(queues) - 1. Id 0 means any of the queues, id i > 0 means
    `queues[i - 1]`; the last queue is therefore reached through "any" (docs/adr/0002).
    """

    raft_group: int
    broker_name: str
    queues: Sequence[int]


class MovedIn(NamedTuple):
    """The queues of a topic that moved into a raft group, which sends have to name there.

    Attributes:
        queues: their numbers.
        queue_count: queues of the topic in the raft group, these among them.
    """

    queues: Sequence[int]
    queue_count: int


class TopicRow:
    """A topic. `row` is the serialised `meta.v1.Topic`, for rarely used fields.

    Values that the view derives from the row and the placement are kept beside it, with the
    version of that placement. A topic that was not in use for long gets a new object.
    """

    __slots__ = (
        "changed_ms",
        "groups",
        "groups_at",
        "homes",
        "homes_at",
        "is_table",
        "moved_in",
        "moved_in_at",
        "name",
        "namespace",
        "previous_queue_count",
        "queue_count",
        "revision",
        "row",
        "slot_base",
        "topic_id",
        "topic_type",
    )

    def __init__(self, topic: meta_pb2.Topic, row: bytes | None = None) -> None:
        self.topic_id = topic.topic_id
        self.namespace = topic.namespace
        self.name = topic.name
        # When it was changed last, by the nameserver's clock; 0: it is as it was made.
        is_changed = topic.updated_at_ms != topic.created_at_ms
        self.changed_ms = topic.updated_at_ms if is_changed else 0
        # Rows of placement up to this revision are older than the topic, or than its last change.
        # The end of a change of the queue count gives the row a new revision, but no new time.
        may_be_rehashed = topic.had_message_groups or topic.type in ORDERED_TYPES
        self.revision = 0 if is_changed and may_be_rehashed else topic.revision
        # It stands for a key-value table, and holds no messages.
        self.is_table = is_table_topic(topic.name)
        self.topic_type = topic.type
        self.queue_count = topic.queue_count
        self.previous_queue_count = topic.previous_queue_count
        self.slot_base = topic.slot_base
        self.row = topic.SerializeToString() if row is None else row
        self.groups: tuple[int, ...] = ()
        self.groups_at = -1
        self.homes: tuple[Home, ...] = ()
        self.homes_at = -1
        self.moved_in: Mapping[int, MovedIn] = {}
        self.moved_in_at = -1

    @property
    def is_dead_letter(self) -> bool:
        """Whether its queue numbers are raft group ids (rule 26)."""
        return self.topic_type == meta_pb2.TOPIC_TYPE_DEAD_LETTER

    @property
    def has_levels(self) -> bool:
        """Whether its queues are the levels of its messages' priorities."""
        return self.topic_type == meta_pb2.TOPIC_TYPE_PRIORITY

    @property
    def is_lite(self) -> bool:
        """Whether its messages are those of lite topics, which have queues of their own."""
        return self.topic_type == meta_pb2.TOPIC_TYPE_LITE

    @property
    def is_system(self) -> bool:
        """Whether no client made it as a topic: of dead letters, or of a key-value table."""
        return self.is_dead_letter or self.is_table

    def parsed(self) -> meta_pb2.Topic:
        """Return the whole row."""
        return meta_pb2.Topic.FromString(self.row)


class TopicRows:
    """See the module docstring.

    Args:
        max_in_use: rows kept as objects.

    Attributes:
        names: of all topics, in their order.
    """

    __slots__ = (
        "_by_id",
        "_max_young",
        "_old",
        "_serialised",
        "_transactional",
        "_young",
        "names",
    )

    def __init__(self, max_in_use: int = MAX_TOPICS_IN_USE) -> None:
        self.names = NameIndex()
        self._max_young = max(1, max_in_use // 2)
        self._serialised: dict[str, bytes] = {}
        self._by_id: dict[int, str] = {}
        # Topics that may hold transactional messages -> their ids.
        self._transactional: dict[str, int] = {}
        self._young: dict[Name, TopicRow] = {}
        self._old: dict[Name, TopicRow] = {}

    def __len__(self) -> int:
        return len(self._serialised)

    def __contains__(self, name: Name) -> bool:
        """Whether there is a topic of this name; no row is made for the answer."""
        return key_of(name) in self._serialised

    @property
    def in_use(self) -> int:
        """Number of topics that are kept as objects."""
        return len(self._young) + len(self._old)

    def get(self, name: Name) -> TopicRow | None:
        """Find a topic by its name."""
        return self._young.get(name) or self._revive(name)

    def parsed(self, name: Name) -> meta_pb2.Topic | None:
        """Return the whole row of a topic, for lists: the topics in use stay the same."""
        row = self._serialised.get(key_of(name))
        return None if row is None else meta_pb2.Topic.FromString(row)

    def by_id(self, topic_id: int) -> TopicRow | None:
        """Find a topic by its id."""
        key = self._by_id.get(topic_id)
        return None if key is None else self.get(name_of(key))

    def has_id(self, topic_id: int) -> bool:
        """Whether there is a topic of this id."""
        return topic_id in self._by_id

    def is_transactional(self, name: Name) -> bool:
        """Whether there is a topic of this name for transactional messages; no row is made."""
        return key_of(name) in self._transactional

    def transactional_ids(self, names: Set[Name]) -> list[int]:
        """Return the ids of those topics that are for transactional messages; no row is made."""
        known = self._transactional
        if len(known) < len(names):
            return [topic_id for key, topic_id in known.items() if name_of(key) in names]
        keys = map(key_of, names)
        return [known[key] for key in keys if key in known]

    def take(self, topic: meta_pb2.Topic, *, deleted: bool) -> meta_pb2.Topic | None:
        """Write or delete a row; return the row that was there before."""
        name = (topic.namespace, topic.name)
        key = key_of(name)
        if self._young or self._old:
            self._young.pop(name, None)
            self._old.pop(name, None)
        before: meta_pb2.Topic | None = None
        old = self._serialised.pop(key, None) if deleted else self._serialised.get(key)
        if old is not None:
            before = meta_pb2.Topic.FromString(old)
            self._by_id.pop(before.topic_id, None)
            self._transactional.pop(key, None)
            if deleted:
                self.names.remove(key)
        if not deleted:
            if old is None:
                self.names.add(key)
            self._serialised[key] = topic.SerializeToString()
            self._by_id[topic.topic_id] = key
            if topic.type in _TRANSACTIONAL_TYPES:
                self._transactional[key] = topic.topic_id
        return before

    def _revive(self, name: Name) -> TopicRow | None:
        """Take a row into the young generation."""
        row = self._old.pop(name, None)
        if row is None:
            serialised = self._serialised.get(key_of(name))
            if serialised is None:
                return None
            row = TopicRow(meta_pb2.Topic.FromString(serialised), serialised)
        if len(self._young) >= self._max_young:
            self._young, self._old = {}, self._young
        self._young[name] = row
        return row
