"""A key below which nothing waits, remembered by every replica (rule 27).

Delivered messages leave tombstones at the front of the pending rows; a scan from the prefix on
would pass all of them that are not compacted. A new leader begins at this bound instead.

Invariant: no pending row in the store is below `key`. Apply says what it writes; how far the bound
may rise is read from the rows, so that nothing else has to be right for it.
"""

from __future__ import annotations

from strata_mq.layout import PendingKey
from strata_state.pending_rows import PendingRows

_FIRST = PendingKey(0, 0, 0)
# Behind any row that a delay limit allows.
_LAST = PendingKey(2**64 - 1, 0, 0)
# Rows removed before the bound is moved: the tombstones that a scan from it may pass.
_MOVE_EVERY = 1_000


class PendingBound:
    """The bound of one raft group.

    Args:
        rows: what waits.

    Attributes:
        key: the bound.
    """

    __slots__ = ("_removed", "_rows", "key")

    def __init__(self, rows: PendingRows) -> None:
        self._rows = rows
        self._removed = 0
        self.key = _FIRST

    def put(self, key: PendingKey) -> None:
        """Take in that a row is about to be written."""
        self.key = min(self.key, key)

    def removed(self) -> None:
        """Take in that a row is about to be removed."""
        self._removed += 1

    def written(self) -> None:
        """Take in that the rows are as it was said; move the bound now and then."""
        if self._removed >= _MOVE_EVERY:
            self._removed = 0
            self.key = next(self._rows.keys(self.key), _LAST)

    def reset(self) -> None:
        """Take in that other rows than those are in the store."""
        self._removed = 0
        self.key = _FIRST
