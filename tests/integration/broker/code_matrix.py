"""The RPC x status code matrix: which codes each RPC may answer, and the form of a test's cell.

`MATRIX` is RocketMQ's own table of allowed codes. Each of its cells is produced by a real call
(`matrix_*_cells.py`) or stands in `NOT_PRODUCED` with the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from apache.rocketmq.v2 import definition_pb2

if TYPE_CHECKING:
    from tests.integration.broker.matrix_calls import Calls

EVERY_RPC = "OK TOO_MANY_REQUESTS CLIENT_ID_REQUIRED INTERNAL_SERVER_ERROR"
# Codes of every RPC but QueryRoute and QueryAssignment.
AUTHORIZED = "UNAUTHORIZED"

_ROWS = {
    "QueryRoute": "ILLEGAL_ACCESS_POINT ILLEGAL_TOPIC TOPIC_NOT_FOUND PROXY_TIMEOUT",
    "Heartbeat": "ILLEGAL_TOPIC ILLEGAL_CONSUMER_GROUP UNRECOGNIZED_CLIENT_TYPE",
    "SendMessage": "MULTIPLE_RESULTS ILLEGAL_TOPIC ILLEGAL_MESSAGE_TAG ILLEGAL_MESSAGE_KEY "
    "ILLEGAL_MESSAGE_GROUP ILLEGAL_MESSAGE_PROPERTY_KEY ILLEGAL_MESSAGE_ID ILLEGAL_DELIVERY_TIME "
    "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE MESSAGE_CORRUPTED FORBIDDEN TOPIC_NOT_FOUND "
    "MESSAGE_BODY_TOO_LARGE MESSAGE_BODY_EMPTY MESSAGE_PROPERTIES_TOO_LARGE HA_NOT_AVAILABLE "
    "PROXY_TIMEOUT MASTER_PERSISTENCE_TIMEOUT SLAVE_PERSISTENCE_TIMEOUT",
    "QueryAssignment": "ILLEGAL_ACCESS_POINT ILLEGAL_TOPIC FORBIDDEN TOPIC_NOT_FOUND PROXY_TIMEOUT",
    "ReceiveMessage": "ILLEGAL_TOPIC ILLEGAL_CONSUMER_GROUP ILLEGAL_FILTER_EXPRESSION "
    "ILLEGAL_INVISIBLE_TIME ILLEGAL_POLLING_TIME FORBIDDEN MESSAGE_NOT_FOUND TOPIC_NOT_FOUND "
    "CONSUMER_GROUP_NOT_FOUND PROXY_TIMEOUT",
    "AckMessage": "MULTIPLE_RESULTS ILLEGAL_TOPIC ILLEGAL_CONSUMER_GROUP INVALID_RECEIPT_HANDLE "
    "TOPIC_NOT_FOUND PROXY_TIMEOUT",
    "ForwardMessageToDeadLetterQueue": "ILLEGAL_TOPIC ILLEGAL_CONSUMER_GROUP "
    "INVALID_RECEIPT_HANDLE TOPIC_NOT_FOUND PROXY_TIMEOUT",
    "ChangeInvisibleDuration": "ILLEGAL_TOPIC ILLEGAL_CONSUMER_GROUP INVALID_RECEIPT_HANDLE "
    "TOPIC_NOT_FOUND PROXY_TIMEOUT ILLEGAL_INVISIBLE_TIME",
    "EndTransaction": "ILLEGAL_TOPIC ILLEGAL_CONSUMER_GROUP INVALID_TRANSACTION_ID PROXY_TIMEOUT",
    "NotifyClientTermination": "ILLEGAL_CONSUMER_GROUP UNRECOGNIZED_CLIENT_TYPE",
    "PullMessage": "TOPIC_NOT_FOUND CONSUMER_GROUP_NOT_FOUND ILLEGAL_OFFSET",
    "UpdateOffset": "TOPIC_NOT_FOUND",
    "QueryOffset": "TOPIC_NOT_FOUND",
    "GetOffset": "TOPIC_NOT_FOUND OFFSET_NOT_FOUND",
    # RocketMQ's table has no rows of the next two: these are ours.
    "RecallMessage": "ILLEGAL_TOPIC TOPIC_NOT_FOUND MESSAGE_PROPERTY_CONFLICT_WITH_TYPE "
    "INVALID_RECEIPT_HANDLE PROXY_TIMEOUT",
    "SyncLiteSubscription": "ILLEGAL_TOPIC TOPIC_NOT_FOUND ILLEGAL_CONSUMER_GROUP "
    "ILLEGAL_LITE_TOPIC LITE_SUBSCRIPTION_QUOTA_EXCEEDED",
}

_UNAUTHORIZED_NEVER = ("QueryRoute", "QueryAssignment")

MATRIX: dict[str, frozenset[str]] = {
    rpc: frozenset(
        f"{codes} {EVERY_RPC} {'' if rpc in _UNAUTHORIZED_NEVER else AUTHORIZED}".split()
    )
    for rpc, codes in _ROWS.items()
}

BEYOND: dict[str, frozenset[str]] = {
    "QueryRoute": frozenset(("BAD_REQUEST",)),
    "QueryAssignment": frozenset(("ILLEGAL_CONSUMER_GROUP",)),
    "PullMessage": frozenset(("ILLEGAL_FILTER_EXPRESSION",)),
    # In the stream's frames; its gRPC status is INVALID_ARGUMENT or RESOURCE_EXHAUSTED.
    "Telemetry": frozenset(("OK", "ILLEGAL_FILTER_EXPRESSION")),
    "UpdateOffset": frozenset(("ILLEGAL_OFFSET", "CONSUMER_GROUP_NOT_FOUND")),
}
"""Codes that RocketMQ answers too, though its table leaves them out."""

BY_CLIENTS: dict[str, frozenset[str]] = {
    "ThreadStackTrace": frozenset(("OK", "NOT_IMPLEMENTED")),
    "VerifyMessageResult": frozenset(
        (
            "OK",
            "FAILED_TO_CONSUME_MESSAGE",
            "VERIFY_FIFO_MESSAGE_UNSUPPORTED",
            "MESSAGE_CORRUPTED",
        )
    ),
}
"""Answers of clients to commands; a broker passes them on to the operator who asked."""

_ACCESS_CONTROL = "access control is a feature of its own; nobody is refused yet"
_FROM_MEMORY = "it is answered from memory and asks nobody, so nothing behind it can fail"

NOT_PRODUCED: dict[tuple[str, str], str] = {
    **{(rpc, AUTHORIZED): _ACCESS_CONTROL for rpc in MATRIX if AUTHORIZED in MATRIX[rpc]},
    ("Heartbeat", "ILLEGAL_TOPIC"): "a heartbeat names no topic",
    ("Heartbeat", "INTERNAL_SERVER_ERROR"): _FROM_MEMORY,
    ("NotifyClientTermination", "INTERNAL_SERVER_ERROR"): _FROM_MEMORY,
    ("NotifyClientTermination", "UNRECOGNIZED_CLIENT_TYPE"): "the request names no type, and a "
    "client that this broker has never heard of may say goodbye",
    ("EndTransaction", "ILLEGAL_CONSUMER_GROUP"): "the request names no consumer group",
    ("SyncLiteSubscription", "INTERNAL_SERVER_ERROR"): "storage refuses only what is too much",
}


_REPLICAS = "test_code_matrix_replicas.py: three storage nodes that lose each other"

_LITE = "test_lite_topics.py: two brokers with a topic of type LITE"

_COMMANDED = "test_rocketmq_admin.py: a client answers a command over its settings stream"

PRODUCED_ELSEWHERE: dict[tuple[str, str], str] = {
    **{
        ("SyncLiteSubscription", code): _LITE
        for code in (
            "OK",
            "TOPIC_NOT_FOUND",
            "ILLEGAL_CONSUMER_GROUP",
            "ILLEGAL_LITE_TOPIC",
            "LITE_SUBSCRIPTION_QUOTA_EXCEEDED",
        )
    },
    **{("ThreadStackTrace", code): _COMMANDED for code in ("OK", "NOT_IMPLEMENTED")},
    **{
        ("VerifyMessageResult", code): _COMMANDED
        for code in (
            "OK",
            "FAILED_TO_CONSUME_MESSAGE",
            "VERIFY_FIFO_MESSAGE_UNSUPPORTED",
            "MESSAGE_CORRUPTED",
        )
    },
    ("SendMessage", "HA_NOT_AVAILABLE"): _REPLICAS,
    ("SendMessage", "SLAVE_PERSISTENCE_TIMEOUT"): _REPLICAS,
}


class Cell(NamedTuple):
    """One cell, produced by a call.

    Attributes:
        rpc: row.
        code: column.
        act: makes the call and returns the Status that the client was told.
        text: what its message is; a "*" at the end: begins with.
        node: key of the node it needs (see `test_code_matrix.NODES`).
    """

    rpc: str
    code: str
    act: Callable[[Calls], Awaitable[definition_pb2.Status]]
    text: str = ""
    node: str = "roomy"

    def __str__(self) -> str:
        return f"{self.rpc}-{self.code}"
