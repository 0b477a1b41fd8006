"""Base of all classes of rows: the key range of one kind in one raft group."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from strata_mq import layout
from strata_mq.layout import RowKind
from strata_state.ports import Row, RowBatch, StateStore

# Deleted one by one; each is a read of its row, and a mark that later scans pass over.
_FEW_ROWS = 16


class RowsOfKind:
    """A kind's key range in one raft group."""

    KIND: RowKind

    __slots__ = ("_prefix", "_raft_group", "_store")

    def __init__(self, store: StateStore, raft_group: int) -> None:
        self._store = store
        self._raft_group = raft_group
        self._prefix = layout.kind_prefix(raft_group, self.KIND)

    def _scan(self, prefix: bytes) -> Iterator[Row]:
        return self._store.scan(prefix, layout.prefix_end(prefix))

    def _delete(self, batch: RowBatch, prefix: bytes) -> None:
        batch.delete_range(prefix, layout.prefix_end(prefix))

    def _delete_stored(self, batch: RowBatch, begin: bytes, end: bytes) -> None:
        """Delete the rows of a range that are in the store, one by one where they are few.

        RocksDB sorts all deleted ranges of its memtable anew for the first read after each
        deletion: with ten thousand of them every scan takes milliseconds. Rows that the same batch
        has put before may stay.
        """
        rows = islice(self._store.scan(begin, end), _FEW_ROWS + 1)
        keys = [key for key, _ in rows]
        if len(keys) > _FEW_ROWS:
            batch.delete_range(begin, end)
            return
        for key in keys:
            batch.delete(key)

    def _delete_stored_of(self, batch: RowBatch, prefix: bytes) -> None:
        self._delete_stored(batch, prefix, layout.prefix_end(prefix))
