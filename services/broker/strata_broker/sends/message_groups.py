"""Chooses the queues of messages, also while a topic's queue count changes (rule 23).

A priority and the hash of a message group say which queue it is; other messages may take any.

A message group stays in the queue of the previous count until that queue's leader accepts message
groups by the present count only. By then all messages of the group in that queue are consumed, so
order holds whichever broker sends next. A broker that does not know this yet learns it from a
refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from strata_broker.metadata.metadata import LEADER_CHOOSES, TopicRow
from strata_mq.layout import OutgoingMessage, PrioritizedMessage
from strata_mq.requests import ORDERED_TYPES
from strata_mq.slots import priority_queue, queue_of_hash


class QueueChoice(NamedTuple):
    """A queue, and the topic's queue count by which it was chosen."""

    queue: int
    queue_count: int


class MessageGroups:
    """See the module docstring. Used on the event loop only.

    Args:
        on_left: told the topic when its message groups are known to have left another queue.
    """

    def __init__(self, on_left: Callable[[TopicRow], None] = lambda topic: None) -> None:
        self._on_left = on_left
        # topic id -> (its queue count, queues of the previous count that message groups have left)
        self._left: dict[int, tuple[int, set[int]]] = {}

    def choose(
        self,
        topic: TopicRow,
        outgoing: Sequence[OutgoingMessage],
        indexes: Sequence[int],
        named: int = LEADER_CHOOSES,
    ) -> list[tuple[QueueChoice, Sequence[int]]]:
        """Return the queues of messages, each with the messages' indexes, in order.

        A message group decides by itself; other messages take the queue that their send names.
        """
        any_queue = QueueChoice(named, topic.queue_count)
        chosen: dict[QueueChoice, list[int]] = {}
        if topic.has_levels:
            for index in indexes:
                chosen.setdefault(_level_of(topic, outgoing[index]), []).append(index)
            return list(chosen.items())
        if topic.topic_type not in ORDERED_TYPES:
            return [(any_queue, indexes)]
        for index in indexes:
            group_hash = outgoing[index].group_hash
            choice = self._queue_of(topic, group_hash) if group_hash else any_queue
            chosen.setdefault(choice, []).append(index)
        return list(chosen.items())

    def left(self, topic: TopicRow, queue: int) -> None:
        """Note that message groups are in a queue by the topic's present count only."""
        queue_count, queues = self._left.get(topic.topic_id, (0, set()))
        if queue_count != topic.queue_count:
            queues = set()
            self._left[topic.topic_id] = (topic.queue_count, queues)
        if queue not in queues:
            queues.add(queue)
            self._on_left(topic)

    def has_left(self, topic: TopicRow, queue: int) -> bool:
        """Whether message groups are known to have left a queue."""
        queue_count, queues = self._left.get(topic.topic_id, (0, ()))
        return queue_count == topic.queue_count and queue in queues

    def forget_others(self, rehashing: Iterable[TopicRow]) -> None:
        """Forget topics whose message groups are all in the queues of the present count."""
        kept = {topic.topic_id for topic in rehashing}
        for topic_id in self._left.keys() - kept:
            del self._left[topic_id]

    def _queue_of(self, topic: TopicRow, group_hash: int) -> QueueChoice:
        previous = topic.previous_queue_count
        if previous:
            queue = queue_of_hash(group_hash, previous)
            if not self.has_left(topic, queue):
                return QueueChoice(queue, previous)
        return QueueChoice(queue_of_hash(group_hash, topic.queue_count), topic.queue_count)


def _level_of(topic: TopicRow, message: OutgoingMessage) -> QueueChoice:
    """Return the queue of a message's priority; one without came from a topic of another type."""
    priority = message.priority if isinstance(message, PrioritizedMessage) else 0
    return QueueChoice(priority_queue(priority, topic.queue_count), topic.queue_count)
