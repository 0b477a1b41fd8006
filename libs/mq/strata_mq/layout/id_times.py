"""Creation time and order of messages, read from their ids.

The ids of the official clients (version 1, 17 bytes) hold the second of their creation, by the
client's clock, and a number that counts the client's messages; a retry repeats the id. So an id
tells whether a message can be a repeat of a message stored before some moment. The born time does
not: clients set it anew for every attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

BLOCK_MESSAGES = 128
"""So many successive messages of a client, made within a second, are a block (docs/adr/0073)."""

ID_EPOCH_S = 1_609_459_200
"""2021-01-01 00:00:00 UTC, from which ids count."""

_VERSION = 1
# Behind version, address and process.
_SECONDS_AT = 9
_SECONDS_END = 13
# The count fills the bytes after the seconds; the low bits of the last byte are within a block.
_BLOCK_LASTS = [bytes((last & -BLOCK_MESSAGES,)) for last in range(256)]
_SECONDS_MAX = (1 << 32) - 1


def all_made_between(ids: Sequence[bytes], first_ms: int, last_ms: int) -> bool:
    """Whether every id says that it was made then.

    Args:
        ids: 17 bytes each, at least one.
        first_ms: wall time; its second counts.
        last_ms: likewise.

    Returns:
        False also for ids of another form: they say nothing.
    """
    first, last = first_ms // 1_000 - ID_EPOCH_S, last_ms // 1_000 - ID_EPOCH_S
    if last < 0 or first > _SECONDS_MAX or {each[0] for each in ids} != {_VERSION}:
        return False
    seconds = [each[_SECONDS_AT:_SECONDS_END] for each in ids]
    low, high = max(first, 0), min(last, _SECONDS_MAX)
    return low.to_bytes(4, "big") <= min(seconds) and max(seconds) <= high.to_bytes(4, "big")


def made_ms(message_id: bytes) -> int | None:
    """Return the wall time of the second in which an id was made; None: it does not say.

    Args:
        message_id: 17 bytes.
    """
    if message_id[0] != _VERSION:
        return None
    seconds = int.from_bytes(message_id[_SECONDS_AT:_SECONDS_END], "big")
    return (ID_EPOCH_S + seconds) * 1_000


def block_of(message_id: bytes) -> bytes | None:
    """Return what an id has in common with those of its block; None: ids of its form count nothing.

    Args:
        message_id: 17 bytes.
    """
    if message_id[0] != _VERSION:
        return None
    return message_id[:-1] + _BLOCK_LASTS[message_id[-1]]
