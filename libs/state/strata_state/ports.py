"""The port of a row store: sorted bytes to bytes, changed by atomic batches.

One store holds the replicated state of all raft groups of a storage node in one key space (rule 5):
a batch that carries rows and the applied row is atomic, a scan is a consistent picture of a raft
group, one range deletion drops it. There is no write-ahead log: a crash may lose the batches
written since the last completed `flush`, always a whole suffix of the batches, never a part of one.
The CommitLog restores them.

A store does not know what rows mean (`rows` does) nor when to flush (`flush` does).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

Row = tuple[bytes, bytes]


class StateError(Exception):
    """The store cannot be opened, read or written; the reason is for people."""


class DamagedRowsError(StateError):
    """The bytes of rows are not what was written: a checksum says so, no later read helps."""


class RowBatch(Protocol):
    """Changes that become visible, and durable, together and in order."""

    def put(self, key: bytes, value: bytes) -> None:
        """Write one row, replacing what was there."""

    def delete(self, key: bytes) -> None:
        """Remove one row; a missing one is no error."""

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Remove every row with begin <= key < end that was written before this call."""


class RowCursor(Protocol):
    """Rows of a range as they were when the cursor was made.

    Any thread may use it, one at a time. It pins files of the store: it goes before the store
    is closed.
    """

    def seek(self, key: bytes) -> Iterator[Row]:
        """Iterate from the first row at or after `key` on; an earlier iteration ends.

        Raises:
            StateError: from the iterator, when stored bytes are damaged.
        """


class RowReader(Protocol):
    """Rows in key order, to be read. Reads are short and may run on the event loop."""

    def get(self, key: bytes) -> bytes | None:
        """Return a row's value, None if there is none.

        Raises:
            StateError: the stored bytes are damaged.
        """

    def scan(self, begin: bytes, end: bytes) -> Iterator[Row]:
        """Iterate rows with begin <= key < end in key order, as they are at the call.

        The iterator may be driven from another thread than the one that made it.

        Raises:
            StateError: from the iterator, when stored bytes are damaged.
        """

    def last_before(self, lower: bytes, key: bytes) -> Row | None:
        """Return the last row with lower <= its key <= `key` (a reverse seek), None if none."""


class StateStore(RowReader, Protocol):
    """A `RowReader` that is written. Writes are short and may run on the event loop."""

    def new_batch(self) -> RowBatch:
        """Return an empty batch for `write`."""

    def write(self, batch: RowBatch) -> None:
        """Apply a batch made by `new_batch`, atomically. A batch is written once.

        Raises:
            StateError: nothing of the batch was written.
        """

    def cursor(self, begin: bytes, end: bytes) -> RowCursor:
        """Return a cursor over rows with begin <= key < end, as they are at the call."""

    def flush(self) -> None:
        """Make everything written before the call durable. Blocks: never on the event loop.

        Raises:
            StateError: durability is not known; nothing may be assumed persisted.
        """

    def memory_bytes(self) -> int:
        """Return bytes of rows that are not flushed, as the store accounts for them."""

    def close(self) -> None:
        """Flush and release the store. No call may follow."""
