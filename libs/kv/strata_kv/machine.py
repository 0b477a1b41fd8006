"""Apply of key-value tables in one raft group: KV_WRITE entries become rows, blindly (rule 1).

The leader decided the content of each entry (`decider`). Invariant: a table's revision only rises;
an entry that contradicts this stops the replica. A revision is the previous one plus one, except
where a repair of the log gave up entries.

It does not know the raft group, the leader or the readers; a table's id is the id of a topic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from strata_kv.commands import KvWrite, RequestEffects, decode_kv_write
from strata_kv.memory_engine import MemoryEngine
from strata_kv.model import ChangeKind, Engine
from strata_kv.options import TableOptions
from strata_kv.ports import ItemEngine
from strata_kv.rows import (
    ItemChange,
    ItemRow,
    Keys,
    ReplyRow,
    TableRow,
    decode_change,
    decode_index,
    encode_change,
    encode_index,
    encode_item,
)
from strata_kv.store_engine import StoreEngine
from strata_state.ports import RowBatch, StateError, StateStore


class KvApplyError(Exception):
    """A committed entry contradicts the rows; this replica must not go on."""


class ItemExpiry(NamedTuple):
    """When an item ends."""

    expires_at_ms: int
    table_id: int
    key: bytes


class TableMachine:
    """Tables of one raft group as of the applied index.

    Args:
        store: all rows.
        raft_group: whose rows.
        options: how much is cached.
        is_dropped: whether a table was deleted: entries that still name it do nothing.
        on_new_table: called with the batch and the id when a table gets its first row.

    Attributes:
        listener: told the ids of tables that changed, when the rows are in the store.
    """

    def __init__(
        self,
        store: StateStore,
        raft_group: int,
        options: TableOptions,
        *,
        is_dropped: Callable[[int], bool],
        on_new_table: Callable[[RowBatch, int], None],
    ) -> None:
        self._store = store
        self._keys = Keys(raft_group)
        self._options = options
        self._is_dropped = is_dropped
        self._on_new_table = on_new_table
        self._memory = MemoryEngine(store, raft_group)
        self._engines: Mapping[Engine, ItemEngine] = {
            Engine.ROCKSDB: StoreEngine(store, raft_group),
            Engine.MEMORY: self._memory,
        }
        # None: known to have no row.
        self._tables: OrderedDict[int, TableRow | None] = OrderedDict()
        self._touched: set[int] = set()
        # Raft index of the last staged entry.
        self._staged_index = 0
        self._has_memory_tables = self.settled_index() is not None
        self.listener: Callable[[set[int]], None] = lambda _: None

    # Reading ------------------------------------------------------------------------------------

    def table(self, table_id: int) -> TableRow | None:
        """Return a table's row; None: nothing was ever written to it here."""
        if table_id in self._tables:
            self._tables.move_to_end(table_id)
            return self._tables[table_id]
        data = self._store.get(self._keys.table(table_id))
        row = None if data is None else TableRow.decode(data)
        self._keep(table_id, row)
        return row

    def item(self, table_id: int, key: bytes) -> ItemRow | None:
        """Return an item; None: there is no such key."""
        table = self.table(table_id)
        data = None if table is None else self._engines[table.engine].get(table_id, key)
        return None if data is None else ItemRow(data)

    def scan(
        self, table_id: int, begin: bytes, end: bytes, limit: int | None = None
    ) -> Iterator[tuple[bytes, ItemRow]]:
        """Iterate (key, item) of begin <= key < end in order, as they are at the call."""
        table = self.table(table_id)
        if table is None:
            return iter(())
        rows = self._engines[table.engine].scan(table_id, begin, end, limit)
        return ((key, ItemRow(data)) for key, data in rows)

    def changes(self, table_id: int, first_revision: int) -> Iterator[tuple[int, ItemChange]]:
        """Iterate (revision, change) from a revision on, in order, as they are at the call."""
        _, end = self._keys.all_changes(table_id)
        rows = self._store.scan(self._keys.change(table_id, first_revision, 0), end)
        return ((self._keys.revision_of(key), decode_change(data)) for key, data in rows)

    def expiries(self, first_ms: int, end_ms: int, limit: int) -> list[ItemExpiry]:
        """Return items that end from `first_ms` to before `end_ms`, the first ones of them."""
        rows = islice(self._store.scan(*self._keys.expiries(first_ms, end_ms)), limit)
        return [ItemExpiry(*self._keys.expiry_of(key)) for key, _ in rows]

    def reply(self, broker_boot_id: int) -> ReplyRow | None:
        """Return what a broker's last batch that changed something was answered."""
        data = self._store.get(self._keys.reply(broker_boot_id))
        return None if data is None else ReplyRow.decode(data)

    # Apply --------------------------------------------------------------------------------------

    def apply(self, batch: RowBatch, raft_index: int, payload: bytes) -> int:
        """Stage the rows of the entry at an index; return its group time.

        Raises:
            CommandError: the payload is no KV_WRITE.
            KvApplyError: a revision goes back.
        """
        command = decode_kv_write(payload)
        self._staged_index = raft_index
        for section in command.sections:
            if self._is_dropped(section.table_id):
                self._drop_expiries(batch, section)
            else:
                self._write(batch, raft_index, section)
        self._put_reply(batch, command)
        return command.group_time_ms

    def _write(self, batch: RowBatch, raft_index: int, section: RequestEffects) -> None:
        table_id, table, changes = section
        before = self.table(table_id)
        if before is None:
            self._on_new_table(batch, table_id)
            if table.engine is Engine.MEMORY and not self._has_memory_tables:
                # From the first one on the store says which entries its items lack.
                batch.put(self._keys.settled, encode_index(raft_index - 1))
                self._has_memory_tables = True
        elif table.revision < before.revision + bool(changes):
            raise KvApplyError(
                f"table {table_id} is at revision {before.revision}, not below {table.revision}"
            )
        elif table.compacted_revision > before.compacted_revision:
            gone = self._keys.changes(table_id, 0, table.compacted_revision + 1)
            batch.delete_range(*gone)
        self._write_changes(batch, section)
        batch.put(self._keys.table(table_id), table.encode())
        self._keep(table_id, table)
        self._touched.add(table_id)

    def _write_changes(self, batch: RowBatch, section: RequestEffects) -> None:
        table_id, table, changes = section
        engine, keys, revision = self._engines[table.engine], self._keys, table.revision
        for ordinal, change in enumerate(changes):
            if change.old_expires_at_ms:
                batch.delete(keys.expiry(change.old_expires_at_ms, table_id, change.key))
            if change.kind == ChangeKind.PUT:
                row = encode_item(
                    change.create_revision,
                    revision,
                    change.version,
                    change.expires_at_ms,
                    change.value,
                )
                engine.put(batch, table_id, change.key, row)
                if change.expires_at_ms:
                    batch.put(keys.expiry(change.expires_at_ms, table_id, change.key), b"")
            else:
                engine.delete(batch, table_id, change.key)
            batch.put(keys.change(table_id, revision, ordinal), encode_change(change))

    def _put_reply(self, batch: RowBatch, command: KvWrite) -> None:
        if command.broker_boot_id:
            row = ReplyRow(command.sequence, command.group_time_ms, command.reply)
            batch.put(self._keys.reply(command.broker_boot_id), row.encode())

    def drop_table(self, batch: RowBatch, table_id: int) -> None:
        """Stage the removal of a table's rows; the id need not be a table's.

        Rows of when its items end are in the order of time: they go when that comes.
        """
        table = self.table(table_id)
        # Somebody may follow a table to which nothing was written.
        self._touched.add(table_id)
        if table is None:
            return
        self._engines[table.engine].drop(batch, table_id)
        batch.delete_range(*self._keys.all_changes(table_id))
        batch.delete(self._keys.table(table_id))
        self._keep(table_id, None)

    def _drop_expiries(self, batch: RowBatch, section: RequestEffects) -> None:
        """Stage the removal of what is left of a dropped table when its time comes."""
        for change in section.changes:
            if change.old_expires_at_ms:
                key = self._keys.expiry(change.old_expires_at_ms, section.table_id, change.key)
                batch.delete(key)

    def trim(self, batch: RowBatch, oldest_ms: int) -> None:
        """Stage the removal of answers to brokers that wrote nothing since a group time."""
        for key, data in self._store.scan(*self._keys.replies()):
            if ReplyRow.decode(data).group_time_ms < oldest_ms:
                batch.delete(key)

    def written(self) -> None:
        """The batch is in the store: what was staged shows."""
        for engine in self._engines.values():
            engine.written()
        touched, self._touched = self._touched, set()
        if self.unsettled_bytes >= self._options.memory_unsettled_max_bytes:
            # A store that fails is found out by the next apply; the log has the items.
            with suppress(StateError):
                self.settle(self._staged_index)
        if touched:
            self.listener(touched)

    def forget(self) -> None:
        """The batch was not written."""
        for engine in self._engines.values():
            engine.forget()
        self._tables.clear()
        self._touched.clear()
        self._has_memory_tables = self.settled_index() is not None

    def reload(self) -> None:
        """The rows in the store were replaced by other ones."""
        self.forget()
        for engine in self._engines.values():
            engine.reload()

    # Items that are in memory -------------------------------------------------------------------

    def settled_index(self) -> int | None:
        """Return the raft index that the store's rows of memory tables are of; None: as applied."""
        data = self._store.get(self._keys.settled)
        return None if data is None else decode_index(data)

    @property
    def unsettled_bytes(self) -> int:
        """Changes of items in memory that the store does not have, in bytes."""
        return self._memory.unsettled_bytes

    def settle(self, applied_index: int) -> None:
        """Write what only memory has, so that the store has all that is applied.

        Raises:
            StateError: nothing was written; the log still has it.
        """
        if not self._has_memory_tables or self.settled_index() == applied_index:
            return
        batch = self._store.new_batch()
        self._memory.settle(batch)
        batch.put(self._keys.settled, encode_index(applied_index))
        self._store.write(batch)
        self._memory.settled()

    def redo(self, payload: bytes) -> None:
        """Apply to the memory tables what an entry did to them that the store's rows lack.

        All other rows of the entry are in the store.

        Raises:
            CommandError: the payload is no KV_WRITE.
        """
        unused = self._store.new_batch()
        for table_id, table, changes in decode_kv_write(payload).sections:
            if table.engine is not Engine.MEMORY or self._is_dropped(table_id):
                continue
            for change in changes:
                if change.kind == ChangeKind.PUT:
                    row = encode_item(
                        change.create_revision,
                        table.revision,
                        change.version,
                        change.expires_at_ms,
                        change.value,
                    )
                    self._memory.put(unused, table_id, change.key, row)
                else:
                    self._memory.delete(unused, table_id, change.key)
        self._memory.written()

    def _keep(self, table_id: int, row: TableRow | None) -> None:
        self._tables[table_id] = row
        self._tables.move_to_end(table_id)
        if len(self._tables) > self._options.table_rows_max:
            self._tables.popitem(last=False)
