"""Many raft groups over one CommitLog.

Make a `MultiRaft`, add replicas with their state machines, `start` it; then `Replica.propose` and
`Replica.read_barrier` are all a service needs.
"""

from strata_multiraft.errors import DiskFull, NotLeader, Overloaded, ReadOnly
from strata_multiraft.node import MultiRaft
from strata_multiraft.options import MultiRaftOptions
from strata_multiraft.ports import StateMachine
from strata_multiraft.replica import Replica, ReplicaSpec
from strata_multiraft.writer import WriterThread

__all__ = [
    "DiskFull",
    "MultiRaft",
    "MultiRaftOptions",
    "NotLeader",
    "Overloaded",
    "ReadOnly",
    "Replica",
    "ReplicaSpec",
    "StateMachine",
    "WriterThread",
]
