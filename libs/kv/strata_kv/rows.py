"""Keys and values of the rows of key-value tables. Layout: docs/data-layout.md, "Key-value tables".

A table's id is the id of the topic that stands for it (`names`). Builders trust their arguments,
parsers trust their bytes: the receiver of a request checks limits.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Self

from strata_kv.model import ChangeKind, Engine
from strata_mq.layout import RowKind, kind_prefix, prefix_end

MAX_KEY_BYTES = 0xFFFF

_VERSION = 1
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_TABLE = struct.Struct(">BBHQQQQQQQ")
_ITEM = struct.Struct(">BQQQQ")
_CHANGE_KEY = struct.Struct(">QH")
_CHANGE = struct.Struct(">BBHQQQ")
_EXPIRY_KEY = struct.Struct(">QI")
_REPLY = struct.Struct(">QQ")


class TableRow(NamedTuple):
    """A table's counters and limits as of one revision.

    Its history is two runs of revisions: (compacted, mark] and (mark, revision]. When the younger
    one is full the older one goes: a bound that needs no reading.

    Attributes:
        engine: where its items are.
        revision: raised by one by every write that changed something.
        compacted_revision: changes up to this one are not kept.
        mark_revision: where the younger half of the history begins.
        young_changes, young_bytes: size of the younger half; bytes are of keys and values.
        key_count: items.
        byte_count: of their keys and values.
    """

    engine: Engine
    revision: int = 0
    compacted_revision: int = 0
    mark_revision: int = 0
    young_changes: int = 0
    young_bytes: int = 0
    key_count: int = 0
    byte_count: int = 0

    def encode(self) -> bytes:
        """Return the row's value."""
        return _TABLE.pack(_VERSION, self[0], 0, *self[1:])

    @classmethod
    def decode(cls, data: bytes, at: int = 0) -> Self:
        """Return the row that stands at a position of some bytes."""
        _, engine, _, *numbers = _TABLE.unpack_from(data, at)
        return cls(Engine(engine), *numbers)


TABLE_ROW_BYTES = _TABLE.size


class ItemRow:
    """An item's row; the value is cut out of it only when it is asked for.

    Attributes:
        data: the row's value.
        create_revision, modify_revision: revisions of the table.
        version: writes since it was created, from 1.
        expires_at_ms: group time at which it ends; 0: never.
    """

    __slots__ = ("create_revision", "data", "expires_at_ms", "modify_revision", "version")

    def __init__(self, data: bytes) -> None:
        self.data = data
        (
            _,
            self.create_revision,
            self.modify_revision,
            self.version,
            self.expires_at_ms,
        ) = _ITEM.unpack_from(data)

    @property
    def value(self) -> bytes:
        """The item's value."""
        return self.data[_ITEM.size :]

    @property
    def value_bytes(self) -> int:
        """Length of the value."""
        return len(self.data) - _ITEM.size


def encode_item(
    create_revision: int, modify_revision: int, version: int, expires_at_ms: int, value: bytes
) -> bytes:
    """Return an item's row."""
    return _ITEM.pack(_VERSION, create_revision, modify_revision, version, expires_at_ms) + value


class ItemChange(NamedTuple):
    """Outcome of a write for one item, as the leader resolved it (rule 1).

    Attributes:
        kind: what happened.
        key: of the item.
        value: after it; empty for a deletion.
        create_revision, version, expires_at_ms: of the item afterwards; 0 for a deletion.
        old_expires_at_ms: of the item before; 0: it had no end, or was not there.
    """

    kind: ChangeKind
    key: bytes
    value: bytes = b""
    create_revision: int = 0
    version: int = 0
    expires_at_ms: int = 0
    old_expires_at_ms: int = 0


def encode_change(change: ItemChange) -> bytes:
    """Return the row of a change, for watchers."""
    head = _CHANGE.pack(
        change.kind,
        0,
        len(change.key),
        change.create_revision,
        change.version,
        change.expires_at_ms,
    )
    return head + change.key + change.value


def decode_change(data: bytes) -> ItemChange:
    """Return the change that a row holds."""
    kind, _, key_bytes, create_revision, version, expires_at_ms = _CHANGE.unpack_from(data)
    at = _CHANGE.size
    key, value = data[at : at + key_bytes], data[at + key_bytes :]
    return ItemChange(ChangeKind(kind), key, value, create_revision, version, expires_at_ms)


class ReplyRow(NamedTuple):
    """Answer to the last batch of a broker, for its repeats.

    Attributes:
        sequence: number of the batch.
        group_time_ms: when it was decided.
        reply: a serialised `strata.kv.v1.WriteResponse`.
    """

    sequence: int
    group_time_ms: int
    reply: bytes

    def encode(self) -> bytes:
        """Return the row's value."""
        return _REPLY.pack(self.sequence, self.group_time_ms) + self.reply

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the row of a value."""
        sequence, group_time_ms = _REPLY.unpack_from(data)
        return cls(sequence, group_time_ms, data[_REPLY.size :])


class Keys:
    """Keys of the rows of one raft group."""

    __slots__ = ("_changes", "_expiries", "_items", "_replies", "_tables", "settled")

    def __init__(self, raft_group: int) -> None:
        self._tables = kind_prefix(raft_group, RowKind.KV_TABLE)
        self._items = kind_prefix(raft_group, RowKind.KV_ITEM)
        self._changes = kind_prefix(raft_group, RowKind.KV_CHANGE)
        self._expiries = kind_prefix(raft_group, RowKind.KV_EXPIRY)
        self._replies = kind_prefix(raft_group, RowKind.KV_REPLY)
        self.settled = kind_prefix(raft_group, RowKind.KV_SETTLED)

    def table(self, table_id: int) -> bytes:
        """Return the key of a table's row."""
        return self._tables + _U32.pack(table_id)

    def tables(self) -> tuple[bytes, bytes]:
        """Return the range of all tables' rows."""
        return self._tables, prefix_end(self._tables)

    def table_of(self, key: bytes) -> int:
        """Return the table of a table's row."""
        return int(_U32.unpack_from(key, len(self._tables))[0])

    def item(self, table_id: int, key: bytes) -> bytes:
        """Return the key of an item's row."""
        return self._items + _U32.pack(table_id) + key

    def items(self, table_id: int, begin: bytes, end: bytes) -> tuple[bytes, bytes]:
        """Return the range of rows of keys from `begin` to below `end`; b"": to the last."""
        prefix = self._items + _U32.pack(table_id)
        return prefix + begin, prefix + end if end else prefix_end(prefix)

    def key_of(self, row_key: bytes) -> bytes:
        """Return an item's key."""
        return row_key[len(self._items) + _U32.size :]

    def change(self, table_id: int, revision: int, ordinal: int) -> bytes:
        """Return the key of a change's row."""
        return self._changes + _U32.pack(table_id) + _CHANGE_KEY.pack(revision, ordinal)

    def changes(self, table_id: int, first: int, end: int) -> tuple[bytes, bytes]:
        """Return the range of changes of revisions `first` to below `end`."""
        return self.change(table_id, first, 0), self.change(table_id, end, 0)

    def all_changes(self, table_id: int) -> tuple[bytes, bytes]:
        """Return the range of all changes of a table."""
        prefix = self._changes + _U32.pack(table_id)
        return prefix, prefix_end(prefix)

    def revision_of(self, row_key: bytes) -> int:
        """Return the revision of a change's row."""
        return int(_CHANGE_KEY.unpack_from(row_key, len(self._changes) + _U32.size)[0])

    def expiry(self, expires_at_ms: int, table_id: int, key: bytes) -> bytes:
        """Return the key of the row that says when an item ends."""
        return self._expiries + _EXPIRY_KEY.pack(expires_at_ms, table_id) + key

    def expiries(self, first_ms: int, end_ms: int) -> tuple[bytes, bytes]:
        """Return the range of items that end from `first_ms` to before `end_ms`."""
        return self._expiries + _U64.pack(first_ms), self._expiries + _U64.pack(end_ms)

    def expiry_of(self, row_key: bytes) -> tuple[int, int, bytes]:
        """Return (when it ends, table id, key) of such a row."""
        at = len(self._expiries)
        expires_at_ms, table_id = _EXPIRY_KEY.unpack_from(row_key, at)
        return expires_at_ms, table_id, row_key[at + _EXPIRY_KEY.size :]

    def reply(self, broker_boot_id: int) -> bytes:
        """Return the key of a broker's reply row."""
        return self._replies + _U64.pack(broker_boot_id)

    def replies(self) -> tuple[bytes, bytes]:
        """Return the range of all reply rows."""
        return self._replies, prefix_end(self._replies)


def encode_index(raft_index: int) -> bytes:
    """Return a raft index as a row's value."""
    return _U64.pack(raft_index)


def decode_index(data: bytes | None) -> int:
    """Return the raft index of a value; 0: there is no row."""
    return 0 if data is None else int(_U64.unpack(data)[0])
