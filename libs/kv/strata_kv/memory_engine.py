"""Items in memory, for small state: reads touch no file, a write stores no row at once.

The engine knows the keys that changed since it last settled and writes them to the row store at the
next settling; until then only the log has these changes. Invariant: the store's rows of these
tables are those of one applied index, the last settled one; later entries of the log are applied to
them again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice

from strata_kv.rows import Keys
from strata_state.ports import RowBatch, StateStore

_Staged = tuple[int, bytes, bytes | None]
"""(table id, key, row; None: it goes)."""


class _Items:
    """The items of one table, in order."""

    __slots__ = ("dirty", "keys", "rows")

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []
        # Keys whose row in the store is not the one here.
        self.dirty: set[bytes] = set()

    def change(self, key: bytes, row: bytes | None) -> None:
        self.dirty.add(key)
        if row is None:
            if self.rows.pop(key, None) is not None:
                del self.keys[bisect_left(self.keys, key)]
        else:
            if key not in self.rows:
                insort(self.keys, key)
            self.rows[key] = row


class MemoryEngine:
    """`ItemEngine` in memory; a table is read from the store when it is first used.

    Attributes:
        unsettled_bytes: keys and rows that were written since the last settling.
    """

    def __init__(self, store: StateStore, raft_group: int) -> None:
        self.unsettled_bytes = 0
        self._store = store
        self._row_keys = Keys(raft_group)
        self._tables: dict[int, _Items] = {}
        self._staged: list[_Staged] = []
        # Tables that go with the batch.
        self._dropped: list[int] = []

    def get(self, table_id: int, key: bytes) -> bytes | None:
        """Return an item's row."""
        return self._items(table_id).rows.get(key)

    def scan(
        self, table_id: int, begin: bytes, end: bytes, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate (key, row) as they are at the call."""
        items = self._items(table_id)
        first = bisect_left(items.keys, begin)
        last = bisect_left(items.keys, end) if end else len(items.keys)
        if limit is not None:
            last = min(last, first + limit)
        return iter([(key, items.rows[key]) for key in islice(items.keys, first, max(first, last))])

    def put(self, batch: RowBatch, table_id: int, key: bytes, row: bytes) -> None:
        """Stage an item."""
        self._staged.append((table_id, key, row))

    def delete(self, batch: RowBatch, table_id: int, key: bytes) -> None:
        """Stage a removal."""
        self._staged.append((table_id, key, None))

    def drop(self, batch: RowBatch, table_id: int) -> None:
        """Remove a table's rows with the batch, and its items when it is written."""
        batch.delete_range(*self._row_keys.items(table_id, b"", b""))
        self._staged = [change for change in self._staged if change[0] != table_id]
        self._dropped.append(table_id)

    def written(self) -> None:
        """Show what was staged."""
        staged, self._staged = self._staged, []
        dropped, self._dropped = self._dropped, []
        for table_id in dropped:
            self._tables.pop(table_id, None)
        for table_id, key, row in staged:
            self._items(table_id).change(key, row)
            self.unsettled_bytes += len(key) + len(row or b"")

    def forget(self) -> None:
        """Drop what was staged; the items stay, unless the store has other ones."""
        self._staged.clear()
        self._dropped.clear()

    def reload(self) -> None:
        """Read all tables again: their rows in the store were replaced."""
        self.forget()
        self.unsettled_bytes = 0
        self._tables.clear()

    def settle(self, batch: RowBatch) -> bool:
        """Write the rows of changed keys."""
        changed = False
        for table_id, items in self._tables.items():
            for key in items.dirty:
                row = items.rows.get(key)
                row_key = self._row_keys.item(table_id, key)
                if row is None:
                    batch.delete(row_key)
                else:
                    batch.put(row_key, row)
            changed = changed or bool(items.dirty)
        return changed

    def settled(self) -> None:
        """The store has everything."""
        self.unsettled_bytes = 0
        for items in self._tables.values():
            items.dirty.clear()

    def _items(self, table_id: int) -> _Items:
        items = self._tables.get(table_id)
        if items is None:
            items = _Items()
            for row_key, row in self._store.scan(*self._row_keys.items(table_id, b"", b"")):
                key = self._row_keys.key_of(row_key)
                items.rows[key] = row
                items.keys.append(key)
            # Only now: a scan may fail, and a part of a table is never taken for the whole.
            self._tables[table_id] = items
        return items
