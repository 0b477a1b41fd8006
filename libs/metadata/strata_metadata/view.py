"""View of placement: nodes, raft groups, slots, moved queues; of topics only what storage needs.

A sink in memory for users of placement that do not need the names of all topics: storage nodes and
the command line. Used on the event loop only; a response is applied whole before it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata_metadata.tables import NO_RAFT_GROUP, TablesReader, put_row
from strata_mq.slots import SLOT_COUNT
from strata_mq.tier_policy import TierPolicy, stored_policy

__all__ = ["NO_RAFT_GROUP", "ClusterView", "TopicFacts"]


class TopicFacts(NamedTuple):
    """The fields of a topic that storage needs beside its id.

    Attributes:
        is_dead_letter: its queues have no slots.
        tier: how it uses the tier.
    """

    retention_ms: int
    slot_base: int
    is_dead_letter: bool
    queue_count: int
    tier: TierPolicy


class ClusterView:
    """See the module docstring. Rows are handed out as they are: nobody changes one.

    Attributes:
        revision: of what was taken in; 0: nothing yet.
        version: raised when a row other than a topic's changed.
        cluster_id: whose rows these are; empty: their source did not say.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.version = 0
        self.cluster_id = ""
        self._reader = TablesReader(_Tables)
        self._tables = self._reader.tables
        self._changed = asyncio.Event()

    def node(self, node_id: str) -> meta_pb2.Node | None:
        """Find a node."""
        return self._tables.nodes.get(node_id)

    def nodes(self, kind: meta_pb2.NodeKind.ValueType | None = None) -> list[meta_pb2.Node]:
        """Return the nodes of a kind (None: all) by id."""
        return [
            node
            for _, node in sorted(self._tables.nodes.items())
            if kind is None or node.kind == kind
        ]

    def raft_group(self, raft_group: int) -> meta_pb2.RaftGroup | None:
        """Find a raft group."""
        return self._tables.raft_groups.get(raft_group)

    def raft_groups(self) -> list[meta_pb2.RaftGroup]:
        """Return all raft groups by number."""
        return [row for _, row in sorted(self._tables.raft_groups.items())]

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

    def slot_moves(self) -> Collection[meta_pb2.SlotMove]:
        """Return all moves of slots that are under way, in no order."""
        return self._tables.slot_moves.values()

    def topic(self, topic_id: int) -> TopicFacts | None:
        """Find a topic by its id."""
        return self._tables.topics.get(topic_id)

    def retention_ms(self, topic_id: int) -> int | None:
        """Return how long a topic keeps messages; None: there is no such topic."""
        topic = self._tables.topics.get(topic_id)
        return None if topic is None else topic.retention_ms

    def tier_policy(self, topic_id: int) -> TierPolicy | None:
        """Return how a topic uses the tier; None: there is no such topic."""
        topic = self._tables.topics.get(topic_id)
        return None if topic is None else topic.tier

    def topic_names(self) -> dict[str, str]:
        """Return topic id, as text -> NAMESPACE%NAME of all topics."""
        names = self._tables.topic_ids.items()
        return {str(topic_id): f"{namespace}%{name}" for (namespace, name), topic_id in names}

    async def changed_since(self, version: int) -> int:
        """Wait until `version` is another one and return it."""
        while self.version == version:
            await self._changed.wait()
        return self.version

    def apply(self, response: meta_pb2.WatchResponse) -> None:
        """Take in changes (see `follower.MetadataSink`)."""
        self.cluster_id = response.cluster_id or self.cluster_id
        if not self._reader.apply(response):
            return
        self._tables, self.revision = self._reader.tables, self._reader.revision
        if self._tables.moved:
            self._tables.moved = False
            self.version += 1
            self._changed.set()
            self._changed = asyncio.Event()


class _Tables:
    """All rows at one revision, or those of a snapshot that have come so far.

    Attributes:
        moved: whether a row other than a topic's changed since it was last looked at.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, meta_pb2.Node] = {}
        self.raft_groups: dict[int, meta_pb2.RaftGroup] = {}
        self.queue_overrides: dict[tuple[int, int], meta_pb2.QueueOverride] = {}
        self.slots = [NO_RAFT_GROUP] * SLOT_COUNT
        self.slot_moves: dict[int, meta_pb2.SlotMove] = {}
        self.topics: dict[int, TopicFacts] = {}
        self.topic_ids: dict[tuple[str, str], int] = {}
        self.moved = False

    def replaces(self, others: _Tables) -> None:
        """Take the place of other tables, whatever the difference is."""
        self.moved = True

    def take(self, change: meta_pb2.Change) -> None:
        """Take in one row."""
        match change.WhichOneof("row"):
            case "node":
                put_row(self.nodes, change.node.node_id, change.node, deleted=change.deleted)
            case "raft_group":
                row = change.raft_group
                put_row(self.raft_groups, row.raft_group, row, deleted=change.deleted)
            case "slots":
                owner = NO_RAFT_GROUP if change.deleted else change.slots.raft_group
                first, count = change.slots.first_slot, change.slots.slot_count
                self.slots[first : first + count] = [owner] * count
            case "queue_override":
                override = change.queue_override
                key = (override.topic_id, override.queue)
                put_row(self.queue_overrides, key, override, deleted=change.deleted)
            case "slot_move":
                move = change.slot_move
                put_row(self.slot_moves, move.from_raft_group, move, deleted=change.deleted)
            case "topic":
                self._take_topic(change.topic, deleted=change.deleted)
                return
            case _:
                return
        self.moved = True

    def _take_topic(self, topic: meta_pb2.Topic, *, deleted: bool) -> None:
        name = (topic.namespace, topic.name)
        old = self.topic_ids.pop(name, None)
        if old is not None:
            self.topics.pop(old, None)
        if not deleted:
            self.topic_ids[name] = topic.topic_id
            self.topics[topic.topic_id] = TopicFacts(
                topic.retention_ms,
                topic.slot_base,
                topic.type == meta_pb2.TOPIC_TYPE_DEAD_LETTER,
                topic.queue_count,
                stored_policy(topic.attributes)._replace(namespace=topic.namespace),
            )
