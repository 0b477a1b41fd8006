"""A replica's stored entries, read by the raft core without waiting for the disk.

Terms are kept as runs; payloads come from the log's ring of recent entries. Older entries are
requested: `take_wanted` tells the driver which entries to read off the event loop, and `fetched`
delivers them for the next step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from strata_multiraft.base.ports import Log
from strata_raft import Compacted, Entry, EntryKind, SnapshotMetadata


@dataclass(frozen=True, slots=True)
class WantedEntries:
    """A range of entries to read from disk."""

    first: int
    last: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Bounds of a replica's log.

    Attributes:
        first_index: of the oldest entry; `last_index + 1`: there is none.
        last_index: of the newest entry.
        last_term: its term.
        base_term: term of the entry before the first one; None: not known.
    """

    first_index: int
    last_index: int
    last_term: int
    base_term: int | None


Floor = tuple[int, int]
"""Term and index of an entry, as `RawNode` compares them."""

EMPTY_LOG = LogEnds(1, 0, 0, 0)


def no_offer() -> SnapshotMetadata | None:
    """Offer no snapshot."""
    return None


class StoredLog:
    """`LogReader` over the shared log.

    Invariant: terms and kinds are known for every index in `_known_from.._last`, and the term also
    of `_known_from - 1`.
    """

    __slots__ = (
        "_base_term",
        "_being_read",
        "_fetched",
        "_first",
        "_kinds",
        "_known_from",
        "_last",
        "_log",
        "_offer",
        "_replica_id",
        "_run_starts",
        "_run_terms",
        "_wanted",
    )

    def __init__(
        self,
        log: Log,
        replica_id: int,
        ends: LogEnds,
        *,
        offer: Callable[[], SnapshotMetadata | None] = no_offer,
    ) -> None:
        self._log = log
        self._replica_id = replica_id
        self._offer = offer
        self._fetched: dict[int, Entry] = {}
        # By first index: one range per follower that is behind what memory holds.
        self._wanted: dict[int, WantedEntries] = {}
        self._being_read: set[int] = set()
        self.restored(ends)

    def restored(self, ends: LogEnds) -> None:
        """Begin anew: this is what the log holds now."""
        self._first = ends.first_index
        self._last = ends.last_index
        self._base_term = ends.base_term
        self._known_from = ends.last_index + 1
        self._run_starts = [ends.last_index]
        self._run_terms = [ends.last_term]
        # Kinds of entries that are not normal ones, from `_known_from` on.
        self._kinds: dict[int, EntryKind] = {}
        self._fetched.clear()
        self._wanted.clear()

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

    def trimmed_to(self, first_index: int, applied: tuple[int, int]) -> None:
        """Note that entries before `first_index` are gone (rule 10).

        Args:
            first_index: of the oldest entry that is left.
            applied: the machine's applied index and its term: a follower that ends there must
                not need a snapshot, for there is none that is newer.
        """
        if first_index <= self._first:
            return
        first_index = min(first_index, self._last + 1)
        base = first_index - 1
        if base >= self._known_from - 1:
            self._base_term = self._term_of_run(base)
        else:
            self._base_term = applied[1] if applied[0] == base else None
        self._first = first_index
        for stale in [known for known in self._kinds if known < first_index]:
            del self._kinds[stale]

    def fetched(self, done: Iterable[int], entries: Sequence[Entry]) -> None:
        """Hold what was asked for, beside what is held, until `forget_fetched`.

        Args:
            done: first indexes of the ranges that may be asked for again.
            entries: what was read of them.
        """
        self._being_read.difference_update(done)
        self._fetched.update((entry.index, entry) for entry in entries)

    def is_fetched(self, index: int) -> bool:
        """Tell whether an entry was read from the disk for this step."""
        return index in self._fetched

    def forget_fetched(self) -> None:
        """Let go of what was fetched: it has been sent, or will be asked for again."""
        self._fetched.clear()

    def wants_entries(self) -> bool:
        """Tell whether the core asked for entries that are not in memory."""
        return bool(self._wanted)

    def take_wanted(self) -> list[WantedEntries]:
        """Return what the core could not read from memory; not again until `fetched`."""
        wanted = list(self._wanted.values())
        self._being_read.update(self._wanted)
        self._wanted.clear()
        return wanted

    def first_index(self) -> int:
        """See `LogReader`."""
        return self._first

    def last_index(self) -> int:
        """See `LogReader`."""
        return self._last

    def term(self, index: int) -> int:
        """See `LogReader`. An index from before the start is looked up in the log's own index."""
        if index >= self._known_from - 1:
            return self._term_of_run(index)
        if index < self._first:
            if index == self._first - 1 and self._base_term is not None:
                return self._base_term
            raise Compacted
        if index in self._fetched:
            return self._fetched[index].term
        term = self._log.term(self._replica_id, index)
        if term is None:
            raise Compacted
        return term

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
            if first not in self._being_read:
                self._wanted[first] = WantedEntries(first, last, max_bytes)
            return None
        return chosen

    def snapshot(self) -> SnapshotMetadata | None:
        """See `LogReader`."""
        return self._offer()

    def _term_of_run(self, index: int) -> int:
        return self._run_terms[bisect_right(self._run_starts, index) - 1]

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
