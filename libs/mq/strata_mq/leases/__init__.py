"""Leases of one queue and consumer group: the holder of each message and when its lease ends."""

from strata_mq.leases.queue_leases import (
    Columns,
    Lease,
    LeaseChange,
    LeaseState,
    QueueLeases,
    Taken,
    TakeRequest,
    merge_changes,
)
from strata_mq.leases.types import broker_mark

__all__ = [
    "Columns",
    "Lease",
    "LeaseChange",
    "LeaseState",
    "QueueLeases",
    "TakeRequest",
    "Taken",
    "broker_mark",
    "merge_changes",
]
