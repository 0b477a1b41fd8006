"""Commands about messages that are pending or not yet delivered: RESOLVE and RETRACT.

Layout: docs/data-layout.md section 4. The leader decided which side won (commit or rollback, recall
or due time; rule 1); apply only checks that the rows it changes exist. Decoding raises
`CommandError` for other bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from strata_mq.commands.common import VERSION, CommandError, CommandKind, unpack_head
from strata_mq.layout.pending_rows import PENDING_ROW_BYTES_MIN, PendingKey, PendingRow

# Kind, version, reserved, items, group time.
_HEAD = struct.Struct(">BBHIQ")
# Action, how it ended, checks, ordinal, index, due time, topic, queue, offset or new due time,
# length of the pending row that follows.
_ITEM = struct.Struct(">BBHIQQIIQI")
# Topic, queue, offset.
_POSITION = struct.Struct(">IIQ")

RESOLVE_HEAD_BYTES = _HEAD.size
DELIVER_BYTES_MIN = _ITEM.size + PENDING_ROW_BYTES_MIN
"""Fewest bytes that give one offset away."""


class ResolveAction(IntEnum):
    """Outcome of a pending message."""

    # It takes an offset.
    DELIVER = 1
    # It is gone: rolled back or recalled.
    DISCARD = 2
    # It waits until another time.
    RESCHEDULE = 3


_ACTIONS = {int(action): action for action in ResolveAction}


class EndedAs(IntEnum):
    """How a message ended that takes no offset; kept for a while, so that repeats are told it."""

    # Not said: by older versions, or its topic was dropped.
    UNKNOWN = 0
    RECALLED = 1
    ROLLED_BACK = 2
    # Another raft group has it.
    FORWARDED = 3


_ENDS = {int(end): end for end in EndedAs}


class ResolveItem(NamedTuple):
    """One message of a RESOLVE command; made by `deliver`, `discard` and `reschedule`.

    Attributes:
        action: see `ResolveAction`.
        key: the pending row as it is before.
        topic_id: DELIVER: of the queue it goes to, which may be a dead-letter topic's; else the
            message's.
        queue: DELIVER: where it goes.
        offset_or_due: DELIVER: its offset; RESCHEDULE: the new due time.
        checks: RESCHEDULE: how often a producer was asked by then.
        row: DELIVER: the pending row, so that this entry alone says where the message is.
        ended_as: DISCARD: why.
    """

    action: ResolveAction
    key: PendingKey
    topic_id: int
    queue: int = 0
    offset_or_due: int = 0
    checks: int = 0
    row: PendingRow | None = None
    ended_as: EndedAs = EndedAs.UNKNOWN


@dataclass(frozen=True, slots=True)
class ResolveCommand:
    """RESOLVE: what becomes of pending messages.

    Attributes:
        group_time_ms: when it was decided; the store time of what is delivered.
        items: in the order in which their offsets rise.
    """

    group_time_ms: int
    items: Sequence[ResolveItem]


def deliver(
    key: PendingKey, row: PendingRow, topic_id: int, queue: int, offset: int
) -> ResolveItem:
    """Give a message its offset: the next one of (topic, queue) after what is in flight."""
    return ResolveItem(ResolveAction.DELIVER, key, topic_id, queue, offset, 0, row)


def discard(key: PendingKey, topic_id: int, ended_as: EndedAs = EndedAs.UNKNOWN) -> ResolveItem:
    """Give a message up."""
    return ResolveItem(ResolveAction.DISCARD, key, topic_id, ended_as=ended_as)


def reschedule(key: PendingKey, topic_id: int, due_ms: int, checks: int) -> ResolveItem:
    """Let a message wait until `due_ms`."""
    return ResolveItem(ResolveAction.RESCHEDULE, key, topic_id, 0, due_ms, checks)


def encode_resolve(command: ResolveCommand) -> bytes:
    """Encode a RESOLVE command."""
    pieces = [
        _HEAD.pack(CommandKind.RESOLVE, VERSION, 0, len(command.items), command.group_time_ms)
    ]
    for action, key, topic_id, queue, offset_or_due, checks, row, ended_as in command.items:
        value = b"" if row is None else row.encode()
        pieces.append(
            _ITEM.pack(
                action,
                ended_as,
                checks,
                key.ordinal,
                key.raft_index,
                key.due_ms,
                topic_id,
                queue,
                offset_or_due,
                len(value),
            )
        )
        pieces.append(value)
    return b"".join(pieces)


def decode_resolve(payload: bytes) -> ResolveCommand:
    """Parse a RESOLVE command."""
    _, _, count, group_time_ms = unpack_head(_HEAD, payload, CommandKind.RESOLVE)
    items = []
    at = _HEAD.size
    try:
        for _ in range(count):
            action, end, checks, ordinal, index, due_ms, topic_id, queue, offset, row_bytes = (
                _ITEM.unpack_from(payload, at)
            )
            at += _ITEM.size
            key = PendingKey(due_ms, index, ordinal)
            row = PendingRow.decode(payload, at) if row_bytes else None
            at += row_bytes
            items.append(
                ResolveItem(_ACTIONS[action], key, topic_id, queue, offset, checks, row, _ENDS[end])
            )
            if (row is None) == (action == ResolveAction.DELIVER):
                raise CommandError(f"RESOLVE item {len(items)} and its row do not fit")
    except (struct.error, ValueError, KeyError) as error:
        raise CommandError(f"RESOLVE is wrong at byte {at}: {error}") from error
    return ResolveCommand(group_time_ms, items)


class StoredPosition(NamedTuple):
    """A message by its place in a queue."""

    topic_id: int
    queue: int
    offset: int


@dataclass(frozen=True, slots=True)
class RetractCommand:
    """RETRACT: stored messages that their producers took back before anybody got them.

    Their offsets stay and hold nothing.
    """

    group_time_ms: int
    positions: Sequence[StoredPosition]


def encode_retract(command: RetractCommand) -> bytes:
    """Encode a RETRACT command."""
    head = _HEAD.pack(
        CommandKind.RETRACT, VERSION, 0, len(command.positions), command.group_time_ms
    )
    return head + b"".join([_POSITION.pack(*position) for position in command.positions])


def decode_retract(payload: bytes) -> RetractCommand:
    """Parse a RETRACT command."""
    _, _, count, group_time_ms = unpack_head(_HEAD, payload, CommandKind.RETRACT)
    body = payload[_HEAD.size :]
    if len(body) != count * _POSITION.size:
        raise CommandError(f"RETRACT of {count} messages has {len(body)} bytes")
    positions = [StoredPosition(*fields) for fields in _POSITION.iter_unpack(body)]
    return RetractCommand(group_time_ms, positions)
