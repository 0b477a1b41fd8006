"""One raft group as a pure state machine: no clock, no threads, no I/O, no randomness.

In order of use:

1. Give a replica its stored log through a `LogReader`, its membership and a source of election
   timeouts. Time is a tick of any length.

    >>> from strata_raft import Campaign, Configuration, Membership, MemoryLog
    >>> from strata_raft import Persisted, Propose, RawNode
    >>> stored, sole = MemoryLog(), Membership(Configuration(frozenset({1})))
    >>> node = RawNode(1, stored, sole, election_timeout_ticks=lambda: 8)

2. Call `tick` at a fixed interval and `step` for everything that happens: a message that came, a
   proposal, a finished sync. Here a sole voter is told not to wait for its timeout.

    >>> effects = node.step(Campaign())

3. Do the effects in order: send `messages`; write `hard_state` and `entries` and sync them; then
   send `messages_after_sync` and say so with `Persisted`. Many raft groups can share one sync.

    >>> effects.hard_state
    HardState(term=1, vote=1, commit=0)
    >>> stored.write(effects.entries)
    >>> effects = node.step(Persisted(effects.sequence))

4. Apply entries up to `ready_index`; answer proposals up to `commit_index`. The first entry of a
   term is a no-op: nothing may be decided before it is applied.

    >>> node.role.name, node.term_start_index, effects.ready_index
    ('LEADER', 1, 1)

5. Propose.

    >>> effects = node.step(Propose(((b"first",), (b"sec", b"ond"))))
    >>> [(entry.index, entry.payload) for entry in effects.entries]
    [(2, (b'first',)), (3, (b'sec', b'ond'))]
    >>> stored.write(effects.entries)
    >>> node.step(Persisted(effects.sequence)).commit_index
    3

6. Reads (`Read`), leadership transfer (`TransferLeadership`) and membership (`ChangeMembership`,
   always through a joint configuration) are events too. An event that is impossible now raises
   `EventRefused` and changes nothing.
"""

from strata_raft.events import (
    Campaign,
    ChangeMembership,
    Effects,
    EntriesFetched,
    Event,
    EventRefused,
    ForgetLeader,
    InstallSnapshot,
    LogWriteFailed,
    PeerUnreachable,
    Persisted,
    Propose,
    Read,
    ReadState,
    Receive,
    RoleChange,
    SnapshotInstalled,
    SnapshotSent,
    StepDown,
    TransferLeadership,
)
from strata_raft.log import Compacted, LogReader
from strata_raft.membership import Membership
from strata_raft.memory_log import MemoryLog
from strata_raft.messages import Message
from strata_raft.options import RaftOptions
from strata_raft.progress import ReplicaProgress
from strata_raft.rawnode import RawNode
from strata_raft.types import (
    NO_REPLICA,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Payload,
    Role,
    SnapshotMetadata,
)

__all__ = [
    "NO_REPLICA",
    "Campaign",
    "ChangeMembership",
    "Compacted",
    "Configuration",
    "Effects",
    "EntriesFetched",
    "Entry",
    "EntryKind",
    "Event",
    "EventRefused",
    "ForgetLeader",
    "HardState",
    "InstallSnapshot",
    "LogReader",
    "LogWriteFailed",
    "Membership",
    "MemoryLog",
    "Message",
    "Payload",
    "PeerUnreachable",
    "Persisted",
    "Propose",
    "RaftOptions",
    "RawNode",
    "Read",
    "ReadState",
    "Receive",
    "ReplicaProgress",
    "Role",
    "RoleChange",
    "SnapshotInstalled",
    "SnapshotMetadata",
    "SnapshotSent",
    "StepDown",
    "TransferLeadership",
]
