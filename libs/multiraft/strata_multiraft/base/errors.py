"""Errors of the driver: each means that nothing was decided here or the outcome is unknown."""

from __future__ import annotations


class NotLeader(Exception):
    """This replica does not lead, or does not lead yet (its no-op is not applied, rule 1).

    On a future it means that the outcome is unknown: the next leader may still commit the entry.
    """

    def __init__(self, leader_replica_id: int) -> None:
        super().__init__(f"the leader is replica {leader_replica_id or 'unknown'}")
        self.leader_replica_id = leader_replica_id


class Overloaded(Exception):
    """A limit of the driver is reached; the text names it."""


class ReadOnly(Exception):
    """The replica takes no entries for good: it is damaged, or apply failed (rules 8, 11)."""


class LogFull(Exception):
    """The log has no room; reads go on. A proposal is tried again after a while (rule 11)."""


class MembershipRefused(Exception):
    """The membership was not changed; the text says why. It may be asked for again later."""


class TransferFailed(Exception):
    """This replica remains the leader: no replica could take over, or not in time."""


class SnapshotRefused(Exception):
    """The source does not give this snapshot, or not any more; the text says why."""


class SnapshotBroken(Exception):
    """The transfer was cut or brought damaged bytes; it may go on from where it stopped."""


def damage_reason(replica_id: int, damage: str) -> str:
    """Return why a damaged replica is read-only, and what to do about it (rule 8)."""
    return (
        f"replica {replica_id} is damaged: {damage}; replace it, or if there is no other voter "
        "stop the node and run 'strata log repair'"
    )
