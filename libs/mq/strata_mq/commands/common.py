"""Commands: the payloads of raft entries of kind normal. Layout: docs/data-layout.md section 4.

The leader encodes a command when it has decided; apply decodes it and evaluates nothing (rule 1).
APPEND and LEASES are here, with the lease row. Commands about pending messages are in `pending`,
rare commands in `rare`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from strata_mq.layout.batch import PartKind
from strata_mq.layout.pending_rows import NO_QUEUE, PendingRef
from strata_mq.leases.queue_leases import Lease, LeaseChange, LeaseState


class CommandKind(IntEnum):
    """First byte of a payload."""

    APPEND = 1
    LEASES = 2
    DEAD_LETTER = 3
    OWN = 4
    SEAL = 5
    OPEN = 6
    TRIM = 7
    DROP = 8
    LOST = 9
    RESOLVE = 10
    RETRACT = 11
    CLIENT_NAMES = 12
    REHASH = 13
    # Key-value tables; `strata_kv` lays these out, and the plugin `kv` applies them.
    KV_WRITE = 20
    # Names of lite topics; `lite` lays it out, and the part `lite` of a raft group applies it.
    LITE_TOPICS = 21
    TIER_DISPATCH = 30
    TIER_CHANGE = 31
    TIER_LOCAL = 32
    TIER_PAUSE = 33


class CommandError(Exception):
    """The bytes are not a command of the kind and version that was asked for."""


VERSION = 1

# Kind, version, parts, resolution length, store time, broker boot id, sequence.
_APPEND = struct.Struct(">BBHIQQQ")
# Queue, base offset (pending: ordinal of the first message), outcome, part kind, duplicates.
_PART = struct.Struct(">IQBBH")
# Ordinal in the part, queue, offset; a pending one: no queue, raft index, and its ordinal behind.
_DUPLICATE = struct.Struct(">IIQ")
_DUPLICATE_ORDINAL = struct.Struct(">I")
# Kind, version, sections, reserved, group time.
_LEASES = struct.Struct(">BBHIQ")
# Consumer group, topic, queue, generation, head, puts, deletes, flags.
_SECTION = struct.Struct(">IIIIQHHB3x")
# State, flags, attempts, max attempts, broker, lease number, dead-letter topic, visible at,
# taken at, holder, message-group hash, attempt, length.
_LEASE = struct.Struct(">BBHHHIIQQQQQI")
_OFFSET = struct.Struct(">Q")

LEASE_ROW_BYTES = _LEASE.size
_OFFSET_BYTES = _OFFSET.size
_PUT_BYTES = _OFFSET_BYTES + LEASE_ROW_BYTES
_COUNT_MAX = 0xFFFF
_AUTO_RENEWED = 1
_HEAD_CHANGED = 1
_CLEAR = 2
_FORGET = 4


def command_kind(payload: bytes) -> CommandKind:
    """Return the kind of a payload.

    Raises:
        CommandError: empty, or a kind or version this build does not know.
    """
    if len(payload) < 2 or payload[1] != VERSION:
        raise CommandError(f"no command of version {VERSION}: {payload[:2]!r}")
    try:
        return CommandKind(payload[0])
    except ValueError as error:
        raise CommandError(f"unknown command kind {payload[0]}") from error


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A message whose id is known already: where the first one is.

    Attributes:
        ordinal: of the message, in its part.
        queue, offset: of the first one.
        pending: name of the first one if it was stored to wait, whatever became of it since; then
            queue and offset say nothing. Raft index 0: it is in the same batch.
    """

    ordinal: int
    queue: int
    offset: int
    pending: PendingRef | None = None


@dataclass(frozen=True, slots=True)
class PartResolution:
    """Decision of the leader for one part.

    Attributes:
        queue: where its messages are; `NO_QUEUE` in a pending part.
        base_offset: of its first message. In a pending part the ordinal of that message in the
            batch, which with the entry's index is its name.
        outcome: a number of strata.storage.v1.Outcome.
        duplicates: messages that are not stored again, by ordinal.
        kind: the part's.
    """

    queue: int
    base_offset: int
    outcome: int = 1
    duplicates: Sequence[Duplicate] = ()
    kind: PartKind = PartKind.PLAIN


@dataclass(frozen=True, slots=True)
class AppendCommand:
    """APPEND as apply sees it; `batch_at` is the batch's offset in the payload."""

    store_time_ms: int
    broker_boot_id: int
    sequence: int
    parts: Sequence[PartResolution]
    batch_at: int
    resolution: bytes


def encode_append(
    store_time_ms: int, broker_boot_id: int, sequence: int, parts: Sequence[PartResolution]
) -> bytes:
    """Return the bytes that stand before the batch; payload = (this, batch)."""
    resolution = encode_resolution(parts)
    head = _APPEND.pack(
        CommandKind.APPEND,
        VERSION,
        len(parts),
        len(resolution),
        store_time_ms,
        broker_boot_id,
        sequence,
    )
    return head + resolution


def decode_append(payload: bytes, at: int = 0) -> AppendCommand:
    """Parse an APPEND payload (head and resolution; the batch is left alone).

    Args:
        payload: A whole payload.
        at: Where the command starts in it: not 0 inside a DEAD_LETTER command. `batch_at` of the
            result counts from the start of the payload, as CQ rows do.

    Raises:
        CommandError: the bytes are no APPEND.
    """
    _, part_count, resolution_bytes, store_time_ms, broker_boot_id, sequence = unpack_head(
        _APPEND, payload, CommandKind.APPEND, at
    )
    batch_at = at + _APPEND.size + resolution_bytes
    resolution = payload[at + _APPEND.size : batch_at]
    parts = decode_resolution(resolution)
    if len(resolution) != resolution_bytes or len(parts) != part_count:
        raise CommandError(f"resolution of {len(resolution)} bytes has {len(parts)} parts")
    return AppendCommand(
        store_time_ms, broker_boot_id, sequence, parts, batch_at, bytes(resolution)
    )


def encode_resolution(parts: Sequence[PartResolution]) -> bytes:
    """Encode what was decided per part: stands in APPEND and in the broker row."""
    pieces = []
    for part in parts:
        pieces.append(
            _PART.pack(part.queue, part.base_offset, part.outcome, part.kind, len(part.duplicates))
        )
        pieces.extend(map(_encode_duplicate, part.duplicates))
    return b"".join(pieces)


def decode_resolution(resolution: bytes) -> list[PartResolution]:
    """Parse a resolution, which ends where its bytes end.

    Raises:
        CommandError: cut in the middle of a part.
    """
    parts = []
    at = 0
    try:
        while at < len(resolution):
            queue, base_offset, outcome, kind, count = _PART.unpack_from(resolution, at)
            at += _PART.size
            duplicates = []
            for _ in range(count):
                duplicate, at = _decode_duplicate(resolution, at)
                duplicates.append(duplicate)
            parts.append(
                PartResolution(queue, base_offset, outcome, tuple(duplicates), PartKind(kind))
            )
    except (struct.error, ValueError) as error:
        raise CommandError(f"resolution is wrong at byte {at}: {error}") from error
    return parts


@dataclass(frozen=True, slots=True)
class LeasesSection:
    """One (consumer group, topic, queue) of a LEASES command; leases still encoded."""

    consumer_group_id: int
    topic_id: int
    queue: int
    generation: int
    head: int
    head_changed: bool
    clear: bool
    forget: bool
    puts: Sequence[tuple[bytes, bytes]]  # (offset as 8 bytes, lease row as 60 bytes)
    deletes: Sequence[bytes]


def encode_leases(
    group_time_ms: int, sections: Sequence[tuple[int, int, int, LeaseChange]]
) -> bytes:
    """Encode (consumer group, topic, queue, change) sections.

    A change with more rows than a section can count takes several sections in a row.

    Raises:
        ValueError: more than 65,535 sections.
    """
    parts = [
        ((consumer_group_id, topic_id, queue), part)
        for consumer_group_id, topic_id, queue, change in sections
        for part in _split(change)
    ]
    if len(parts) > _COUNT_MAX:
        raise ValueError(f"{len(parts)} sections in one LEASES command")
    pieces = [_LEASES.pack(CommandKind.LEASES, VERSION, len(parts), 0, group_time_ms)]
    for key, part in parts:
        _encode_section(pieces, key, part)
    return b"".join(pieces)


def section_bytes(change: LeaseChange) -> int:
    """Return how many bytes a change takes in a LEASES command."""
    puts, deletes = len(change.puts), len(change.deletes)
    sections = max(1, -(-max(puts, deletes) // _COUNT_MAX))
    return sections * _SECTION.size + puts * _PUT_BYTES + deletes * _OFFSET_BYTES


def cut_change(change: LeaseChange, max_bytes: int) -> tuple[LeaseChange, LeaseChange | None]:
    """Cut a change in two for two commands, one after the other: (first, rest).

    The first part takes at most `max_bytes` in its command, and has one row at least. The log may
    end between the two, so some changes are never cut: the head would pass over messages whose rows
    are in the rest, and a repeat of a pop would find a part of its messages.

    Returns:
        The whole change and None if it fits, or cannot be cut.
    """
    if section_bytes(change) <= max_bytes or not _may_be_cut(change):
        return change, None
    room = max_bytes - _SECTION.size
    if change.puts:
        count = max(1, room // _PUT_BYTES)
        first = change._replace(puts=change.puts[:count], deletes=())
        rest = change._replace(puts=change.puts[count:])
    else:
        count = max(1, room // _OFFSET_BYTES)
        first = change._replace(deletes=change.deletes[:count])
        rest = change._replace(deletes=change.deletes[count:])
    return first, rest if rest.puts or rest.deletes else None


def decode_leases(payload: bytes, at: int = 0) -> tuple[int, Sequence[LeasesSection]]:
    """Return group time and sections of the LEASES command that starts at byte `at`.

    Raises:
        CommandError: the bytes are no LEASES.
    """
    _, count, _, group_time_ms = unpack_head(_LEASES, payload, CommandKind.LEASES, at)
    at += _LEASES.size
    sections = []
    for _ in range(count):
        section, at = _decode_section(payload, at)
        sections.append(section)
    return group_time_ms, sections


def encode_lease(lease: Lease) -> bytes:
    """Return the 60-byte lease row."""
    return _LEASE.pack(
        lease.state,
        _AUTO_RENEWED if lease.auto_renewed else 0,
        lease.attempts,
        lease.max_attempts,
        lease.broker,
        lease.lease_number,
        lease.dead_letter_topic_id,
        lease.visible_at_ms,
        lease.taken_at_ms,
        lease.holder,
        lease.group_hash,
        lease.attempt,
        lease.length,
    )


def decode_lease(row: bytes) -> Lease:
    """Parse a lease row.

    Raises:
        CommandError: the bytes are no lease row.
    """
    try:
        fields = _LEASE.unpack(row)
        state = LeaseState(fields[0])
    except (struct.error, ValueError) as error:
        raise CommandError(f"not a lease row: {error}") from error
    _, flags, attempts, max_attempts, broker, lease_number, dead_letter_topic_id = fields[:7]
    visible_at_ms, taken_at_ms, holder, group_hash, attempt, length = fields[7:]
    return Lease(
        state,
        attempts,
        max_attempts,
        lease_number,
        dead_letter_topic_id,
        visible_at_ms,
        taken_at_ms,
        holder,
        group_hash,
        attempt,
        bool(flags & _AUTO_RENEWED),
        length,
        broker,
    )


def unpack_head(
    head: struct.Struct, payload: bytes, kind: CommandKind, at: int = 0
) -> tuple[int, ...]:
    """Return the fields of a command's head after the kind byte, which must be `kind`.

    Raises:
        CommandError: another kind or version, or too short.
    """
    try:
        found, *fields = head.unpack_from(payload, at)
    except struct.error as error:
        raise CommandError(f"{kind.name} command is cut: {error}") from error
    if found != kind or fields[0] != VERSION:
        raise CommandError(f"kind {found} version {fields[0]} is not {kind.name} {VERSION}")
    return tuple(fields)


def _encode_duplicate(duplicate: Duplicate) -> bytes:
    pending = duplicate.pending
    if pending is None:
        return _DUPLICATE.pack(duplicate.ordinal, duplicate.queue, duplicate.offset)
    head = _DUPLICATE.pack(duplicate.ordinal, NO_QUEUE, pending.raft_index)
    return head + _DUPLICATE_ORDINAL.pack(pending.ordinal)


def _decode_duplicate(resolution: bytes, at: int) -> tuple[Duplicate, int]:
    """Return the duplicate at byte `at`, and where it ends."""
    ordinal, queue, offset = _DUPLICATE.unpack_from(resolution, at)
    at += _DUPLICATE.size
    if queue != NO_QUEUE:
        return Duplicate(ordinal, queue, offset), at
    (pending_ordinal,) = _DUPLICATE_ORDINAL.unpack_from(resolution, at)
    pending = PendingRef(offset, pending_ordinal)
    return Duplicate(ordinal, 0, 0, pending), at + _DUPLICATE_ORDINAL.size


def _may_be_cut(change: LeaseChange) -> bool:
    """Whether the parts of a change may be committed one by one."""
    if change.head_changed or change.clear or change.forget:
        return False
    return not any(lease.attempt for _, lease in change.puts)


def _split(change: LeaseChange) -> Sequence[LeaseChange]:
    """Cut a change into pieces that a section's 16-bit counts can hold."""
    if len(change.puts) <= _COUNT_MAX and len(change.deletes) <= _COUNT_MAX:
        return (change,)
    pieces = []
    for start in range(0, max(len(change.puts), len(change.deletes)), _COUNT_MAX):
        stop = start + _COUNT_MAX
        pieces.append(
            change._replace(
                puts=change.puts[start:stop],
                deletes=change.deletes[start:stop],
                # Only the first may clear: the others would drop what it wrote.
                clear=change.clear and not start,
            )
        )
    return pieces


def _encode_section(pieces: list[bytes], key: tuple[int, int, int], change: LeaseChange) -> None:
    flags = _HEAD_CHANGED * change.head_changed | _CLEAR * change.clear | _FORGET * change.forget
    pieces.append(
        _SECTION.pack(
            *key, change.generation, change.head, len(change.puts), len(change.deletes), flags
        )
    )
    pack_offset = _OFFSET.pack
    encoded, row = None, b""
    for offset, lease in change.puts:
        # Rows of one pop often share one object.
        if lease is not encoded:
            encoded, row = lease, encode_lease(lease)
        pieces.append(pack_offset(offset) + row)
    pieces.extend(map(pack_offset, change.deletes))


def _decode_section(payload: bytes, at: int) -> tuple[LeasesSection, int]:
    try:
        consumer_group_id, topic_id, queue, generation, head, puts, deletes, flags = (
            _SECTION.unpack_from(payload, at)
        )
    except struct.error as error:
        raise CommandError(f"section at byte {at} is cut") from error
    puts_at = at + _SECTION.size
    deletes_at = puts_at + _PUT_BYTES * puts
    end = deletes_at + _OFFSET_BYTES * deletes
    if end > len(payload):
        raise CommandError(f"section at byte {at} is cut")
    section = LeasesSection(
        consumer_group_id,
        topic_id,
        queue,
        generation,
        head,
        bool(flags & _HEAD_CHANGED),
        bool(flags & _CLEAR),
        bool(flags & _FORGET),
        [
            (payload[row - _OFFSET_BYTES : row], payload[row : row + LEASE_ROW_BYTES])
            for row in range(puts_at + _OFFSET_BYTES, deletes_at, _PUT_BYTES)
        ],
        [
            payload[offset : offset + _OFFSET_BYTES]
            for offset in range(deletes_at, end, _OFFSET_BYTES)
        ],
    )
    return section, end
