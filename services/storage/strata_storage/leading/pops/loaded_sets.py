"""The lease sets in memory, and which of them leave it.

Invariants:
- A set leaves between two turns of the event loop only: a set that a caller found is the one in
  memory until the caller has proposed what it decided on it, however many sets it finds meanwhile.
- A set leaves only while none of its changes is on its way to the rows.
- To let sets leave costs about as much as to load them, however many have changes under way.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable

from strata_state.rows import ConsumerKey
from strata_storage.base.key_index import KeyIndex
from strata_storage.leading.pops.lease_set import LeaseSet

# Sets that may be looked at for each one that came or became idle: most sets that are looked at
# may have changes under way, and all of them stay for longer then.
_LOOKS_PER_SET = 4
# Sets looked at in one turn of the event loop.
_LOOKS_PER_TURN = 4_000


class LoadedSets:
    """See the module docstring.

    Args:
        max_idle: sets kept beyond those that have changes under way.
        removed: told the key of every set that leaves.
    """

    __slots__ = (
        "_by_consumer_group",
        "_by_queue",
        "_by_topic",
        "_is_evicting",
        "_looks",
        "_max_idle",
        "_removed",
        "_sets",
    )

    def __init__(self, max_idle: int, removed: Callable[[ConsumerKey], object]) -> None:
        self._max_idle = max_idle
        self._removed = removed
        # The least recently used one is the first.
        self._sets: OrderedDict[ConsumerKey, LeaseSet] = OrderedDict()
        # (topic, queue) -> its sets: a trim of many queues must not look at all sets for each.
        self._by_queue: dict[tuple[int, int], dict[ConsumerKey, LeaseSet]] = {}
        self._by_topic: KeyIndex[ConsumerKey] = KeyIndex()
        self._by_consumer_group: KeyIndex[ConsumerKey] = KeyIndex()
        self._is_evicting = False
        # Sets with changes under way that may be passed over.
        self._looks = 0

    def __len__(self) -> int:
        return len(self._sets)

    def get(self, key: ConsumerKey) -> LeaseSet | None:
        """Return a set."""
        return self._sets.get(key)

    def used(self, key: ConsumerKey) -> None:
        """Take in that a set is used."""
        self._sets.move_to_end(key)

    def all(self) -> list[LeaseSet]:
        """Return all sets."""
        return list(self._sets.values())

    def of_queue(self, topic_id: int, queue: int) -> list[LeaseSet]:
        """Return the sets of a queue."""
        return list(self._by_queue.get((topic_id, queue), {}).values())

    def keys_of_topic(self, topic_id: int) -> Iterable[ConsumerKey]:
        """Return the keys of a topic's sets."""
        return self._by_topic.of(topic_id)

    def keys_of_consumer_group(self, consumer_group_id: int) -> Iterable[ConsumerKey]:
        """Return the keys of a consumer group's sets."""
        return self._by_consumer_group.of(consumer_group_id)

    def add(self, added: LeaseSet) -> None:
        """Take in a set that was loaded; others may leave soon."""
        key = added.key
        self._sets[key] = added
        self._by_queue.setdefault(key[1:], {})[key] = added
        self._by_consumer_group.add(key[0], key)
        self._by_topic.add(key[1], key)
        self.evict_soon()

    def remove(self, key: ConsumerKey) -> None:
        """Let a set leave."""
        del self._sets[key]
        self._by_consumer_group.discard(key[0], key)
        self._by_topic.discard(key[1], key)
        of_queue = self._by_queue[key[1:]]
        del of_queue[key]
        if not of_queue:
            del self._by_queue[key[1:]]
        self._removed(key)

    def evict_soon(self, count: int = 1) -> None:
        """Let idle sets leave in the next turn of the event loop, if there are too many.

        Args:
            count: sets that came, or whose changes came to the rows.
        """
        if len(self._sets) <= self._max_idle:
            return
        self._looks += _LOOKS_PER_SET * count
        if not self._is_evicting:
            self._is_evicting = True
            asyncio.get_running_loop().call_soon(self._evict)

    def _evict(self) -> None:
        self._is_evicting = False
        for _ in range(min(self._looks, _LOOKS_PER_TURN)):
            if len(self._sets) <= self._max_idle:
                self._looks = 0
                return
            key = next(iter(self._sets))
            if self._sets[key].in_flight:
                # The next look is at the one behind it.
                self._sets.move_to_end(key)
                self._looks -= 1
            else:
                self.remove(key)
        if self._looks:
            self.evict_soon(0)
