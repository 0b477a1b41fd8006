"""Times at which messages are tried again: so many in an interval, the others in later ones.

Else everything that waits for a raft group that is down, or for a producer that is gone, would be
written anew every time.
"""

from __future__ import annotations


class RetrySlots:
    """See the module docstring.

    Args:
        size: messages per interval.
    """

    __slots__ = ("_from_ms", "_size", "_used")

    def __init__(self, size: int) -> None:
        self._size = size
        # Begin of the interval that is being filled.
        self._from_ms = 0
        self._used = 0

    def next(self, now_ms: int, interval_ms: int) -> int:
        """Return when the next message is tried again, an interval from now or later."""
        at_ms = now_ms + interval_ms
        if at_ms >= self._from_ms + interval_ms:
            self._from_ms, self._used = at_ms, 0
        elif self._used >= self._size:
            self._from_ms, self._used = self._from_ms + interval_ms, 0
        self._used += 1
        return max(at_ms, self._from_ms)
