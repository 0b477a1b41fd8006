"""Options, errors, ports and other common parts."""

from strata_multiraft.base.errors import (
    LogFull,
    MembershipRefused,
    NotLeader,
    Overloaded,
    ReadOnly,
    TransferFailed,
    damage_reason,
)
from strata_multiraft.base.ports import Envelope, TrafficClass, Transport
from strata_multiraft.base.snapshots import SnapshotFetch, SnapshotPart, SnapshotRows

__all__ = [
    "Envelope",
    "LogFull",
    "MembershipRefused",
    "NotLeader",
    "Overloaded",
    "ReadOnly",
    "SnapshotFetch",
    "SnapshotPart",
    "SnapshotRows",
    "TrafficClass",
    "TransferFailed",
    "Transport",
    "damage_reason",
]
