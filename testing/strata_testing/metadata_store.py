"""A metadata store in memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from strata_state.metadata import FrozenRows, Row


class MemoryMetadataStore:
    """Rows in a dict and a sorted list of keys; under the same contract as RocksDB."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row; None: there is no such row."""
        return self._rows.get(key)

    def scan(self, first: bytes, end: bytes) -> Iterator[Row]:
        """Return the rows with `first <= key < end` in key order, as they stand at the call."""
        keys = self._keys[bisect_left(self._keys, first) : bisect_left(self._keys, end)]
        return iter([(key, self._rows[key]) for key in keys])

    def frozen(self) -> FrozenRows:
        """Return all rows as they stand at the call."""
        copy = MemoryMetadataStore()
        copy._rows, copy._keys = dict(self._rows), list(self._keys)
        return copy

    def write(self, puts: Sequence[Row], deletes: Sequence[bytes] = ()) -> None:
        """Write and delete rows."""
        for key in deletes:
            if self._rows.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
        for key, value in puts:
            if key not in self._rows:
                insort(self._keys, key)
            self._rows[key] = value

    def sync(self) -> None:
        """Do nothing: the rows live as long as the object."""

    def close(self) -> None:
        """Do nothing: a test may look at the rows afterwards."""
