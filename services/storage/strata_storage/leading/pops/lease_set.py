"""The leases of one consumer group on one queue, as a leader has them in memory."""

from __future__ import annotations

from strata_mq.leases import LeaseChange, QueueLeases
from strata_state.rows import ConsumerKey
from strata_storage.leading.pops.matches import Matches


class LeaseSet:
    """The leases of one consumer group on one queue, and what of them is under way.

    Attributes:
        key: (consumer group id, topic id, queue).
        leases: speculative state.
        in_flight: changes proposed, or kept to be proposed, whose rows are not in the store.
        matches: what is known already of messages from the head on; None: nothing.
        stale: memory is ahead of what can be proposed; to be read again from rows.
    """

    __slots__ = ("in_flight", "key", "leases", "matches", "stale")

    def __init__(self, key: ConsumerKey, leases: QueueLeases) -> None:
        self.key = key
        self.leases = leases
        self.in_flight = 0
        self.matches: Matches | None = None
        self.stale = False


Section = tuple[LeaseSet, LeaseChange]
