"""Rows of pending messages: delayed and half messages. Layout: docs/data-layout.md section 5.

A *pending row* represents a message that has no offset yet; its key begins with the due time, so
that the earliest rows come first. A *pin* represents the same message by its name, which handles
carry: the raft index of the entry that stored it and its ordinal in that entry's batch. The pin
stays after the message is delivered, until the queue is trimmed beyond it (rules 10, 26).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from strata_mq.layout.batch import PartKey, PartKind
from strata_mq.layout.hashing import MESSAGE_ID_BYTES
from strata_mq.layout.rows import MessagePosition, RowKind

_VERSION = 1

_PENDING_KEY = struct.Struct(">IBQQI")
_PIN_KEY = struct.Struct(">IBQI")
# Raft group, kind, day, then the name of a message.
_ENDED_KEY = struct.Struct(">IBHQI")
_ENDED = struct.Struct(">BI")
# Bytes that follow raft group and kind in a key.
_PENDING_NAME = struct.Struct(">QQI")
_PIN_NAME = struct.Struct(">QI")
_KEY_HEAD_BYTES = 5

# Version, kind, checks, topic, queue, slot base, queue count, position in the payload, length,
# crc, tag hash, message-group hash, message id, store time, key count; key hashes follow.
_PENDING = struct.Struct(f">BBHIiHHIIIQQ{MESSAGE_ID_BYTES}sQB")
# State, kind, flags, topic, queue, due time or offset.
_PIN = struct.Struct(">BBHIIQ")
_MOVED = 1
_DUE = struct.Struct(">Q")

# An id row's value: no queue, raft index, ordinal.
_PENDING_ID = struct.Struct(">IQI")

NO_QUEUE = 0xFFFF_FFFF
"""In the place of a queue: the message waits, or waited, and has a name instead of an offset."""

PENDING_ROW_BYTES_MIN = _PENDING.size
ORDINAL_OF_ALL = 0xFFFF_FFFF
"""Stands in a LOST pin's name for every message of its entry."""


class PendingRef(NamedTuple):
    """Names a delayed or half message, for as long as there are handles of it.

    Attributes:
        raft_index: of the entry that stored it.
        ordinal: its place in that entry's append batch.
    """

    raft_index: int
    ordinal: int

    def following(self) -> PendingRef:
        """Return the smallest name behind this one."""
        if self.ordinal == ORDINAL_OF_ALL:
            return PendingRef(self.raft_index + 1, 0)
        return PendingRef(self.raft_index, self.ordinal + 1)


class PendingKey(NamedTuple):
    """Key of a pending row; sorts as the rows do.

    Attributes:
        due_ms: group time at which it is due.
        raft_index, ordinal: the message's name.
    """

    due_ms: int
    raft_index: int
    ordinal: int

    @property
    def ref(self) -> PendingRef:
        """The message's name."""
        return PendingRef(self.raft_index, self.ordinal)

    def following(self) -> PendingKey:
        """Return the smallest key behind this one."""
        return self._replace(ordinal=self.ordinal + 1)


class PendingRow(NamedTuple):
    """A message that waits, with all that its consume queue row will need.

    Attributes:
        kind: DELAYED or HALF.
        checks: how often a producer was asked what became of it (HALF).
        topic_id, queue, slot_base, queue_count: of its part; queue -1: chosen when it is placed.
        message_at: offset of the stored message in the entry's payload.
        length, checksum, tag_hash, group_hash, message_id, key_hashes: its columns.
        store_time_ms: group time at which it was stored.
    """

    kind: PartKind
    checks: int
    topic_id: int
    queue: int
    slot_base: int
    queue_count: int
    message_at: int
    length: int
    checksum: int
    tag_hash: int
    group_hash: int
    message_id: bytes
    store_time_ms: int
    key_hashes: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """Return the value."""
        keys = self.key_hashes
        fixed = _PENDING.pack(_VERSION, *self[:13], len(keys))
        return fixed + struct.pack(f">{len(keys)}Q", *keys) if keys else fixed

    @classmethod
    def decode(cls, value: bytes, at: int = 0) -> PendingRow:
        """Parse the value that begins at byte `at`.

        Raises:
            struct.error: it is cut.
            KeyError: it is of a kind that this build does not know.
        """
        _, kind, *fields, key_count = _PENDING.unpack_from(value, at)
        keys = struct.unpack_from(f">{key_count}Q", value, at + _PENDING.size)
        return cls._make((_KINDS[kind], *fields, keys))


class PinRun(NamedTuple):
    """Pins of a range of names: from `first` on, up to `end`, which is not in it."""

    first: PendingRef
    end: PendingRef


PendingColumns = tuple[int, int, int, int, int, bytes, Sequence[int]]
"""Position in the payload, length, checksum, tag hash, message-group hash, id, key hashes."""


class PinState(IntEnum):
    """Content of a pin: how its message ended."""

    # It waits; `PinRow.due_ms` finds its row.
    PENDING = 1
    # It has an offset.
    PLACED = 2
    # Names an item of a RETRACT entry, not a message: the offset was given back. Older versions
    # wrote it; now there are rows of their own (`rows.RowKind.RETRACTED`).
    RETRACTED = 3
    # A repair of the log gave it up before it was placed (rule 8).
    LOST = 4


class PinRow(NamedTuple):
    """Where a message is that was stored to wait.

    Attributes:
        state: see `PinState`.
        kind: DELAYED or HALF; PLAIN with RETRACTED and LOST.
        topic_id: PENDING: the message's; else that of the queue it is in, which may belong to a
            dead-letter topic.
        queue: PLACED, RETRACTED: the queue; else 0.
        due_or_offset: PENDING: the due time; PLACED, RETRACTED: the offset.
        moved: PENDING: a repair moved the message within its entry; what older RESOLVE entries
            say of its place is wrong, its pending row is right.
    """

    state: PinState
    kind: PartKind
    topic_id: int
    queue: int
    due_or_offset: int
    moved: bool = False

    @classmethod
    def pending(cls, kind: PartKind, topic_id: int, due_ms: int, *, moved: bool = False) -> PinRow:
        """Return the pin of a message that waits."""
        return cls(PinState.PENDING, kind, topic_id, 0, due_ms, moved)

    @classmethod
    def placed(cls, kind: PartKind, topic_id: int, queue: int, offset: int) -> PinRow:
        """Return the pin of a message that has an offset."""
        return cls(PinState.PLACED, kind, topic_id, queue, offset)

    @classmethod
    def retracted(cls, topic_id: int, queue: int, offset: int) -> PinRow:
        """Return the pin of an offset that was given back."""
        return cls(PinState.RETRACTED, PartKind.PLAIN, topic_id, queue, offset)

    @classmethod
    def lost(cls) -> PinRow:
        """Return the pin of a message that a repair gave up while it waited."""
        return cls(PinState.LOST, PartKind.PLAIN, 0, 0, 0)

    @property
    def due_ms(self) -> int:
        """When the message is due; it must be PENDING."""
        assert self.state is PinState.PENDING, f"a pin that is {self.state.name} has no due time"
        return self.due_or_offset

    @property
    def offset(self) -> int:
        """The message's offset; it must be PLACED, or RETRACTED."""
        assert self.state in _WITH_OFFSET, f"a pin that is {self.state.name} has no offset"
        return self.due_or_offset

    def encode(self) -> bytes:
        """Return the value."""
        state, kind, topic_id, queue, due_or_offset, moved = self
        return _PIN.pack(state, kind, _MOVED if moved else 0, topic_id, queue, due_or_offset)

    @classmethod
    def decode(cls, value: bytes) -> PinRow:
        """Parse the value."""
        state, kind, flags, topic_id, queue, due_or_offset = _PIN.unpack(value)
        return cls(
            _STATES[state], _KINDS[kind], topic_id, queue, due_or_offset, bool(flags & _MOVED)
        )


_WITH_OFFSET = (PinState.PLACED, PinState.RETRACTED)
# Quicker than calling the enumerations: many pins are read at a time.
_STATES = {int(state): state for state in PinState}
_KINDS = {int(kind): kind for kind in PartKind}


def encode_pending_run(
    part: PartKey, store_time_ms: int, messages: Iterable[PendingColumns]
) -> list[bytes]:
    """Return the values of rows of one part's messages, as `PendingRow.encode` does (hot path)."""
    topic_id, queue, slot_base, queue_count, kind = part
    pack = _PENDING.pack
    values = []
    for at, length, checksum, tag_hash, group_hash, message_id, keys in messages:
        value = pack(
            _VERSION,
            kind,
            0,
            topic_id,
            queue,
            slot_base,
            queue_count,
            at,
            length,
            checksum,
            tag_hash,
            group_hash,
            message_id,
            store_time_ms,
            len(keys),
        )
        values.append(value + struct.pack(f">{len(keys)}Q", *keys) if keys else value)
    return values


def encode_pending_pins(pin: PinRow, due_times: Iterable[int]) -> list[bytes]:
    """Return the values of pins like `pin`, which waits, with these due times (hot path)."""
    head = pin.encode()[: -_DUE.size]
    return [head + due for due in map(_DUE.pack, due_times)]


def pending_key(raft_group: int, key: PendingKey) -> bytes:
    """Return the key of a pending row."""
    return _PENDING_KEY.pack(raft_group, RowKind.PENDING, *key)


def parse_pending_key(key: bytes) -> PendingKey:
    """Return what a pending row's key names."""
    return PendingKey._make(_PENDING_NAME.unpack_from(key, _KEY_HEAD_BYTES))


def kind_of_pending(value: bytes) -> int:
    """Return the kind (`PartKind`) that a pending row's value says."""
    return value[1]


def pin_key(raft_group: int, ref: PendingRef) -> bytes:
    """Return the key of a pin."""
    return _PIN_KEY.pack(raft_group, RowKind.PIN, *ref)


def parse_pin_key(key: bytes) -> PendingRef:
    """Return what a pin's key names."""
    return PendingRef._make(_PIN_NAME.unpack_from(key, _KEY_HEAD_BYTES))


def ended_key(raft_group: int, day: int, ref: PendingRef) -> bytes:
    """Return the key of what is kept of a message that ended without an offset."""
    return _ENDED_KEY.pack(raft_group, RowKind.ENDED, day, *ref)


def encode_ended(end: int, topic_id: int) -> bytes:
    """Return the value: how it ended (`pending_commands.EndedAs`), and its topic."""
    return _ENDED.pack(end, topic_id)


def decode_ended(value: bytes) -> tuple[int, int]:
    """Return (how it ended, topic id)."""
    end, topic_id = _ENDED.unpack(value)
    return end, topic_id


def encode_pending_id(ref: PendingRef) -> bytes:
    """Return the value of the id row of a message that was stored to wait.

    It never changes: the pin says where the message is.
    """
    return _PENDING_ID.pack(NO_QUEUE, *ref)


def decode_id(value: bytes) -> MessagePosition | PendingRef:
    """Return where the message of an id row is, or the name of one that was stored to wait."""
    if len(value) == _PENDING_ID.size:
        return PendingRef(*_PENDING_ID.unpack(value)[1:])
    return MessagePosition.decode(value)
