"""Values that a replica keeps and agrees on: entries, hard state, configuration, snapshot.

Pure: standard library value types only, no clock, no I/O, no randomness (rule 4 of "What must
always hold" in ARCHITECTURE.md). Everything here is immutable. Inputs and outputs of the core are
in `events.py`, messages between replicas in `messages.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

NO_REPLICA = 0
"""Replica ids start at 1; this stands for "voted for nobody" and "no leader known"."""


class EntryKind(IntEnum):
    """Kind of an entry's payload."""

    NORMAL = 0
    NO_OP = 1
    CONFIGURATION = 2


class Role(IntEnum):
    """A replica's part in its raft group."""

    FOLLOWER = 1
    PRE_CANDIDATE = 2
    CANDIDATE = 3
    LEADER = 4
    LEARNER = 5


Payload = tuple[bytes, ...]
"""An entry's payload as buffers that are written one after another, never joined on the way."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a raft group's log."""

    term: int
    index: int
    kind: EntryKind
    payload: Payload = ()

    def size_bytes(self) -> int:
        """Return the length of the payload."""
        return sum(map(len, self.payload))


@dataclass(frozen=True, slots=True)
class HardState:
    """State that a replica must not forget: thesis section 3.8."""

    term: int = 0
    vote: int = NO_REPLICA
    commit: int = 0


@dataclass(frozen=True, slots=True)
class Configuration:
    """Voters and learners by replica id; `outgoing` is non-empty in a joint configuration.

    While it is joint, every decision needs a majority of `voters` (the new ones) and a majority of
    `outgoing` (the old ones): thesis section 4.3, rule 12.
    """

    voters: frozenset[int]
    learners: frozenset[int] = field(default_factory=frozenset)
    outgoing: frozenset[int] = field(default_factory=frozenset)

    def is_joint(self) -> bool:
        """Tell whether two majorities are needed."""
        return bool(self.outgoing)

    def may_vote(self, replica_id: int) -> bool:
        """Tell whether the replica counts in either majority."""
        return replica_id in self.voters or replica_id in self.outgoing

    def replicas(self) -> frozenset[int]:
        """Return every replica that receives entries."""
        return self.voters | self.outgoing | self.learners


@dataclass(frozen=True, slots=True)
class SnapshotMetadata:
    """The log prefix that a snapshot stands for; its content is the driver's business."""

    index: int
    term: int
    configuration: Configuration
