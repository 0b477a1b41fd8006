"""Hashes of texts and the 17-byte form of message ids (docs/data-layout.md section 3).

Hashes are stored on disk: their definition never changes.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

MESSAGE_ID_BYTES = 17
_OFFICIAL_ID_DIGITS = 2 * MESSAGE_ID_BYTES
_FOREIGN_ID_MARK = b"\x00"

# Tags and message groups repeat; one entry is at most about 1 KiB.
_CACHED_HASHES_MAX = 4096
_CACHED_TEXT_MAX = 256


def text_hash(text: str) -> int:
    """Return the 64-bit hash of a tag or message group; never 0.

    0 stands for "there is none" wherever a hash is stored. Short texts are remembered.
    """
    return _cached_hash(text) if len(text) <= _CACHED_TEXT_MAX else key_hash(text)


def key_hash(text: str) -> int:
    """Return the same for a text that hardly repeats, such as a message key or an attempt id."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) or 1


_cached_hash = lru_cache(maxsize=_CACHED_HASHES_MAX)(key_hash)


def pack_message_id(text: str) -> bytes:
    """Return the 17 bytes under which a message id is stored.

    An official id (34 upper-case hex digits that do not start with 00) keeps its own bytes; any
    other text becomes 00 and 16 bytes of its hash, so that different texts stay different.
    """
    if len(text) == _OFFICIAL_ID_DIGITS and not text.startswith("00"):
        try:
            packed = bytes.fromhex(text)
        except ValueError:
            packed = b""
        # fromhex also takes lower case and blanks, which would not come back the same.
        if packed.hex().upper() == text:
            return packed
    return _FOREIGN_ID_MARK + blake2b(text.encode(), digest_size=MESSAGE_ID_BYTES - 1).digest()


def unpack_message_id(packed: bytes) -> str | None:
    """Return the text of a packed official id; None for any other, whose text is not kept."""
    if packed.startswith(_FOREIGN_ID_MARK):
        return None
    return packed.hex().upper()
