"""Receipt handles: 45 bytes as 60 characters of url-safe base64, opaque to clients.

A handle names one lease, so that any broker can serve it without having issued it. The checksum
finds damage; it is not a signature: a client that may ack for a group may ack any of its messages.
"""

from __future__ import annotations

import binascii
import struct
from typing import NamedTuple
from zlib import crc32

from strata_mq.requests.errors import Code, RequestError

_VERSION = 1
_AUTO_RENEWED = 1
# Version (high half) and flags (low half), raft group, consumer group, topic, queue, offset,
# lease number, generation, visible at.
_FIELDS = struct.Struct(">BIIIIQIIQ")
_CHECKSUM = struct.Struct(">I")
_HANDLE_BYTES = _FIELDS.size + _CHECKSUM.size
_HANDLE_LENGTH = _HANDLE_BYTES * 4 // 3

_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")

assert _HANDLE_BYTES % 3 == 0, "base64 of a handle needs no padding"


class ReceiptHandle(NamedTuple):
    """What a handle says; the fields of strata.storage.v1.LeaseRef and the raft group."""

    raft_group: int
    consumer_group_id: int
    topic_id: int
    queue: int
    offset: int
    lease_number: int
    generation: int
    # Group time; 0 for an auto-renewed lease.
    visible_at_ms: int
    auto_renewed: bool = False


def encode_handle(handle: ReceiptHandle) -> str:
    """Return the text that the client gets.

    Raises:
        struct.error: a field is out of range.
    """
    flags = _AUTO_RENEWED if handle.auto_renewed else 0
    fields = _FIELDS.pack(_VERSION << 4 | flags, *handle[:8])
    raw = fields + _CHECKSUM.pack(crc32(fields))
    return binascii.b2a_base64(raw, newline=False).translate(_TO_URL_SAFE).decode("ascii")


def decode_handle(text: str) -> ReceiptHandle:
    """Parse what a client sent.

    Raises:
        RequestError: INVALID_RECEIPT_HANDLE: not a handle of this version, or damaged.
    """
    if len(text) != _HANDLE_LENGTH or not text.isascii():
        raise RequestError(Code.INVALID_RECEIPT_HANDLE)
    try:
        raw = binascii.a2b_base64(text.encode("ascii").translate(_FROM_URL_SAFE), strict_mode=True)
    except binascii.Error as error:
        raise RequestError(Code.INVALID_RECEIPT_HANDLE) from error
    if len(raw) != _HANDLE_BYTES:
        raise RequestError(Code.INVALID_RECEIPT_HANDLE)
    first, *fields = _FIELDS.unpack_from(raw)
    (checksum,) = _CHECKSUM.unpack_from(raw, _FIELDS.size)
    if first >> 4 != _VERSION or checksum != crc32(raw[: _FIELDS.size]):
        raise RequestError(Code.INVALID_RECEIPT_HANDLE)
    return ReceiptHandle._make((*fields, bool(first & _AUTO_RENEWED)))
