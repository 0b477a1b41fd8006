"""The commands of rare events: DEAD_LETTER, OWN, SEAL, OPEN, TRIM, DROP, LOST and REHASH.

Layout: docs/data-layout.md section 4. Each is a frozen value, an `encode_` and a `decode_`
function; decoding raises `CommandError` for other bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from strata_mq.commands.common import VERSION, CommandError, CommandKind, unpack_head
from strata_mq.layout.pending_rows import PendingKey, PendingRef, PinRun

# Kind, version, reserved, length of the LEASES part.
_DEAD_LETTER = struct.Struct(">BBHI")
# Kind, version, ranges, queues; first slot, slot count, granted; topic, queue, place; revision.
_OWN = struct.Struct(">BBHI")
_SLOT_GRANT = struct.Struct(">HHB")
_QUEUE_GRANT = struct.Struct(">IIB")
_REVISION = struct.Struct(">Q")
# Kind, version, queue count, topic, queue, epoch, offset, other raft group.
_EPOCH = struct.Struct(">BBHIIIQI")
# Kind, version, reserved, queues, low index, group time; topic, queue, min offset.
_TRIM = struct.Struct(">BBHIQQ")
_TRIMMED_QUEUE = struct.Struct(">IIQ")
# Behind the queues, if there are any: runs of pins, pending messages; raft index and ordinal of the
# first pin of a run and of the one behind it; due time, raft index, ordinal.
_TRIMMED_PENDING = struct.Struct(">II")
_PIN_RUN = struct.Struct(">QIQI")
_PENDING_KEY = struct.Struct(">QQI")
# Kind, version, what, reserved, id.
_DROP = struct.Struct(">BBBBI")
# Kind, version, reserved, queues, messages, advance; topic, queue, next offset; ordinal.
_LOST = struct.Struct(">BBHIIQ")
_NEXT_OFFSET = struct.Struct(">IIQ")
_ORDINAL = struct.Struct(">I")
# Kind, version, queue count, topic, queue.
_REHASH = struct.Struct(">BBHII")


@dataclass(frozen=True, slots=True)
class DeadLetterCommand:
    """DEAD_LETTER: where its two commands start in the payload (rule 26)."""

    leases_at: int
    append_at: int


def encode_dead_letter(leases: bytes, append: bytes) -> bytes:
    """Return the bytes before the batch: a LEASES command and the head of an APPEND command.

    Args:
        leases: From `encode_leases`: removes the messages' rows.
        append: From `encode_append`: stores the copies; payload = (result, batch).
    """
    return _DEAD_LETTER.pack(CommandKind.DEAD_LETTER, VERSION, 0, len(leases)) + leases + append


def decode_dead_letter(payload: bytes, at: int = 0) -> DeadLetterCommand:
    """Find the two commands; parse them by `decode_leases` and `decode_append` with `at`."""
    _, _, leases_bytes = unpack_head(_DEAD_LETTER, payload, CommandKind.DEAD_LETTER, at)
    leases_at = at + _DEAD_LETTER.size
    append_at = leases_at + leases_bytes
    if append_at > len(payload):
        raise CommandError(f"DEAD_LETTER is cut at byte {len(payload)}")
    return DeadLetterCommand(leases_at, append_at)


class SlotGrant(NamedTuple):
    """A run of slots that a raft group gets or gives up (rule 17)."""

    first_slot: int
    slot_count: int
    granted: bool


class QueuePlace(IntEnum):
    """Where a queue is, whatever raft group owns its slot."""

    ELSEWHERE = 0
    HERE = 1
    # Where its slot is, again.
    BY_SLOT = 2


class QueueGrant(NamedTuple):
    """A queue that does not follow its slot, or does so again (rule 17)."""

    topic_id: int
    queue: int
    place: QueuePlace


@dataclass(frozen=True, slots=True)
class OwnCommand:
    """OWN: what a raft group gets and gives up (rule 17)."""

    slots: Sequence[SlotGrant]
    queues: Sequence[QueueGrant] = ()
    # Revision of the metadata on which it was decided; 0: on none.
    revision: int = 0


def encode_own(command: OwnCommand) -> bytes:
    """Encode an OWN command."""
    head = _OWN.pack(CommandKind.OWN, VERSION, len(command.slots), len(command.queues))
    return b"".join(
        (
            head,
            *[_SLOT_GRANT.pack(*grant) for grant in command.slots],
            *[_QUEUE_GRANT.pack(*grant) for grant in command.queues],
            _REVISION.pack(command.revision),
        )
    )


def decode_own(payload: bytes) -> OwnCommand:
    """Parse an OWN command; one that was written before there were revisions has none."""
    _, slot_count, queue_count = unpack_head(_OWN, payload, CommandKind.OWN)
    slots = _rows(payload, _OWN.size, _SLOT_GRANT, slot_count)
    queues_at = _OWN.size + slot_count * _SLOT_GRANT.size
    queues = _rows(payload, queues_at, _QUEUE_GRANT, queue_count)
    revision_at = queues_at + queue_count * _QUEUE_GRANT.size
    revisions = _rows(payload, revision_at, _REVISION, int(revision_at < len(payload)))
    try:
        return OwnCommand(
            [SlotGrant(first_slot, count, bool(granted)) for first_slot, count, granted in slots],
            [QueueGrant(topic_id, queue, QueuePlace(place)) for topic_id, queue, place in queues],
            revisions[0][0] if revisions else 0,
        )
    except ValueError as error:
        raise CommandError(f"OWN names an unknown place: {error}") from error


@dataclass(frozen=True, slots=True)
class EpochCommand:
    """SEAL or OPEN: an epoch of a queue ends or starts here (rule 18)."""

    topic_id: int
    queue: int
    epoch: int
    # SEAL: end offset of the epoch. OPEN: its start offset.
    offset: int
    # SEAL: the destination. OPEN: the source.
    other_raft_group: int
    # OPEN: that of the epoch before; see `rows.QueueRow`.
    queue_count: int = 0


def encode_seal(command: EpochCommand) -> bytes:
    """Encode a SEAL command."""
    return _encode_epoch(CommandKind.SEAL, command)


def decode_seal(payload: bytes) -> EpochCommand:
    """Parse a SEAL command."""
    return _decode_epoch(CommandKind.SEAL, payload)


def encode_open(command: EpochCommand) -> bytes:
    """Encode an OPEN command."""
    return _encode_epoch(CommandKind.OPEN, command)


def decode_open(payload: bytes) -> EpochCommand:
    """Parse an OPEN command."""
    return _decode_epoch(CommandKind.OPEN, payload)


class TrimmedQueue(NamedTuple):
    """The smallest offset of a queue from now on."""

    topic_id: int
    queue: int
    min_offset: int


@dataclass(frozen=True, slots=True)
class TrimCommand:
    """TRIM: what retention gave up (rule 10).

    Attributes:
        low_index: smallest raft index that is still needed.
        group_time_ms: store time of the oldest message that is kept.
        queues: where queues begin.
        pins: pins of messages that are trimmed, or of dropped topics.
        pending: messages of dropped topics that still wait.
    """

    low_index: int
    group_time_ms: int
    queues: Sequence[TrimmedQueue]
    pins: Sequence[PinRun] = ()
    pending: Sequence[PendingKey] = ()


def encode_trim(command: TrimCommand) -> bytes:
    """Encode a TRIM command."""
    head = _TRIM.pack(
        CommandKind.TRIM,
        VERSION,
        0,
        len(command.queues),
        command.low_index,
        command.group_time_ms,
    )
    pieces = [head, *[_TRIMMED_QUEUE.pack(*queue) for queue in command.queues]]
    if command.pins or command.pending:
        pieces.append(_TRIMMED_PENDING.pack(len(command.pins), len(command.pending)))
        pieces += [_PIN_RUN.pack(*run.first, *run.end) for run in command.pins]
        pieces += [_PENDING_KEY.pack(*key) for key in command.pending]
    return b"".join(pieces)


def decode_trim(payload: bytes) -> TrimCommand:
    """Parse a TRIM command."""
    _, _, count, low_index, group_time_ms = unpack_head(_TRIM, payload, CommandKind.TRIM)
    rows = _rows(payload, _TRIM.size, _TRIMMED_QUEUE, count)
    queues = [TrimmedQueue(*row) for row in rows]
    at = _TRIM.size + count * _TRIMMED_QUEUE.size
    if at == len(payload):
        return TrimCommand(low_index, group_time_ms, queues)
    ((run_count, pending_count),) = _rows(payload, at, _TRIMMED_PENDING, 1)
    at += _TRIMMED_PENDING.size
    runs = _rows(payload, at, _PIN_RUN, run_count)
    pending = _rows(payload, at + run_count * _PIN_RUN.size, _PENDING_KEY, pending_count)
    return TrimCommand(
        low_index,
        group_time_ms,
        queues,
        [PinRun(PendingRef(*run[:2]), PendingRef(*run[2:])) for run in runs],
        [PendingKey(*key) for key in pending],
    )


class DropKind(IntEnum):
    """Kind of thing that a DROP command drops."""

    TOPIC = 1
    CONSUMER_GROUP = 2


@dataclass(frozen=True, slots=True)
class DropCommand:
    """DROP: all rows of a topic or consumer group go; its id leaves a tombstone (rule 17)."""

    what: DropKind
    dropped_id: int


def encode_drop(command: DropCommand) -> bytes:
    """Encode a DROP command."""
    return _DROP.pack(CommandKind.DROP, VERSION, command.what, 0, command.dropped_id)


def decode_drop(payload: bytes) -> DropCommand:
    """Parse a DROP command."""
    _, what, _, dropped_id = unpack_head(_DROP, payload, CommandKind.DROP)
    try:
        return DropCommand(DropKind(what), dropped_id)
    except ValueError as error:
        raise CommandError(f"DROP of unknown kind {what}") from error


class NextOffset(NamedTuple):
    """Where a queue goes on."""

    topic_id: int
    queue: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class LostCommand:
    """LOST: replaces an entry whose bytes were damaged, after a repair (rule 8)."""

    # Queues go on at these offsets, or later.
    next_offsets: Sequence[NextOffset]
    # Every other queue skips as many offsets: the entry may have used them.
    advance: int
    # Ordinals in the batch of messages that are gone; the others stand.
    ordinals: frozenset[int]
    # Where the APPEND or DEAD_LETTER that was saved begins in the payload; 0: none was.
    saved_at: int = 0


def encode_lost(command: LostCommand) -> bytes:
    """Encode a LOST command; payload = (result, the saved APPEND or DEAD_LETTER with its batch)."""
    head = _LOST.pack(
        CommandKind.LOST,
        VERSION,
        0,
        len(command.next_offsets),
        len(command.ordinals),
        command.advance,
    )
    return b"".join(
        (
            head,
            *[_NEXT_OFFSET.pack(*queue) for queue in command.next_offsets],
            *[_ORDINAL.pack(ordinal) for ordinal in sorted(command.ordinals)],
        )
    )


def decode_lost(payload: bytes) -> LostCommand:
    """Parse a LOST command; what was saved is left alone."""
    _, _, queues, messages, advance = unpack_head(_LOST, payload, CommandKind.LOST)
    rows = _rows(payload, _LOST.size, _NEXT_OFFSET, queues)
    ordinals_at = _LOST.size + queues * _NEXT_OFFSET.size
    ordinals = _rows(payload, ordinals_at, _ORDINAL, messages)
    end = ordinals_at + messages * _ORDINAL.size
    return LostCommand(
        [NextOffset(*row) for row in rows],
        advance,
        frozenset(ordinal for (ordinal,) in ordinals),
        end if end < len(payload) else 0,
    )


class RehashCommand(NamedTuple):
    """REHASH: a queue takes message groups by this queue count, or a later one, only (rule 23)."""

    topic_id: int
    queue: int
    queue_count: int


def encode_rehash(command: RehashCommand) -> bytes:
    """Encode a REHASH command."""
    topic_id, queue, queue_count = command
    return _REHASH.pack(CommandKind.REHASH, VERSION, queue_count, topic_id, queue)


def decode_rehash(payload: bytes) -> RehashCommand:
    """Parse a REHASH command."""
    _, queue_count, topic_id, queue = unpack_head(_REHASH, payload, CommandKind.REHASH)
    return RehashCommand(topic_id, queue, queue_count)


def _encode_epoch(kind: CommandKind, command: EpochCommand) -> bytes:
    return _EPOCH.pack(
        kind,
        VERSION,
        command.queue_count,
        command.topic_id,
        command.queue,
        command.epoch,
        command.offset,
        command.other_raft_group,
    )


def _decode_epoch(kind: CommandKind, payload: bytes) -> EpochCommand:
    _, queue_count, topic_id, queue, epoch, offset, other = unpack_head(_EPOCH, payload, kind)
    return EpochCommand(topic_id, queue, epoch, offset, other, queue_count)


def _rows(payload: bytes, at: int, row: struct.Struct, count: int) -> list[tuple[int, ...]]:
    body = payload[at : at + count * row.size]
    if len(body) != count * row.size:
        raise CommandError(f"{count} rows do not fit the payload of {len(payload)} bytes")
    return list(row.iter_unpack(body))
