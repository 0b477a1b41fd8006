"""Handles of messages that are not yet delivered: transaction ids and recall handles.

A handle names one message, so that any broker can end its transaction or recall it: opaque to
clients, url-safe base64 without padding. It is signed (`handle_keys`). A cluster without a cluster
key gives handles of version 1, whose checksum finds damage and is no signature.

A producer's transaction id is written into the message before the entry that stores it exists, so
it names the message by its id; a check and a recall name it by entry and ordinal.
"""

from __future__ import annotations

import struct
from binascii import a2b_base64, b2a_base64
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

from strata_mq.requests.handle_keys import SEAL_BYTES, UNSIGNED, HandleKeys, HandleKind

_UNSIGNED_VERSION = 1
_SIGNED_VERSION = 2
# Version (high half) and form (low half), raft group, topic, number, ordinal or queue; then the
# message id as UTF-8, then the key id and tag, or in version 1 the checksum, of all before it.
_FIELDS = struct.Struct(">BIIQI")
_CHECKSUM = struct.Struct(">I")
_LEAST_BYTES = _FIELDS.size + _CHECKSUM.size
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class HandleForm(IntEnum):
    """Meaning of `PendingHandle.number` and `part`."""

    # Nothing: the message is the newest one of its topic with this id.
    MESSAGE_ID = 1
    # Raft index of the entry that stored it, ordinal in the entry's batch.
    PENDING = 2
    # Offset and queue: it does not wait any more.
    STORED = 3


_FORMS = {int(form): form for form in HandleForm}


class PendingHandle(NamedTuple):
    """Content of a handle. `message_id` may be "" in the last two forms: not known."""

    raft_group: int
    topic_id: int
    message_id: str
    form: HandleForm = HandleForm.MESSAGE_ID
    number: int = 0
    part: int = 0


class BadHandleError(Exception):
    """A text is no handle of these versions, damaged, forged, or its key is not valid any more."""


def encode_pending_handle(handle: PendingHandle, keys: HandleKeys = UNSIGNED) -> str:
    """Return the text that the client gets.

    Raises:
        struct.error: a field is out of range.
    """
    raft_group, topic_id, message_id, form, number, part = handle
    version = _SIGNED_VERSION if keys.signing_key_id else _UNSIGNED_VERSION
    fields = _FIELDS.pack(version << 4 | form, raft_group, topic_id, number, part)
    fields += message_id.encode()
    if keys.signing_key_id:
        return _text(fields + keys.seal(HandleKind.PENDING, fields))
    return _text(fields + _CHECKSUM.pack(crc32(fields)))


def decode_pending_handle(text: str, keys: HandleKeys = UNSIGNED) -> PendingHandle:
    """Parse what a client sent: exactly the texts that `encode_pending_handle` makes.

    Raises:
        BadHandleError: anything else.
    """
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        raw = a2b_base64(padded.translate(_FROM_URL_SAFE), strict_mode=True)
    except ValueError as error:
        raise BadHandleError(str(error)) from error
    if len(raw) < _LEAST_BYTES:
        raise BadHandleError(f"{len(raw)} bytes")
    signed_until = _without_end(raw, keys)
    fields, message_id = raw[: _FIELDS.size], raw[_FIELDS.size : signed_until]
    first, raft_group, topic_id, number, part = _FIELDS.unpack(fields)
    form = _FORMS.get(first & 0x0F)
    if form is None:
        raise BadHandleError(f"no form {first & 0x0F}")
    try:
        handle = PendingHandle(raft_group, topic_id, message_id.decode(), form, number, part)
    except ValueError as error:
        raise BadHandleError(str(error)) from error
    # Base64 has several texts for the same bytes.
    if _text(raw) != text:
        raise BadHandleError("not in the form that handles have")
    if form is HandleForm.MESSAGE_ID and not message_id:
        raise BadHandleError("names no message")
    return handle


def _without_end(raw: bytes, keys: HandleKeys) -> int:
    """Return how many bytes the signature, or the checksum of version 1, is about.

    Raises:
        BadHandleError: it is wrong.
    """
    version = raw[0] >> 4
    is_right, until = False, 0
    if version == _SIGNED_VERSION:
        until = len(raw) - SEAL_BYTES
        is_right = until >= _FIELDS.size and keys.is_right(
            HandleKind.PENDING, raw[:until], raw[until:]
        )
    elif version == _UNSIGNED_VERSION and keys.accept_unsigned:
        until = len(raw) - _CHECKSUM.size
        is_right = _CHECKSUM.pack(crc32(raw[:until])) == raw[until:]
    if not is_right:
        raise BadHandleError("damaged, or not signed by this cluster")
    return until


def _text(raw: bytes) -> str:
    return b2a_base64(raw, newline=False).translate(_TO_URL_SAFE).rstrip(b"=").decode("ascii")
