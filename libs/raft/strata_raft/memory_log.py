"""`LogReader` over a list: for examples, tests and simulation."""

from __future__ import annotations

from collections.abc import Sequence

from strata_raft.log import Compacted
from strata_raft.types import Entry, SnapshotMetadata


class MemoryLog:
    """Stored entries in memory, after a snapshot or from index 1."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._base_index = 0
        self._base_term = 0
        self._snapshot: SnapshotMetadata | None = None

    def write(self, entries: Sequence[Entry]) -> None:
        """Store entries; they supersede stored ones with the same or a higher index (rule 9)."""
        if entries:
            del self._entries[entries[0].index - self._base_index - 1 :]
            assert entries[0].index == self.last_index() + 1, "a hole in the log"
            self._entries.extend(entries)

    def compact(self, snapshot: SnapshotMetadata) -> None:
        """Drop entries up to a snapshot's index and offer the snapshot to followers."""
        term = self.term(snapshot.index)
        del self._entries[: snapshot.index - self._base_index]
        self._base_index, self._base_term = snapshot.index, term
        self._snapshot = snapshot

    def install(self, snapshot: SnapshotMetadata) -> None:
        """Start again right after a snapshot."""
        self._entries.clear()
        self._base_index, self._base_term = snapshot.index, snapshot.term
        self._snapshot = snapshot

    def first_index(self) -> int:
        """See `LogReader`."""
        return self._base_index + 1

    def last_index(self) -> int:
        """See `LogReader`."""
        return self._base_index + len(self._entries)

    def term(self, index: int) -> int:
        """See `LogReader`."""
        if index < self._base_index:
            raise Compacted
        if index == self._base_index:
            return self._base_term
        return self._entries[index - self._base_index - 1].term

    def entries(self, first: int, last: int, max_bytes: int) -> Sequence[Entry]:
        """See `LogReader`."""
        if first <= self._base_index:
            raise Compacted
        chosen: list[Entry] = []
        size_bytes = 0
        for entry in self._entries[first - self._base_index - 1 : last - self._base_index]:
            size_bytes += entry.size_bytes()
            if chosen and size_bytes > max_bytes:
                break
            chosen.append(entry)
        return chosen

    def snapshot(self) -> SnapshotMetadata | None:
        """See `LogReader`."""
        return self._snapshot
