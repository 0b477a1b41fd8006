"""Parts of a snapshot in transit: start, rows, entries, end; each part has a checksum.

A snapshot is the rows of a raft group as of one applied index and the entries that these rows point
at (rule 2): the retained entries up to that index. An interrupted call is repeated and continues
after the last row that arrived, or at the next entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c

from strata_multiraft.base.errors import SnapshotBroken
from strata_raft import Configuration, Entry, SnapshotMetadata


@dataclass(frozen=True, slots=True)
class SnapshotFetch:
    """Asks for a snapshot.

    Attributes:
        raft_group: the raft group's id.
        source_replica_id: the replica that should give it.
        target_replica_id: who asks.
        index: the snapshot that was offered, or, when a call is made again, the one that began.
        term: of the entry at `index`.
        rows_after: key of the last row that arrived; empty: from the first one.
        entries_from: the next entry that is missing; 0: the rows are not complete.
    """

    raft_group: int
    source_replica_id: int
    target_replica_id: int
    index: int
    term: int
    rows_after: bytes = b""
    entries_from: int = 0

    def is_repeated(self) -> bool:
        """Tell whether this goes on with a call that was cut."""
        return bool(self.rows_after or self.entries_from)


@dataclass(frozen=True, slots=True)
class SnapshotStart:
    """Header of a snapshot that follows: at least as new as the one that was asked for.

    `first_entry_index`: the lowest index among the entries; `index + 1` if there are none.
    """

    index: int
    term: int
    configuration: Configuration
    first_entry_index: int

    def metadata(self) -> SnapshotMetadata:
        """Return what the raft core needs to know."""
        return SnapshotMetadata(self.index, self.term, self.configuration)


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """Rows in the order of their keys, which are without the raft group; `crc` over both."""

    keys: Sequence[bytes]
    values: Sequence[bytes]
    crc: int = 0

    def size_bytes(self) -> int:
        """Return the length of keys and values."""
        return sum(map(len, self.keys)) + sum(map(len, self.values))

    def sealed(self) -> SnapshotRows:
        """Return the rows with their checksum, to be sent."""
        return SnapshotRows(self.keys, self.values, self._sum())

    def check(self) -> None:
        """Verify what arrived.

        Raises:
            SnapshotBroken: it is not what was sent.
        """
        if len(self.keys) != len(self.values) or self._sum() != self.crc:
            raise SnapshotBroken("rows were damaged on the way")

    def _sum(self) -> int:
        crc = 0
        for column in (self.keys, self.values):
            for item in column:
                crc = google_crc32c.extend(crc, item)
        return crc


@dataclass(frozen=True, slots=True)
class SnapshotEntries:
    """Entries without a hole; holes may be between two parts. `crc` is over the payloads."""

    entries: tuple[Entry, ...]
    crc: int = 0

    def size_bytes(self) -> int:
        """Return the length of the payloads."""
        return sum(entry.size_bytes() for entry in self.entries)

    def sealed(self) -> SnapshotEntries:
        """Return the entries with their checksum, to be sent."""
        return SnapshotEntries(self.entries, self._sum())

    def check(self) -> None:
        """Verify what arrived.

        Raises:
            SnapshotBroken: it is not what was sent.
        """
        if self._sum() != self.crc:
            raise SnapshotBroken("entries were damaged on the way")

    def _sum(self) -> int:
        crc = 0
        for entry in self.entries:
            for chunk in entry.payload:
                crc = google_crc32c.extend(crc, chunk)
        return crc


@dataclass(frozen=True, slots=True)
class SnapshotEnd:
    """All of it was sent: how many rows and entries in this call."""

    row_count: int
    entry_count: int


SnapshotPart = SnapshotStart | SnapshotRows | SnapshotEntries | SnapshotEnd
