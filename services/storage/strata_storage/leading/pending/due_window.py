"""The earliest pending messages of a raft group, in memory (rule 27); a hint, not the truth.

The rows are the truth. A message taken out of the window is looked up before anything is decided,
so a key whose message was ended meanwhile, or that is in here twice, does no harm.

Invariant: every pending row below `bound` is in the window or was taken out of it. So a scan
continues at `bound` and never meets again a message that was delivered before.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from strata_mq.layout import PendingKey


class DueWindow:
    """Keys of pending rows by due time.

    Args:
        bound: no row is below it.
        limit: keys read at once; up to twice as many are kept.

    Attributes:
        bound: smallest key that may be missing; None: none is.
    """

    __slots__ = ("_heap", "_limit", "_seen_while_reading", "bound")

    def __init__(self, bound: PendingKey, limit: int) -> None:
        self._limit = limit
        self._heap: list[PendingKey] = []
        self.bound: PendingKey | None = bound
        # Set while rows are read: keys at or above the bound that became pending meanwhile.
        self._seen_while_reading: list[PendingKey] | None = None

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def wants_rows(self) -> bool:
        """Whether the next rows should be read from the store."""
        return self.bound is not None and len(self._heap) <= self._limit // 4

    def next_due_ms(self) -> int | None:
        """Return the earliest due time known; None: nothing is known to wait."""
        return self._heap[0].due_ms if self._heap else None

    def due(self, now_ms: int) -> int:
        """Return how many keys in memory are due; looks at these and at little more."""
        heap, count, to_see = self._heap, 0, [0]
        while to_see:
            at = to_see.pop()
            if at < len(heap) and heap[at].due_ms <= now_ms:
                count += 1
                to_see += (2 * at + 1, 2 * at + 2)
        return count

    def add(self, key: PendingKey) -> None:
        """Take in a row that was just written."""
        if self.bound is not None and key >= self.bound:
            if self._seen_while_reading is not None:
                self._seen_while_reading.append(key)
            return
        heappush(self._heap, key)
        if len(self._heap) > 2 * self._limit and self._seen_while_reading is None:
            self._shrink()

    def take(self, now_ms: int, limit: int) -> list[PendingKey]:
        """Remove and return keys that are due, earliest first."""
        heap = self._heap
        taken: list[PendingKey] = []
        while heap and heap[0].due_ms <= now_ms and len(taken) < limit:
            taken.append(heappop(heap))
        return taken

    # Reading ------------------------------------------------------------------------------------

    def begin_reading(self) -> tuple[PendingKey, int]:
        """Return (first key, how many rows) to read; `read` or `not_read` must follow."""
        assert self.bound is not None, "all rows are in the window"
        self._seen_while_reading = []
        return self.bound, self._limit

    def read(self, keys: Sequence[PendingKey]) -> None:
        """Take in what was read; fewer rows than wanted: there are no more."""
        seen, self._seen_while_reading = self._seen_while_reading or [], None
        self.bound = keys[-1].following() if len(keys) >= self._limit else None
        self._heap.extend(keys)
        heapify(self._heap)
        for key in seen:
            self.add(key)

    def not_read(self) -> None:
        """Take in that reading failed; it is to be tried again."""
        self._seen_while_reading = None

    def _shrink(self) -> None:
        """Forget the latest keys; their rows are read again when their time comes near."""
        self._heap.sort()
        self.bound = self._heap[self._limit]
        # A sorted list is a heap.
        del self._heap[self._limit :]
