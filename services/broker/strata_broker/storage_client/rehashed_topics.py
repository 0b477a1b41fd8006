"""Remembers for a while which topics' message groups went to other queues.

A topic that got more queues keeps its message groups where they are until all is consumed (rule
23). So they leave a queue at a time of its own, which may be hours after the topic's change. This
class keeps when that was, as far as this broker saw it.
"""

from __future__ import annotations

from collections.abc import Callable

from strata_broker.metadata.metadata import TopicRow

# Older ones are forgotten first.
_MAX_TOPICS = 100_000


class RehashedTopics:
    """See the module docstring. Used on the event loop only.

    Args:
        now_ms: group time.
        window_ms: how long it is remembered.
    """

    def __init__(self, now_ms: Callable[[], int], window_ms: int) -> None:
        self._now_ms = now_ms
        self._window_ms = window_ms
        # Topic id -> when its message groups left a queue last, the oldest first.
        self._left_ms: dict[int, int] = {}
        # Topics whose message groups were in their old queues when they were looked at last.
        self._waiting: dict[int, None] = {}

    def left(self, topic_id: int) -> None:
        """Note that message groups of a topic leave a queue now."""
        now_ms = self._now_ms()
        self._left_ms.pop(topic_id, None)
        self._left_ms[topic_id] = now_ms
        first_id = next(iter(self._left_ms))
        is_old = now_ms - self._left_ms[first_id] > self._window_ms
        if is_old or len(self._left_ms) > _MAX_TOPICS:
            del self._left_ms[first_id]

    def left_ms(self, topic: TopicRow) -> int:
        """Return when message groups of a topic left a queue last; 0: not that it is known.

        The last ones left it when the topic's row says so, if nothing was heard before.
        """
        topic_id = topic.topic_id
        if topic.previous_queue_count:
            self._waiting[topic_id] = None
            if len(self._waiting) > _MAX_TOPICS:
                del self._waiting[next(iter(self._waiting))]
        elif topic_id in self._waiting:
            del self._waiting[topic_id]
            self.left(topic_id)
        return self._left_ms.get(topic_id, 0)
