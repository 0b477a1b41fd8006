"""Changes on top of a store's rows that never reach the store: a preview of future rows."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge

from strata_state.memory_store import DELETE_RANGE, PUT, MemoryBatch, MemoryStore
from strata_state.ports import Row, RowBatch, RowReader

# The value of a row that is removed; that of any other one begins with `_KEPT`.
_REMOVED = b""
_KEPT = b"\x01"
# Longer than the rest of any key.
_HIGHEST_TAIL = b"\xff" * 64


class Overlay:
    """A `RowReader` over another one and what was written here.

    Args:
        base: is read, never written; it must not change meanwhile.
    """

    def __init__(self, base: RowReader) -> None:
        self._base = base
        self._changed = MemoryStore()

    def get(self, key: bytes) -> bytes | None:
        """Return a row's value, None if there is none."""
        changed = self._changed.get(key)
        if changed is None:
            return self._base.get(key)
        return None if changed == _REMOVED else changed[len(_KEPT) :]

    def new_batch(self) -> RowBatch:
        """Return an empty batch for `write`."""
        return MemoryBatch()

    def write(self, batch: RowBatch) -> None:
        """Apply a batch made by `new_batch`."""
        assert isinstance(batch, MemoryBatch), "a batch belongs to the store that made it"
        for change, key, value in batch.changes:
            if change == DELETE_RANGE:
                for found, _ in list(self.scan(key, value)):
                    self._set(found, _REMOVED)
            else:
                self._set(key, _KEPT + value if change == PUT else _REMOVED)

    def _set(self, key: bytes, value: bytes) -> None:
        batch = self._changed.new_batch()
        batch.put(key, value)
        self._changed.write(batch)

    def scan(self, begin: bytes, end: bytes) -> Iterator[Row]:
        """Iterate rows with begin <= key < end in key order."""
        changed = ((key, 0, value) for key, value in self._changed.scan(begin, end))
        base = ((key, 1, _KEPT + value) for key, value in self._base.scan(begin, end))
        last: bytes | None = None
        for key, _, value in merge(changed, base):
            if key != last and value != _REMOVED:
                yield key, value[len(_KEPT) :]
            last = key

    def last_before(self, lower: bytes, key: bytes) -> Row | None:
        """Return the last row with lower <= its key <= `key`, None if none."""
        while True:
            changed = self._changed.last_before(lower, key)
            base = self._base.last_before(lower, key)
            if changed is None or (base is not None and base[0] > changed[0]):
                return base
            if changed[1] != _REMOVED:
                return changed[0], changed[1][len(_KEPT) :]
            if not changed[0]:
                return None
            key = _just_below(changed[0])


def _just_below(key: bytes) -> bytes:
    """Return a key below which, or at which, all rows before this key are."""
    if key.endswith(b"\x00"):
        return key[:-1]
    return key[:-1] + bytes((key[-1] - 1,)) + _HIGHEST_TAIL
