"""Receipt handles: 51 bytes as 68 characters of url-safe base64, opaque to clients.

A handle names one lease, so that any broker can serve it without having issued it. It is signed
(`handle_keys`). A cluster without a cluster key gives handles of version 1: 45 bytes as 60
characters, with a checksum that finds damage and is no signature.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterable, Sequence
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
_SIGNED = struct.Struct(f"{_FIELDS.format}{SEAL_BYTES}x")
_UNSIGNED_LENGTH = _UNSIGNED_BYTES * 4 // 3
_SIGNED_LENGTH = _SIGNED_BYTES * 4 // 3

_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")

assert _UNSIGNED_BYTES % 3 == _SIGNED_BYTES % 3 == 0, "base64 of a handle needs no padding"


class SignedForm(NamedTuple):
    """How signed handles are written, for a native pass; see `strata_edge.passes.ReceiptForm`."""

    version: int
    auto_renewed: int
    person: bytes


SIGNED_FORM = SignedForm(_SIGNED_VERSION, _AUTO_RENEWED, HandleKind.RECEIPT.value)


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
    return encode_handles((handle,), keys)[0]


def encode_handles(handles: Iterable[ReceiptHandle], keys: HandleKeys = UNSIGNED) -> list[str]:
    """Return the texts of some handles.

    Raises:
        struct.error: a field is out of range.
    """
    version = (_SIGNED_VERSION if keys.signing_key_id else _UNSIGNED_VERSION) << 4
    pack = _FIELDS.pack
    rows = [pack(version | (handle[8] and _AUTO_RENEWED), *handle[:8]) for handle in handles]
    if keys.signing_key_id:
        raw, length = keys.sealed(HandleKind.RECEIPT, rows), _SIGNED_LENGTH
    else:
        raw = b"".join([fields + _CHECKSUM.pack(crc32(fields)) for fields in rows])
        length = _UNSIGNED_LENGTH
    # No handle needs padding, so the text of all of them is their texts in a row.
    text = binascii.b2a_base64(raw, newline=False).translate(_TO_URL_SAFE).decode("ascii")
    return [text[at : at + length] for at in range(0, len(text), length)]


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


def decode_handles(texts: Sequence[str], keys: HandleKeys = UNSIGNED) -> list[ReceiptHandle | None]:
    """Parse what a client sent; None where `decode_handle` raises."""
    handles = _decode_signed(texts, keys)
    if handles is None:
        return [_decode_or_none(text, keys) for text in texts]
    return [*handles]


def _decode_or_none(text: str, keys: HandleKeys) -> ReceiptHandle | None:
    try:
        return decode_handle(text, keys)
    except RequestError:
        return None


def _decode_signed(texts: Sequence[str], keys: HandleKeys) -> list[ReceiptHandle] | None:
    """Parse handles in one pass; None: not all of them are signed and right."""
    joined = "".join(texts)
    if not joined.isascii() or any([len(text) != _SIGNED_LENGTH for text in texts]):
        return None
    try:
        raw = binascii.a2b_base64(joined.encode().translate(_FROM_URL_SAFE), strict_mode=True)
    except binascii.Error:
        return None
    if len(raw) != len(texts) * _SIGNED_BYTES:
        return None
    if not keys.are_right(HandleKind.RECEIPT, raw, _SIGNED_BYTES):
        return None
    handles = []
    for first, *values in _SIGNED.iter_unpack(raw):
        if first >> 4 != _SIGNED_VERSION:
            return None
        handles.append(ReceiptHandle._make((*values, bool(first & _AUTO_RENEWED))))
    return handles


def _is_right(fields: bytes, end: bytes, keys: HandleKeys) -> bool:
    version = fields[0] >> 4
    if len(end) == SEAL_BYTES:
        return version == _SIGNED_VERSION and keys.is_right(HandleKind.RECEIPT, fields, end)
    if len(end) != _CHECKSUM.size or version != _UNSIGNED_VERSION:
        return False
    return keys.accept_unsigned and end == _CHECKSUM.pack(crc32(fields))
