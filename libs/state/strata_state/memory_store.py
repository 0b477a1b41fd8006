"""A row store in memory, under the same contract as RocksDB: for rows that are read once.

It models a crash: `after_crash` has the rows of the last flush, like a RocksDB without write-ahead
log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from strata_state.ports import Row, RowBatch

PUT, DELETE, DELETE_RANGE = range(3)


class MemoryBatch:
    """Changes in the order they were made."""

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes: list[tuple[int, bytes, bytes]] = []

    def put(self, key: bytes, value: bytes) -> None:
        """Write one row."""
        self.changes.append((PUT, key, value))

    def delete(self, key: bytes) -> None:
        """Remove one row."""
        self.changes.append((DELETE, key, b""))

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Remove rows with begin <= key < end."""
        self.changes.append((DELETE_RANGE, begin, end))


class MemoryCursor:
    """`RowCursor` over copied rows."""

    def __init__(self, keys: list[bytes], values: dict[bytes, bytes]) -> None:
        self._keys = keys
        self._values = values

    def seek(self, key: bytes) -> Iterator[Row]:
        """Iterate from `key` on."""
        keys = self._keys[bisect_left(self._keys, key) :]
        return iter([(found, self._values[found]) for found in keys])


class MemoryStore:
    """`StateStore` over a dictionary and a sorted list of its keys."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._flushed: dict[bytes, bytes] = {}
        self._unflushed_bytes = 0

    def get(self, key: bytes) -> bytes | None:
        """Return a row's value."""
        return self._values.get(key)

    def new_batch(self) -> RowBatch:
        """Return an empty batch."""
        return MemoryBatch()

    def write(self, batch: RowBatch) -> None:
        """Apply a batch."""
        assert isinstance(batch, MemoryBatch), "a batch belongs to the store that made it"
        for change, key, value in batch.changes:
            if change == PUT:
                if key not in self._values:
                    insort(self._keys, key)
                self._values[key] = value
                self._unflushed_bytes += len(key) + len(value)
            elif change == DELETE:
                self._remove(key, key + b"\x00")
            else:
                self._remove(key, value)

    def _remove(self, begin: bytes, end: bytes) -> None:
        first, last = bisect_left(self._keys, begin), bisect_left(self._keys, end)
        for key in self._keys[first:last]:
            del self._values[key]
        del self._keys[first:last]

    def scan(self, begin: bytes, end: bytes) -> Iterator[Row]:
        """Iterate a range as it is now."""
        keys = self._keys[bisect_left(self._keys, begin) : bisect_left(self._keys, end)]
        return iter([(key, self._values[key]) for key in keys])

    def cursor(self, begin: bytes, end: bytes) -> MemoryCursor:
        """Copy a range as it is now."""
        keys = self._keys[bisect_left(self._keys, begin) : bisect_left(self._keys, end)]
        return MemoryCursor(keys, {key: self._values[key] for key in keys})

    def last_before(self, lower: bytes, key: bytes) -> Row | None:
        """Return the last row with lower <= its key <= key."""
        at = bisect_right(self._keys, key) - 1
        if at < 0 or self._keys[at] < lower:
            return None
        return self._keys[at], self._values[self._keys[at]]

    def flush(self) -> None:
        """Remember the rows as what a crash leaves."""
        self._flushed = dict(self._values)
        self._unflushed_bytes = 0

    def after_crash(self) -> MemoryStore:
        """Return a store with what a crash now would leave; this one goes on as it is."""
        left = MemoryStore()
        left._values = dict(self._flushed)
        left._keys = sorted(left._values)
        left._flushed = dict(self._flushed)
        return left

    def memory_bytes(self) -> int:
        """Return bytes put since the last flush."""
        return self._unflushed_bytes

    def close(self) -> None:
        """Flush."""
        self.flush()
