"""Rows of lite topics: which there are, and the numbers of their queues."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from strata_mq import layout
from strata_mq.layout import LiteParentRow, RowKind
from strata_state.ports import RowBatch, StateStore
from strata_state.rows_of_kind import RowsOfKind

_U32 = struct.Struct(">I")


class LiteParentRows(RowsOfKind):
    """One row per queue of a parent topic that has, or had, lite topics."""

    KIND = RowKind.LITE_PARENT
    __slots__ = ()

    def put(self, batch: RowBatch, topic_id: int, home: int, row: LiteParentRow) -> None:
        """Write the row of a parent topic's queue."""
        key = layout.lite_parent_key(self._raft_group, topic_id, home)
        batch.put(key, layout.encode_lite_parent(row))

    def delete_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Remove a parent topic's rows."""
        self._delete_stored_of(batch, self._prefix + _U32.pack(topic_id))

    def all(self) -> Iterator[tuple[tuple[int, int], LiteParentRow]]:
        """Iterate ((topic, queue), row)."""
        return (
            (layout.parse_lite_parent_key(key), layout.decode_lite_parent(value))
            for key, value in self._scan(self._prefix)
        )


class LiteNumberRows(RowsOfKind):
    """Name of a lite topic -> its number."""

    KIND = RowKind.LITE_NUMBER
    __slots__ = ()

    def get(self, topic_id: int, name: bytes) -> int:
        """Return the number of a lite topic; 0: there is none of this name."""
        value = self._store.get(layout.lite_number_key(self._raft_group, topic_id, name))
        return 0 if value is None else layout.decode_lite_number(value)

    def put(self, batch: RowBatch, topic_id: int, name: bytes, number: int) -> None:
        """Write the row of a name."""
        key = layout.lite_number_key(self._raft_group, topic_id, name)
        batch.put(key, layout.encode_lite_number(number))

    def delete(self, batch: RowBatch, topic_id: int, name: bytes) -> None:
        """Remove the row of a name."""
        batch.delete(layout.lite_number_key(self._raft_group, topic_id, name))

    def delete_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Remove a parent topic's rows."""
        self._delete_stored_of(batch, self._prefix + _U32.pack(topic_id))

    def after(self, topic_id: int, name: bytes) -> Iterator[tuple[bytes, int]]:
        """Iterate (name, number) of a parent topic's lite topics behind a name, by name."""
        prefix = self._prefix + _U32.pack(topic_id)
        rows = self._store.scan(prefix + name + b"\x00", layout.prefix_end(prefix))
        return (
            (layout.parse_lite_number_key(key), layout.decode_lite_number(value))
            for key, value in rows
        )


class LiteNameRows(RowsOfKind):
    """Number of a lite topic -> its name."""

    KIND = RowKind.LITE_NAME
    __slots__ = ()

    def get(self, topic_id: int, number: int) -> bytes | None:
        """Return the name of a lite topic; None: there is none of this number."""
        return self._store.get(layout.lite_name_key(self._raft_group, topic_id, number))

    def put(self, batch: RowBatch, topic_id: int, number: int, name: bytes) -> None:
        """Write the row of a number."""
        batch.put(layout.lite_name_key(self._raft_group, topic_id, number), name)

    def delete(self, batch: RowBatch, topic_id: int, number: int) -> None:
        """Remove the row of a number."""
        batch.delete(layout.lite_name_key(self._raft_group, topic_id, number))

    def delete_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Remove a parent topic's rows."""
        self._delete_stored_of(batch, self._prefix + _U32.pack(topic_id))

    def after(self, topic_id: int, number: int) -> Iterator[tuple[int, int, bytes]]:
        """Iterate (topic, number, name) behind a number, by topic and number."""
        first = layout.lite_name_key(self._raft_group, topic_id, number) + b"\x00"
        rows = self._store.scan(first, layout.prefix_end(self._prefix))
        return ((*layout.parse_lite_name_key(key), name) for key, name in rows)


class LiteRows:
    """The rows of lite topics of one raft group."""

    __slots__ = ("names", "numbers", "parents")

    def __init__(self, store: StateStore, raft_group: int) -> None:
        self.parents = LiteParentRows(store, raft_group)
        self.numbers = LiteNumberRows(store, raft_group)
        self.names = LiteNameRows(store, raft_group)
