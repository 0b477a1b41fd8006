"""Common part of both ends of the http2 transport: gRPC's statuses, headers and limits."""

from __future__ import annotations

import grpc
from google.protobuf.message import Message

from strata_angelia.codec import Codec
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import (
    BAD_REQUEST,
    DEADLINE_EXCEEDED,
    FORBIDDEN,
    INTERNAL,
    OVERLOADED,
    TOO_LARGE,
    UNAVAILABLE,
    UNKNOWN_METHOD,
    WRONG_CLUSTER,
    AngeliaError,
)

CODE_TRAILER = "angelia-code"
CODEC_HEADER = "angelia-codec"
TRACE_HEADER = "traceparent"
_TOO_LARGE_TEXT = "larger than max"  # grpc's words; it has no status of its own for this

STATUS_OF = {
    UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    UNKNOWN_METHOD: grpc.StatusCode.UNIMPLEMENTED,
    OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    WRONG_CLUSTER: grpc.StatusCode.FAILED_PRECONDITION,
    FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    INTERNAL: grpc.StatusCode.INTERNAL,
}
_CODE_OF = {
    grpc.StatusCode.UNAVAILABLE: UNAVAILABLE,
    grpc.StatusCode.CANCELLED: UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED: UNKNOWN_METHOD,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OVERLOADED,
    grpc.StatusCode.INVALID_ARGUMENT: BAD_REQUEST,
    grpc.StatusCode.PERMISSION_DENIED: FORBIDDEN,
}


def message_limits(options: AngeliaOptions) -> list[tuple[str, int]]:
    """Return gRPC's options for the size of messages."""
    limit = options.max_message_bytes
    return [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        # Not compressed: gRPC inflates a message without any limit before anybody sees it.
        ("grpc.compression_enabled_algorithms_bitset", 1),
    ]


def encode(codec: Codec, message: Message, options: AngeliaOptions) -> bytes:
    """Return the bytes of a message.

    Raises:
        AngeliaError: TOO_LARGE.
    """
    data = codec.encode(message)
    if len(data) > options.max_message_bytes:
        raise AngeliaError(TOO_LARGE, f"{len(data)} bytes, limit {options.max_message_bytes}")
    return data


def from_status(error: grpc.aio.AioRpcError) -> AngeliaError:
    """Return a failed call as a caller of Angelia sees it."""
    details = error.details() or ""
    for key, value in error.trailing_metadata() or ():
        if key == CODE_TRAILER:
            return AngeliaError(str(value), details)
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE_TEXT in details:
        return AngeliaError(TOO_LARGE, details)
    return AngeliaError(_CODE_OF.get(error.code(), INTERNAL), details)
