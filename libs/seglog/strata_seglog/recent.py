"""The ring of recent entries: tail reads without the disk (rule 31).

Invariants:
- One thread puts and evicts (the writer); any thread finds, without a lock: that is one
  dictionary look-up.
- A look-up finds the newest synced entry of that index, or nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from strata_seglog.frames import Frame, FrameKind, StoredFrame, payload_bytes

Key = tuple[int, int]


ENTRY_OVERHEAD_BYTES = 512
"""About what an entry takes in memory beside its payload: frame, keys, places in the ring."""


class RecentEntry:
    """One entry. Its buffers are replaced by their join once somebody needs it whole.

    `size`: bytes that it holds.
    """

    __slots__ = ("frame", "position", "size")

    def __init__(self, frame: Frame, position: int) -> None:
        self.frame = frame
        self.position = position
        self.size = payload_bytes(frame) + ENTRY_OVERHEAD_BYTES

    def whole(self) -> bytes:
        """Return the payload."""
        payload = self.frame.payload
        if len(payload) != 1:
            payload = (b"".join(payload),)
            # The frame too, or its buffers stay beside their join. A second
            # caller, in another thread, has a join of its own for a moment.
            self.frame = replace(self.frame, payload=payload)
        return payload[0]

    def piece(self, offset: int, length: int) -> bytes:
        """Return `length` bytes of the payload from `offset` on, fewer at its end."""
        parts = []
        for chunk in self.frame.payload:
            part = chunk[max(offset, 0) : max(offset + length, 0)]
            offset -= len(chunk)
            if part:
                parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def stored(self) -> StoredFrame:
        """Return the entry as if read from the disk."""
        payload, frame = self.whole(), self.frame
        return StoredFrame(
            FrameKind.ENTRY,
            frame.replica_id,
            frame.raft_group,
            frame.term,
            frame.index,
            frame.entry_kind,
            frame.flags,
            self.position,
            payload,
        )


class RecentRing:
    """Entries by (replica id, index), the newest in `limit_bytes` of memory."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._entries: dict[Key, RecentEntry] = {}
        self._order: deque[tuple[Key, RecentEntry]] = deque()

    def find(self, replica_id: int, index: int) -> RecentEntry | None:
        """Return an entry if it is still here."""
        return self._entries.get((replica_id, index))

    def put(self, frame: Frame, position: int) -> None:
        """Keep an entry that was synced; the oldest ones go when the ring is full."""
        key = (frame.replica_id, frame.index)
        entry = RecentEntry(frame, position)
        self._entries[key] = entry
        self._order.append((key, entry))
        self.held_bytes += entry.size
        while self.held_bytes > self.limit_bytes:
            oldest_key, oldest = self._order.popleft()
            self.held_bytes -= oldest.size
            if self._entries.get(oldest_key) is oldest:
                del self._entries[oldest_key]

    def forget(self, replica_id: int, first: int, last: int) -> None:
        """Drop entries that were superseded, none is above `last`.

        Their bytes count until their turn comes.
        """
        if last - first < len(self._entries):
            keys = [(replica_id, index) for index in range(first, last + 1)]
        else:
            keys = [key for key in self._entries if key[0] == replica_id and key[1] >= first]
        for key in keys:
            self._entries.pop(key, None)
