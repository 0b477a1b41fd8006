"""Messages that are due and about which nothing can be decided, because rows cannot be read.

They are kept out of the window for a while: there they are the first ones again, and a batch of
them would keep all others from being delivered.
"""

from __future__ import annotations

from collections import deque

from strata_mq.layout import PendingKey


class UnreadableKeys:
    """See the module docstring.

    Args:
        limit: keys that are kept; the caller waits with further ones.
        retry_ms: time after which they are tried again.
    """

    __slots__ = ("_keys", "_limit", "_retry_ms")

    def __init__(self, limit: int, retry_ms: int) -> None:
        self._limit = limit
        self._retry_ms = retry_ms
        # (when to try again, key), the first one in front
        self._keys: deque[tuple[int, PendingKey]] = deque()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: PendingKey, now_ms: int) -> bool:
        """Keep a key; False: there is no room."""
        if len(self._keys) >= self._limit:
            return False
        self._keys.append((now_ms + self._retry_ms, key))
        return True

    def take(self, now_ms: int) -> list[PendingKey]:
        """Remove and return the keys that are to be tried again."""
        taken: list[PendingKey] = []
        while self._keys and self._keys[0][0] <= now_ms:
            taken.append(self._keys.popleft()[1])
        return taken

    def next_retry_ms(self) -> int | None:
        """Return when the first one is tried again; None: there is none."""
        return self._keys[0][0] if self._keys else None

    def first_due_ms(self) -> int | None:
        """Return the earliest time at which one of them was due; None: there is none."""
        return min((key.due_ms for _, key in self._keys), default=None)
