"""Snapshots of one raft group's rows: read on the leader, written over a follower's (rule 10).

`strata_multiraft.base.ports.SnapshotStore`. A snapshot is every row that replicas share, as of one
applied index; the entries that rows point at travel beside it, in the log.

An install is all or nothing: the mark in the local row is durable before the first old row goes,
and the batch that takes the mark away is durable before anybody is told. A crash in between finds
the mark and leaves no row (`claim_rows`).

A disk that refuses a step of an install is told to the driver as a log without room: LogFull. It
waits then, or begins anew; every step may be done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from strata_mq.layout import LocalRow, RowKind, kind_prefix, raft_group_prefix
from strata_multiraft import LogFull
from strata_multiraft.base import SnapshotRows
from strata_raft import SnapshotMetadata
from strata_state.ports import RowCursor, StateError, StateStore
from strata_state.rows import GroupRows
from strata_storage.rows.machine import GroupMachine


def claim_rows(store: StateStore, raft_group: int, replica_id: int) -> bool:
    """See to it that a raft group's rows are those of the replica that is hosted now.

    Rows of a replica that was removed, of an install that a crash cut off, or of nobody, go. Blocks
    shortly.

    Returns:
        Whether an install was cut off: the replica has no rows until it gets a snapshot again.
    """
    rows = GroupRows(store, raft_group)
    local = rows.local.get()
    if local is None or local.replica_id != replica_id:
        local = LocalRow(replica_id)
    elif not local.installing_index:
        return False
    batch = store.new_batch()
    rows.drop(batch)
    rows.local.put(batch, local)
    store.write(batch)
    return local.installing_index > 0


def drop_rows(store: StateStore, raft_group: int, replica_id: int) -> None:
    """Remove a raft group's rows, unless they are those of another replica."""
    rows = GroupRows(store, raft_group)
    local = rows.local.get()
    if local is None or local.replica_id == replica_id:
        batch = store.new_batch()
        rows.drop(batch)
        store.write(batch)


class SnapshotRowReader:
    """`SnapshotReader`: the rows as they were when it was made."""

    def __init__(self, cursor: RowCursor, raft_group: int, index: int) -> None:
        self.index = index
        self._cursor: RowCursor | None = cursor
        self._prefix = raft_group_prefix(raft_group)

    def read(self, after: bytes, max_bytes: int) -> SnapshotRows:
        """Return rows behind a key, at least one; none: that was the end. Blocks."""
        assert self._cursor is not None, "the snapshot is closed"
        skipped = len(self._prefix)
        # The smallest key above `after`; from the start when it is empty.
        first = self._prefix + after + (b"\x00" if after else b"")
        keys: list[bytes] = []
        values: list[bytes] = []
        size_bytes = 0
        for key, value in self._cursor.seek(first):
            keys.append(key[skipped:])
            values.append(value)
            size_bytes += len(key) + len(value)
            if size_bytes >= max_bytes:
                break
        return SnapshotRows(keys, values)

    def close(self) -> None:
        """Let go of the store's files."""
        self._cursor = None


class GroupSnapshots:
    """See the module docstring.

    Args:
        store: the rows of all raft groups.
        machine: of the raft group; what it keeps in memory is read again after an install.
        replica_id: of the replica here.
        is_installing: what `claim_rows` returned.
        on_installed: called when the rows were replaced.
    """

    def __init__(
        self,
        store: StateStore,
        machine: GroupMachine,
        replica_id: int,
        *,
        is_installing: bool,
        on_installed: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._machine = machine
        self._rows = machine.rows
        self._replica_id = replica_id
        self._is_installing = is_installing
        self._on_installed = on_installed

    # Leading side -------------------------------------------------------------------------------

    def low_index(self) -> int:
        """Return the lowest raft index that rows still point at; 0: unknown, everything."""
        return self._machine.low_index

    def open_snapshot(self) -> SnapshotRowReader:
        """Return the rows as they are now."""
        raft_group = self._machine.raft_group
        self._machine.settle()
        # The local row is this replica's own.
        end = kind_prefix(raft_group, RowKind.LOCAL)
        cursor = self._store.cursor(raft_group_prefix(raft_group), end)
        return SnapshotRowReader(cursor, raft_group, self._machine.applied_index())

    # Following side; in a thread until `installed` ------------------------------------------------

    def is_installing(self) -> bool:
        """Whether the rows are incomplete."""
        return self._is_installing

    def begin_install(self, snapshot: SnapshotMetadata) -> None:
        """Mark the rows as incomplete, durably, then remove them.

        Raises:
            LogFull: it is not certain that they are marked.
        """
        self._is_installing = True
        mark = LocalRow(self._replica_id, snapshot.index, snapshot.term)
        with _may_be_full():
            self._replace_all(mark)

    def install_rows(self, rows: SnapshotRows) -> None:
        """Write rows of the snapshot.

        Raises:
            LogFull: they were not written.
        """
        prefix = raft_group_prefix(self._machine.raft_group)
        batch = self._store.new_batch()
        for key, value in zip(rows.keys, rows.values, strict=True):
            batch.put(prefix + key, value)
        with _may_be_full():
            self._store.write(batch)

    def finish_install(self, snapshot: SnapshotMetadata) -> None:
        """Declare the rows complete; durable when it returns.

        Without a configuration row among them the raft group is as it began: a voter of then
        knows that from its `HostedGroup`, and a learner votes for nothing until an entry says so.

        Raises:
            LogFull: it is not certain that they are complete.
        """
        batch = self._store.new_batch()
        self._rows.local.put(batch, LocalRow(self._replica_id))
        with _may_be_full():
            self._store.write(batch)
            self._store.flush()
        self._is_installing = False

    def abandon_install(self) -> None:
        """Leave an empty replica; durable when it returns.

        Raises:
            LogFull: it is not certain that it is empty.
        """
        with _may_be_full():
            self._replace_all(LocalRow(self._replica_id))
        self._is_installing = False

    def installed(self) -> None:
        """Take in the rows that are there now. On the event loop.

        Raises:
            LogFull: they cannot be read, or the files that stand beside them cannot be written.
        """
        with _may_be_full():
            self._machine.reload()
        self._on_installed()

    def _replace_all(self, mark: LocalRow) -> None:
        batch = self._store.new_batch()
        self._rows.drop(batch)
        self._rows.local.put(batch, mark)
        self._store.write(batch)
        self._store.flush()


@contextmanager
def _may_be_full() -> Iterator[None]:
    """Tell the driver that a step of an install failed, in the way that it knows.

    Raises:
        LogFull: in place of what rows, or files of the tier's metadata, raise.
    """
    try:
        yield
    except (StateError, OSError) as error:
        raise LogFull(f"rows of a snapshot: {error}") from error
