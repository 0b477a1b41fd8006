"""How failures look to operators: gRPC status codes with one line (`strata.admin.v1`)."""

from __future__ import annotations

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import AngeliaError
from strata_edge.ports import CallError
from strata_metadata.errors import MetaRefused
from strata_mq.errors import Code, RequestError

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

CODE_STATUSES: dict[Code, str] = {
    Code.BAD_REQUEST: "INVALID_ARGUMENT",
    Code.ILLEGAL_TOPIC: "INVALID_ARGUMENT",
    Code.ILLEGAL_CONSUMER_GROUP: "INVALID_ARGUMENT",
    Code.NOT_FOUND: "NOT_FOUND",
    Code.TOPIC_NOT_FOUND: "NOT_FOUND",
    Code.CONSUMER_GROUP_NOT_FOUND: "NOT_FOUND",
    Code.TOO_MANY_REQUESTS: "RESOURCE_EXHAUSTED",
    Code.PROXY_TIMEOUT: "UNAVAILABLE",
}


def call_error(failure: RequestError | MetaRefused | AngeliaError) -> CallError:
    """Return what ends an operator's call."""
    match failure:
        case RequestError():
            return CallError(CODE_STATUSES.get(failure.code, "INTERNAL"), failure.text)
        case MetaRefused():
            return CallError(META_STATUSES.get(failure.outcome, "INTERNAL"), failure.reason)
        case _:
            return CallError("UNAVAILABLE", f"the nameserver does not answer: {failure.reason}")
