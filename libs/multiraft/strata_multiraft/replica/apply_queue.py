"""Durable entries of one replica that wait to be applied, within a memory limit.

Invariant: the entries have no gap. Missing entries after the applied index are read back from the
log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from strata_raft import Entry


class ApplyQueue:
    """Entries in memory between the log and the state machine.

    Args:
        applied_index: what the machine has applied.
        ready_index: what may be applied: committed and durable here.
        limit_bytes: payload bytes to keep in memory.
    """

    __slots__ = ("_entries", "_limit_bytes", "_size_bytes", "applied_index", "ready_index")

    def __init__(self, applied_index: int, ready_index: int, limit_bytes: int) -> None:
        self.applied_index = applied_index
        self.ready_index = ready_index
        self._limit_bytes = limit_bytes
        self._entries: deque[Entry] = deque()
        self._size_bytes = 0

    def wrote(self, entries: Sequence[Entry]) -> None:
        """Keep durable entries; they supersede those of the same and higher indexes."""
        kept = self._entries
        while kept and kept[-1].index >= entries[0].index:
            self._size_bytes -= kept.pop().size_bytes()
        expected = kept[-1].index + 1 if kept else self.applied_index + 1
        for entry in entries:
            if entry.index != expected or self._size_bytes >= self._limit_bytes:
                return
            kept.append(entry)
            self._size_bytes += entry.size_bytes()
            expected += 1

    def lag(self) -> int:
        """Return how many entries may be applied."""
        return max(0, self.ready_index - self.applied_index)

    def lag_bytes(self) -> int:
        """Return the payload bytes of those that are in memory; looks at each of them."""
        if not self.lag():
            return 0
        ready = self.ready_index
        return sum([entry.size_bytes() for entry in self._entries if entry.index <= ready])

    def missing_range(self) -> tuple[int, int] | None:
        """Return the range to read back before anything can be applied; None: it is in memory."""
        if self._entries and self._entries[0].index == self.applied_index + 1:
            return None
        return self.applied_index + 1, self.ready_index

    def take(self, max_bytes: int, max_entries: int) -> list[Entry]:
        """Return the next entries in memory that may be applied: one, then up to the limits."""
        chosen: list[Entry] = []
        size_bytes = taken_bytes = 0
        while self._entries and self._entries[0].index <= self.ready_index:
            size_bytes += self._entries[0].size_bytes()
            if chosen and (size_bytes > max_bytes or len(chosen) >= max_entries):
                break
            taken_bytes = size_bytes
            chosen.append(self._entries.popleft())
        self._size_bytes -= taken_bytes
        return chosen

    def restart(self, applied_index: int) -> None:
        """Go on from here: the rows were replaced."""
        self._entries.clear()
        self._size_bytes = 0
        self.applied_index = self.ready_index = applied_index
