"""Tells the audit trail which calls of operators changed the cluster.

A refused change is no event here (`AuditTrail.refused` has those that nobody allows), and neither
is a call that only reads. A call whose end is not known, because its answer was lost or its caller
went away, is an event: the cluster may have changed. Secrets in a request are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import Message

from strata_angelia.ports import AngeliaError
from strata_broker.access.guard import principal_of
from strata_broker.base.audit import Audited, AuditTrail, shortened
from strata_broker.servicers.errors import call_error
from strata_edge.ports import CallError, CallInfo
from strata_metadata.errors import MetaRefused
from strata_mq.requests import RequestError

_CLIENT_ID = "x-mq-client-id"
# A larger request is told by its outline: to print it would hold up the event loop.
_MAX_SHOWN_BYTES = 4_096
# Characters of a text in an outline.
_OUTLINED_TEXT = 160
_READING = (
    "Describe",
    "Find",
    "Get",
    "List",
    "PlanTierSweep",
    "PrintThreadStackTrace",
    "Query",
    "Scan",
    "Test",
    "Trace",
    "VerifyMessage",
)
_REFUSED_STATUSES = frozenset(
    (
        "ALREADY_EXISTS",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "RESOURCE_EXHAUSTED",
        "UNIMPLEMENTED",
    )
)
# Calls that change one place after another: a later one may refuse what the first ones did.
_IN_STEPS = frozenset(
    (
        "DeleteSubscription",
        "PauseTier",
        "PurgeTopic",
        "RedriveDeadLetters",
        "ResetConsumerGroup",
        "ResetGroupOffset",
        "TransferLeader",
    )
)
_LATE_STATUSES = frozenset(("FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"))
SECRET_FIELDS = frozenset(
    ("password", "previous_secret_key", "secret", "secret_key", "session_token")
)
"""Names of fields whose values nobody may read in logs, audit events or dumps."""


@contextmanager
def audited_call(trail: AuditTrail, rpc: str, request: Message, info: CallInfo) -> Iterator[None]:
    """Record how the call that the block carries out ended, if it is one that changes something.

    Args:
        trail: takes the event.
        rpc: name of the call.
        request: what was asked.
        info: who asked; where access is controlled, its signature was verified.
    """
    if rpc.startswith(_READING) or getattr(request, "dry_run", False):
        yield
        return
    try:
        yield
    except BaseException as failure:
        # The caller may end the call at any time: what it asked for goes on, or is done.
        if not _is_refusal(failure, rpc):
            trail.unclear_change(audited(info), rpc, shown(request))
        raise
    trail.changed(audited(info), rpc, shown(request))


def _is_refusal(failure: BaseException, rpc: str) -> bool:
    """Whether a failure says that nothing was changed."""
    match failure:
        case RequestError() | MetaRefused() | AngeliaError():
            status = call_error(failure).status
        case CallError():
            status = failure.status
        case _:
            return False
    if rpc in _IN_STEPS and isinstance(failure, RequestError) and status in _LATE_STATUSES:
        return False
    return status in _REFUSED_STATUSES


def audited(info: CallInfo) -> Audited:
    """Return who is behind a call; without access control no user: anybody may claim a name."""
    return Audited(principal_of(info).user, info.peer, shortened(info.metadata.get(_CLIENT_ID, "")))


def shown(request: Message) -> str:
    """Return a request as text without its secrets."""
    size_bytes = request.ByteSize()
    if size_bytes > _MAX_SHOWN_BYTES:
        return shortened(", ".join([*_outline(request), f"{size_bytes} bytes"]))
    plain = type(request)()
    plain.CopyFrom(request)
    _clear_secrets(plain)
    return shortened(text_format.MessageToString(plain, as_one_line=True))


def _outline(message: Message) -> Iterator[str]:
    """Yield the fields of a message, short however large it is: lists are told by their lengths."""
    for field, value in message.ListFields():
        if field.name in SECRET_FIELDS:
            continue
        if field.is_repeated:
            yield f"{len(value)} {field.name}"
        elif isinstance(value, Message):
            yield f"{field.name} {{ {', '.join(_outline(value))} }}"
        elif isinstance(value, str):
            yield f"{field.name}: {json.dumps(value[:_OUTLINED_TEXT])}"
        elif isinstance(value, bytes):
            yield f"{field.name}: {len(value)} bytes"
        else:
            yield f"{field.name}: {value}"


def _clear_secrets(message: Message) -> None:
    for field, value in message.ListFields():
        if field.name in SECRET_FIELDS:
            message.ClearField(field.name)
        elif isinstance(value, Message):
            _clear_secrets(value)
        elif field.message_type is None:
            continue
        elif field.message_type.GetOptions().map_entry:
            _clear_secret_keys(value)
        else:
            for each in value:
                _clear_secrets(each)


def _clear_secret_keys(values: MutableMapping[Any, Any]) -> None:
    """Take out of a map what its keys call a secret: a section and a key of a configuration."""
    for key in list(values):
        if str(key).rpartition(".")[2] in SECRET_FIELDS:
            del values[key]
