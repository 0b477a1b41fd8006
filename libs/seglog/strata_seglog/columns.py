"""The position index of one replica in one segment: columns, no object per entry.

Invariants:
- Rows are in file order; a row is never changed or removed, so a footer lists everything that was
  written.
- The *live* rows are the rows that rule 9 leaves: a row with index i ends every earlier row with
  index >= i; a moved row replaces a row of the same index and ends no other row.
- `cut`: this segment ends all rows with index >= `cut` of earlier segments.

While every index is above the previous one (the usual case), all rows are live and only the columns
are kept.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from operator import lt

NO_CUT = 1 << 64
"""`cut` of a segment that ends nothing: above every index."""

_MOVED = 0x80
_IS_MOVED, _NOT_MOVED = b"\x01", b"\x00"
# Entry kind byte -> whether the row is a moved one.
_MOVED_OR_NOT = bytes(int(kind >= _MOVED) for kind in range(256))
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

    def term_runs(self) -> tuple[tuple[int, int], ...]:
        """Return (first index, term) of each run of live rows of one term, ascending."""
        live, terms = self.live_indexes, self.terms
        if not live:
            return ()
        if self._live_rows is not None:
            terms = array("Q", map(terms.__getitem__, self._live_rows))
        if terms == array("Q", terms[:1]) * len(terms):
            return ((live[0], terms[0]),)
        runs: list[tuple[int, int]] = []
        at = 0
        for term, same in groupby(terms):
            runs.append((live[at], term))
            at += sum(1 for _ in same)
        return tuple(runs)

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

    def rows_from(self, first: int, last: int) -> Sequence[int]:
        """Return the live rows from index `first` on, up to `last` or the first hole."""
        live = self.live_indexes
        at = bisect_left(live, first)
        # Without a hole an index is as far from the first one as its place is.
        end = bisect_right(live, last, at)
        if at == end or live[at] != first:
            return range(0)
        if live[end - 1] - first != end - 1 - at:
            end = at + bisect_left(range(end - at), True, key=lambda n: live[at + n] - first > n)
        return range(at, end) if self._live_rows is None else self._live_rows[at:end]

    def located_from(self, first: int, last: int) -> tuple[list[int], list[int]]:
        """Return offsets and terms of `rows_from`."""
        rows = self.rows_from(first, last)
        if isinstance(rows, range):
            found = slice(rows.start, rows.stop)
            return self.offsets[found].tolist(), self.terms[found].tolist()
        return [self.offsets[row] for row in rows], [self.terms[row] for row in rows]

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
        self._live_indexes, self._live_rows = array("Q"), array("I")
        kinds = self.kinds.tobytes().translate(_MOVED_OR_NOT)
        start = 0
        while start < len(kinds):
            moved = kinds[start : start + 1]
            end = kinds.find(_NOT_MOVED if moved == _IS_MOVED else _IS_MOVED, start)
            end = len(kinds) if end < 0 else end
            self._take_rows(start, end, moved=moved == _IS_MOVED)
            start = end
        if self._live_indexes == self.indexes:
            self._live_indexes = self._live_rows = None

    def _take_rows(self, start: int, end: int, *, moved: bool) -> None:
        """Take rows of one sort into the live ones, a stretch of rising indexes at a time."""
        assert self._live_indexes is not None
        assert self._live_rows is not None
        indexes = self.indexes[start:end]
        at = 0
        while at < len(indexes):
            until = _rising_until(indexes, at)
            stretch = indexes[at:until]
            live = self._live_indexes
            low = bisect_left(live, stretch[0])
            if not moved:
                live[low:] = stretch
                self._live_rows[low:] = array("I", range(start + at, start + until))
                self.cut = min(self.cut, stretch[0])
            elif bisect_right(live, stretch[-1], low) == low:
                live[low:low] = stretch
                self._live_rows[low:low] = array("I", range(start + at, start + until))
            else:
                # Some replace a row of the same index, which is rare.
                for row in range(start + at, start + until):
                    self._take_moved_row(row)
            at = until

    def _take_moved_row(self, row: int) -> None:
        assert self._live_indexes is not None
        assert self._live_rows is not None
        index = self.indexes[row]
        at = bisect_left(self._live_indexes, index)
        end = at + (at < len(self._live_indexes) and self._live_indexes[at] == index)
        self._live_indexes[at:end] = array("Q", [index])
        self._live_rows[at:end] = array("I", [row])


def _rising_until(indexes: array[int], start: int) -> int:
    """Return the end of the stretch of rising indexes that begins at `start`.

    The usual stretch, all of them, is found without a loop.
    """
    rest = indexes[start:]
    if all(map(lt, rest, rest[1:])):
        return len(indexes)
    return start + 1 + next(n for n, (a, b) in enumerate(pairwise(rest)) if a >= b)


def _big_endian(column: array[int]) -> array[int]:
    if not _SWAP:
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped
