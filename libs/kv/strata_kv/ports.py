"""The port of an engine, which holds the items of tables.

Two adapters: `store_engine` (RocksDB, far more than memory) and `memory_engine` (small state,
written to the store from time to time). One contract suite runs over both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from strata_state.ports import RowBatch


class ItemEngine(Protocol):
    """Items of one raft group's tables: (table id, key) -> item row (`rows.encode_item`).

    Changes are staged with a batch of the row store and show when `written` is called after the
    batch was written; nothing of a batch that failed may show (`forget`).
    """

    def get(self, table_id: int, key: bytes) -> bytes | None:
        """Return an item's row; None: there is no such key."""

    def scan(
        self, table_id: int, begin: bytes, end: bytes, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate (key, row) of begin <= key < end in order, as they are at the call.

        Args:
            table_id: of the table.
            begin: first key; b"": from the first.
            end: behind the last; b"": to the last.
            limit: items wanted at most; None: all.
        """

    def put(self, batch: RowBatch, table_id: int, key: bytes, row: bytes) -> None:
        """Write an item with the batch."""

    def delete(self, batch: RowBatch, table_id: int, key: bytes) -> None:
        """Remove an item with the batch; a missing one is no error."""

    def drop(self, batch: RowBatch, table_id: int) -> None:
        """Remove all items of a table with the batch."""

    def written(self) -> None:
        """The batch with the staged changes is in the store."""

    def forget(self) -> None:
        """The batch with the staged changes was not written."""

    def reload(self) -> None:
        """All rows in the store were replaced, by a snapshot say."""

    def settle(self, batch: RowBatch) -> bool:
        """Write with the batch what the store does not have yet; return whether there was any.

        When the batch was not written, `settle` is called again with another one.
        """

    def settled(self) -> None:
        """The batch of `settle` is in the store."""
