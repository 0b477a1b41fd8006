"""The rows of a `MetadataView`: applied one by one, found by key.

A row is one small object, so that 10,000 topics take a few megabytes. This module knows neither
revisions nor listeners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata_broker.metadata.access_rows import AccessRows
from strata_broker.metadata.name_index import Name, NameIndex
from strata_metadata.placement import PlacementTables
from strata_metadata.tables import NO_RAFT_GROUP, copy_row, put_row
from strata_mq.requests import is_own_consumer_group, is_table_topic

_NO_OVERRIDES: Mapping[int, meta_pb2.QueueOverride] = {}


class Home(NamedTuple):
    """The public names of a topic's queues under one broker name (rule 20).

    A route lists local ids 0 .. len(queues) - 1. Id 0 means any of the queues, id i > 0 means
    `queues[i - 1]`; the last queue is therefore reached through "any" (docs/adr/0002).
    """

    raft_group: int
    broker_name: str
    queues: Sequence[int]


class TopicRow:
    """A topic. `row` is the serialised `meta.v1.Topic`, for rarely used fields.

    Values that the view derives from the row and the placement are kept beside it, with the
    version of that placement.
    """

    __slots__ = (
        "changed_ms",
        "groups",
        "groups_at",
        "homes",
        "homes_at",
        "is_table",
        "name",
        "namespace",
        "previous_queue_count",
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
        # When it was changed last, by the nameserver's clock; 0: it is as it was made.
        is_changed = topic.updated_at_ms != topic.created_at_ms
        self.changed_ms = topic.updated_at_ms if is_changed else 0
        # It stands for a key-value table, and holds no messages.
        self.is_table = is_table_topic(topic.name)
        self.topic_type = topic.type
        self.queue_count = topic.queue_count
        self.previous_queue_count = topic.previous_queue_count
        self.slot_base = topic.slot_base
        self.row = topic.SerializeToString()
        self.groups: tuple[int, ...] = ()
        self.groups_at = -1
        self.homes: tuple[Home, ...] = ()
        self.homes_at = -1

    @property
    def is_dead_letter(self) -> bool:
        """Whether its queue numbers are raft group ids (rule 26)."""
        return self.topic_type == meta_pb2.TOPIC_TYPE_DEAD_LETTER

    @property
    def has_levels(self) -> bool:
        """Whether its queues are the levels of its messages' priorities."""
        return self.topic_type == meta_pb2.TOPIC_TYPE_PRIORITY

    @property
    def is_system(self) -> bool:
        """Whether no client made it as a topic: of dead letters, or of a key-value table."""
        return self.is_dead_letter or self.is_table

    def parsed(self) -> meta_pb2.Topic:
        """Return the whole row."""
        return meta_pb2.Topic.FromString(self.row)


class MetadataTables(PlacementTables):
    """All rows at one revision, or the rows of a snapshot that have arrived so far.

    Attributes:
        topics, topics_by_id: the same rows.
        topic_names, consumer_group_names: keys of the rows in their order.
        rehashing: topics whose message groups may be where an older queue count put them, by id.
        consumer_groups: by their names.
        tombstones: those that are not done; the nameserver bounds their number.
        quotas: by namespace and topic.
        access: users, policies and cluster keys.
        topic_counts, consumer_group_counts: rows by namespace without those of StrataMQ itself: no
            dead-letter topics, no consumer groups for redrives and given-up transactions.
        new_consumer_groups: names of consumer groups whose rows came or went since they were taken.
        new_moves: topics of which a queue moved since.
        new_quotas: whether a quota changed since.
        new_placement: whether slots, raft groups, nodes or moved queues changed since.
    """

    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[Name, TopicRow] = {}
        self.topics_by_id: dict[int, TopicRow] = {}
        self.topic_names = NameIndex()
        self.rehashing: dict[int, TopicRow] = {}
        self.consumer_groups: dict[Name, meta_pb2.ConsumerGroup] = {}
        self.consumer_group_names = NameIndex()
        self.tombstones: dict[tuple[int, int], meta_pb2.Tombstone] = {}
        self.quotas: dict[Name, meta_pb2.Quota] = {}
        self.access = AccessRows()
        self.topic_counts: Counter[str] = Counter()
        self.consumer_group_counts: Counter[str] = Counter()
        # topic id -> queue -> where it is, for queues that are not where their slot is
        self._overrides: dict[int, dict[int, meta_pb2.QueueOverride]] = {}
        # (topic id, queue) -> (raft group of the epoch before, last epoch), told by storage before
        # the metadata told it
        self._learned: dict[tuple[int, int], tuple[int, meta_pb2.Epoch]] = {}
        self.new_consumer_groups: set[Name] = set()
        self.new_moves: set[int] = set()
        self.new_quotas = False
        self.new_placement = False

    def overrides(self, topic_id: int) -> Mapping[int, meta_pb2.QueueOverride]:
        """Return the queues of a topic that are, or were, not where their slot is."""
        return self._overrides.get(topic_id, _NO_OVERRIDES)

    def take(self, change: meta_pb2.Change) -> None:
        """Take in one row."""
        match change.WhichOneof("row"):
            case "topic":
                self._take_topic(change.topic, deleted=change.deleted)
            case "consumer_group":
                self._take_consumer_group(change.consumer_group, deleted=change.deleted)
            case "raft_group" | "node" | "slots":
                self.new_placement |= self.take_placement(change)
            case "slot_move":
                self.take_placement(change)
            case "tombstone":
                key = (change.tombstone.kind, change.tombstone.id)
                done = change.deleted or change.tombstone.done
                put_row(self.tombstones, key, change.tombstone, deleted=done)
            case "queue_override":
                self._take_override(change.queue_override, deleted=change.deleted)
            case "quota":
                scope = (change.quota.namespace, change.quota.topic)
                put_row(self.quotas, scope, change.quota, deleted=change.deleted)
                self.new_quotas = True
            case "user" | "policy" | "cluster_key":
                self.access.take(change)

    def learn(self, topic_id: int, queue: int, ended_in: int, epoch: meta_pb2.Epoch) -> bool:
        """Learn an epoch of a queue that the metadata does not have yet.

        Args:
            topic_id: of the topic.
            queue: its number.
            ended_in: raft group of the epoch before.
            epoch: its last one.

        Returns:
            Whether it was news.
        """
        known = self.overrides(topic_id).get(queue)
        if known is not None and known.epochs[-1].epoch >= epoch.epoch:
            return False
        override = meta_pb2.QueueOverride(topic_id=topic_id, queue=queue)
        if known is not None:
            override.CopyFrom(known)
        else:
            override.epochs.add(epoch=epoch.epoch - 1, raft_group=ended_in)
        _append_epoch(override, ended_in, epoch)
        self._learned[topic_id, queue] = (ended_in, epoch)
        self._overrides.setdefault(topic_id, {})[queue] = override
        self.new_moves.add(topic_id)
        self.new_placement = True
        return True

    def replaces(self, others: MetadataTables) -> None:
        """Replace other tables; take over the epochs that they learned beyond the metadata."""
        for (topic_id, queue), (ended_in, epoch) in others._learned.items():
            if topic_id in self.topics_by_id:
                self.learn(topic_id, queue, ended_in, epoch)
        self.new_consumer_groups.update(others.consumer_groups)
        self.new_quotas = True
        self.access.replaces(others.access)
        before = enumerate(others.slots)
        self.new_slots = {slot for slot, owner in before if self.slots[slot] != owner}
        self.new_placement = True

    def _take_topic(self, topic: meta_pb2.Topic, *, deleted: bool) -> None:
        name = (topic.namespace, topic.name)
        old = self.topics.get(name)
        if old is not None:
            self.topics_by_id.pop(old.topic_id, None)
            self.rehashing.pop(old.topic_id, None)
            self._count_topic(old, -1)
        if deleted:
            if self.topics.pop(name, None) is not None:
                self.topic_names.remove(name)
            return
        row = TopicRow(topic)
        if old is not None and old.topic_id == row.topic_id:
            # It may have grown: receives that wait look at its new queues, too.
            self.new_placement |= old.queue_count != row.queue_count
        if old is None:
            name = (row.namespace, row.name)
            self.topic_names.add(name)
        self.topics[name] = row
        self.topics_by_id[row.topic_id] = row
        self._count_topic(row, 1)
        if row.previous_queue_count:
            self.rehashing[row.topic_id] = row

    def _count_topic(self, row: TopicRow, by: int) -> None:
        if not row.is_dead_letter:
            _add(self.topic_counts, row.namespace, by)

    def _take_consumer_group(self, group: meta_pb2.ConsumerGroup, *, deleted: bool) -> None:
        name = (group.namespace, group.name)
        counted = not is_own_consumer_group(group.name)
        if self.consumer_groups.pop(name, None) is not None:
            _add(self.consumer_group_counts, group.namespace, -counted)
            if deleted:
                self.consumer_group_names.remove(name)
        elif not deleted:
            self.consumer_group_names.add(name)
        if not deleted:
            self.consumer_groups[name] = copy_row(group)
            _add(self.consumer_group_counts, group.namespace, counted)
        self.new_consumer_groups.add(name)

    def _take_override(self, override: meta_pb2.QueueOverride, *, deleted: bool) -> None:
        key = (override.topic_id, override.queue)
        of_topic = self._overrides.setdefault(override.topic_id, {})
        # A move that has just begun has no epoch yet: the queue is where its slot is.
        if deleted or not override.epochs:
            of_topic.pop(override.queue, None)
            self._learned.pop(key, None)
        else:
            row = of_topic[override.queue] = copy_row(override)
            ended_in, learned = self._learned.get(key, (NO_RAFT_GROUP, row.epochs[-1]))
            if learned.epoch > row.epochs[-1].epoch:
                _append_epoch(row, ended_in, learned)
            else:
                self._learned.pop(key, None)
        if not of_topic:
            del self._overrides[override.topic_id]
        self.new_moves.add(override.topic_id)
        self.new_placement = True


def _add(counts: Counter[str], namespace: str, by: int) -> None:
    """Count; a namespace without anything is forgotten, so that deleted ones leave nothing."""
    counts[namespace] += by
    if not counts[namespace]:
        del counts[namespace]


def _append_epoch(row: meta_pb2.QueueOverride, ended_in: int, epoch: meta_pb2.Epoch) -> None:
    """Append a learned epoch, and the epoch before it if the row does not have that one either.

    Without the epoch before, an ordered group would get messages of the last epoch too early. The
    begin of the epoch before is unknown: it takes no offset from its neighbours.
    """
    if epoch.epoch - 1 > row.epochs[-1].epoch:
        row.epochs.add(epoch=epoch.epoch - 1, raft_group=ended_in, start_offset=epoch.start_offset)
    row.epochs.append(epoch)
