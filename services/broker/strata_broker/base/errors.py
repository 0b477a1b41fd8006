"""ONE table: refusals of storage, the nameserver and Angelia as RocketMQ's codes.

Every error that a client gets is a `RequestError`; this module makes one from any other failure.
Its text is the reason that the refusing side gave, or else the code's name.
"""

from __future__ import annotations

from apache.rocketmq.v2 import definition_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia import ports as angelia
from strata_metadata.errors import MetaRefused
from strata_mq.requests import Code, RequestError

FLOW_LIMIT = "flow limit"

OUTCOME_CODES: dict[int, Code] = {
    storage_pb2.OUTCOME_UNSPECIFIED: Code.INTERNAL_SERVER_ERROR,
    storage_pb2.OUTCOME_OK: Code.OK,
    # The next four are repeated until the deadline; a client sees them only as a timeout.
    storage_pb2.OUTCOME_NOT_LEADER: Code.PROXY_TIMEOUT,
    storage_pb2.OUTCOME_UNKNOWN_GROUP: Code.PROXY_TIMEOUT,
    storage_pb2.OUTCOME_NOT_READY: Code.PROXY_TIMEOUT,
    storage_pb2.OUTCOME_WRONG_GROUP: Code.PROXY_TIMEOUT,
    storage_pb2.OUTCOME_SEALED: Code.PROXY_TIMEOUT,
    storage_pb2.OUTCOME_REHASHED: Code.PROXY_TIMEOUT,
    storage_pb2.OUTCOME_TIMEOUT: Code.PROXY_TIMEOUT,
    storage_pb2.OUTCOME_DISK_FULL: Code.INTERNAL_SERVER_ERROR,
    storage_pb2.OUTCOME_READ_ONLY: Code.INTERNAL_SERVER_ERROR,
    storage_pb2.OUTCOME_OVERLOADED: Code.TOO_MANY_REQUESTS,
    storage_pb2.OUTCOME_UNREADABLE: Code.TOO_MANY_REQUESTS,
    storage_pb2.OUTCOME_TOO_MANY_WAITERS: Code.TOO_MANY_REQUESTS,
    storage_pb2.OUTCOME_INVALID: Code.INTERNAL_SERVER_ERROR,
    storage_pb2.OUTCOME_INVALID_HANDLE: Code.INVALID_RECEIPT_HANDLE,
    storage_pb2.OUTCOME_CORRUPT: Code.INTERNAL_SERVER_ERROR,
    storage_pb2.OUTCOME_LITE_TOPIC_LIMIT: Code.LITE_TOPIC_QUOTA_EXCEEDED,
}

ANGELIA_CODES: dict[str, Code] = {
    angelia.UNAVAILABLE: Code.PROXY_TIMEOUT,
    angelia.DEADLINE_EXCEEDED: Code.PROXY_TIMEOUT,
    angelia.OVERLOADED: Code.TOO_MANY_REQUESTS,
    angelia.TOO_LARGE: Code.PAYLOAD_TOO_LARGE,
    angelia.UNKNOWN_METHOD: Code.NOT_IMPLEMENTED,
    angelia.BAD_REQUEST: Code.INTERNAL_SERVER_ERROR,
    angelia.INTERNAL: Code.INTERNAL_SERVER_ERROR,
}

# Codes for clients when something cannot be created for them.
META_CODES: dict[int, Code] = {
    meta_pb2.META_OUTCOME_INVALID: Code.BAD_REQUEST,
    meta_pb2.META_OUTCOME_LIMIT_REACHED: Code.TOO_MANY_REQUESTS,
    meta_pb2.META_OUTCOME_NOT_LEADER: Code.PROXY_TIMEOUT,
    meta_pb2.META_OUTCOME_UNAVAILABLE: Code.PROXY_TIMEOUT,
}

# Refusals that mean "not here" or "not yet": the call is repeated, perhaps at another node.
REPEATED_OUTCOMES = frozenset(
    (
        storage_pb2.OUTCOME_NOT_LEADER,
        storage_pb2.OUTCOME_UNKNOWN_GROUP,
        storage_pb2.OUTCOME_NOT_READY,
    )
)

# An unanswered call may have been carried out: repeated calls must be idempotent.
REPEATED_ANGELIA_CODES = frozenset(
    (angelia.UNAVAILABLE, angelia.OVERLOADED, angelia.DEADLINE_EXCEEDED)
)


class MalformedError(RequestError):
    """A storage node called a request malformed; the caller decides whose fault that is."""


class MovedError(RequestError):
    """The raft group does not serve the queue: it moved, and the metadata here lags behind.

    A caller that can choose again does so; otherwise the client is told to try again.
    """


class UnreadableError(RequestError):
    """The disk of the node that was asked cannot read a message now; another replica may."""


_MOVED_OUTCOMES = frozenset((storage_pb2.OUTCOME_WRONG_GROUP, storage_pb2.OUTCOME_SEALED))


def refused(outcome: int, reason: str = "") -> RequestError:
    """Return the error for a storage outcome that is not OK."""
    code = OUTCOME_CODES.get(outcome, Code.INTERNAL_SERVER_ERROR)
    if outcome in _MOVED_OUTCOMES:
        return MovedError(code, reason)
    if outcome == storage_pb2.OUTCOME_UNREADABLE:
        return UnreadableError(code, f"{FLOW_LIMIT}: {reason}")
    if outcome == storage_pb2.OUTCOME_INVALID:
        return MalformedError(code, reason)
    if code is Code.INVALID_RECEIPT_HANDLE:
        # Clients' tests look for the name; the reason would hide it.
        return RequestError(code)
    if code is Code.TOO_MANY_REQUESTS:
        return RequestError(code, FLOW_LIMIT)
    return RequestError(code, reason)


def lost(failure: angelia.AngeliaError) -> RequestError:
    """Return the error for a call that has no answer."""
    code = ANGELIA_CODES.get(failure.code, Code.INTERNAL_SERVER_ERROR)
    return RequestError(code, FLOW_LIMIT if code is Code.TOO_MANY_REQUESTS else failure.reason)


def timed_out(where: str = "") -> RequestError:
    """Return the error for a storage call whose deadline passed.

    Args:
        where: the raft group that was asked, and its problem (`LeaderMap.explain`).
    """
    return RequestError(Code.PROXY_TIMEOUT, _at("storage did not answer in time", where))


def send_timed_out(hindrance: str, where: str, *, replicated: bool) -> RequestError:
    """Return the error for a send that was not confirmed as stored before its deadline.

    Args:
        hindrance: reason of its last failure: name of an outcome, or an Angelia code.
        where: as for `timed_out`.
        replicated: whether the raft group has more than one replica.
    """
    if hindrance == angelia.OVERLOADED:
        return too_many_requests()
    if hindrance == storage_pb2.Outcome.Name(storage_pb2.OUTCOME_NOT_LEADER):
        text = "no majority of the replicas elects a leader"
        return RequestError(Code.HA_NOT_AVAILABLE, _at(text, where))
    if hindrance != angelia.DEADLINE_EXCEEDED:
        return timed_out(where)
    if replicated:
        text = "a majority of the replicas did not make it durable in time"
        return RequestError(Code.SLAVE_PERSISTENCE_TIMEOUT, _at(text, where))
    text = "the storage node did not make it durable in time"
    return RequestError(Code.MASTER_PERSISTENCE_TIMEOUT, _at(text, where))


def _at(text: str, where: str) -> str:
    return f"{text}: {where}" if where else text


def not_created(what: str, failure: MetaRefused) -> RequestError:
    """Return the error for something that a client needs and the nameserver refuses to create."""
    code = META_CODES.get(failure.outcome, Code.INTERNAL_SERVER_ERROR)
    return RequestError(code, f"cannot create {what}: {failure.reason}")


def too_many_requests(text: str = FLOW_LIMIT) -> RequestError:
    """Return the error for a limit of this broker, or a quota, that is reached."""
    return RequestError(Code.TOO_MANY_REQUESTS, text)


def status_of(error: RequestError) -> definition_pb2.Status:
    """Return the Status for a client."""
    return definition_pb2.Status(
        code=definition_pb2.Code.ValueType(int(error.code)), message=error.text
    )


def ok_status() -> definition_pb2.Status:
    """Return Status OK."""
    return definition_pb2.Status(code=definition_pb2.Code.OK, message="OK")


def fold(codes: list[Code]) -> Code:
    """Return the code of a whole request: the entries' common code, or MULTIPLE_RESULTS."""
    return codes[0] if len(set(codes)) == 1 else Code.MULTIPLE_RESULTS
