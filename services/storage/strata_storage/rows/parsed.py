"""Batches that a leader parsed when it proposed them, kept until they are applied.

Only saves work: what is not here is parsed once more. Invariant: they stand in the order of their
entries, and none is kept whose entry, or a later one, was applied.
"""

from __future__ import annotations

import asyncio
from collections import deque

from strata_mq.layout import BatchView


class ParsedBatches:
    """Parsed rows of one raft group.

    Args:
        max_bytes: of batches kept; what is beyond is parsed again.

    Attributes:
        size_bytes: of the batches kept.
    """

    __slots__ = ("_batches", "_max_bytes", "size_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: deque[tuple[asyncio.Future[int], BatchView]] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, future: asyncio.Future[int], view: BatchView) -> None:
        """Take in a batch that was just proposed; `future` gives its entry's index."""
        size_bytes = len(view.data)
        if self.size_bytes + size_bytes <= self._max_bytes:
            self._batches.append((future, view))
            self.size_bytes += size_bytes

    def take(self, raft_index: int, data: bytes) -> BatchView | None:
        """Return the batch of an entry that is applied now; None: it is not here.

        Those of entries before it go, too: whoever applied them had no use for them.

        Args:
            raft_index: of the entry.
            data: the batch in it, which was read back from the log if it waited for long.
        """
        found: BatchView | None = None
        while self._batches and self._index() <= raft_index:
            future, view = self._batches.popleft()
            self.size_bytes -= len(view.data)
            if future.result() == raft_index and (view.data is data or view.data == data):
                found = view
        return found

    def clear(self) -> None:
        """Let go of all: they may never be applied."""
        self._batches.clear()
        self.size_bytes = 0

    def _index(self) -> float:
        """Return the index of the first one; infinity: it is not committed."""
        future, _ = self._batches[0]
        if not future.done() or future.cancelled() or future.exception() is not None:
            return float("inf")
        return future.result()
