"""Items whose time is over and that cannot be read: they are looked at again after a while.

Kept here, not in front of the scan of what ends: there they would be the first ones each time, and
many of them, or what ended behind them, would keep others from ending.
"""

from __future__ import annotations

from itertools import islice, takewhile

from strata_kv.machine import ItemExpiry


class UnreadItems:
    """See the module docstring. Times are of the raft group.

    Args:
        limit: items that are kept.
        retry_ms: time after which one is looked at again.
    """

    __slots__ = ("_limit", "_retry_at_ms", "_retry_ms")

    def __init__(self, limit: int, retry_ms: int) -> None:
        self._limit = limit
        self._retry_ms = retry_ms
        # Item -> when to look at it again; the first one in front.
        self._retry_at_ms: dict[ItemExpiry, int] = {}

    def __len__(self) -> int:
        return len(self._retry_at_ms)

    def __contains__(self, item: ItemExpiry) -> bool:
        return item in self._retry_at_ms

    def due(self, now_ms: int, limit: int) -> list[ItemExpiry]:
        """Return items to look at again; they stay until `discard`."""
        due = takewhile(lambda each: each[1] <= now_ms, self._retry_at_ms.items())
        return [item for item, _ in islice(due, limit)]

    def add(self, item: ItemExpiry, now_ms: int) -> bool:
        """Keep an item, or put off one that is kept; False: there is no room."""
        if self._retry_at_ms.pop(item, None) is None and len(self) >= self._limit:
            return False
        self._retry_at_ms[item] = now_ms + self._retry_ms
        return True

    def discard(self, item: ItemExpiry) -> None:
        """Forget an item if it is kept."""
        self._retry_at_ms.pop(item, None)
