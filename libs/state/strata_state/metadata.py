"""The metadata store: one row per topic, consumer group, raft group, node and run of slots.

A small ordered key-value port; `metadata_rocksdb` is its adapter, `metadata_keys` builds the keys.
The adapter and the one of tests, in memory, pass one contract suite
(`tests/contract/test_metadata.py`). A batch is written whole or not at all, so the applied row
can never be ahead of, or behind, the rows it counts (rule 21). The store knows nothing of what
the values mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from strata_state.ports import StateError

Row = tuple[bytes, bytes]
"""Key and value."""


class MetadataStoreError(StateError):
    """The store cannot be opened, read or written; the reason is for people."""


class DamagedMetadataError(MetadataStoreError):
    """Files of the store are not what was written."""


class MetadataSyncFailed(Exception):
    """A sync failed: what is durable is unknown. The process must end; never repeated (rule 7).

    No MetadataStoreError: whoever waits until the store can be written again must not catch it.
    """


class FrozenRows(Protocol):
    """All rows as they stood at one moment; may be read in another thread, one call at a time."""

    def scan(self, first: bytes, end: bytes) -> Iterator[Row]:
        """Return the rows with `first <= key < end` in key order; one scan at a time."""

    def close(self) -> None:
        """Let go of the rows."""


class MetadataStore(Protocol):
    """Rows in key order. Calls come from one thread; none waits for a disk sync but `sync`.

    Every call, and every step of a scan, raises MetadataStoreError if the files are damaged or
    cannot be written: rows that cannot be read are never left out. A write that failed left no
    trace and may be repeated; a later one works as soon as the files can be written again.
    """

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row; None: there is no such row."""

    def scan(self, first: bytes, end: bytes) -> Iterator[Row]:
        """Return the rows with `first <= key < end` in key order, as they stand at the call."""

    def frozen(self) -> FrozenRows:
        """Return all rows as they stand at the call."""

    def write(self, puts: Sequence[Row], deletes: Sequence[bytes] = ()) -> None:
        """Write and delete rows in one atomic batch; deleting what is not there is no error.

        A key stands in `puts` or in `deletes`, never in both.
        """

    def sync(self) -> None:
        """Make every batch written before durable. Blocks on the disk: not for the event loop.

        Raises:
            MetadataStoreError: not before a write works again; nothing is lost.
            MetadataSyncFailed: final; the process must end.
        """

    def close(self) -> None:
        """Sync and close; nothing else may be called afterwards.

        Raises:
            MetadataSyncFailed: the rows written last may not be durable; the store is closed.
        """
