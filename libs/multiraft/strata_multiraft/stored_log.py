"""A replica's stored entries, as the raft core reads them: without blocking.

Terms are kept as runs, payloads come from the log's ring of recent ones. What is older is asked
for: `take_wanted` tells the driver what to read off the event loop, `fetched` brings it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from strata_multiraft.ports import Log
from strata_raft import Compacted, Entry, EntryKind, SnapshotMetadata


@dataclass(frozen=True, slots=True)
class Wanted:
    """A range of entries to read from disk."""

    first: int
    last: int
    max_bytes: int


class StoredLog:
    """`LogReader` over the shared log.

    Invariant: terms and kinds are known for every index in `_known_from.._last`, and the term also
    of `_known_from - 1`.
    """

    __slots__ = (
        "_fetched",
        "_first",
        "_kinds",
        "_known_from",
        "_last",
        "_log",
        "_replica_id",
        "_run_starts",
        "_run_terms",
        "_wanted",
    )

    def __init__(
        self, log: Log, replica_id: int, *, first_index: int, last_index: int, last_term: int
    ) -> None:
        self._log = log
        self._replica_id = replica_id
        self._first = first_index
        self._last = last_index
        self._known_from = last_index + 1
        self._run_starts = [last_index]
        self._run_terms = [last_term]
        # Kinds of entries that are not normal ones, from `_known_from` on.
        self._kinds: dict[int, EntryKind] = {}
        self._fetched: dict[int, Entry] = {}
        self._wanted: Wanted | None = None

    def wrote(self, entries: Sequence[Entry]) -> None:
        """Note entries that are durable now; they supersede from the first one's index on."""
        first = entries[0].index
        assert self._first <= first <= self._last + 1, "a hole in the log"
        if first <= self._last:
            self._truncate(first)
        for entry in entries:
            if entry.term != self._run_terms[-1]:
                self._run_starts.append(entry.index)
                self._run_terms.append(entry.term)
            if entry.kind is not EntryKind.NORMAL:
                self._kinds[entry.index] = entry.kind
        self._last = entries[-1].index

    def fetched(self, entries: Sequence[Entry]) -> None:
        """Bring what was asked for; it replaces what an earlier fetch brought."""
        self._fetched = {entry.index: entry for entry in entries}

    def wants_entries(self) -> bool:
        """Tell whether the core asked for entries that are not in memory."""
        return self._wanted is not None

    def take_wanted(self) -> Wanted | None:
        """Return what the core could not read from memory since the last call."""
        wanted, self._wanted = self._wanted, None
        return wanted

    def first_index(self) -> int:
        """See `LogReader`."""
        return self._first

    def last_index(self) -> int:
        """See `LogReader`."""
        return self._last

    def term(self, index: int) -> int:
        """See `LogReader`. An index from before the start may need one read from disk."""
        if index >= self._known_from - 1:
            return self._run_terms[bisect_right(self._run_starts, index) - 1]
        if index in self._fetched:
            return self._fetched[index].term
        if index < self._first:
            if index == 0:
                return 0
            raise Compacted
        return next(iter(self._log.entries(self._replica_id, index, index, 1))).term

    def entries(self, first: int, last: int, max_bytes: int) -> Sequence[Entry] | None:
        """See `LogReader`."""
        if first < self._first:
            raise Compacted
        chosen: list[Entry] = []
        size_bytes = 0
        for index in range(first, last + 1):
            entry = self._in_memory(index)
            if entry is None:
                break
            size_bytes += entry.size_bytes()
            if chosen and size_bytes > max_bytes:
                break
            chosen.append(entry)
        if not chosen:
            self._wanted = Wanted(first, last, max_bytes)
            return None
        return chosen

    def snapshot(self) -> SnapshotMetadata | None:
        """See `LogReader`; snapshots come with replication between nodes."""
        return None

    def _in_memory(self, index: int) -> Entry | None:
        if index in self._fetched:
            return self._fetched[index]
        if index < self._known_from:
            return None
        payload = self._log.recent(self._replica_id, index)
        if payload is None:
            return None
        kind = self._kinds.get(index, EntryKind.NORMAL)
        return Entry(self.term(index), index, kind, (payload,))

    def _truncate(self, index: int) -> None:
        term_before = self.term(index - 1)
        while self._run_starts and self._run_starts[-1] >= index:
            self._run_starts.pop()
            self._run_terms.pop()
        if not self._run_starts:
            self._run_starts.append(index - 1)
            self._run_terms.append(term_before)
        self._known_from = min(self._known_from, index)
        for stale in [known for known in self._kinds if known >= index]:
            del self._kinds[stale]
        self._fetched.clear()
