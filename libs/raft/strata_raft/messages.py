"""Messages between replicas of one raft group.

Every message names its sender and receiver by replica id, which is never reused (rule 8), so that
a message to or from an earlier life of a node is recognised. `term` is the sender's term, except
in a pre-vote: there it is the term the sender would campaign in.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata_raft.types import Entry, SnapshotMetadata


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """Asks for a vote; with `pre_vote` only whether one would be given (thesis 3.4, 9.6)."""

    source: int
    target: int
    term: int
    last_index: int
    last_term: int
    pre_vote: bool = False
    # Set when the leader itself asked for the election; a fresh leader is then no obstacle.
    transfer: bool = False
    # The sender's applied index: a replica that is far ahead of it leads sooner.
    applied: int = 0


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """Answers a `VoteRequest`. A granted pre-vote carries the term that was asked about."""

    source: int
    target: int
    term: int
    granted: bool
    pre_vote: bool = False


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Replicates entries that follow `(previous_index, previous_term)` (thesis 3.5)."""

    source: int
    target: int
    term: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit: int


@dataclass(frozen=True, slots=True)
class AppendResponse:
    """Answers an `AppendRequest` or `SnapshotRequest`.

    Accepted: everything up to `index` is durable at the sender and equals the leader's log.
    Rejected: `index` is the refused `previous_index`; the leader should go on at `hint_index`,
    where the sender's log has `hint_term`.
    """

    source: int
    target: int
    term: int
    index: int
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Keeps the leader's claim alive; `context` numbers the reads it confirms (thesis 6.4)."""

    source: int
    target: int
    term: int
    commit: int
    context: int = 0


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """Answers a `Heartbeat` with its context; `applied`: up to where the sender has applied."""

    source: int
    target: int
    term: int
    context: int = 0
    applied: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Says that the receiver needs a snapshot; its data travel outside the core."""

    source: int
    target: int
    term: int
    snapshot: SnapshotMetadata


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """Tells the receiver to campaign at once: leadership transfer (thesis 3.10)."""

    source: int
    target: int
    term: int


Message = (
    VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | SnapshotRequest
    | TimeoutNow
)
