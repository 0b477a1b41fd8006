"""Remembers for a while which raft groups owned the queues of a topic before.

A message that may take any queue goes to a raft group that its id selects among all owners of the
topic (rule 23). So one owner more or less re-routes messages that have nothing to do with the slot
or queue that moved, and a raft group that holds no queue any more may still hold a message that
waits. Rows of metadata tell the present owners and some former ones; they have no time. This class
keeps what the view saw change.

A broker that has just started saw nothing change. It compares the revisions of rows: a slot whose
row is younger than the topic's row changed at an unknown time, from an unknown owner.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from strata.meta.v1 import meta_pb2
from strata_broker.metadata.metadata import NO_RAFT_GROUP, MetadataView, TopicRow
from strata_mq.slots import slot_of

# Topics of which a queue moved lately; older ones are forgotten first. The nameserver's default
# for `max_queue_overrides` is the same.
_MAX_MOVED_TOPICS = 100_000
# Topics whose slots were looked at since slots changed last.
_MAX_LOOKED_AT = 100_000
# All of their messages have a message group, which names their queue, and none of them waits.
_BOUND_TYPES = (meta_pb2.TOPIC_TYPE_FIFO,)

Owned = dict[int, int]
"""Raft group -> until when it was an owner, by group time; NO_RAFT_GROUP: an unknown one."""


class OwnerHistory:
    """See the module docstring. Used on the event loop only.

    Args:
        view: tells of changes.
        now_ms: group time.
        window_ms: how long former owners are remembered.
    """

    def __init__(self, view: MetadataView, now_ms: Callable[[], int], window_ms: int) -> None:
        self._view = view
        self._now_ms = now_ms
        self._window_ms = window_ms
        # Topic id -> former owners of queues that moved; slot -> former owners.
        self._moved: OrderedDict[int, Owned] = OrderedDict()
        self._slots: dict[int, Owned] = {}
        # When a slot changed last, as far as this broker knows.
        self._slots_changed_ms = 0
        # Topic id -> when one of its slots changed last.
        self._looked_at: dict[int, int] = {}
        # The view's beginning: when, and the revisions of the rows of slots then.
        self._began_ms = 0
        self._first_revisions: Sequence[int] = ()
        view.on_placement(self._begin)
        view.on_move(self._queue_moved)
        view.on_slots(self._slots_moved)

    def changed_ms(self, topic: TopicRow) -> int:
        """Return when the owners of a topic may have changed last; 0: not within the window."""
        moved = self._moved.get(topic.topic_id)
        changed_ms = max(moved.values()) if moved else 0
        oldest_ms = self._now_ms() - self._window_ms
        if self._slots_changed_ms >= oldest_ms and topic.topic_type not in _BOUND_TYPES:
            changed_ms = max(changed_ms, self._slots_of_topic_changed_ms(topic))
        return changed_ms if changed_ms >= oldest_ms else 0

    def raft_groups(self, topic: TopicRow) -> list[int]:
        """Return the raft groups that hold queues of a topic, then those that did lately.

        Where former owners are not known, these are all raft groups.
        """
        oldest_ms = self._now_ms() - self._window_ms
        former = set(_since(self._moved.get(topic.topic_id, {}), oldest_ms))
        queues = () if topic.topic_type in _BOUND_TYPES else range(topic.queue_count)
        for queue in queues:
            slot = slot_of(topic.slot_base, queue)
            former.update(_since(self._slots.get(slot, {}), oldest_ms))
            if self._is_unknown(topic, slot) and self._began_ms >= oldest_ms:
                former.add(NO_RAFT_GROUP)
        if NO_RAFT_GROUP in former:
            return self._view.holders_first(topic)
        wanted = former.union(self._view.holders(topic))
        return [each for each in self._view.holders_first(topic) if each in wanted]

    def _slots_of_topic_changed_ms(self, topic: TopicRow) -> int:
        """Return when a slot of a topic may have changed last; 0: not that anybody knows."""
        changed_ms = self._looked_at.get(topic.topic_id)
        if changed_ms is None:
            changed_ms = 0
            for queue in range(topic.queue_count):
                slot = slot_of(topic.slot_base, queue)
                if slot in self._slots:
                    changed_ms = max(changed_ms, *self._slots[slot].values())
                if self._is_unknown(topic, slot):
                    changed_ms = max(changed_ms, self._began_ms)
            if len(self._looked_at) >= _MAX_LOOKED_AT:
                self._looked_at.clear()
            self._looked_at[topic.topic_id] = changed_ms
        return changed_ms

    def _is_unknown(self, topic: TopicRow, slot: int) -> bool:
        """Whether a slot may have changed after the topic was made and before this broker began."""
        return bool(self._first_revisions) and topic.revision < self._first_revisions[slot]

    # Changes ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Note the first rows; later, forget them when they are of no use any more."""
        # An updated topic has another revision, a grown one more slots.
        self._looked_at.clear()
        if not self._began_ms:
            self._began_ms = self._slots_changed_ms = self._now_ms()
            self._first_revisions = tuple(self._view.slot_revisions())
        elif self._now_ms() - self._began_ms > self._window_ms:
            self._first_revisions = ()

    def _slots_moved(self, slots: Mapping[int, Set[int]]) -> None:
        now_ms = self._slots_changed_ms = self._now_ms()
        for slot, former in slots.items():
            self._slots[slot] = self._added(self._slots.get(slot, {}), former, now_ms)
        self._looked_at.clear()

    def _queue_moved(self, topic_id: int, former: Set[int]) -> None:
        topic = self._view.topic_by_id(topic_id)
        if topic is None:
            # It was deleted, with the rows of its queues.
            self._moved.pop(topic_id, None)
            return
        if not former or self._left_nothing(topic):
            return
        owned = self._moved.pop(topic_id, {})
        self._moved[topic_id] = self._added(owned, former, self._now_ms())
        if len(self._moved) > _MAX_MOVED_TOPICS:
            self._moved.popitem(last=False)

    def _added(self, owned: Owned, former: Iterable[int], now_ms: int) -> Owned:
        """Return former owners with those that were owners until now, without forgotten ones."""
        return dict.fromkeys(former, now_ms) | {
            each: until_ms
            for each, until_ms in owned.items()
            if each not in former and until_ms >= now_ms - self._window_ms
        }

    def _left_nothing(self, topic: TopicRow) -> bool:
        """Whether messages are bound to queues, and each queue that moved was empty, as new ones.

        An epoch begins at offset 0 only if the epochs before it hold no message.
        """
        return topic.topic_type in _BOUND_TYPES and not any(
            epoch.start_offset
            for override in self._view.overrides(topic).values()
            for epoch in override.epochs
        )


def _since(owned: Owned, oldest_ms: int) -> Iterable[int]:
    return (raft_group for raft_group, until_ms in owned.items() if until_ms >= oldest_ms)
