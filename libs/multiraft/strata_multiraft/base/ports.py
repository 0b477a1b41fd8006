"""Ports of the multi-raft driver: state machine, snapshots, log, transport, and threads.

The driver (`node.MultiRaft`) owns the CommitLog's writer, one `RawNode` per raft group and the
order of effects. A state machine owns rows and, while its replica leads, speculative state
(rule 1): the driver never looks into a payload.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from strata_multiraft.base.snapshots import SnapshotFetch, SnapshotPart, SnapshotRows
from strata_raft import Configuration, Entry, Message, SnapshotMetadata
from strata_seglog.frames import Frame, StoredFrame

if TYPE_CHECKING:
    from strata_seglog.index import ReplicaLog

NodeOf = Callable[[int], str | None]
"""Gives the node id of a replica id; None: not known (yet). Asked anew for every message."""


class StateMachine(Protocol):
    """The state machine of one replica of a raft group. All methods run on the event loop."""

    def applied_index(self) -> int:
        """Return the index of the last entry whose rows are in the store (0: none)."""

    def applied_term(self) -> int:
        """Return the term of that entry (0: none); the entry itself may be gone from the log."""

    def persisted_index(self) -> int:
        """Return the applied index that survives a crash (rule 6)."""

    def configuration(self) -> tuple[int, Configuration] | None:
        """Return the applied configuration and its entry's index; None: no entry brought one.

        It is kept in a row, for the entry may be gone from the log.
        """

    def apply(self, entries: Sequence[Entry]) -> None:
        """Write the rows of committed entries, in order, each exactly once, evaluating nothing.

        Entries of every kind come, so that the applied index has no holes. A no-op changes only
        the applied index, a configuration also the row behind `configuration`.

        Raises:
            Exception: any; the driver stops apply of this raft group at the last good index and
                reports it (rule 11). It never skips.
        """

    def on_leader(self, term: int) -> None:
        """Become leader: called after the no-op of `term` is committed and applied (rule 1).

        Called again in the same term after `on_follower` when the disk was full, or when proposals
        were refused because leadership was being handed over: what was in flight and is not in the
        log is void, and everything in the log is applied.
        """

    def on_follower(self, term: int, leader_replica_id: int) -> None:
        """Stop leading or learn of another leader; speculative state is dropped."""


class SnapshotReader(Protocol):
    """The rows of one raft group as of one applied index, whatever is applied later.

    Used in threads, one call at a time.
    """

    @property
    def index(self) -> int:
        """The applied index that the rows are of."""

    def read(self, after: bytes, max_bytes: int) -> SnapshotRows:
        """Return rows in the order of their keys, at least one; none: that was all.

        Args:
            after: the key after which to begin, without the raft group; empty: at the start.
            max_bytes: of keys and values together.
        """

    def close(self) -> None:
        """Let go of the rows."""


class SnapshotStore(Protocol):
    """Gives and takes the rows of one replica as a whole; a replica without one never does.

    Methods that run in a thread are called one at a time, while the driver applies nothing.
    """

    def low_index(self) -> int:
        """Return the lowest raft index that rows still point at; 0: everything in the log."""

    def open_snapshot(self) -> SnapshotReader:
        """Open the rows as of the applied index now; on the event loop, without blocking."""

    def is_installing(self) -> bool:
        """Tell whether a crash interrupted an install; the applied index is 0 then."""

    def begin_install(self, snapshot: SnapshotMetadata) -> None:
        """Mark the rows as being replaced, durably, then drop them. In a thread; repeatable."""

    def install_rows(self, rows: SnapshotRows) -> None:
        """Write rows that come in the order of their keys. In a thread."""

    def finish_install(self, snapshot: SnapshotMetadata) -> None:
        """Make rows, applied index and configuration durable and drop the mark, as one.

        In a thread. The entries that the rows point at are durable in the log already.
        """

    def abandon_install(self) -> None:
        """Drop all rows, then the mark, durably: the applied index is 0. In a thread."""

    def installed(self) -> None:
        """Read again what is kept in memory: the rows were replaced. On the event loop."""


class Log(Protocol):
    """The part of `strata_seglog.log.CommitLog` that the driver uses; calls may block."""

    def replicas(self) -> Mapping[int, ReplicaLog]:
        """Return what the log holds now, by replica id."""

    def replica(self, replica_id: int) -> ReplicaLog | None:
        """Return what the log holds now of a replica; None: nothing."""

    def write_and_sync(self, frames: Sequence[Frame]) -> int:
        """Write and sync; return the log position up to which everything is durable."""

    def mark(self) -> None:
        """Write down that everything is durable, if nothing says so yet."""

    def entries(
        self, replica_id: int, first: int, last: int, max_bytes: int
    ) -> Iterable[StoredFrame]:
        """Return entry frames of a replica up to the first that is missing."""

    def recent(self, replica_id: int, index: int) -> bytes | None:
        """Return an entry's payload if it is in memory, without I/O."""

    def term(self, replica_id: int, index: int) -> int | None:
        """Return the term of a live entry, from the index of the log; None: there is none."""

    def runs(self, replica_id: int) -> Sequence[tuple[int, int]]:
        """Return first and last index of each run of live entries, ascending."""

    def indexes_of_kind(self, replica_id: int, entry_kind: int) -> Sequence[int]:
        """Return the indexes of live entries of a kind, ascending."""


class TrafficClass(IntEnum):
    """Budgets between nodes, most important first; a lower one never uses a higher one's share.

    Rule 15. LEASE: requests whose entries are all urgent (`Replica.is_urgent`: acks, releases) and
    what has no entries; APPEND: other entries; FETCH: entries that were read from the disk for a
    follower that is behind; CONTROL: all else. No message of a raft group overtakes another
    one, CONTROL aside.
    """

    CONTROL = 0
    LEASE = 1
    APPEND = 2
    FETCH = 3


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message with its raft group; one transport frame carries many (rule 19)."""

    raft_group: int
    message: Message


class Transport(Protocol):
    """The way to other nodes. Nothing here awaits (rule 15)."""

    def send(self, node_id: str, envelopes: Sequence[Envelope], traffic: TrafficClass) -> bool:
        """Queue messages for a node; False: the class's queue is full and all were dropped.

        Delivery is not promised: messages may be lost, repeated and reordered.
        """


class SnapshotFetcher(Protocol):
    """Gets snapshots from other nodes, over a connection of their own (rule 15)."""

    def fetch(self, node_id: str, fetch: SnapshotFetch) -> AsyncGenerator[SnapshotPart, None]:
        """Yield what `MultiRaft.snapshot_parts` of that node yields.

        Raises:
            SnapshotRefused: the node does not give it.
            SnapshotBroken: the call was cut.
        """
