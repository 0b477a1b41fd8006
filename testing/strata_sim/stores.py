"""Row stores in memory that lose the same rows as real ones when a process dies or power fails.

- Replicated state has no write-ahead log: a dead process leaves the flushed batches, and maybe some
  later batches, always a whole prefix.
- Metadata has a write-ahead log: a dead process leaves everything, a power loss leaves the synced
  batches and maybe some later ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from strata_state.memory_store import MemoryBatch, MemoryStore
from strata_state.metadata import Row
from strata_state.ports import RowBatch
from strata_testing.metadata_store import MemoryMetadataStore

_BATCHES_MAX = 100_000


class SimStore(MemoryStore):
    """The rows of a storage node; `StateStore`."""

    def __init__(self) -> None:
        super().__init__()
        self._unflushed: list[RowBatch] = []

    def write(self, batch: RowBatch) -> None:
        """Apply a batch."""
        super().write(batch)
        if len(self._unflushed) < _BATCHES_MAX:
            self._unflushed.append(batch)

    def flush(self) -> None:
        """Remember the rows as what a crash leaves."""
        super().flush()
        self._unflushed = []

    def after_death(self, chance: random.Random) -> SimStore:
        """Return the store that the next process finds."""
        left = SimStore()
        flushed = self.after_crash()
        left._values, left._keys, left._flushed = flushed._values, flushed._keys, flushed._flushed
        if chance.random() < 0.5:
            for batch in self._unflushed[: chance.randrange(len(self._unflushed) + 1)]:
                assert isinstance(batch, MemoryBatch)
                left.write(batch)
            left.flush()
        return left


class SimMetadataStore(MemoryMetadataStore):
    """The rows of a nameserver, or a storage node's copy of them; `MetadataStore`."""

    def __init__(self) -> None:
        super().__init__()
        self._synced: dict[bytes, bytes] = {}
        self._unsynced: list[tuple[Sequence[Row], Sequence[bytes]]] = []

    def write(self, puts: Sequence[Row], deletes: Sequence[bytes] = ()) -> None:
        """Write and delete rows."""
        super().write(puts, deletes)
        self._unsynced.append((tuple(puts), tuple(deletes)))

    def sync(self) -> None:
        """Remember the rows as what a power loss leaves."""
        for puts, deletes in self._unsynced:
            for key in deletes:
                self._synced.pop(key, None)
            self._synced.update(puts)
        self._unsynced = []

    def close(self) -> None:
        """Sync."""
        self.sync()

    def after_power_loss(self, chance: random.Random) -> SimMetadataStore:
        """Return the store that the next process finds."""
        left = SimMetadataStore()
        left.write(list(self._synced.items()))
        for puts, deletes in self._unsynced[: chance.randrange(len(self._unsynced) + 1)]:
            left.write(puts, deletes)
        left.sync()
        return left
