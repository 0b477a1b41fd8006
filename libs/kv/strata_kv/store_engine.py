"""Items in the row store: RocksDB without write-ahead log, restored from the CommitLog."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from strata_kv.rows import Keys
from strata_state.ports import RowBatch, StateStore


class StoreEngine:
    """`ItemEngine` over the rows of one raft group: a staged change is a row of the batch."""

    def __init__(self, store: StateStore, raft_group: int) -> None:
        self._store = store
        self._keys = Keys(raft_group)

    def get(self, table_id: int, key: bytes) -> bytes | None:
        """Return an item's row."""
        return self._store.get(self._keys.item(table_id, key))

    def scan(
        self, table_id: int, begin: bytes, end: bytes, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate (key, row) as they are at the call."""
        first, last = self._keys.items(table_id, begin, end)
        rows = islice(self._store.scan(first, last), limit)
        key_of = self._keys.key_of
        return ((key_of(row_key), row) for row_key, row in rows)

    def put(self, batch: RowBatch, table_id: int, key: bytes, row: bytes) -> None:
        """Write an item."""
        batch.put(self._keys.item(table_id, key), row)

    def delete(self, batch: RowBatch, table_id: int, key: bytes) -> None:
        """Remove an item."""
        batch.delete(self._keys.item(table_id, key))

    def drop(self, batch: RowBatch, table_id: int) -> None:
        """Remove a table's items."""
        batch.delete_range(*self._keys.items(table_id, b"", b""))

    def written(self) -> None:
        """Nothing is kept beside the store."""

    def forget(self) -> None:
        """Nothing is kept beside the store."""

    def reload(self) -> None:
        """Nothing is kept beside the store."""

    def settle(self, batch: RowBatch) -> bool:
        """The store has everything."""
        return False

    def settled(self) -> None:
        """The store has everything."""
