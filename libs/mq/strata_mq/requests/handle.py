"""Receipt handles: 51 bytes as 68 characters of url-safe base64, opaque to clients.

A handle names one lease, so that any broker can serve it without having issued it. It is signed
(`handle_keys`). A cluster without a cluster key gives handles of version 1: 45 bytes as 60
characters, with a checksum that finds damage and is no signature.
"""

from __future__ import annotations

import binascii
import struct
from typing import NamedTuple
from zlib import crc32

from strata_mq.requests.errors import Code, RequestError
from strata_mq.requests.handle_keys import SEAL_BYTES, UNSIGNED, HandleKeys, HandleKind

_UNSIGNED_VERSION = 1
_SIGNED_VERSION = 2
_AUTO_RENEWED = 1
# Version (high half) and flags (low half), raft group, consumer group, topic, queue, offset,
# lease number, generation, visible at.
_FIELDS = struct.Struct(">BIIIIQIIQ")
_CHECKSUM = struct.Struct(">I")
_UNSIGNED_BYTES = _FIELDS.size + _CHECKSUM.size
_SIGNED_BYTES = _FIELDS.size + SEAL_BYTES
_UNSIGNED_LENGTH = _UNSIGNED_BYTES * 4 // 3
_SIGNED_LENGTH = _SIGNED_BYTES * 4 // 3

_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")

assert _UNSIGNED_BYTES % 3 == _SIGNED_BYTES % 3 == 0, "base64 of a handle needs no padding"


class ReceiptHandle(NamedTuple):
    """Content of a handle: the fields of strata.storage.v1.LeaseRef, and the raft group."""

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


def encode_handle(handle: ReceiptHandle, keys: HandleKeys = UNSIGNED) -> str:
    """Return the text that the client gets.

    Raises:
        struct.error: a field is out of range.
    """
    flags = _AUTO_RENEWED if handle.auto_renewed else 0
    if keys.signing_key_id:
        fields = _FIELDS.pack(_SIGNED_VERSION << 4 | flags, *handle[:8])
        raw = fields + keys.seal(HandleKind.RECEIPT, fields)
    else:
        fields = _FIELDS.pack(_UNSIGNED_VERSION << 4 | flags, *handle[:8])
        raw = fields + _CHECKSUM.pack(crc32(fields))
    return binascii.b2a_base64(raw, newline=False).translate(_TO_URL_SAFE).decode("ascii")


def decode_handle(text: str, keys: HandleKeys = UNSIGNED) -> ReceiptHandle:
    """Parse what a client sent.

    Raises:
        RequestError: INVALID_RECEIPT_HANDLE: not a handle of these versions, damaged, forged, or
            not signed by a valid key.
    """
    if len(text) not in (_SIGNED_LENGTH, _UNSIGNED_LENGTH) or not text.isascii():
        raise RequestError(Code.INVALID_RECEIPT_HANDLE)
    try:
        raw = binascii.a2b_base64(text.encode("ascii").translate(_FROM_URL_SAFE), strict_mode=True)
    except binascii.Error as error:
        raise RequestError(Code.INVALID_RECEIPT_HANDLE) from error
    fields, end = raw[: _FIELDS.size], raw[_FIELDS.size :]
    if not _is_right(fields, end, keys):
        raise RequestError(Code.INVALID_RECEIPT_HANDLE)
    first, *values = _FIELDS.unpack(fields)
    return ReceiptHandle._make((*values, bool(first & _AUTO_RENEWED)))


def _is_right(fields: bytes, end: bytes, keys: HandleKeys) -> bool:
    version = fields[0] >> 4
    if len(end) == SEAL_BYTES:
        return version == _SIGNED_VERSION and keys.is_right(HandleKind.RECEIPT, fields, end)
    if len(end) != _CHECKSUM.size or version != _UNSIGNED_VERSION:
        return False
    return keys.accept_unsigned and end == _CHECKSUM.pack(crc32(fields))
