"""Limits of key-value tables in a storage node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Limits of one table and of one request.

    Attributes:
        max_key_bytes: of a key.
        max_value_bytes: of a value.
        max_operations: of one request.
        history_max_changes: changes kept for watchers; between half of this number and all of it.
        history_max_bytes: keys and values of these changes, likewise.
        memory_table_max_bytes: keys and values of a table whose items are in memory.
        memory_unsettled_max_bytes: changes of items in memory after which they are written to the
            store, so that no write of them is long.
        table_rows_max: rows of tables kept in memory, per raft group.
    """

    max_key_bytes: int = 4 * 1024
    max_value_bytes: int = 1024 * 1024
    max_operations: int = 1_024
    history_max_changes: int = 20_000
    history_max_bytes: int = 64 * 1024 * 1024
    memory_table_max_bytes: int = 64 * 1024 * 1024
    memory_unsettled_max_bytes: int = 4 * 1024 * 1024
    table_rows_max: int = 10_000
