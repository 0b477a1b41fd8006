"""One line in the log for each change of the cluster that a caller asked this broker for.

An operator must be able to find out later who changed the cluster, so `node.log_level` does not
suppress these lines; `node.audit_log` does. A refused change writes no line, and neither does a
call that only reads.
"""

from __future__ import annotations

from google.protobuf import text_format
from google.protobuf.message import Message

from strata_edge.ports import CallInfo
from strata_runtime.logs import AUDIT, get_logger

_CLIENT_ID = "x-mq-client-id"
_MAX_TEXT = 500
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
    "Trace",
    "VerifyMessage",
)


def audit(rpc: str, request: Message, info: CallInfo) -> None:
    """Write down that a call was carried out, if it changed something.

    Args:
        rpc: its name.
        request: what was asked.
        info: who asked.
    """
    if rpc.startswith(_READING) or getattr(request, "dry_run", False):
        return
    get_logger(AUDIT).info(
        "cluster changed",
        rpc=rpc,
        request=_shown(request),
        peer=info.peer,
        client_id=info.metadata.get(_CLIENT_ID, "")[:_MAX_TEXT],
    )


def _shown(request: Message) -> str:
    size_bytes = request.ByteSize()
    if size_bytes > _MAX_SHOWN_BYTES:
        return f"{size_bytes} bytes"
    text = text_format.MessageToString(request, as_one_line=True)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
