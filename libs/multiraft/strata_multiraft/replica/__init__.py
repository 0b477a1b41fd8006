"""One replica of one raft group: its log, its state machine, its members."""

from strata_multiraft.replica.disk_marks import MARK_FULL
from strata_multiraft.replica.replica import Replica
from strata_multiraft.replica.writes import as_frame, removed_frame, void_frame

__all__ = [
    "MARK_FULL",
    "Replica",
    "as_frame",
    "removed_frame",
    "void_frame",
]
