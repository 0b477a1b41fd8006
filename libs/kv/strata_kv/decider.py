"""The leader's decisions about tables (rule 1): conditions, versions, revisions, expiry.

It works on speculative state: applied rows and, above them, the changes of its own entries in
flight. Nothing here waits or writes. A decision becomes speculative state only by `accept`, so a
refused proposal leaves no trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strata.kv.v1 import kv_pb2, kv_storage_pb2
from strata.storage.v1 import storage_pb2
from strata_kv.commands import RequestEffects
from strata_kv.machine import ItemExpiry, TableMachine
from strata_kv.model import ChangeKind, Engine
from strata_kv.options import TableOptions
from strata_kv.rows import MAX_KEY_BYTES, ItemChange, ItemRow, TableRow, encode_item
from strata_state.ports import StateError

# Beyond it, a time or a version plus one would not fit into a row.
_MAX_NUMBER = 1 << 62
_ENGINES: frozenset[int] = frozenset(Engine)

_Key = tuple[int, bytes]
"""(table id, key)."""


class WriteRefused(Exception):
    """A request that cannot be carried out, whatever is there; the text is for people.

    Attributes:
        outcome: a number of `strata.storage.v1.Outcome`.
    """

    def __init__(self, outcome: storage_pb2.Outcome.ValueType, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


class _InFlight(NamedTuple):
    """Effect of the entry with a number on an item."""

    number: int
    item: ItemRow | None


@dataclass(slots=True)
class BatchDecision:
    """Decision about some requests, in their order.

    Attributes:
        results: the answers.
        sections: what an entry must carry; empty: nothing changes.
        items, tables: the state afterwards, of what changes.
        next_expiry_ms: the first end of an item that it writes; 0: none has one.
        unread: of expiry, the items that could not be read, and why.
        number: of the entry, once it is accepted.
    """

    results: list[kv_storage_pb2.TableWriteResult] = field(default_factory=list)
    sections: list[RequestEffects] = field(default_factory=list)
    items: dict[_Key, ItemRow | None] = field(default_factory=dict)
    tables: dict[int, TableRow] = field(default_factory=dict)
    next_expiry_ms: int = 0
    unread: list[tuple[ItemExpiry, StateError]] = field(default_factory=list)
    number: int = 0


class Decider:
    """Decisions of one leader in one term.

    Args:
        machine: the applied state.
        options: limits.
    """

    def __init__(self, machine: TableMachine, options: TableOptions) -> None:
        self._machine = machine
        self._options = options
        self._items: dict[_Key, _InFlight] = {}
        self._tables: dict[int, tuple[int, TableRow]] = {}
        self._last_number = 0

    def __len__(self) -> int:
        """Return how many items entries in flight will change."""
        return len(self._items)

    def changes(self, table_id: int) -> bool:
        """Tell whether an entry in flight will change a table."""
        return table_id in self._tables

    # Deciding -----------------------------------------------------------------------------------

    def write(
        self,
        decision: BatchDecision,
        table_id: int,
        request: kv_storage_pb2.TableWrite,
        now_ms: int,
    ) -> None:
        """Add a request, which sees what the ones before it do.

        Raises:
            WriteRefused: the request itself is wrong, or a limit is reached; nothing was added.
        """
        self._check(request)
        table = self._table(decision, table_id)
        result = kv_storage_pb2.TableWriteResult(outcome=storage_pb2.OUTCOME_OK)
        olds = {
            operation.key: self._item(decision, table_id, operation.key)
            for operation in request.operations
        }
        for number, operation in enumerate(request.operations):
            item = olds[operation.key]
            if not _holds(operation, item):
                result.failed_operation = number
                result.revision = table.revision if table else 0
                if item is not None:
                    fill_item(result.current, operation.key, item)
                decision.results.append(result)
                return
        wanted = Engine(request.engine or Engine.ROCKSDB)
        before = table or TableRow(wanted)
        changes = [
            change
            for operation in request.operations
            if (change := _change(before, operation, olds[operation.key], now_ms)) is not None
        ]
        result.applied, result.changed = True, bool(changes)
        after = self._after(before, changes, olds)
        if changes or table is None:
            self._stage(decision, RequestEffects(table_id, after, changes))
        versions = {change.key: change.version for change in changes}
        result.versions.extend(versions.get(one.key, 0) for one in request.operations)
        result.revision = after.revision
        decision.results.append(result)

    def expire(self, due: Sequence[ItemExpiry]) -> BatchDecision:
        """Decide the end of items whose time is over; one that cannot be read stays."""
        decision = BatchDecision()
        for one in due:
            try:
                self._expire(decision, one)
            except StateError as failure:
                decision.unread.append((one, failure))
        return decision

    def _expire(self, decision: BatchDecision, due: ItemExpiry) -> None:
        expires_at_ms, table_id, key = due
        table = self._table(decision, table_id)
        if table is None:
            # The table was dropped: only the row that says so is left.
            gone = ItemChange(ChangeKind.EXPIRE, key, old_expires_at_ms=expires_at_ms)
            decision.sections.append(RequestEffects(table_id, TableRow(Engine.ROCKSDB), [gone]))
            return
        item = self._item(decision, table_id, key)
        is_due = item is not None and item.expires_at_ms == expires_at_ms
        if not is_due and (table_id, key) in self._items:
            # An entry in flight gives it more time or deletes it, and takes this row away.
            return
        if item is None or is_due:
            change = ItemChange(ChangeKind.EXPIRE, key, old_expires_at_ms=expires_at_ms)
        else:
            # A repair of the log left a row that says less than the item.
            change = ItemChange(
                ChangeKind.PUT,
                key,
                item.value,
                item.create_revision,
                item.version,
                item.expires_at_ms,
                expires_at_ms,
            )
        after = self._after(table, [change], {key: item})
        self._stage(decision, RequestEffects(table_id, after, [change]))

    # Following the log --------------------------------------------------------------------------

    def accept(self, decision: BatchDecision) -> None:
        """Take a decision's outcome as what will be: it was proposed."""
        self._last_number = number = self._last_number + 1
        decision.number = number
        for key, item in decision.items.items():
            self._items[key] = _InFlight(number, item)
        for table_id, table in decision.tables.items():
            self._tables[table_id] = (number, table)

    def applied(self, decision: BatchDecision) -> None:
        """The entry of an accepted decision is in the rows."""
        number = decision.number
        for key in decision.items:
            if self._items[key].number == number:
                del self._items[key]
        for table_id in decision.tables:
            if self._tables[table_id][0] == number:
                del self._tables[table_id]

    # State, the newest first --------------------------------------------------------------------

    def _item(self, decision: BatchDecision, table_id: int, key: bytes) -> ItemRow | None:
        name = (table_id, key)
        if name in decision.items:
            return decision.items[name]
        in_flight = self._items.get(name)
        return self._machine.item(table_id, key) if in_flight is None else in_flight.item

    def _table(self, decision: BatchDecision, table_id: int) -> TableRow | None:
        staged = decision.tables.get(table_id)
        if staged is not None:
            return staged
        in_flight = self._tables.get(table_id)
        return self._machine.table(table_id) if in_flight is None else in_flight[1]

    # Steps --------------------------------------------------------------------------------------

    def _check(self, request: kv_storage_pb2.TableWrite) -> None:
        options = self._options
        if len(request.operations) > options.max_operations:
            raise _invalid(f"a batch has at most {options.max_operations} operations")
        keys = {operation.key for operation in request.operations}
        if len(keys) < len(request.operations):
            raise _invalid("a batch contains a key twice")
        limit = min(options.max_key_bytes, MAX_KEY_BYTES)
        for operation in request.operations:
            if not 0 < len(operation.key) <= limit:
                raise _invalid(f"a key has 1 to {limit} bytes, not {len(operation.key)}")
            if len(operation.put) > options.max_value_bytes:
                raise _invalid(
                    f"a value has at most {options.max_value_bytes} bytes, not {len(operation.put)}"
                )
            if operation.WhichOneof("change") is None:
                raise _invalid("an operation must put, delete or check")
            if max(operation.ttl_ms, operation.expires_at_ms, operation.version) > _MAX_NUMBER:
                raise _invalid(f"times and versions are at most {_MAX_NUMBER}")
        if request.engine and request.engine not in _ENGINES:
            raise _invalid(f"engine {request.engine} is not known")

    def _after(
        self, table: TableRow, changes: Sequence[ItemChange], olds: Mapping[bytes, ItemRow | None]
    ) -> TableRow:
        """Return a table's row after changes of one revision.

        Args:
            table: before them.
            changes: of different keys.
            olds: key -> the item before; None: there was none.

        Raises:
            WriteRefused: OUTCOME_OVERLOADED, its items do not fit into memory.
        """
        if not changes:
            return table
        key_count, byte_count, changed_bytes = table.key_count, table.byte_count, 0
        for change in changes:
            old = olds[change.key]
            if old is not None:
                key_count -= 1
                byte_count -= len(change.key) + old.value_bytes
            if change.kind == ChangeKind.PUT:
                key_count += 1
                byte_count += len(change.key) + len(change.value)
            changed_bytes += len(change.key) + len(change.value)
        limit = self._options.memory_table_max_bytes
        if table.engine is Engine.MEMORY and byte_count > max(limit, table.byte_count):
            raise WriteRefused(
                storage_pb2.OUTCOME_OVERLOADED, f"a table in memory has at most {limit} bytes"
            )
        after = table._replace(
            revision=table.revision + 1,
            young_changes=table.young_changes + len(changes),
            young_bytes=table.young_bytes + changed_bytes,
            # A repair of the log may have given up the deletion of an item that was counted out.
            key_count=max(key_count, 0),
            byte_count=max(byte_count, 0),
        )
        return self._bounded(after)

    def _bounded(self, table: TableRow) -> TableRow:
        """Let the older half of the history go when the younger one is full."""
        options = self._options
        if (
            table.young_changes * 2 < options.history_max_changes
            and table.young_bytes * 2 < options.history_max_bytes
        ):
            return table
        return table._replace(
            compacted_revision=table.mark_revision,
            mark_revision=table.revision,
            young_changes=0,
            young_bytes=0,
        )

    def _stage(self, decision: BatchDecision, section: RequestEffects) -> None:
        table_id, table, changes = section
        decision.sections.append(section)
        decision.tables[table_id] = table
        for change in changes:
            item: ItemRow | None = None
            if change.kind == ChangeKind.PUT:
                item = ItemRow(
                    encode_item(
                        change.create_revision,
                        table.revision,
                        change.version,
                        change.expires_at_ms,
                        change.value,
                    )
                )
                ends_ms = change.expires_at_ms
                if ends_ms and not 0 < decision.next_expiry_ms <= ends_ms:
                    decision.next_expiry_ms = ends_ms
            decision.items[table_id, change.key] = item


def fill_item(target: kv_pb2.Item, key: bytes, item: ItemRow, *, keys_only: bool = False) -> None:
    """Write an item as clients see it."""
    target.key = key
    if not keys_only:
        target.value = item.value
    target.version = item.version
    target.create_revision = item.create_revision
    target.modify_revision = item.modify_revision
    target.expires_at_ms = item.expires_at_ms


def _holds(operation: kv_pb2.Operation, item: ItemRow | None) -> bool:
    """Whether the condition of an operation holds."""
    what = operation.condition.WhichOneof("what")
    if what == "version":
        return operation.condition.version == (0 if item is None else item.version)
    if what == "value":
        return item is not None and item.value == operation.condition.value
    return True


def _change(
    table: TableRow, operation: kv_pb2.Operation, old: ItemRow | None, now_ms: int
) -> ItemChange | None:
    """Return what an operation changes; None: nothing."""
    what = operation.WhichOneof("change")
    old_expires_at_ms = 0 if old is None else old.expires_at_ms
    if what == "put":
        expires_at_ms = operation.expires_at_ms
        if operation.ttl_ms and not expires_at_ms:
            expires_at_ms = now_ms + operation.ttl_ms
        created = table.revision + 1 if old is None else old.create_revision
        version = operation.version or (1 if old is None else min(old.version, _MAX_NUMBER) + 1)
        return ItemChange(
            ChangeKind.PUT,
            operation.key,
            operation.put,
            created,
            version,
            expires_at_ms,
            old_expires_at_ms,
        )
    if what == "delete" and old is not None:
        return ItemChange(ChangeKind.DELETE, operation.key, old_expires_at_ms=old_expires_at_ms)
    return None


def _invalid(reason: str) -> WriteRefused:
    return WriteRefused(storage_pb2.OUTCOME_INVALID, reason)
