"""Rows of the events of messages, and of the names of clients that received them.

They are in day buckets by the group time of the event. `strata_mq.traces.traces` defines the values
of the first kind.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice

from strata_mq.layout import RowKind, day_prefix, prefix_end
from strata_mq.traces import block_of
from strata_state.day_rows import DayRows
from strata_state.ports import RowBatch

# Behind raft group, kind and day: topic, queue.
_QUEUE = struct.Struct(">II")
_BLOCK = struct.Struct(">Q")
# Raft index, number of the section within the entry.
_ENTRY = struct.Struct(">QH")
_HOLDER = struct.Struct(">Q")


class TraceRows(DayRows):
    """Effects of LEASES commands on messages."""

    KIND = RowKind.TRACE
    __slots__ = ()

    def prefix(self, day: int, topic_id: int, queue: int) -> bytes:
        """Return what stands before the block and `entry_key` in a row's key."""
        return day_prefix(self._raft_group, self.KIND, day) + _QUEUE.pack(topic_id, queue)

    @staticmethod
    def entry_key(raft_index: int, section: int) -> bytes:
        """Return the end of a row's key: which section of which entry it tells of."""
        return _ENTRY.pack(raft_index, section)

    def of_message(
        self, day: int, topic_id: int, queue: int, offset: int, limit: int
    ) -> Iterator[bytes]:
        """Iterate at most `limit` values of the message's block on a day, oldest first."""
        # The block's first byte is always 0: the rows leave it out.
        begin = self.prefix(day, topic_id, queue) + _BLOCK.pack(block_of(offset))[1:]
        rows = self._store.scan(begin, prefix_end(begin))
        return (value for _, value in islice(rows, limit))


class ClientNameRows(DayRows):
    """Client ids by their hashes, once for each day on which one took messages."""

    KIND = RowKind.CLIENT_NAME
    __slots__ = ()

    def put(self, batch: RowBatch, day: int, holder: int, client_id: bytes) -> None:
        """Write one row."""
        batch.put(self._key(day, holder), client_id)

    def get(self, day: int, holder: int) -> str | None:
        """Return a client id; None: it is not known of that day."""
        value = self._store.get(self._key(day, holder))
        return None if value is None else value.decode(errors="replace")

    def _key(self, day: int, holder: int) -> bytes:
        return day_prefix(self._raft_group, self.KIND, day) + _HOLDER.pack(holder)
