"""The consumer groups that have a head in queues of a topic, remembered by a leader in one term.

The rows of heads are in the order of consumer groups: to find those of one topic, each consumer
group is looked at. That is done once for a topic, as long as it is remembered.

Invariant: a remembered topic lacks no key with a head row, or with a set that may write one. In a
term only a set that was loaded in it writes a head: those in memory are taken in when the topic is
read, later ones by `added`. Keys of what was dropped meanwhile stay; they have no row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from strata_state.rows import ConsumerKey, HeadRows

_MAX_KEYS = 100_000


class _OfTopic:
    __slots__ = ("by_queue", "count")

    def __init__(self) -> None:
        # Dictionaries for their order.
        self.by_queue: dict[int, dict[ConsumerKey, None]] = {}
        self.count = 1

    def add(self, key: ConsumerKey) -> int:
        """Add a key; return by how many there are more."""
        of_queue = self.by_queue.setdefault(key[2], {})
        if key in of_queue:
            return 0
        of_queue[key] = None
        self.count += 1
        return 1


class KnownConsumers:
    """See the module docstring.

    Args:
        rows: of the raft group.
        loaded: returns the keys of a topic's sets in memory.
        max_keys: keys remembered; a topic counts as one more.
    """

    __slots__ = ("_count", "_loaded", "_max_keys", "_rows", "_topics")

    def __init__(
        self,
        rows: HeadRows,
        loaded: Callable[[int], Iterable[ConsumerKey]],
        *,
        max_keys: int = _MAX_KEYS,
    ) -> None:
        self._rows = rows
        self._loaded = loaded
        self._max_keys = max_keys
        # The one that was asked for longest ago is the first.
        self._topics: OrderedDict[int, _OfTopic] = OrderedDict()
        self._count = 0

    def of_queue(self, topic_id: int, queue: int) -> Sequence[ConsumerKey]:
        """Return the keys of all consumer groups that may have a head in a queue.

        Raises:
            StateError: rows cannot be read.
        """
        known = self._topics.get(topic_id)
        if known is None:
            known = _OfTopic()
            for key in chain(self._rows.of_topic(topic_id), self._loaded(topic_id)):
                known.add(key)
            self._topics[topic_id] = known
            self._count += known.count
        found = tuple(known.by_queue.get(queue, ()))
        self._topics.move_to_end(topic_id)
        self._bound()
        return found

    def added(self, key: ConsumerKey) -> None:
        """Take in that a set was loaded, or begun."""
        known = self._topics.get(key[1])
        if known is not None:
            self._count += known.add(key)
            self._bound()

    def _bound(self) -> None:
        while self._count > self._max_keys:
            # A topic that has more than all may have is forgotten at once, and no other for it.
            topic_id, known = next(iter(self._topics.items()))
            last_id = next(reversed(self._topics))
            if self._topics[last_id].count > self._max_keys:
                topic_id, known = last_id, self._topics[last_id]
            del self._topics[topic_id]
            self._count -= known.count
