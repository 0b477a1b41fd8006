"""Trace rows: the effects of LEASES commands on each message, and the names of the clients.

Layout: docs/data-layout.md section 5. One row holds the effects of one section of a LEASES command
on the messages of one block of offsets. A pop or a batch of acks therefore costs about one row, and
the history of a message is in few neighbouring rows. A lease is kept as the part of its row with
holder, start and end; it is decoded on request.

Apply writes these rows and never reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from strata_mq.commands.common import (
    VERSION,
    CommandError,
    CommandKind,
    LeasesSection,
    unpack_head,
)
from strata_mq.leases.types import LeaseState

MAX_CLIENT_ID_BYTES = 255

_BLOCK_BITS = 8
# An offset has 8 bytes: these name its block, the others its place in the block.
_PLACE_AT = 7
# Consumer group, group time.
_HEAD = struct.Struct(">IQ")
# The kind, messages - 1.
_ITEM = struct.Struct(">BB")
# The first fields of a lease row: state, flags, attempts, max attempts, broker, lease number,
# dead-letter topic, visible at, taken at, holder.
_LEASE = struct.Struct(">BBHHHIIQQQ")
_LEASE_BYTES = _LEASE.size
# First byte of an item. No enum: its hash and comparisons cost more than the rest.
_LEASE_ITEM = 1
_REMOVED_ITEM = 2
_DEAD_LETTERED_ITEM = 3
# Kind, version, names, reserved, group time.
_NAMES = struct.Struct(">BBHIQ")
# Hash of a client id, length.
_NAME = struct.Struct(">QB")
_NAMES_MAX = 0xFFFF


class TraceKind(IntEnum):
    """Kind of an event of a message; numbers of `strata.storage.v1.TraceEventKind`."""

    DELIVERED = 1
    # Its consumer set a new time at which it is visible again.
    POSTPONED = 2
    # Visible again: its lease ran out or was given back.
    RELEASED = 3
    # Passed by because an earlier message of its message group is not acked.
    BLOCKED = 4
    ACKED = 5
    DEAD_LETTERED = 6


class TraceEvent(NamedTuple):
    """One thing that happened to a message in one consumer group.

    Attributes:
        time_ms: group time.
        attempts: deliveries so far; 0 where the event does not say.
        holder: hash of the client id of who was given it; 0: nobody.
        visible_at_ms: when it is visible again; 0: no such time.
    """

    consumer_group_id: int
    kind: TraceKind
    time_ms: int
    attempts: int = 0
    holder: int = 0
    visible_at_ms: int = 0


def block_of(offset: int) -> int:
    """Return the block of offsets whose trace rows lie side by side."""
    return offset >> _BLOCK_BITS


def trace_values(
    section: LeasesSection, group_time_ms: int, *, dead_letters: bool
) -> Iterable[tuple[bytes, bytes]]:
    """Return (7 bytes of the block, value) of the rows for one section.

    Args:
        section: part of a LEASES command.
        group_time_ms: of the command.
        dead_letters: what it deletes goes to the dead-letter topic in the same entry.
    """
    head = _HEAD.pack(section.consumer_group_id, group_time_ms)
    values: dict[bytes, bytes] = {}
    # Messages of one pop, and acks of one batch, mostly go into one item.
    block, lease, places = b"", b"", bytearray()
    for offset, row in section.puts:
        if offset[:_PLACE_AT] != block or row[:_LEASE_BYTES] != lease:
            _add_item(values, head, block, _LEASE_ITEM, lease, places)
            block, lease, places = offset[:_PLACE_AT], row[:_LEASE_BYTES], bytearray()
        places.append(offset[_PLACE_AT])
    _add_item(values, head, block, _LEASE_ITEM, lease, places)
    removed = _DEAD_LETTERED_ITEM if dead_letters else _REMOVED_ITEM
    block, places = b"", bytearray()
    for offset in section.deletes:
        if offset[:_PLACE_AT] != block:
            _add_item(values, head, block, removed, b"", places)
            block, places = offset[:_PLACE_AT], bytearray()
        places.append(offset[_PLACE_AT])
    _add_item(values, head, block, removed, b"", places)
    return values.items()


def _add_item(
    values: dict[bytes, bytes],
    head: bytes,
    block: bytes,
    what: int,
    lease: bytes,
    places: bytearray,
) -> None:
    """Add an item to the value of its block; one without places is none."""
    if places:
        value = values.get(block, head)
        values[block] = b"".join((value, _ITEM.pack(what, len(places) - 1), lease, places))


def trace_events(value: bytes, offset: int) -> list[TraceEvent]:
    """Return what a trace row tells of one message of its block."""
    consumer_group_id, time_ms = _HEAD.unpack_from(value)
    place = offset & (1 << _BLOCK_BITS) - 1
    events = []
    at = _HEAD.size
    while at < len(value):
        what, more = _ITEM.unpack_from(value, at)
        at += _ITEM.size
        lease_at = at
        if what == _LEASE_ITEM:
            at += _LEASE_BYTES
        end = at + more + 1
        if place in value[at:end]:
            if what == _LEASE_ITEM:
                lease = _LEASE.unpack_from(value, lease_at)
                events.append(_lease_event(consumer_group_id, time_ms, lease))
            else:
                acked = what == _REMOVED_ITEM
                kind = TraceKind.ACKED if acked else TraceKind.DEAD_LETTERED
                events.append(TraceEvent(consumer_group_id, kind, time_ms))
        at = end
    return events


def _lease_event(consumer_group_id: int, time_ms: int, lease: tuple[int, ...]) -> TraceEvent:
    state, _, attempts, _, _, _, _, visible_at_ms, _, holder = lease
    if state == LeaseState.LEASED:
        # A lease whose visible time was changed has no holder any more.
        kind = TraceKind.DELIVERED if holder else TraceKind.POSTPONED
    elif state == LeaseState.WAITING:
        kind, visible_at_ms = TraceKind.RELEASED, 0
    else:
        kind = TraceKind.BLOCKED
    return TraceEvent(consumer_group_id, kind, time_ms, attempts, holder, visible_at_ms)


class ClientName(NamedTuple):
    """The name whose hash is in leases."""

    holder: int
    client_id: str


def encode_client_names(group_time_ms: int, names: Sequence[ClientName]) -> bytes:
    """Encode a CLIENT_NAMES command; longer ids are cut to MAX_CLIENT_ID_BYTES.

    Raises:
        ValueError: more than 65,535 names.
    """
    if len(names) > _NAMES_MAX:
        raise ValueError(f"{len(names)} names in one command")
    pieces = [_NAMES.pack(CommandKind.CLIENT_NAMES, VERSION, len(names), 0, group_time_ms)]
    for holder, client_id in names:
        text = short_client_id(client_id)
        pieces += (_NAME.pack(holder, len(text)), text)
    return b"".join(pieces)


def decode_client_names(payload: bytes) -> tuple[int, list[tuple[int, bytes]]]:
    """Return group time and (hash, client id in UTF-8) of a CLIENT_NAMES command.

    Raises:
        CommandError: the bytes are no CLIENT_NAMES.
    """
    _, count, _, group_time_ms = unpack_head(_NAMES, payload, CommandKind.CLIENT_NAMES)
    names = []
    at = _NAMES.size
    try:
        for _ in range(count):
            holder, length = _NAME.unpack_from(payload, at)
            at += _NAME.size + length
            names.append((holder, payload[at - length : at]))
    except struct.error as error:
        raise CommandError(f"CLIENT_NAMES is cut at byte {at}") from error
    if at != len(payload):
        raise CommandError(f"CLIENT_NAMES of {len(payload)} bytes ends at {at}")
    return group_time_ms, names


def short_client_id(client_id: str) -> bytes:
    """Return a client id in at most MAX_CLIENT_ID_BYTES of UTF-8, cut between characters."""
    text = client_id.encode()
    if len(text) > MAX_CLIENT_ID_BYTES:
        text = text[:MAX_CLIENT_ID_BYTES].decode(errors="ignore").encode()
    return text
