"""Rows of tables that cannot be read: whoever asked for one is refused, and nobody else."""

from __future__ import annotations

from strata.storage.v1 import storage_pb2 as pb
from strata_state.ports import DamagedRowsError, StateError
from strata_storage.base.errors import Refused


def refusal_of_row(failure: StateError) -> Refused:
    """Return why a row was not read: its bytes are damaged, or may be read later (rule 40)."""
    is_damaged = isinstance(failure, DamagedRowsError)
    outcome = pb.OUTCOME_CORRUPT if is_damaged else pb.OUTCOME_UNREADABLE
    return Refused(outcome, str(failure))
