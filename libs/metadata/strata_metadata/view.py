"""View of placement: nodes, raft groups, slots, moved queues; of topics only what storage needs.

A sink in memory for users of placement that do not need the names of all topics: storage nodes and
the command line. Used on the event loop only; a response is applied whole before it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from strata.meta.v1 import meta_pb2
from strata_metadata.placement import PlacementTables, PlacementView
from strata_metadata.tables import NO_RAFT_GROUP, put_row
from strata_metadata.topic_ids import StoredTopics, TopicFacts, facts_of
from strata_mq.tier_policy import TierPolicy

__all__ = ["NO_RAFT_GROUP", "ClusterView", "TopicFacts"]


class ClusterView(PlacementView["_Tables"]):
    """See the module docstring.

    Attributes:
        version: raised when a row other than a topic's changed.
        cluster_id: whose rows these are; empty: their source did not say.
    """

    def __init__(self) -> None:
        self._stored: StoredTopics | None = None
        super().__init__(lambda: _Tables(self._stored))
        self.version = 0
        self.cluster_id = ""
        self._changed = asyncio.Event()

    def read_topics_from(self, stored: StoredTopics) -> None:
        """Keep no topics in memory: read them from a durable copy that is written before the view.

        Call it before the view is told anything.
        """
        self._stored = self._tables.stored = stored

    def slot_owner(self, slot: int) -> int:
        """Return the raft group of a slot, or NO_RAFT_GROUP."""
        return self._tables.slots[slot]

    def slots_of(self, raft_group: int) -> list[int]:
        """Return the slots of a raft group."""
        return [slot for slot, owner in enumerate(self._tables.slots) if owner == raft_group]

    def queue_override(self, topic_id: int, queue: int) -> meta_pb2.QueueOverride | None:
        """Return the epochs of a queue that is or was not where its slot is."""
        return self._tables.queue_overrides.get((topic_id, queue))

    def queue_overrides(self) -> Collection[meta_pb2.QueueOverride]:
        """Return all of them, in no order."""
        return self._tables.queue_overrides.values()

    def slot_move(self, from_raft_group: int) -> meta_pb2.SlotMove | None:
        """Return which slots a raft group is giving up; None: none."""
        return self._tables.slot_moves.get(from_raft_group)

    def topic(self, topic_id: int) -> TopicFacts | None:
        """Find a topic by its id."""
        return self._tables.topic(topic_id)

    def retention_ms(self, topic_id: int) -> int | None:
        """Return how long a topic keeps messages; None: there is no such topic."""
        topic = self._tables.topic(topic_id)
        return None if topic is None else topic.retention_ms

    def lite_lifetime_ms(self, topic_id: int) -> int | None:
        """Return how long lite topics of a parent live without traffic; None: without end."""
        topic = self._tables.topic(topic_id)
        return None if topic is None else topic.lite_lifetime_ms

    def tier_policy(self, topic_id: int) -> TierPolicy | None:
        """Return how a topic uses the tier; None: there is no such topic."""
        topic = self._tables.topic(topic_id)
        return None if topic is None else topic.tier

    def topic_name(self, topic_id: int) -> str:
        """Return NAMESPACE%NAME of a topic; empty: there is no such topic."""
        if self._stored is not None:
            return self._stored.name(topic_id)
        return self.topic_names().get(str(topic_id), "")

    def topic_names(self) -> dict[str, str]:
        """Return topic id, as text -> NAMESPACE%NAME of all topics; it may read them all."""
        if self._stored is not None:
            return {str(topic_id): name for topic_id, name in self._stored.names()}
        # A copy: a thread may ask.
        names = list(self._tables.topic_ids.items())
        return {str(topic_id): f"{namespace}%{name}" for (namespace, name), topic_id in names}

    async def changed_since(self, version: int) -> int:
        """Wait until `version` is another one and return it."""
        while self.version == version:
            await self._changed.wait()
        return self.version

    def apply(self, response: meta_pb2.WatchResponse) -> None:
        """Take in changes (see `follower.MetadataSink`)."""
        self.cluster_id = response.cluster_id or self.cluster_id
        if not self._take_in(response):
            return
        if self._tables.moved:
            self._tables.moved = False
            self.version += 1
            self._changed.set()
            self._changed = asyncio.Event()


class _Tables(PlacementTables):
    """Placement, moved queues, and of topics what storage needs.

    Attributes:
        moved: whether a row other than a topic's changed since it was last looked at.
        stored: where topics are read; None: they are kept here.
    """

    def __init__(self, stored: StoredTopics | None) -> None:
        super().__init__()
        self.stored = stored
        self.queue_overrides: dict[tuple[int, int], meta_pb2.QueueOverride] = {}
        self.topics: dict[int, TopicFacts] = {}
        self.topic_ids: dict[tuple[str, str], int] = {}
        self.moved = False

    def replaces(self, others: _Tables) -> None:
        """Take the place of other tables, whatever the difference is."""
        self.moved = True
        if self.stored is not None:
            self.stored.forget_all()

    def topic(self, topic_id: int) -> TopicFacts | None:
        """Find a topic by its id."""
        if self.stored is not None:
            return self.stored.facts(topic_id)
        return self.topics.get(topic_id)

    def take(self, change: meta_pb2.Change) -> None:
        """Take in one row."""
        if self.take_placement(change):
            self.moved = True
        elif change.HasField("topic"):
            self._take_topic(change.topic, deleted=change.deleted)
        elif change.HasField("queue_override"):
            override = change.queue_override
            key = (override.topic_id, override.queue)
            put_row(self.queue_overrides, key, override, deleted=change.deleted)
            self.moved = True

    def _take_topic(self, topic: meta_pb2.Topic, *, deleted: bool) -> None:
        if self.stored is not None:
            self.stored.changed(topic)
            return
        name = (topic.namespace, topic.name)
        old = self.topic_ids.pop(name, None)
        if old is not None:
            self.topics.pop(old, None)
        if not deleted:
            self.topic_ids[name] = topic.topic_id
            self.topics[topic.topic_id] = facts_of(topic)
