"""Handles of messages that are not yet delivered: transaction ids and recall handles.

A handle names one message, so that any broker can end its transaction or recall it: opaque to
clients, url-safe base64 without padding. The checksum finds damage; it is not a signature: a client
that may send to a topic may end any transaction of that topic.

A producer's transaction id is written into the message before the entry that stores it exists, so
it names the message by its id; a check and a recall name it by entry and ordinal.
"""

from __future__ import annotations

import struct
from base64 import b64decode, urlsafe_b64encode
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

_VERSION = 1
# Version (high half) and form (low half), raft group, topic, number, ordinal or queue; then the
# message id as UTF-8, then the checksum of all before it.
_FIELDS = struct.Struct(">BIIQI")
_CHECKSUM = struct.Struct(">I")
_LEAST_BYTES = _FIELDS.size + _CHECKSUM.size


class HandleForm(IntEnum):
    """What `PendingHandle.number` and `part` say."""

    # Nothing: the message is the newest one of its topic with this id.
    MESSAGE_ID = 1
    # Raft index of the entry that stored it, ordinal in the entry's batch.
    PENDING = 2
    # Offset and queue: it does not wait any more.
    STORED = 3


class PendingHandle(NamedTuple):
    """What a handle says. `message_id` may be "" in the last two forms: not known."""

    raft_group: int
    topic_id: int
    message_id: str
    form: HandleForm = HandleForm.MESSAGE_ID
    number: int = 0
    part: int = 0


class BadHandleError(Exception):
    """A text is no handle of this version, or damaged."""


def encode_pending_handle(handle: PendingHandle) -> str:
    """Return the text that the client gets.

    Raises:
        struct.error: a field is out of range.
    """
    raft_group, topic_id, message_id, form, number, part = handle
    fields = _FIELDS.pack(_VERSION << 4 | form, raft_group, topic_id, number, part)
    fields += message_id.encode()
    return _text(fields + _CHECKSUM.pack(crc32(fields)))


def decode_pending_handle(text: str) -> PendingHandle:
    """Parse what a client sent: exactly the texts that `encode_pending_handle` makes.

    Raises:
        BadHandleError: anything else.
    """
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        raw = b64decode(padded, altchars=b"-_", validate=True)
    except ValueError as error:
        raise BadHandleError(str(error)) from error
    if len(raw) < _LEAST_BYTES:
        raise BadHandleError(f"{len(raw)} bytes")
    fields, message_id = raw[: _FIELDS.size], raw[_FIELDS.size : -_CHECKSUM.size]
    if _CHECKSUM.pack(crc32(fields + message_id)) != raw[-_CHECKSUM.size :]:
        raise BadHandleError("damaged")
    first, raft_group, topic_id, number, part = _FIELDS.unpack(fields)
    try:
        form = HandleForm(first & 0x0F)
        handle = PendingHandle(raft_group, topic_id, message_id.decode(), form, number, part)
    except ValueError as error:
        raise BadHandleError(str(error)) from error
    # Base64 has several texts for the same bytes.
    if first >> 4 != _VERSION or _text(raw) != text:
        raise BadHandleError("not in the form that handles have")
    if form is HandleForm.MESSAGE_ID and not message_id:
        raise BadHandleError("names no message")
    return handle


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
