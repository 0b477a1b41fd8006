"""Many raft groups over one CommitLog.

Make a `MultiRaft`, add replicas with their state machines, `start` it; then a service needs only
`Replica.propose` and `Replica.read_barrier`.
"""

from strata_multiraft.base.errors import (
    LogFull,
    MembershipRefused,
    NotLeader,
    Overloaded,
    ReadOnly,
    SnapshotBroken,
    SnapshotRefused,
    TransferFailed,
)
from strata_multiraft.base.options import MultiRaftOptions
from strata_multiraft.base.ports import (
    SnapshotFetcher,
    SnapshotReader,
    SnapshotStore,
    StateMachine,
    Transport,
)
from strata_multiraft.driver.links import LogThreads, PeerLinks
from strata_multiraft.driver.node import MultiRaft
from strata_multiraft.driver.writer import WriterThread
from strata_multiraft.replica.replica import Replica, ReplicaSpec

__all__ = [
    "LogFull",
    "LogThreads",
    "MembershipRefused",
    "MultiRaft",
    "MultiRaftOptions",
    "NotLeader",
    "Overloaded",
    "PeerLinks",
    "ReadOnly",
    "Replica",
    "ReplicaSpec",
    "SnapshotBroken",
    "SnapshotFetcher",
    "SnapshotReader",
    "SnapshotRefused",
    "SnapshotStore",
    "StateMachine",
    "TransferFailed",
    "Transport",
    "WriterThread",
]
