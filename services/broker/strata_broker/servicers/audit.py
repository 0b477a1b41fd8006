"""Tells the audit trail which calls of operators changed the cluster.

A refused change is no event here (`AuditTrail.refused` has those that nobody allows), and neither
is a call that only reads. Secrets in a request are left out.
"""

from __future__ import annotations

from google.protobuf import text_format
from google.protobuf.message import Message

from strata_broker.access.guard import principal_of
from strata_broker.base.audit import Audited, AuditTrail, shortened
from strata_edge.ports import CallInfo

_CLIENT_ID = "x-mq-client-id"
# A larger request is told by its size: to print it would hold up the event loop.
_MAX_SHOWN_BYTES = 4_096
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
SECRET_FIELDS = frozenset(
    ("password", "previous_secret_key", "secret", "secret_key", "session_token")
)
"""Names of fields whose values nobody may read in logs, audit events or dumps."""


def audit(trail: AuditTrail, rpc: str, request: Message, info: CallInfo) -> None:
    """Record that a call was carried out, if it changed something.

    Args:
        trail: takes the event.
        rpc: name of the call.
        request: what was asked.
        info: who asked; where access is controlled, its signature was verified.
    """
    if rpc.startswith(_READING) or getattr(request, "dry_run", False):
        return
    trail.changed(audited(info), rpc, shown(request))


def audited(info: CallInfo) -> Audited:
    """Return who is behind a call; without access control no user: anybody may claim a name."""
    return Audited(principal_of(info).user, info.peer, shortened(info.metadata.get(_CLIENT_ID, "")))


def shown(request: Message) -> str:
    """Return a request as text without its secrets."""
    size_bytes = request.ByteSize()
    if size_bytes > _MAX_SHOWN_BYTES:
        lists = [
            f"{len(value)} {field.name}"
            for field, value in request.ListFields()
            if field.is_repeated
        ]
        return ", ".join([*lists, f"{size_bytes} bytes"])
    plain = type(request)()
    plain.CopyFrom(request)
    _clear_secrets(plain)
    return shortened(text_format.MessageToString(plain, as_one_line=True))


def _clear_secrets(message: Message) -> None:
    for field, value in message.ListFields():
        if field.name in SECRET_FIELDS:
            message.ClearField(field.name)
        elif isinstance(value, Message):
            _clear_secrets(value)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in value:
                _clear_secrets(each)
