"""The log of one replica: an unsynced tail over stored entries.

    stored, read through LogReader       tail, in memory
    [first_index ........ persisted] [persisted + 1 .. last_index]
                 committed ^ may be anywhere up to last_index

Invariants: the tail holds exactly the entries that are not known to be synced; `committed` and
`persisted` never pass `last_index`; nothing at or below `committed` is ever
truncated. The log does not know terms of office, roles or who sent an entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from strata_raft.types import Entry, SnapshotMetadata


class Compacted(Exception):
    """The entry is older than the stored log."""


class LogReader(Protocol):
    """Stored entries of one replica. Calls must not block: they happen inside `step`."""

    def first_index(self) -> int:
        """Return the index of the oldest entry that can be read."""

    def last_index(self) -> int:
        """Return the index of the newest stored entry; `first_index() - 1`: there is none."""

    def term(self, index: int) -> int:
        """Return the term of the entry at `index`, from `first_index() - 1` on.

        Raises:
            Compacted: `index` is lower.
        """

    def entries(self, first: int, last: int, max_bytes: int) -> Sequence[Entry] | None:
        """Return entries from `first` up to `last`, at least one, then up to `max_bytes`.

        None: they are not in memory; the owner fetches them and steps `EntriesFetched`.

        Raises:
            Compacted: `first` is below `first_index()`.
        """

    def snapshot(self) -> SnapshotMetadata | None:
        """Return the newest snapshot that could be sent; None: there is none yet."""


class RaftLog:
    """Entries by index, stored and not yet stored."""

    __slots__ = (
        "_last_term",
        "_next_unwritten",
        "_reader",
        "_snapshot",
        "_syncs",
        "_tail",
        "committed",
        "floor",
        "last_index",
        "persisted",
    )

    def __init__(self, reader: LogReader, committed: int, floor: tuple[int, int] = (0, 0)) -> None:
        self._reader = reader
        # (term, index): this replica may have acknowledged entries up to here that are gone.
        self.floor = floor
        self._tail: list[Entry] = []
        # Syncs under way: (sequence, last index that it makes durable).
        self._syncs: deque[tuple[int, int]] = deque()
        self._snapshot: SnapshotMetadata | None = None
        self.last_index = self.persisted = reader.last_index()
        self._next_unwritten = self.last_index + 1
        self._last_term = reader.term(self.last_index)
        # Only what is committed is ever compacted, whatever the last hard state knew.
        self.committed = max(min(committed, self.last_index), reader.first_index() - 1)

    @property
    def first_index(self) -> int:
        """The index of the oldest entry that can be read."""
        return self._reader.first_index()

    @property
    def last_term(self) -> int:
        """The term of the newest entry."""
        return self._last_term

    def term(self, index: int) -> int:
        """Return the term at `index`; 0 beyond the end.

        Raises:
            Compacted: the entry is too old to know.
        """
        if index > self.last_index:
            return 0
        if index > self.persisted:
            return self._tail[index - self.persisted - 1].term
        if self._snapshot is not None and index == self._snapshot.index:
            return self._snapshot.term
        return self._reader.term(index)

    def matches(self, index: int, term: int) -> bool:
        """Tell whether the log has an entry of this term at `index`."""
        try:
            return index <= self.last_index and self.term(index) == term
        except Compacted:
            return False

    def is_at_least(self, last_index: int, last_term: int) -> bool:
        """Tell whether a log that ends there is as up to date as this one (thesis 3.6.1).

        A truncated log counts as if it still had its former end, or the end it would have had.
        """
        return (last_term, last_index) >= max((self._last_term, self.last_index), self.floor)

    def is_whole(self) -> bool:
        """Tell whether the log is again as long as it was when it was truncated, if it ever was."""
        return (self._last_term, self.last_index) >= self.floor

    def entries(self, first: int, max_bytes: int) -> tuple[Entry, ...] | None:
        """Return entries from `first` on: at least one, then up to `max_bytes` of payload.

        None: they are stored and not in memory, see `LogReader.entries`.

        Raises:
            Compacted: `first` is too old.
        """
        if first > self.last_index:
            return ()
        if first <= self.persisted:
            stored = self._reader.entries(first, self.persisted, max_bytes)
            return None if stored is None else tuple(stored)
        chosen: list[Entry] = []
        size_bytes = 0
        for entry in self._tail[first - self.persisted - 1 :]:
            size_bytes += entry.size_bytes()
            if chosen and size_bytes > max_bytes:
                break
            chosen.append(entry)
        return tuple(chosen)

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries right after the last one."""
        assert entries[0].index == self.last_index + 1
        self._tail.extend(entries)
        self.last_index = entries[-1].index
        self._last_term = entries[-1].term

    def first_conflict(self, entries: Sequence[Entry]) -> int:
        """Return the position in `entries` of the first that this log lacks, or their number."""
        for position, entry in enumerate(entries):
            if not self.matches(entry.index, entry.term):
                return position
        return len(entries)

    def truncate(self, index: int) -> None:
        """Forget everything from `index` on; a stored suffix is superseded by the next write."""
        assert self.committed < index <= self.last_index
        if index > self.persisted:
            del self._tail[index - self.persisted - 1 :]
        else:
            self._tail.clear()
            self.persisted = index - 1
        self.last_index = index - 1
        self._last_term = self.term(index - 1)
        self._next_unwritten = min(self._next_unwritten, index)
        self._syncs = deque((number, min(last, index - 1)) for number, last in self._syncs)

    def agreement(self, index: int, term: int) -> tuple[int, int]:
        """Return the highest (index, term) at or below `index` whose term is at most `term`.

        A probe that jumps there skips a whole term of conflicting entries at a time (the
        optimisation at the end of thesis section 3.5). The term is 0 if it is too old to know.
        """
        index = min(index, self.last_index)
        try:
            while index > 0 and self.term(index) > term:
                index -= 1
            return index, self.term(index)
        except Compacted:
            return index, 0

    def take_unwritten(self) -> tuple[Entry, ...]:
        """Return the entries that have not been given out for writing."""
        if self._next_unwritten > self.last_index:
            return ()
        entries = tuple(self._tail[self._next_unwritten - self.persisted - 1 :])
        self._next_unwritten = self.last_index + 1
        return entries

    def sync_started(self, sequence: int) -> None:
        """Remember what is durable when the sync of that number is done."""
        self._syncs.append((sequence, self.last_index))

    def synced(self, sequence: int) -> None:
        """Note that all syncs up to that number are done."""
        persisted = self.persisted
        while self._syncs and self._syncs[0][0] <= sequence:
            persisted = max(persisted, self._syncs.popleft()[1])
        del self._tail[: persisted - self.persisted]
        self.persisted = persisted

    def drop_unsynced(self) -> None:
        """Forget the tail: it could not be written.

        `committed` may go back here, and only here: others hold what was committed without this
        replica, and it will come again. Nothing above `persisted` was ever ready to apply.
        """
        self._syncs.clear()
        self._tail.clear()
        self.last_index = self.persisted
        self.committed = min(self.committed, self.persisted)
        self._last_term = self.term(self.persisted)
        self._next_unwritten = self.persisted + 1

    def commit_to(self, index: int) -> bool:
        """Raise `committed`, never lower it; return whether it moved."""
        if index <= self.committed:
            return False
        assert index <= self.last_index, "a commit beyond the log means that entries were lost"
        self.committed = index
        return True

    def restore(self, snapshot: SnapshotMetadata) -> None:
        """Start again right after a snapshot that is already in the store."""
        assert snapshot.index > self.committed
        self._snapshot = snapshot
        self._tail.clear()
        self._syncs.clear()
        self.last_index = self.persisted = self.committed = snapshot.index
        self._last_term = snapshot.term
        self._next_unwritten = snapshot.index + 1

    def snapshot(self) -> SnapshotMetadata | None:
        """Return the newest snapshot that could be sent."""
        return self._reader.snapshot()
