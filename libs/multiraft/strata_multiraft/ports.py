"""Ports of the multi-raft driver: state machine, log, transport, and the writer's thread.

The driver (`node.MultiRaft`) owns the CommitLog's writer, one `RawNode` per raft group and the
order of effects. A state machine owns rows and, while its replica leads, speculative state
(rule 1): the driver never looks into a payload.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from strata_raft import Entry, Message
from strata_seglog.frames import Frame, StoredFrame

if TYPE_CHECKING:
    from strata_seglog.index import ReplicaLog

Result = TypeVar("Result")


class StateMachine(Protocol):
    """What one replica of a raft group is for. All methods run on the event loop."""

    def applied_index(self) -> int:
        """Return the index of the last entry whose rows are in the store (0: none)."""

    def persisted_index(self) -> int:
        """Return the applied index that survives a crash (rule 6)."""

    def apply(self, entries: Sequence[Entry]) -> None:
        """Write the rows of committed entries, in order, each exactly once, evaluating nothing.

        Entries of every kind come, so that the applied index has no holes; a no-op or a
        configuration changes only the applied index.

        Raises:
            Exception: any; the driver stops apply of this raft group at the last good index and
                reports it (rule 11). It never skips.
        """

    def on_leader(self, term: int) -> None:
        """Become leader: called after the no-op of `term` is committed and applied (rule 1).

        Called again in the same term after `on_follower` when the disk was full: everything that
        was in flight is void, and everything committed is applied.
        """

    def on_follower(self, term: int, leader_replica_id: int) -> None:
        """Stop leading or learn of another leader; speculative state is dropped."""


class Log(Protocol):
    """What the driver needs of `strata_seglog.log.CommitLog`; calls may block."""

    def replicas(self) -> Mapping[int, ReplicaLog]:
        """Return what recovery found, by replica id."""

    def write_and_sync(self, frames: Sequence[Frame]) -> int:
        """Write and sync; return the log position up to which everything is durable."""

    def mark(self) -> None:
        """Write down that everything is durable, if nothing says so yet."""

    def entries(
        self, replica_id: int, first: int, last: int, max_bytes: int
    ) -> Iterable[StoredFrame]:
        """Return entry frames of a replica, at least one."""

    def recent(self, replica_id: int, index: int) -> bytes | None:
        """Return an entry's payload if it is in memory, without I/O."""


class RunBlocking(Protocol):
    """Runs a blocking call off the event loop; calls run one at a time and in order."""

    def __call__(self, work: Callable[[], Result], /) -> Awaitable[Result]:
        """Return what `work` returns."""


class TrafficClass(IntEnum):
    """Budgets between nodes, most important first; a lower one never uses a higher one's share.

    Rule 15. The driver sends the first and the third; lease and fetch traffic is the storage
    node's own.
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

    def send(self, node_id: int, envelopes: Sequence[Envelope], traffic: TrafficClass) -> bool:
        """Queue messages for a node; False: the class's queue is full and all were dropped.

        Delivery is not promised: messages may be lost, repeated and reordered.
        """
