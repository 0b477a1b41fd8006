"""The loops of a node: write, apply, catch up, tick."""

from strata_multiraft.driver.node import MultiRaft, MultiRaftOptions, Replica, ReplicaSpec
from strata_multiraft.driver.ticker import is_late_answer
from strata_multiraft.driver.writer import WriterThread

__all__ = [
    "MultiRaft",
    "MultiRaftOptions",
    "Replica",
    "ReplicaSpec",
    "WriterThread",
    "is_late_answer",
]
