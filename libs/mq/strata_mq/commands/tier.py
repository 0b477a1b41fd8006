"""The commands of tiering (rule 28). Layout: docs/data-layout.md section 4, kinds 30 to 33.

TIER_DISPATCH names the content of the next object. TIER_CHANGE carries a change of the tier's own
state, which this package does not parse. Decoding raises `CommandError` for other bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from strata_mq.commands.common import VERSION, CommandError, CommandKind, unpack_head
from strata_mq.layout.tier_rows import OffsetRange, pack_offset_ranges, unpack_offset_ranges

# Kind, version, reserved, ranges.
_DISPATCH = struct.Struct(">BBHI")
# Kind, version, whether it ends the dispatch, reserved; then the change.
_CHANGE = struct.Struct(">BBBB")
# Kind, version, reserved, queues; topic, queue, local offset.
_LOCAL = struct.Struct(">BBHI")
_LOCAL_QUEUE = struct.Struct(">IIQ")
# Kind, version, whether.
_PAUSE = struct.Struct(">BBB")


def encode_tier_dispatch(ranges: Sequence[OffsetRange]) -> bytes:
    """Encode a TIER_DISPATCH command: what the next object is to hold."""
    head = _DISPATCH.pack(CommandKind.TIER_DISPATCH, VERSION, 0, len(ranges))
    return head + pack_offset_ranges(ranges)


def decode_tier_dispatch(payload: bytes) -> list[OffsetRange]:
    """Parse a TIER_DISPATCH command."""
    _, _, count = unpack_head(_DISPATCH, payload, CommandKind.TIER_DISPATCH)
    try:
        return unpack_offset_ranges(payload, _DISPATCH.size, count)
    except struct.error as error:
        raise CommandError(f"TIER_DISPATCH is cut at byte {len(payload)}") from error


class TierChangeCommand(NamedTuple):
    """TIER_CHANGE.

    Attributes:
        ends_dispatch: what was dispatched is in the tier now, or will never be.
        change: bytes of the tier's change (section 9); empty: none.
    """

    ends_dispatch: bool
    change: bytes


def encode_tier_change(command: TierChangeCommand) -> bytes:
    """Encode a TIER_CHANGE command."""
    head = _CHANGE.pack(CommandKind.TIER_CHANGE, VERSION, command.ends_dispatch, 0)
    return head + command.change


def decode_tier_change(payload: bytes) -> TierChangeCommand:
    """Parse a TIER_CHANGE command."""
    _, ends_dispatch, _ = unpack_head(_CHANGE, payload, CommandKind.TIER_CHANGE)
    return TierChangeCommand(bool(ends_dispatch), payload[_CHANGE.size :])


class LocalQueue(NamedTuple):
    """A queue whose messages below an offset the log may give up."""

    topic_id: int
    queue: int
    local: int


def encode_tier_local(queues: Sequence[LocalQueue]) -> bytes:
    """Encode a TIER_LOCAL command."""
    head = _LOCAL.pack(CommandKind.TIER_LOCAL, VERSION, 0, len(queues))
    return b"".join((head, *[_LOCAL_QUEUE.pack(*queue) for queue in queues]))


def decode_tier_local(payload: bytes) -> list[LocalQueue]:
    """Parse a TIER_LOCAL command."""
    _, _, count = unpack_head(_LOCAL, payload, CommandKind.TIER_LOCAL)
    body = payload[_LOCAL.size : _LOCAL.size + count * _LOCAL_QUEUE.size]
    if len(body) != count * _LOCAL_QUEUE.size:
        raise CommandError(f"TIER_LOCAL is cut at byte {len(payload)}")
    return [LocalQueue(*row) for row in _LOCAL_QUEUE.iter_unpack(body)]


def encode_tier_pause(*, paused: bool) -> bytes:
    """Encode a TIER_PAUSE command: the raft group uploads nothing, or does again."""
    return _PAUSE.pack(CommandKind.TIER_PAUSE, VERSION, paused)


def decode_tier_pause(payload: bytes) -> bool:
    """Parse a TIER_PAUSE command."""
    _, paused = unpack_head(_PAUSE, payload, CommandKind.TIER_PAUSE)
    return bool(paused)
