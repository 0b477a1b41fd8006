"""Rows about the tier that the storage node keeps beside the tier's own."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from strata_mq import layout
from strata_mq.layout import OffsetRange, RowKind, prefix_end
from strata_state.ports import RowBatch, StateStore
from strata_state.rows_of_kind import RowsOfKind

_U32 = struct.Struct(">I")


class TierLocalRows(RowsOfKind):
    """One row per queue of which the log may give something up that the tier has."""

    KIND = RowKind.TIER_LOCAL
    __slots__ = ()

    def get(self, topic_id: int, queue: int) -> int:
        """Return the offset below which the log may give a queue's messages up; 0: nowhere."""
        value = self._store.get(layout.tier_local_key(self._raft_group, topic_id, queue))
        return 0 if value is None else layout.decode_local_offset(value)

    def put(self, batch: RowBatch, topic_id: int, queue: int, offset: int) -> None:
        """Write a queue's row."""
        key = layout.tier_local_key(self._raft_group, topic_id, queue)
        batch.put(key, layout.encode_local_offset(offset))

    def delete(self, batch: RowBatch, topic_id: int, queue: int) -> None:
        """Remove a queue's row."""
        batch.delete(layout.tier_local_key(self._raft_group, topic_id, queue))

    def delete_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Remove a topic's rows."""
        self._delete_stored_of(batch, self._prefix + _U32.pack(topic_id))

    def all(self) -> Iterator[tuple[int, int, int]]:
        """Iterate (topic, queue, local offset) as they are at the call."""
        rows = self._store.scan(self._prefix, prefix_end(self._prefix))
        return (
            (*layout.parse_tier_local_key(key), layout.decode_local_offset(value))
            for key, value in rows
        )


class TierDispatchRow(RowsOfKind):
    """The one row of what is being uploaded."""

    KIND = RowKind.TIER_DISPATCH
    __slots__ = ()

    def get(self) -> list[OffsetRange]:
        """Return it; empty: nothing is."""
        value = self._store.get(self._prefix)
        return [] if value is None else layout.decode_dispatch(value)

    def put(self, batch: RowBatch, ranges: Sequence[OffsetRange]) -> None:
        """Write it; without ranges, remove it."""
        if ranges:
            batch.put(self._prefix, layout.encode_dispatch(ranges))
        else:
            batch.delete(self._prefix)


class TierPausedRow(RowsOfKind):
    """A mark: nothing is uploaded."""

    KIND = RowKind.TIER_PAUSED
    __slots__ = ()

    def is_set(self) -> bool:
        """Whether it is there."""
        return self._store.get(self._prefix) is not None

    def put(self, batch: RowBatch, *, paused: bool) -> None:
        """Write or remove it."""
        if paused:
            batch.put(self._prefix, b"")
        else:
            batch.delete(self._prefix)


class TierRows:
    """The rows of one raft group that are about the tier and not the tier's own."""

    __slots__ = ("dispatch", "local", "paused")

    def __init__(self, store: StateStore, raft_group: int) -> None:
        self.local = TierLocalRows(store, raft_group)
        self.dispatch = TierDispatchRow(store, raft_group)
        self.paused = TierPausedRow(store, raft_group)
