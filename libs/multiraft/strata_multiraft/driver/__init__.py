"""The loops of a node: write, apply, catch up, tick."""

from strata_multiraft.base.options import MultiRaftOptions
from strata_multiraft.driver.node import MultiRaft
from strata_multiraft.driver.ticker import is_late_answer
from strata_multiraft.driver.writer import WriterThread
from strata_multiraft.replica.replica import Replica, ReplicaSpec

__all__ = [
    "MultiRaft",
    "MultiRaftOptions",
    "Replica",
    "ReplicaSpec",
    "WriterThread",
    "is_late_answer",
]
