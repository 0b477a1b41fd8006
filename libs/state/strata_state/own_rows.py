"""Rows of the slots and queues that a raft group owns, and of queues that left it (rules 17, 18).

Slots are stored as runs, queues that do not follow their slot one by one; see `rows` for the other
kinds.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from strata_mq import layout
from strata_mq.layout import MoveRow, RowKind
from strata_state.ports import RowBatch
from strata_state.rows_of_kind import RowsOfKind

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")


class OwnedRows(RowsOfKind):
    """Runs of owned slots."""

    KIND = RowKind.OWNED
    __slots__ = ()

    def all(self) -> list[tuple[int, int]]:
        """Return (first slot, slot count) runs."""
        at = len(self._prefix)
        return [
            (_U16.unpack_from(key, at)[0], layout.decode_owned(value))
            for key, value in self._scan(self._prefix)
        ]

    def replace(self, batch: RowBatch, runs: Sequence[tuple[int, int]]) -> None:
        """Write these runs and no others."""
        self._delete(batch, self._prefix)
        for first, count in runs:
            batch.put(layout.owned_key(self._raft_group, first), layout.encode_owned(count))


class QueuePlaceRows(RowsOfKind):
    """Queues that are here though their slot is not, or elsewhere though it is."""

    KIND = RowKind.QUEUE_PLACE
    __slots__ = ()

    def put(self, batch: RowBatch, topic_id: int, queue: int, *, is_here: bool) -> None:
        """Write the row of a queue."""
        key = layout.queue_place_key(self._raft_group, topic_id, queue)
        batch.put(key, layout.encode_queue_place(is_here))

    def delete(self, batch: RowBatch, topic_id: int, queue: int) -> None:
        """Remove the row of a queue: it is where its slot is."""
        batch.delete(layout.queue_place_key(self._raft_group, topic_id, queue))

    def delete_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Remove a topic's rows."""
        self._delete_stored_of(batch, self._prefix + _U32.pack(topic_id))

    def all(self) -> list[tuple[int, int, bool]]:
        """Return (topic, queue, whether it is here)."""
        return [
            (*layout.parse_queue_key(key), layout.decode_queue_place(value))
            for key, value in self._scan(self._prefix)
        ]


class OwnRevisionRow(RowsOfKind):
    """The one row of the newest metadata revision on which slots were granted or revoked."""

    KIND = RowKind.OWN_REVISION
    __slots__ = ()

    def get(self) -> int:
        """Return it; 0: it never was."""
        value = self._store.get(self._prefix)
        return 0 if value is None else layout.decode_own_revision(value)

    def put(self, batch: RowBatch, revision: int) -> None:
        """Write it."""
        batch.put(self._prefix, layout.encode_own_revision(revision))


class MoveRows(RowsOfKind):
    """Queues that were moved away and are not drained yet."""

    KIND = RowKind.MOVE
    __slots__ = ()

    def put(self, batch: RowBatch, topic_id: int, queue: int, row: MoveRow) -> None:
        """Write the row of a queue."""
        batch.put(layout.move_key(self._raft_group, topic_id, queue), row.encode())

    def delete(self, batch: RowBatch, topic_id: int, queue: int) -> None:
        """Remove the row of a queue."""
        batch.delete(layout.move_key(self._raft_group, topic_id, queue))

    def delete_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Remove a topic's rows."""
        self._delete_stored_of(batch, self._prefix + _U32.pack(topic_id))

    def all(self) -> list[tuple[int, int, MoveRow]]:
        """Return (topic, queue, row)."""
        return [
            (*layout.parse_queue_key(key), MoveRow.decode(value))
            for key, value in self._scan(self._prefix)
        ]
