"""Temporary keys of a user: a session token that brokers can check without a row.

A token is base64 of: version u8 = 1, key id u32, end u64 (milliseconds since 1970), length of the
user's name u8, name, 16 bytes of HMAC-SHA256 over all before it. The access key of a session is the
user's name; its secret key is derived from the token, so that both need only the cluster key.
"""

from __future__ import annotations

import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import NamedTuple

_VERSION = 1
_FIELDS = struct.Struct(">BIQB")
_TAG_BYTES = 16
MAX_TOKEN_LENGTH = 256


class Session(NamedTuple):
    """Temporary keys: what a client is configured with."""

    user: str
    secret_key: str
    token: str
    ends_ms: int


def issue_session(user: str, ends_ms: int, key_id: int, cluster_key: bytes) -> Session:
    """Make temporary keys that end at `ends_ms` (milliseconds since 1970).

    Raises:
        struct.error: a number is out of range.
    """
    name = user.encode()
    fields = _FIELDS.pack(_VERSION, key_id, ends_ms, len(name)) + name
    token = urlsafe_b64encode(fields + _tag(fields, cluster_key)).decode("ascii")
    return Session(user, _secret_of(token, cluster_key), token, ends_ms)


def read_session(token: str, key_of: Callable[[int], bytes | None]) -> Session | None:
    """Read a session token; None: it is damaged, forged, or its key is not valid any more.

    Args:
        token: as a client sent it; the caller compares `ends_ms` with its clock.
        key_of: gives the secret of a valid cluster key by its id.
    """
    if len(token) > MAX_TOKEN_LENGTH:
        return None
    try:
        raw = urlsafe_b64decode(token.encode("ascii"))
        version, key_id, ends_ms, length = _FIELDS.unpack_from(raw)
        fields, tag = raw[: _FIELDS.size + length], raw[_FIELDS.size + length :]
        user = fields[_FIELDS.size :].decode()
    except (ValueError, struct.error):
        return None
    cluster_key = key_of(key_id)
    if version != _VERSION or cluster_key is None:
        return None
    if not hmac.compare_digest(_tag(fields, cluster_key), tag):
        return None
    return Session(user, _secret_of(token, cluster_key), token, ends_ms)


def _tag(fields: bytes, cluster_key: bytes) -> bytes:
    return hmac.digest(cluster_key, b"session\x00" + fields, "sha256")[:_TAG_BYTES]


def _secret_of(token: str, cluster_key: bytes) -> str:
    return hmac.digest(cluster_key, b"secret\x00" + token.encode(), "sha256").hex()
