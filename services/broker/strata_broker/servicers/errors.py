"""Failures as operators get them: gRPC status codes with one line (`strata.admin.v1`)."""

from __future__ import annotations

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import AngeliaError
from strata_edge.ports import CallError
from strata_metadata.errors import MetaRefused
from strata_mq.requests import Code, RequestError

META_STATUSES: dict[int, str] = {
    meta_pb2.META_OUTCOME_UNSPECIFIED: "INTERNAL",
    meta_pb2.META_OUTCOME_NOT_LEADER: "UNAVAILABLE",
    meta_pb2.META_OUTCOME_ALREADY_EXISTS: "ALREADY_EXISTS",
    meta_pb2.META_OUTCOME_NOT_FOUND: "NOT_FOUND",
    meta_pb2.META_OUTCOME_INVALID: "INVALID_ARGUMENT",
    meta_pb2.META_OUTCOME_CONFLICT: "FAILED_PRECONDITION",
    meta_pb2.META_OUTCOME_LIMIT_REACHED: "RESOURCE_EXHAUSTED",
    meta_pb2.META_OUTCOME_UNAVAILABLE: "UNAVAILABLE",
}

# The meaning of a code by its first three digits, and the exceptions.
_STATUSES_BY_KIND: dict[int, str] = {
    400: "INVALID_ARGUMENT",
    403: "FAILED_PRECONDITION",
    404: "NOT_FOUND",
    408: "UNAVAILABLE",
    413: "INVALID_ARGUMENT",
    428: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    431: "INVALID_ARGUMENT",
    501: "UNIMPLEMENTED",
    504: "UNAVAILABLE",
}
_STATUSES: dict[Code, str] = {
    Code.INVALID_TRANSACTION_ID: "NOT_FOUND",
    Code.HA_NOT_AVAILABLE: "UNAVAILABLE",
}


def call_error(failure: RequestError | MetaRefused | AngeliaError) -> CallError:
    """Return the error that ends an operator's call."""
    match failure:
        case RequestError():
            by_kind = _STATUSES_BY_KIND.get(failure.code // 100, "INTERNAL")
            return CallError(_STATUSES.get(failure.code, by_kind), failure.text)
        case MetaRefused():
            return CallError(META_STATUSES.get(failure.outcome, "INTERNAL"), failure.reason)
        case _:
            return CallError("UNAVAILABLE", f"the nameserver does not answer: {failure.reason}")
