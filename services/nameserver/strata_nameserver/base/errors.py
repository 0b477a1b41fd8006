"""Why a metadata call is refused: the table from the driver's errors to `MetaRefused`."""

from __future__ import annotations

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_multiraft.base import LogFull, NotLeader, Overloaded, ReadOnly

Outcome = meta_pb2.MetaOutcome


class RevisionMismatch(Exception):
    """A committed command does not follow the applied revision: apply stops here (rule 1)."""


DRIVER_ERRORS = (NotLeader, Overloaded, ReadOnly, LogFull)
"""Errors that refuse a proposal to the metadata raft group."""

_REFUSALS: dict[type[Exception], tuple[meta_pb2.MetaOutcome.ValueType, str]] = {
    NotLeader: (meta_pb2.META_OUTCOME_NOT_LEADER, "this nameserver is not the leader"),
    Overloaded: (meta_pb2.META_OUTCOME_UNAVAILABLE, "too many metadata changes are under way"),
    ReadOnly: (meta_pb2.META_OUTCOME_UNAVAILABLE, "the metadata is read-only"),
    LogFull: (meta_pb2.META_OUTCOME_UNAVAILABLE, "the nameserver's disk is full"),
}


def refusal(error: Exception) -> MetaRefused:
    """Return the refusal that one of `DRIVER_ERRORS` means to the caller."""
    outcome, text = next(entry for kind, entry in _REFUSALS.items() if isinstance(error, kind))
    detail = str(error)
    return MetaRefused(outcome, f"{text}: {detail}" if detail else text)


def invalid(reason: str) -> MetaRefused:
    """Return the refusal of a malformed request."""
    return MetaRefused(meta_pb2.META_OUTCOME_INVALID, reason)
