"""How a call is refused, with the outcome that the caller sees; and when apply must stop."""

from __future__ import annotations

from strata.storage.v1 import storage_pb2 as pb
from strata_metadata.enum_names import name_of


class ApplyError(Exception):
    """A committed entry contradicts the rows; this replica must not go on."""


class Refused(Exception):
    """The node does not do what was asked; nothing was changed.

    Attributes:
        outcome: why, a number of `strata.storage.v1.Outcome`.
        reason: one line for people.
        leader_replica_id: who leads the raft group, 0 if unknown (with OUTCOME_NOT_LEADER).
    """

    def __init__(
        self, outcome: pb.Outcome.ValueType, reason: str, leader_replica_id: int = 0
    ) -> None:
        super().__init__(f"{name_of(pb.Outcome, outcome)}: {reason}")
        self.outcome = outcome
        self.reason = reason
        self.leader_replica_id = leader_replica_id


class ReplicaEnded(ValueError):
    """A replica was removed from this node; its id does not come back by itself (rule 9)."""
