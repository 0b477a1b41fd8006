"""The rows of a `MetadataView`: applied one by one, found by key.

This module knows neither revisions nor listeners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from strata.meta.v1 import meta_pb2
from strata_broker.metadata.access_rows import AccessRows
from strata_broker.metadata.name_index import Name, NameIndex, key_of
from strata_broker.metadata.topic_rows import MAX_TOPICS_IN_USE, TopicRow, TopicRows
from strata_metadata.placement import PlacementTables
from strata_metadata.tables import NO_RAFT_GROUP, copy_row, put_row
from strata_mq.requests import is_own_consumer_group, is_table_topic
from strata_mq.slots import SLOT_COUNT

_NO_OVERRIDES: Mapping[int, meta_pb2.QueueOverride] = {}


class MetadataTables(PlacementTables):
    """All rows at one revision, or the rows of a snapshot that have arrived so far.

    Attributes:
        topics: all topics.
        consumer_group_names: names of consumer groups in their order.
        rehashing: topics whose message groups may be where an older queue count put them, by id.
        consumer_groups: by their names.
        consumer_groups_by_id: the same rows by the numbers the nameserver gave.
        tombstones: those that are not done; the nameserver bounds their number.
        quotas: by namespace and topic.
        access: users, policies and cluster keys.
        topic_counts, consumer_group_counts: rows by namespace without those of StrataMQ itself: no
            dead-letter topics, no consumer groups for redrives and given-up transactions.
        listed_topic_count: topics of all namespaces as operators list them: `topic_counts` without
            those that stand for tables.
        new_consumer_groups: names of consumer groups whose rows came or went since they were taken.
        slot_revisions: revision of the row of each slot.
        new_slots: slots that got another owner since -> those before; NO_RAFT_GROUP: unknown ones.
        new_moves: topics of which a queue's row changed since -> raft groups that took appends of a
            queue which others take now, likewise.
        new_quotas: whether a quota changed since.
        new_placement: whether slots, raft groups, nodes or moved queues changed since.
    """

    def __init__(self, max_topics_in_use: int = MAX_TOPICS_IN_USE) -> None:
        super().__init__()
        self.topics = TopicRows(max_topics_in_use)
        self.rehashing: dict[int, TopicRow] = {}
        self.consumer_groups: dict[Name, meta_pb2.ConsumerGroup] = {}
        self.consumer_groups_by_id: dict[int, meta_pb2.ConsumerGroup] = {}
        self.consumer_group_names = NameIndex()
        self.tombstones: dict[tuple[int, int], meta_pb2.Tombstone] = {}
        self.quotas: dict[Name, meta_pb2.Quota] = {}
        self.access = AccessRows()
        self.topic_counts: Counter[str] = Counter()
        self.consumer_group_counts: Counter[str] = Counter()
        self.listed_topic_count = 0
        # topic id -> queue -> where it is, for queues that are not where their slot is
        self._overrides: dict[int, dict[int, meta_pb2.QueueOverride]] = {}
        # (topic id, queue) -> (raft group of the epoch before, last epoch), told by storage before
        # the metadata told it; of topics that are there
        self._learned: dict[tuple[int, int], tuple[int, meta_pb2.Epoch]] = {}
        self.new_consumer_groups: set[Name] = set()
        self.slot_revisions = [0] * SLOT_COUNT
        self.new_slots: dict[int, set[int]] = {}
        self.new_moves: dict[int, set[int]] = {}
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
            case "slots":
                self._take_slots(change)
            case "raft_group" | "node":
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
            Whether it was news; never of a topic that is gone, whose queues nobody asks for.
        """
        if not self.topics.has_id(topic_id):
            return False
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
        self._note_move(topic_id, known, override)
        self.new_placement = True
        return True

    def replaces(self, others: MetadataTables) -> None:
        """Replace other tables; take over the epochs that they learned beyond the metadata."""
        for (topic_id, queue), (ended_in, epoch) in others._learned.items():
            self.learn(topic_id, queue, ended_in, epoch)
        self.new_consumer_groups.update(others.consumer_groups)
        self.new_quotas = True
        self.access.replaces(others.access)
        self._note_moves_since(others)
        self.new_placement = True

    def _note_moves_since(self, others: MetadataTables) -> None:
        """Note which slots and queues may have had owners that the other tables do not name."""
        self.new_slots = {
            slot: {owner, NO_RAFT_GROUP}
            for slot, (owner, revision) in enumerate(
                zip(others.slots, others.slot_revisions, strict=True)
            )
            if owner != NO_RAFT_GROUP
            and (owner, revision) != (self.slots[slot], self.slot_revisions[slot])
        }
        self.new_moves = {}
        for topic_id, queues in self._overrides.items():
            known = others.overrides(topic_id)
            for queue, override in queues.items():
                self._note_move(topic_id, known.get(queue), override)

    def _take_slots(self, change: meta_pb2.Change) -> None:
        row = change.slots
        owner = NO_RAFT_GROUP if change.deleted else row.raft_group
        for slot in range(row.first_slot, row.first_slot + row.slot_count):
            before = self.slots[slot]
            if before not in (owner, NO_RAFT_GROUP):
                self.new_slots.setdefault(slot, set()).add(before)
            self.slot_revisions[slot] = row.revision
        self.new_placement |= self.take_placement(change)

    def _take_topic(self, topic: meta_pb2.Topic, *, deleted: bool) -> None:
        old = self.topics.take(topic, deleted=deleted)
        if old is not None:
            self.rehashing.pop(old.topic_id, None)
            self._count_topic(old, -1)
            if not self.topics.has_id(old.topic_id):
                self._forget_learned(old.topic_id)
        if deleted:
            return
        if old is not None and old.topic_id == topic.topic_id:
            # It may have grown: receives that wait look at its new queues, too.
            self.new_placement |= old.queue_count != topic.queue_count
        self._count_topic(topic, 1)
        if topic.previous_queue_count:
            row = self.topics.by_id(topic.topic_id)
            assert row is not None, "it was just written"
            self.rehashing[topic.topic_id] = row

    def _count_topic(self, topic: meta_pb2.Topic, by: int) -> None:
        if topic.type != meta_pb2.TOPIC_TYPE_DEAD_LETTER:
            _add(self.topic_counts, topic.namespace, by)
            self.listed_topic_count += by * (not is_table_topic(topic.name))

    def _take_consumer_group(self, group: meta_pb2.ConsumerGroup, *, deleted: bool) -> None:
        name = (group.namespace, group.name)
        counted = not is_own_consumer_group(group.name)
        old = self.consumer_groups.pop(name, None)
        if old is not None:
            if self.consumer_groups_by_id.get(old.consumer_group_id) is old:
                del self.consumer_groups_by_id[old.consumer_group_id]
            _add(self.consumer_group_counts, group.namespace, -counted)
            if deleted:
                self.consumer_group_names.remove(key_of(name))
        elif not deleted:
            self.consumer_group_names.add(key_of(name))
        if not deleted:
            row = self.consumer_groups[name] = copy_row(group)
            self.consumer_groups_by_id[row.consumer_group_id] = row
            _add(self.consumer_group_counts, group.namespace, counted)
        self.new_consumer_groups.add(name)

    def _take_override(self, override: meta_pb2.QueueOverride, *, deleted: bool) -> None:
        key = (override.topic_id, override.queue)
        of_topic = self._overrides.setdefault(override.topic_id, {})
        before = of_topic.get(override.queue)
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
        self._note_move(override.topic_id, before, of_topic.get(override.queue))
        if not of_topic:
            del self._overrides[override.topic_id]
        self.new_placement = True

    def _forget_learned(self, topic_id: int) -> None:
        """Forget what only storage told of a topic that is gone; its rows are deleted by others."""
        of_topic = self._overrides.get(topic_id, {})
        for queue in [*of_topic]:
            if self._learned.pop((topic_id, queue), None) is not None:
                del of_topic[queue]
        if not of_topic:
            self._overrides.pop(topic_id, None)

    def _note_move(
        self,
        topic_id: int,
        before: meta_pb2.QueueOverride | None,
        after: meta_pb2.QueueOverride | None,
    ) -> None:
        """Note that a queue's row changed, and the former owners if it has another one."""
        former = self.new_moves.setdefault(topic_id, set())
        known = before.epochs if before is not None else ()
        newest = known[-1].epoch if known else -1
        epochs = after.epochs if after is not None else ()
        if epochs and epochs[-1].epoch == newest:
            return
        former.update(epoch.raft_group for epoch in (*known, *epochs[:-1]))
        if epochs and epochs[0].epoch > newest + 1:
            # Those between are drained.
            former.add(NO_RAFT_GROUP)


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
