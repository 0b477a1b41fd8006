"""Events, the input of a `RawNode`, and effects, its output.

An owner steps one event at a time and does the effects in the order of the fields of `Effects`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from strata_raft.messages import Message
from strata_raft.types import (
    NO_REPLICA,
    Entry,
    HardState,
    Payload,
    Role,
    SnapshotMetadata,
)


class EventRefused(Exception):
    """The event is not possible now; nothing changed."""


@dataclass(frozen=True, slots=True)
class Propose:
    """Append these payloads as entries, one each, in order. Leader only."""

    payloads: tuple[Payload, ...]


@dataclass(frozen=True, slots=True)
class Receive:
    """A message came from another replica."""

    message: Message


@dataclass(frozen=True, slots=True)
class Persisted:
    """Everything in effects up to `sequence` is written and synced."""

    sequence: int


@dataclass(frozen=True, slots=True)
class LogWriteFailed:
    """The log had no room: everything not yet reported as persisted is gone (rule 11)."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """Stand for election now instead of waiting for the timeout."""


@dataclass(frozen=True, slots=True)
class ForgetLeader:
    """The leader is known to be gone: count on it no longer, and let others campaign at once.

    Safe at any time: only term and vote decide who may get a vote, and a leader that is still alive
    is known again with its next message.
    """


@dataclass(frozen=True, slots=True)
class Read:
    """Ask for an index from which a linearizable read may be served. Leader only.

    The answer is a `ReadState` with the same `context`, a number that the owner never repeats; it
    is lost with the leadership.
    """

    context: int


@dataclass(frozen=True, slots=True)
class TransferLeadership:
    """Hand the leadership to a voter; proposals are refused until it is decided."""

    target: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """Give up the leadership at once, done with what is under way or not. Leader only.

    The successor, if not 0, is told to campaign; it wins if it is up to date.
    """

    successor: int = NO_REPLICA


@dataclass(frozen=True, slots=True)
class ChangeMembership:
    """Move to these voters and learners through a joint configuration (rule 12). Leader only."""

    voters: frozenset[int]
    learners: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class EntriesFetched:
    """Stored entries that `LogReader.entries` did not have at hand are there now."""


@dataclass(frozen=True, slots=True)
class PeerUnreachable:
    """A message to this replica was dropped on the way out (rule 15)."""

    replica_id: int


@dataclass(frozen=True, slots=True)
class SnapshotSent:
    """The snapshot's data reached that replica, or did not."""

    replica_id: int
    delivered: bool


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """The data asked for by `Effects.install` are in the store; the log starts after them."""

    snapshot: SnapshotMetadata
    leader_id: int


Event = (
    Propose
    | Receive
    | Persisted
    | LogWriteFailed
    | Campaign
    | ForgetLeader
    | Read
    | TransferLeadership
    | StepDown
    | ChangeMembership
    | EntriesFetched
    | PeerUnreachable
    | SnapshotSent
    | SnapshotInstalled
)


@dataclass(frozen=True, slots=True)
class ReadState:
    """A read with this context may be served once `index` is applied."""

    context: int
    index: int


@dataclass(frozen=True, slots=True)
class RoleChange:
    """Role, term or known leader are no longer what the last one said."""

    role: Role
    term: int
    leader_id: int


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Get this snapshot's data from the leader, store them, step `SnapshotInstalled`.

    It is repeated while the leader waits: an owner that is at it already ignores it. Right before
    the data replace the store, with no write under way, `RawNode.needs_snapshot` must still hold;
    else they are dropped, and the answer to the leader's next request says why.
    """

    snapshot: SnapshotMetadata
    leader_id: int


class Effects(NamedTuple):
    """Work for the driver, in the order of the fields.

    1. Send `messages`: they may leave before anything is synced.
    2. Write `hard_state`, then `entries`; an entry supersedes stored ones with the same or a higher
       index (rule 9). Sync. Step `Persisted(sequence)`. Effects without either need no sync.
    3. Send `messages_after_sync` once everything up to `sequence` is synced, earlier effects
       included.
    4. `commit_index` is what is committed now: proposals up to it may be answered. `ready_index`
       is the part of it that is synced here: entries up to it may be applied.
    5. Serve `reads` when their index is applied; take note of `role_change`; begin `install`.
    """

    messages: tuple[Message, ...]
    hard_state: HardState | None
    entries: tuple[Entry, ...]
    sequence: int
    messages_after_sync: tuple[Message, ...]
    commit_index: int
    ready_index: int
    reads: tuple[ReadState, ...]
    role_change: RoleChange | None
    install: InstallSnapshot | None

    def must_sync(self) -> bool:
        """Tell whether there is something to write and sync."""
        return self.hard_state is not None or bool(self.entries)
