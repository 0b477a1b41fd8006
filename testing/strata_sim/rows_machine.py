"""A state machine with rows, for tests of the driver; only flushed rows survive a crash.

Each normal entry becomes one row: key = its index, value = its payload. It gives and takes
snapshots and can be crashed at every step of an install.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from strata_multiraft.base import SnapshotRows
from strata_raft import Configuration, Entry, EntryKind, SnapshotMetadata
from strata_raft.membership import decode_configuration

_KEY = struct.Struct(">Q")


@dataclass(slots=True)
class Rows:
    """All that a store holds of one raft group."""

    index: int = 0
    term: int = 0
    configuration: tuple[int, Configuration] | None = None
    values: dict[bytes, bytes] = field(default_factory=dict)
    is_installing: bool = False

    def copy(self) -> Rows:
        """Return rows that do not change with these."""
        return replace(self, values=dict(self.values))


class InjectedFault(Exception):
    """Raised where a test wants a machine to fail."""


class RowsMachine:
    """Implements `StateMachine` and `SnapshotStore` in memory.

    Attributes:
        rows: as readers see them.
        flushed: as a crash leaves them.
        low: what `low_index` answers.
        fails_at: `apply` raises at this index.
        told: what it was told of leadership: (role, term or leader).
        steps: names of the install steps so far.
    """

    def __init__(self, flushed: Rows | None = None) -> None:
        self.flushed = flushed or Rows()
        self.rows = self.flushed.copy()
        self.low = 0
        self.fails_at = 0
        self.told: list[tuple[str, int]] = []
        self.steps: list[str] = []

    def crashed(self) -> RowsMachine:
        """Return the machine that a new process opens."""
        survivor = RowsMachine(self.flushed.copy())
        survivor.low = self.low
        return survivor

    def flush(self) -> None:
        """Make all rows outlive a crash."""
        self.flushed = self.rows.copy()

    def payloads(self) -> list[bytes]:
        """Return the payloads of the applied normal entries, in order."""
        return [self.rows.values[key] for key in sorted(self.rows.values)]

    # -- StateMachine ----------------------------------------------------------------------------

    def applied_index(self) -> int:
        """See `StateMachine`."""
        return 0 if self.rows.is_installing else self.rows.index

    def applied_term(self) -> int:
        """See `StateMachine`."""
        return 0 if self.rows.is_installing else self.rows.term

    def persisted_index(self) -> int:
        """See `StateMachine`."""
        return self.flushed.index

    def configuration(self) -> tuple[int, Configuration] | None:
        """See `StateMachine`."""
        return self.rows.configuration

    def apply(self, entries: Sequence[Entry]) -> None:
        """See `StateMachine`."""
        assert not self.rows.is_installing, "applied while rows are replaced"
        for entry in entries:
            if entry.index == self.fails_at:
                raise InjectedFault(f"at {entry.index}")
            assert entry.index == self.rows.index + 1, "apply must neither skip nor repeat"
            if entry.kind is EntryKind.NORMAL:
                self.rows.values[_KEY.pack(entry.index)] = b"".join(entry.payload)
            elif entry.kind is EntryKind.CONFIGURATION:
                self.rows.configuration = entry.index, decode_configuration(entry.payload)
            self.rows.index, self.rows.term = entry.index, entry.term

    def on_leader(self, term: int) -> None:
        """See `StateMachine`."""
        self.told.append(("leader", term))

    def on_follower(self, term: int, leader_replica_id: int) -> None:
        """See `StateMachine`."""
        self.told.append(("follower", leader_replica_id))

    # -- SnapshotStore ---------------------------------------------------------------------------

    def low_index(self) -> int:
        """See `SnapshotStore`."""
        return self.low

    def open_snapshot(self) -> RowsReader:
        """See `SnapshotStore`."""
        return RowsReader(self.rows.copy())

    def is_installing(self) -> bool:
        """See `SnapshotStore`."""
        return self.rows.is_installing

    def begin_install(self, snapshot: SnapshotMetadata) -> None:
        """See `SnapshotStore`."""
        self.steps.append("begin")
        self.rows = Rows(is_installing=True)
        self.flush()

    def install_rows(self, rows: SnapshotRows) -> None:
        """See `SnapshotStore`."""
        assert self.rows.is_installing
        self.steps.append("rows")
        self.rows.values.update(zip(rows.keys, rows.values, strict=True))

    def finish_install(self, snapshot: SnapshotMetadata) -> None:
        """See `SnapshotStore`."""
        self.steps.append("finish")
        configuration = (snapshot.index, snapshot.configuration)
        self.rows = Rows(snapshot.index, snapshot.term, configuration, self.rows.values)
        self.flush()

    def abandon_install(self) -> None:
        """See `SnapshotStore`."""
        self.steps.append("abandon")
        self.rows = Rows()
        self.flush()

    def installed(self) -> None:
        """See `SnapshotStore`."""
        self.steps.append("installed")


class RowsReader:
    """See `SnapshotReader`."""

    def __init__(self, rows: Rows) -> None:
        self.index = rows.index
        self.is_closed = False
        self._values = rows.values

    def read(self, after: bytes, max_bytes: int) -> SnapshotRows:
        """See `SnapshotReader`."""
        assert not self.is_closed
        keys: list[bytes] = []
        size_bytes = 0
        for key in sorted(key for key in self._values if key > after):
            size_bytes += len(key) + len(self._values[key])
            if keys and size_bytes > max_bytes:
                break
            keys.append(key)
        return SnapshotRows(keys, [self._values[key] for key in keys])

    def close(self) -> None:
        """See `SnapshotReader`."""
        self.is_closed = True
