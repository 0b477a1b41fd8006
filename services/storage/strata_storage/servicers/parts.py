"""Refusals of parts of a call: a part that fails keeps no other one from its answer (rule 33)."""

from __future__ import annotations

from strata.storage.v1 import storage_pb2 as pb
from strata_state.ports import StateError
from strata_storage.base.errors import Refused

PART_ERRORS = (Refused, StateError)
"""Errors that end one part of a call only."""


def refusal_of(error: Refused | StateError) -> Refused:
    """Return how a part is refused: rows that cannot be read may be read later (rule 40)."""
    if isinstance(error, Refused):
        return error
    return Refused(pb.OUTCOME_OVERLOADED, f"rows cannot be read: {error}")
