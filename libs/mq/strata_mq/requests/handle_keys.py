"""Keys that sign handles: a handle that no broker of the cluster gave costs a reader one hash.

A signed handle ends with the id of its key (u16, the low half of the cluster key's id) and a tag: 8
bytes of BLAKE2s under that key over all bytes before, with the kind of handle as personalisation.
64 bits are enough: a forger has to try them all against the brokers, and a key lives for weeks.

Handles of older versions are not signed; they end with a CRC32. The reader decides how long they
are still good.
"""

from __future__ import annotations

import hmac
import struct
import zlib
from collections.abc import Iterable, Mapping
from enum import Enum
from hashlib import blake2s

_KEY_ID = struct.Struct(">H")
TAG_BYTES = 8
SEAL_BYTES = _KEY_ID.size + TAG_BYTES
"""Bytes that a signed handle has behind its fields."""
_KEY_ID_MASK = 0xFFFF
# Clients of the remoting protocol know the meaning of small numbers in the place of a mark.
_LEAST_MARK, _MOST_MARK = 1_000, (1 << 31) - 1


class HandleKind(Enum):
    """Kind of a handle: a tag of one kind is wrong for the other."""

    RECEIPT = b"receipt"
    PENDING = b"pending"
    MARK = b"mark"


class HandleKeys:
    """Signs and checks; without a key to sign with, handles are unsigned.

    Attributes:
        secrets: (low half of its id, secret) of each key, for a native pass.
        signing: that of the key that signs; None: none does.

    Args:
        keys: secrets of 16 to 32 bytes by key id; the ids differ in their low 16 bits.
        signing_key_id: signs; 0: none does.
        accept_unsigned: whether handles without a signature are good.
    """

    __slots__ = (
        "_hashes",
        "_seal_id",
        "accept_unsigned",
        "secrets",
        "signing",
        "signing_key_id",
    )

    def __init__(
        self, keys: Mapping[int, bytes], signing_key_id: int = 0, *, accept_unsigned: bool = True
    ) -> None:
        self.signing_key_id = signing_key_id
        self.accept_unsigned = accept_unsigned
        # A copy of a hash that has taken its key is cheaper than a new hash.
        self._hashes = {
            (kind, key_id & _KEY_ID_MASK): blake2s(
                digest_size=TAG_BYTES, key=secret, person=kind.value
            )
            for key_id, secret in keys.items()
            for kind in HandleKind
        }
        self._seal_id = _KEY_ID.pack(signing_key_id & _KEY_ID_MASK)
        by_id = {key_id & _KEY_ID_MASK: secret for key_id, secret in keys.items()}
        self.secrets = tuple(by_id.items())
        self.signing: tuple[int, bytes] | None = None
        if signing_key_id and (secret := by_id.get(signing_key_id & _KEY_ID_MASK)) is not None:
            self.signing = signing_key_id & _KEY_ID_MASK, secret

    def seal(self, kind: HandleKind, fields: bytes) -> bytes:
        """Return what a signed handle ends with.

        Raises:
            KeyError: no key signs.
        """
        return self.sealed(kind, (fields,))[len(fields) :]

    def sealed(self, kind: HandleKind, handles: Iterable[bytes]) -> bytes:
        """Return signed handles in a row, each as its fields and its seal.

        Raises:
            KeyError: no key signs.
        """
        hashed, seal_id = self._hashes[kind, self.signing_key_id & _KEY_ID_MASK], self._seal_id
        parts: list[bytes] = []
        for fields in handles:
            tagged, begin = hashed.copy(), fields + seal_id
            tagged.update(begin)
            parts += (begin, tagged.digest())
        return b"".join(parts)

    def is_right(self, kind: HandleKind, fields: bytes, seal: bytes) -> bool:
        """Whether a handle's end is one that a valid key made."""
        return self.are_right(kind, fields + seal, len(fields) + SEAL_BYTES)

    def are_right(self, kind: HandleKind, handles: bytes, handle_bytes: int) -> bool:
        """Whether a valid key signed each of some handles.

        Args:
            kind: of all of them.
            handles: in a row, each as its fields and its seal.
            handle_bytes: size of one.
        """
        key_id, keyed = b"", None
        for begin in range(0, len(handles), handle_bytes):
            tag_at = begin + handle_bytes - TAG_BYTES
            if handles[tag_at - _KEY_ID.size : tag_at] != key_id:
                # Nearly always all are of one key.
                key_id = handles[tag_at - _KEY_ID.size : tag_at]
                keyed = self._hashes.get((kind, *_KEY_ID.unpack(key_id)))
            if keyed is None:
                return False
            tagged = keyed.copy()
            tagged.update(handles[begin:tag_at])
            tag = handles[tag_at : begin + handle_bytes]
            if not hmac.compare_digest(tagged.digest(), tag):
                return False
        return True

    def mark(self, fields: bytes) -> int:
        """Return a number that says, in 31 bits, that a broker of the cluster gave some fields.

        For clients that keep numbers and no handle. It is never 0 or another small number, and a
        mere checksum where no key signs.
        """
        if not self.signing_key_id:
            return _mark_of(zlib.crc32(fields))
        return self._mark(self.signing_key_id & _KEY_ID_MASK, fields)

    def is_mark(self, fields: bytes, mark: int) -> bool:
        """Whether a valid key made this number of these fields, or none had to."""
        if self.accept_unsigned and mark == _mark_of(zlib.crc32(fields)):
            return True
        key_ids = [key_id for kind, key_id in self._hashes if kind is HandleKind.MARK]
        return any(mark == self._mark(key_id, fields) for key_id in key_ids)

    def _mark(self, key_id: int, fields: bytes) -> int:
        tagged = self._hashes[HandleKind.MARK, key_id].copy()
        tagged.update(fields)
        return _mark_of(int.from_bytes(tagged.digest()))


def _mark_of(hashed: int) -> int:
    return _LEAST_MARK + hashed % (_MOST_MARK - _LEAST_MARK + 1)


UNSIGNED = HandleKeys({})
"""No key: handles are made and read as before there were any."""
