"""When something of a lease set runs out next, for all sets of a leader, in memory or not.

Invariants: for every set that is known here the heap has an entry at its time, so no set can be
forgotten: an entry that is taken out makes the set unknown, until somebody notes it again. There
are at most twice as many entries as sets, and some.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from strata_state.rows import ConsumerKey

# A heap smaller than this is not worth rebuilding.
_SLACK = 1024


class SetDeadlines:
    """See the module docstring. Times are group time, in milliseconds."""

    __slots__ = ("_first_ms", "_heap")

    def __init__(self) -> None:
        self._first_ms: dict[ConsumerKey, int] = {}
        # One that is not the set's first is void: an earlier one came later.
        self._heap: list[tuple[int, ConsumerKey]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def note(self, key: ConsumerKey, deadline_ms: int) -> None:
        """Take in that something of a set runs out then, if nothing does so earlier."""
        known_ms = self._first_ms.get(key)
        if known_ms is not None and known_ms <= deadline_ms:
            return
        self._first_ms[key] = deadline_ms
        heappush(self._heap, (deadline_ms, key))
        if len(self._heap) > 2 * len(self._first_ms) + _SLACK:
            self._heap = [(first_ms, key) for key, first_ms in self._first_ms.items()]
            heapify(self._heap)

    def take_due(self, now_ms: int) -> ConsumerKey | None:
        """Take out the set whose time was up first; None: that of no other one is."""
        heap, first_ms = self._heap, self._first_ms
        while heap and heap[0][0] <= now_ms:
            deadline_ms, key = heappop(heap)
            if first_ms.get(key) == deadline_ms:
                del first_ms[key]
                return key
        return None

    def first_ms(self) -> int | None:
        """Return the earliest time; it may be void."""
        return self._heap[0][0] if self._heap else None
