"""All rows of the metadata as a whole: given to a nameserver that lags too far behind, or taken.

An install is marked in the store until its last batch, which brings the applied row: a crash
between finds the mark and no applied row, and the install begins again. Watchers hear nothing
meanwhile. The rows that only serve to resume watches do not travel: watchers get a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from strata.meta.v1 import command_pb2, meta_pb2
from strata_metadata.rows import SNAPSHOT_ORDER
from strata_metadata.watch import WatchHub
from strata_multiraft.base import LogFull, SnapshotRows
from strata_nameserver.state.machine import MetadataMachine
from strata_raft import SnapshotMetadata
from strata_state.metadata import FrozenRows, MetadataStore, MetadataStoreError
from strata_state.metadata_keys import APPLIED_KEY, INSTALLING_KEY, MetadataRowKind, kind_range

_KINDS = tuple(sorted((MetadataRowKind.APPLIED, MetadataRowKind.ANSWER, *SNAPSHOT_ORDER)))
_DELETES_AT_ONCE = 10_000


class MetadataSnapshotReader:
    """Implements `strata_multiraft.base.ports.SnapshotReader`."""

    def __init__(self, rows: FrozenRows, index: int) -> None:
        self.index = index
        self._rows = rows

    def read(self, after: bytes, max_bytes: int) -> SnapshotRows:
        """Return the rows after a key, in the order of their keys."""
        keys: list[bytes] = []
        values: list[bytes] = []
        size_bytes = 0
        start = after + b"\x00" if after else b""
        ranges = (kind_range(kind) for kind in _KINDS)
        scans = (self._rows.scan(max(first, start), end) for first, end in ranges if end > start)
        for key, value in chain.from_iterable(scans):
            size_bytes += len(key) + len(value)
            if keys and size_bytes > max_bytes:
                break
            keys.append(key)
            values.append(value)
        return SnapshotRows(keys, values)

    def close(self) -> None:
        """Let go of the rows."""
        self._rows.close()


class MetadataSnapshots:
    """Implements `strata_multiraft.base.ports.SnapshotStore`.

    Args:
        store: the rows.
        machine: reads them again after an install.
        hub: its watchers wait while the rows are incomplete.
    """

    def __init__(self, store: MetadataStore, machine: MetadataMachine, hub: WatchHub) -> None:
        self._store = store
        self._machine = machine
        self._hub = hub
        self._applied = command_pb2.AppliedState()
        if self.is_installing():
            hub.pause()

    def low_index(self) -> int:
        """Return the index after the applied one: no row points at an entry."""
        return self._machine.applied_index() + 1

    def open_snapshot(self) -> MetadataSnapshotReader:
        """Open the rows as of the applied index now."""
        return MetadataSnapshotReader(self._store.frozen(), self._machine.applied_index())

    def is_installing(self) -> bool:
        """Tell whether a crash interrupted an install."""
        return self._store.get(INSTALLING_KEY) is not None

    def begin_install(self, snapshot: SnapshotMetadata) -> None:
        """Mark the rows as being replaced, then drop them.

        Raises:
            LogFull: they are not, or not all of them.
        """
        self._hub.pause()
        self._applied = command_pb2.AppliedState()
        with _may_be_full():
            self._store.write([(INSTALLING_KEY, b"")], [APPLIED_KEY])
            self._store.sync()
            self._drop_rows()

    def install_rows(self, rows: SnapshotRows) -> None:
        """Write rows; the applied row is kept back for the end.

        Raises:
            LogFull: they were not written.
        """
        puts = list(zip(rows.keys, rows.values, strict=True))
        for key, value in puts:
            if key == APPLIED_KEY:
                self._applied.ParseFromString(value)
        with _may_be_full():
            self._store.write([row for row in puts if row[0] != APPLIED_KEY])

    def finish_install(self, snapshot: SnapshotMetadata) -> None:
        """Write the applied row in place of the mark, durably.

        Raises:
            ValueError: the applied row did not come, or is not that of the snapshot.
            LogFull: it is not certain that it is there.
        """
        if self._applied.index != snapshot.index:
            raise ValueError(f"the rows are of index {self._applied.index}, not {snapshot.index}")
        configuration = snapshot.configuration
        self._applied.configuration.CopyFrom(
            meta_pb2.Membership(
                configuration_index=self._applied.configuration.configuration_index,
                voters=sorted(configuration.voters),
                learners=sorted(configuration.learners),
                outgoing=sorted(configuration.outgoing),
            )
        )
        with _may_be_full():
            self._store.write([(APPLIED_KEY, self._applied.SerializeToString())], [INSTALLING_KEY])
            self._store.sync()

    def abandon_install(self) -> None:
        """Drop all rows, then the mark, durably.

        Raises:
            LogFull: it is not certain that they are gone.
        """
        with _may_be_full():
            self._drop_rows()
            self._store.write([], [APPLIED_KEY, INSTALLING_KEY])
            self._store.sync()

    def installed(self) -> None:
        """Start from the new rows.

        Raises:
            LogFull: they cannot be read.
        """
        with _may_be_full():
            self._machine.installed()
        self._hub.resume()

    def _drop_rows(self) -> None:
        for kind in (*SNAPSHOT_ORDER, MetadataRowKind.CHANGE, MetadataRowKind.ANSWER):
            keys = [key for key, _ in self._store.scan(*kind_range(kind))]
            for start in range(0, len(keys), _DELETES_AT_ONCE):
                self._store.write([], keys[start : start + _DELETES_AT_ONCE])


@contextmanager
def _may_be_full() -> Iterator[None]:
    """Tell the driver that a step of an install failed, in the way that it knows.

    Raises:
        LogFull: in place of what the rows raise; the driver repeats the step. A sync that failed
            is none of it: that is final (rule 7).
    """
    try:
        yield
    except MetadataStoreError as error:
        raise LogFull(str(error)) from error
