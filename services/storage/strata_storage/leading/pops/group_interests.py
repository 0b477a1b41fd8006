"""The interests of brokers in the places of one raft group (rule 35), for one leader in one term.

A pop arms an interest in the same turn of the event loop in which it looked: whatever comes later
tells it. All brokers with an interest in a place are told, because a broker may have nobody left
who waits there. An interest does not know the filter of its pop: a filter consumes what it does not
let through, so a place that is empty for one filter is empty for all.
"""

from __future__ import annotations

from collections.abc import Iterable

from strata_storage.base.interests import DeliverablePlace, InterestStream

ANY_QUEUE = -1
"""The queue of a pop that may look at every queue of its topic."""

# By queue; a dict of streams for its order. None is empty.
_ByQueue = dict[int, dict[InterestStream, None]]


class GroupInterests:
    """See the module docstring.

    Args:
        raft_group: names the places.
    """

    __slots__ = ("_armed", "_closed", "_raft_group")

    def __init__(self, raft_group: int) -> None:
        self._raft_group = raft_group
        self._closed = False
        # topic id -> consumer group id -> queue -> streams
        self._armed: dict[int, dict[int, _ByQueue]] = {}

    def __len__(self) -> int:
        return sum(
            len(streams)
            for groups in self._armed.values()
            for queues in groups.values()
            for streams in queues.values()
        )

    def arm(
        self, stream: InterestStream, topic_id: int, consumer_group_id: int, queue: int
    ) -> bool:
        """Note that a broker is to be told, once; False: it will not be."""
        place = DeliverablePlace(self._raft_group, topic_id, consumer_group_id, queue)
        if self._closed or not stream.arm(place, self):
            return False
        groups = self._armed.setdefault(topic_id, {})
        groups.setdefault(consumer_group_id, {}).setdefault(queue, {})[stream] = None
        return True

    def forget(self, place: DeliverablePlace, stream: InterestStream) -> None:
        """End an interest without telling anybody."""
        _, topic_id, consumer_group_id, queue = place
        groups = self._armed.get(topic_id, {})
        queues = groups.get(consumer_group_id, {})
        streams = queues.get(queue, {})
        streams.pop(stream, None)
        self._tidy(topic_id, consumer_group_id, queue)

    def tell_topic(self, topic_id: int, queue: int) -> None:
        """A queue got messages, or left: tell every consumer group."""
        for consumer_group_id in list(self._armed.get(topic_id, ())):
            self._tell(topic_id, consumer_group_id, (ANY_QUEUE, queue))

    def tell_group(self, topic_id: int, consumer_group_id: int, queue: int = ANY_QUEUE) -> None:
        """A consumer group may find something in a queue; ANY_QUEUE: in any of them."""
        queues = self._armed.get(topic_id, {}).get(consumer_group_id)
        if queues:
            named = list(queues) if queue == ANY_QUEUE else (ANY_QUEUE, queue)
            self._tell(topic_id, consumer_group_id, named)

    def tell_all(self) -> None:
        """Tell everybody and take no more: this replica does not lead any more."""
        self._closed = True
        for topic_id, groups in list(self._armed.items()):
            for consumer_group_id, queues in list(groups.items()):
                self._tell(topic_id, consumer_group_id, list(queues))

    def _tell(self, topic_id: int, consumer_group_id: int, queues: Iterable[int]) -> None:
        by_queue = self._armed[topic_id][consumer_group_id]
        for queue in dict.fromkeys(queues):
            place = DeliverablePlace(self._raft_group, topic_id, consumer_group_id, queue)
            for stream in by_queue.pop(queue, {}):
                stream.tell(place)
        self._tidy(topic_id, consumer_group_id)

    def _tidy(self, topic_id: int, consumer_group_id: int, queue: int | None = None) -> None:
        """Drop dicts that became empty."""
        groups = self._armed.get(topic_id, {})
        queues = groups.get(consumer_group_id, {})
        if queue is not None and not queues.get(queue):
            queues.pop(queue, None)
        if not queues:
            groups.pop(consumer_group_id, None)
        if not groups:
            self._armed.pop(topic_id, None)
