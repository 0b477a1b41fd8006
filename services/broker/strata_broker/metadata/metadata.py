"""The broker's copy of the metadata: topics, consumer groups, raft groups, nodes and slots.

Role: a read-only copy of the nameserver's rows, fed by `WatchResponse`s in order of revision.
Invariants: (namespace, name) is the key of topics and consumer groups (namespaces isolate); a
response, or a snapshot of many, is applied as a whole before anyone reads; no move changes a public
name (rule 20). It does not know how the responses get here.

Storage may know of a move before the metadata does. Its answer is believed, and forgotten once the
metadata has the move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from zlib import crc32

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.metadata.access_rows import AccessRows
from strata_broker.metadata.name_index import Name, NameIndex
from strata_broker.metadata.tables import MetadataTables
from strata_broker.metadata.topic_rows import (
    MAX_TOPICS_IN_USE,
    Home,
    MovedIn,
    TopicRow,
    TopicRows,
)
from strata_metadata.placement import PlacementView
from strata_metadata.tables import NO_RAFT_GROUP
from strata_mq.slots import FIRST_LITE_QUEUE, SLOT_COUNT, lite_home
from strata_runtime.timeouts import Timeout

__all__ = ["LEADER_CHOOSES", "NO_RAFT_GROUP", "Home", "MetadataView", "Name", "TopicRow"]

LEADER_CHOOSES = -1
"""Queue number of messages that may take any queue the raft group's slots give it (rule 23)."""


class MetadataView(PlacementView[MetadataTables]):
    """See the module docstring. Used on the event loop only.

    Args:
        max_topics_in_use: topics kept as objects (see `topic_rows`).
    """

    def __init__(self, max_topics_in_use: int = MAX_TOPICS_IN_USE) -> None:
        super().__init__(lambda: MetadataTables(max_topics_in_use))
        # Raised whenever slots, raft groups or nodes change: values derived from them are stale.
        self.placement_version = 0
        self._ready = False
        self._placement_listeners: list[Callable[[], None]] = []
        self._quota_listeners: list[Callable[[], None]] = []
        self._move_listeners: list[Callable[[int, Set[int]], None]] = []
        self._slot_listeners: list[Callable[[Mapping[int, Set[int]]], None]] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._on_consumer_groups: list[Callable[[Collection[Name]], None]] = []

    @property
    def ready(self) -> bool:
        """Whether the first snapshot has arrived."""
        return self._ready

    @property
    def access(self) -> AccessRows:
        """Users, policies and cluster keys; a snapshot replaces the object, so ask each time."""
        return self._tables.access

    def topic(self, namespace: str, name: str) -> TopicRow | None:
        """Find a topic by name."""
        return self._tables.topics.get((namespace, name))

    def topic_by_id(self, topic_id: int) -> TopicRow | None:
        """Find a topic by the number the nameserver gave."""
        return self._tables.topics.by_id(topic_id)

    def topics(self) -> TopicRows:
        """Return all topics; a snapshot replaces the object."""
        return self._tables.topics

    def topic_names(self) -> NameIndex:
        """Return the names of all topics in their order; a snapshot replaces the object."""
        return self._tables.topics.names

    def consumer_group(self, namespace: str, name: str) -> meta_pb2.ConsumerGroup | None:
        """Find a consumer group by name."""
        return self._tables.consumer_groups.get((namespace, name))

    def consumer_group_by_id(self, consumer_group_id: int) -> meta_pb2.ConsumerGroup | None:
        """Find a consumer group by the number the nameserver gave."""
        return self._tables.consumer_groups_by_id.get(consumer_group_id)

    def consumer_groups(self) -> Collection[meta_pb2.ConsumerGroup]:
        """Return all consumer groups, in no order."""
        return self._tables.consumer_groups.values()

    def consumer_group_names(self) -> NameIndex:
        """Return the names of all consumer groups in their order; likewise."""
        return self._tables.consumer_group_names

    def topic_count(self, namespace: str) -> int:
        """Return how many topics a namespace has, dead-letter topics not counted."""
        return self._tables.topic_counts[namespace]

    def consumer_group_count(self, namespace: str) -> int:
        """Return how many consumer groups a namespace has."""
        return self._tables.consumer_group_counts[namespace]

    def listed_counts(self) -> tuple[int, int]:
        """Return how many topics and consumer groups lists have, of all namespaces together."""
        tables = self._tables
        return tables.listed_topic_count, sum(tables.consumer_group_counts.values())

    def quota(self, namespace: str, topic: str) -> meta_pb2.Quota | None:
        """Find what was set for a topic, or ("") for a namespace as a whole."""
        return self._tables.quotas.get((namespace, topic))

    def quotas(self) -> Collection[meta_pb2.Quota]:
        """Return all limits that were set, in no order."""
        return self._tables.quotas.values()

    def pending_drops(self) -> list[meta_pb2.Tombstone]:
        """Return deleted things that are not dropped everywhere yet, in no order."""
        return list(self._tables.tombstones.values())

    def owner(self, topic: TopicRow, queue: int) -> int:
        """Return the raft group that a queue's appends go to: of its last epoch, else its slot."""
        if topic.is_dead_letter:
            return queue
        if topic.is_lite and queue >= FIRST_LITE_QUEUE:
            # A lite topic is where the queue is that its name chose.
            queue = lite_home(queue, topic.queue_count)
        override = self.overrides(topic).get(queue)
        if override is not None:
            return override.epochs[-1].raft_group
        return self.slot_owner(topic, queue)

    def slot_owner(self, topic: TopicRow, queue: int) -> int:
        """Return the raft group of a queue's slot."""
        return self._tables.slots[(topic.slot_base + queue) % SLOT_COUNT]

    def is_any(self, topic: TopicRow, raft_group: int, queue: int) -> bool:
        """Whether "any queue" of a topic in a raft group includes this queue.

        It does if the queue has always been there; a queue that moved there must be named.
        """
        override = self.overrides(topic).get(queue)
        if override is None:
            return self.slot_owner(topic, queue) == raft_group
        return any(epoch.epoch == 0 and epoch.raft_group == raft_group for epoch in override.epochs)

    def slot_revisions(self) -> Sequence[int]:
        """Return the revision of each slot's row, which also changes with its neighbours."""
        return self._tables.slot_revisions

    def overrides(self, topic: TopicRow) -> Mapping[int, meta_pb2.QueueOverride]:
        """Return the queues of a topic that are, or were, not where their slot is (rule 18)."""
        return self._tables.overrides(topic.topic_id)

    def rehashing(self) -> Collection[TopicRow]:
        """Return topics whose message groups may be in the queues of an older queue count."""
        return self._tables.rehashing.values()

    def is_opening(self, topic: TopicRow, raft_group: int, queue: int) -> bool:
        """Whether a queue's last epoch is in a raft group, which may not have heard of it yet."""
        override = self.overrides(topic).get(queue)
        if override is None or len(override.epochs) < 2:
            return False
        return override.epochs[-1].raft_group == raft_group

    def owners(self, topic: TopicRow) -> tuple[int, ...]:
        """Return the raft groups that take appends for queues of a topic, by number."""
        if topic.groups_at != self.placement_version:
            if topic.is_dead_letter:
                groups = set(self._tables.raft_groups)
            else:
                groups = {self.owner(topic, queue) for queue in range(topic.queue_count)}
            topic.groups = tuple(sorted(groups - {NO_RAFT_GROUP}))
            topic.groups_at = self.placement_version
        return topic.groups

    def queue_at(self, topic: TopicRow, raft_group: int, key: bytes) -> int:
        """Return the queue for a message that may take any queue of a topic in a raft group.

        The leader spreads messages over the queues that "any" includes (`is_any`). Queues that
        moved to it get their share by name, chosen by the key, so that a repeat has the same
        answer.
        """
        moved_in = self.moved_in(topic).get(raft_group)
        if moved_in is None:
            return LEADER_CHOOSES
        number = crc32(key) % moved_in.queue_count
        return moved_in.queues[number] if number < len(moved_in.queues) else LEADER_CHOOSES

    def moved_in(self, topic: TopicRow) -> Mapping[int, MovedIn]:
        """Return the queues of a topic that "any queue" does not include, by raft group."""
        if topic.moved_in_at != self.placement_version:
            topic.moved_in = self._moved_in_of(topic) if self.overrides(topic) else {}
            topic.moved_in_at = self.placement_version
        return topic.moved_in

    def holders(self, topic: TopicRow) -> dict[int, list[int]]:
        """Return every raft group that holds an epoch of a queue -> those queues, by number.

        Like `owners`, with the epochs that take no append any more.
        """
        if topic.is_dead_letter:
            return {number: [number] for number in sorted(self._tables.raft_groups)}
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

    def holders_first(self, topic: TopicRow) -> list[int]:
        """Return all raft groups: those that `holders` has for a topic, then the others."""
        return list(dict.fromkeys((*self.holders(topic), *sorted(self._tables.raft_groups))))

    def _moved_in_of(self, topic: TopicRow) -> dict[int, MovedIn]:
        queues: dict[int, list[int]] = {}
        for queue in range(topic.queue_count):
            queues.setdefault(self.owner(topic, queue), []).append(queue)
        moved_in = {}
        for raft_group, here in queues.items():
            named = [queue for queue in here if not self.is_any(topic, raft_group, queue)]
            if named:
                moved_in[raft_group] = MovedIn(named, len(here))
        return moved_in

    def homes(self, topic: TopicRow) -> tuple[Home, ...]:
        """Return the public names of a topic's queues, by raft group number."""
        if topic.homes_at != self.placement_version:
            topic.homes = self._homes_of(topic)
            topic.homes_at = self.placement_version
        return topic.homes

    def home(self, topic: TopicRow, broker_name: str) -> Home | None:
        """Return a topic's queues under one broker name; None: there are none."""
        return next((h for h in self.homes(topic) if h.broker_name == broker_name), None)

    def on_placement(self, listener: Callable[[], None]) -> None:
        """Call back after slots, queues, raft groups or nodes have changed."""
        self._placement_listeners.append(listener)

    def on_slots(self, listener: Callable[[Mapping[int, Set[int]]], None]) -> None:
        """Call back with slots that got another owner -> the owners before.

        NO_RAFT_GROUP among these: there may have been others that this broker did not see. Slots
        that had no owner before, and those of the first snapshot, are not told.
        """
        self._slot_listeners.append(listener)

    def on_move(self, listener: Callable[[int, Set[int]], None]) -> None:
        """Call back with the topic id after the row of a queue of the topic changed.

        The second argument has the raft groups that held queues which have another owner now,
        likewise; empty: no queue has another one.
        """
        self._move_listeners.append(listener)

    def on_quotas(self, listener: Callable[[], None]) -> None:
        """Call back after limits of namespaces or topics have changed."""
        self._quota_listeners.append(listener)

    def apply(self, response: meta_pb2.WatchResponse) -> None:
        """Apply one event of the watch (see `follower.MetadataSink`)."""
        if not self._take_in(response):
            return
        self._ready = True
        self._tell()
        self._wake_waiters()

    def learn(
        self, topic: TopicRow, raft_group: int, sealed: Iterable[storage_pb2.SealedQueue]
    ) -> bool:
        """Learn which queues of a topic have left a raft group; return whether it was news."""
        news = False
        for queue in sealed:
            epoch = meta_pb2.Epoch(
                epoch=queue.next_epoch,
                start_offset=queue.start_offset,
                raft_group=queue.raft_group,
            )
            news |= self._tables.learn(topic.topic_id, queue.queue, raft_group, epoch)
        if news:
            self._tell()
        return news

    def _tell(self) -> None:
        """Notify listeners of changes in the tables."""
        tables = self._tables
        if tables.new_placement:
            tables.new_placement = False
            self.placement_version += 1
            for listener in self._placement_listeners:
                listener()
        moved_topics, tables.new_moves = tables.new_moves, {}
        for moved in self._move_listeners:
            for topic_id, former in moved_topics.items():
                moved(topic_id, former)
        new_slots, tables.new_slots = tables.new_slots, {}
        if new_slots:
            for slots_changed in self._slot_listeners:
                slots_changed(new_slots)
        if tables.new_quotas:
            tables.new_quotas = False
            for quotas_changed in self._quota_listeners:
                quotas_changed()
        changed_groups, tables.new_consumer_groups = tables.new_consumer_groups, set()
        if changed_groups:
            for callback in self._on_consumer_groups:
                callback(changed_groups)

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
        """Wait until everything up to `revision` is applied; False: not within the time."""
        if self._ready and self.revision >= revision:
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((revision, waiter))
        try:
            async with Timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters = [pair for pair in self._waiters if pair[1] is not waiter]
        return True

    async def wait_for_snapshot(self, part_timeout_s: float) -> bool:
        """Wait until the first snapshot is applied; False: none of its parts came for so long."""
        responses = -1
        while self.responses != responses:
            responses = self.responses
            # Revision 0 is reached by the first snapshot.
            if await self.wait_for_revision(0, part_timeout_s):
                return True
        return False

    def _homes_of(self, topic: TopicRow) -> tuple[Home, ...]:
        raft_groups = self._tables.raft_groups
        rows: dict[int, tuple[int, ...]]
        if topic.is_dead_letter:
            rows = {number: (number,) for number in raft_groups}
        else:
            rows = {home.raft_group: tuple(home.queues) for home in topic.parsed().homes}
            if not rows:
                rows = self._homes_by_slot(topic)
        return tuple(
            Home(number, raft_groups[number].broker_name, rows[number])
            for number in sorted(rows)
            if number in raft_groups and rows[number]
        )

    def _homes_by_slot(self, topic: TopicRow) -> dict[int, tuple[int, ...]]:
        # A moved queue keeps the name that it had before.
        rows: dict[int, tuple[int, ...]] = {}
        for queue in range(topic.queue_count):
            owner = self.slot_owner(topic, queue)
            rows[owner] = (*rows.get(owner, ()), queue)
        return rows
