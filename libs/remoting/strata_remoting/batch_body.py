"""The body of a batch: messages back to back, each with its own flag, body and properties.

Layout of one message: total length, magic (0), body CRC (0), flag: four bytes each; length of the
body in four bytes and the body; length of the properties in two bytes and the properties.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from strata_remoting.command import RemotingError

_FIXED = struct.Struct(">iiiii")
_PROPERTIES_LENGTH = struct.Struct(">H")
_LEAST_BYTES = _FIXED.size + _PROPERTIES_LENGTH.size


class BatchedMessage(NamedTuple):
    """One message of a batch.

    Attributes:
        body: as the producer gave it; batches are not compressed.
        properties: as one text.
        flag: number that belongs to the application.
    """

    body: bytes
    properties: str
    flag: int = 0


def encode_batch(messages: Iterable[BatchedMessage]) -> bytes:
    """Return the body of a batch."""
    parts: list[bytes] = []
    for message in messages:
        properties = message.properties.encode()
        size = _LEAST_BYTES + len(message.body) + len(properties)
        parts += (
            _FIXED.pack(size, 0, 0, message.flag, len(message.body)),
            message.body,
            _PROPERTIES_LENGTH.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def decode_batch(data: bytes, max_messages: int) -> list[BatchedMessage]:
    """Return the messages of a batch.

    Raises:
        RemotingError: the bytes are no batch, or it has too many messages.
    """
    messages: list[BatchedMessage] = []
    at = 0
    while at < len(data):
        if len(messages) == max_messages:
            raise RemotingError(f"a batch has more than {max_messages} messages")
        message, at = _decode_one(data, at)
        messages.append(message)
    return messages


def _decode_one(data: bytes, at: int) -> tuple[BatchedMessage, int]:
    left = len(data) - at
    if left < _LEAST_BYTES:
        raise RemotingError(f"a batch ends with {left} bytes that are no message")
    size, _, _, flag, body_bytes = _FIXED.unpack_from(data, at)
    if not _LEAST_BYTES <= size <= left or not 0 <= body_bytes <= size - _LEAST_BYTES:
        raise RemotingError(f"a message of a batch has {size} bytes and a body of {body_bytes}")
    body_at = at + _FIXED.size
    body_end = body_at + body_bytes
    (properties_bytes,) = _PROPERTIES_LENGTH.unpack_from(data, body_end)
    if properties_bytes != size - _LEAST_BYTES - body_bytes:
        raise RemotingError(f"the properties of a message of a batch have {properties_bytes} bytes")
    text_at = body_end + _PROPERTIES_LENGTH.size
    try:
        properties = data[text_at : at + size].decode()
    except UnicodeDecodeError:
        raise RemotingError("the properties of a message of a batch are no UTF-8") from None
    return BatchedMessage(data[body_at:body_end], properties, flag), at + size
