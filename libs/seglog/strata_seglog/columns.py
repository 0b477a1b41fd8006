"""The position index of one replica in one segment: columns, no object per entry.

Invariants:
- Rows stand in file order; a row is never changed or removed, so a footer tells all that was
  written.
- The *live* rows are those that rule 9 leaves: a row with index i ends every earlier row with
  index >= i; a moved row replaces a row of the same index and ends no other.
- `cut`: this segment ends all rows with index >= `cut` of earlier segments.

While every index is above the one before (the usual case) the live rows are all rows and nothing
but the columns is kept.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

NO_CUT = 1 << 64
"""`cut` of a segment that ends nothing: above every index."""

_MOVED = 0x80
_SWAP = sys.byteorder == "little"
BYTES_PER_ROW = 8 + 8 + 4 + 1


class EntryColumns:
    """Index, term, offset in the segment and entry kind of every entry frame of one replica."""

    __slots__ = ("_live_indexes", "_live_rows", "cut", "indexes", "kinds", "offsets", "terms")

    def __init__(self) -> None:
        self.indexes = array("Q")
        self.terms = array("Q")
        self.offsets = array("I")
        self.kinds = array("B")
        self.cut = NO_CUT
        # Both None while all rows are live and ascending.
        self._live_indexes: array[int] | None = None
        self._live_rows: array[int] | None = None

    def __len__(self) -> int:
        """Rows in file order, live or not."""
        return len(self.indexes)

    @property
    def live_indexes(self) -> array[int]:
        """Indexes of the live rows, ascending."""
        return self.indexes if self._live_indexes is None else self._live_indexes

    def live(self) -> Iterator[tuple[int, int]]:
        """Yield (index, offset in the segment) of the live rows, by index."""
        rows = range(len(self.indexes)) if self._live_rows is None else self._live_rows[:]
        for row in rows:
            yield self.indexes[row], self.offsets[row]

    def find(self, index: int) -> int:
        """Return the live row of `index`, -1 if there is none."""
        live = self.live_indexes
        at = bisect_left(live, index)
        if at == len(live) or live[at] != index:
            return -1
        return at if self._live_rows is None else self._live_rows[at]

    def next_after(self, index: int, default: int) -> int:
        """Return the lowest live index above `index`, `default` if there is none."""
        live = self.live_indexes
        at = bisect_right(live, index)
        return live[at] if at < len(live) else default

    def live_of_kind(self, kind: int) -> Iterator[int]:
        """Yield the indexes of the live rows of an entry kind; cheap if there are few of them."""
        kinds = self.kinds.tobytes()
        for stored_kind in (kind, kind | _MOVED):
            wanted = bytes((stored_kind,))
            row = kinds.find(wanted)
            while row >= 0:
                index = self.indexes[row]
                if self.find(index) == row:
                    yield index
                row = kinds.find(wanted, row + 1)

    def offsets_from(self, first: int, last: int) -> list[int]:
        """Return the offsets of live rows from `first` on, up to `last` or the first hole."""
        offsets = []
        for index in range(first, last + 1):
            row = self.find(index)
            if row < 0:
                break
            offsets.append(self.offsets[row])
        return offsets

    def append(self, index: int, term: int, offset: int, kind: int, *, moved: bool) -> None:
        """Add a row at the end; `kind` is the entry kind, below 128."""
        live = self.live_indexes
        in_order = not live or index > live[-1]
        if not in_order:
            self._supersede(index, moved=moved)
        self.terms.append(term)
        self.offsets.append(offset)
        self.kinds.append(kind | _MOVED if moved else kind)
        self.indexes.append(index)
        if not moved and index < self.cut:
            self.cut = index
        if in_order and self._live_rows is not None and self._live_indexes is not None:
            self._live_rows.append(len(self.indexes) - 1)
            self._live_indexes.append(index)

    def _supersede(self, index: int, *, moved: bool) -> None:
        """Make room among the live rows for the row that is about to be appended."""
        if self._live_rows is None or self._live_indexes is None:
            self._live_indexes = self.indexes[:]
            self._live_rows = array("I", range(len(self.indexes)))
        at = bisect_left(self._live_indexes, index)
        if moved:
            end = at + (at < len(self._live_indexes) and self._live_indexes[at] == index)
        else:
            end = len(self._live_indexes)
        self._live_indexes[at:end] = array("Q", [index])
        self._live_rows[at:end] = array("I", [len(self.indexes)])

    def entry_kind(self, row: int) -> int:
        """Return the entry kind of a row."""
        return self.kinds[row] & ~_MOVED

    def live_between(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return (index, offset) of the live rows whose frames begin in [start, end)."""
        return [(index, offset) for index, offset in self.live() if start <= offset < end]

    def encode(self) -> bytes:
        """Return the columns as a footer holds them."""
        return b"".join(
            _big_endian(column).tobytes()
            for column in (self.indexes, self.terms, self.offsets, self.kinds)
        )

    @classmethod
    def decode(cls, data: memoryview, rows: int) -> EntryColumns:
        """Read what `encode` wrote; `data` has exactly `rows` rows."""
        columns = cls()
        at = 0
        for column in (columns.indexes, columns.terms, columns.offsets, columns.kinds):
            column.frombytes(data[at : at + rows * column.itemsize])
            at += rows * column.itemsize
            if _SWAP:
                column.byteswap()
        columns._find_live_rows()
        return columns

    def _find_live_rows(self) -> None:
        if not self.indexes:
            return
        first = self.indexes[0]
        contiguous = self.indexes == array("Q", range(first, first + len(self.indexes)))
        if contiguous and max(self.kinds) < _MOVED:
            self.cut = first
            return
        replayed = EntryColumns()
        for row, index in enumerate(self.indexes):
            kind = self.kinds[row]
            replayed.append(index, 0, 0, kind & ~_MOVED, moved=bool(kind & _MOVED))
        self.cut = replayed.cut
        self._live_indexes = replayed._live_indexes
        self._live_rows = replayed._live_rows


def _big_endian(column: array[int]) -> array[int]:
    if not _SWAP:
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped
