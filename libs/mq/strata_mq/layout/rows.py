"""Keys and values of the replicated state. Layout: docs/data-layout.md section 5.

Key = raft group u32, kind u8, then fields of the kind. The lease row's value is in `commands`,
because commands carry it; consume queue rows are in `cq_rows`, rows of pending messages in
`pending_rows`. Builders trust their arguments (`struct.error` for numbers that do not fit); parsers
trust their bytes, which the store's own checksums cover.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

MESSAGE_DAY_MS = 86_400_000


class RowKind(IntEnum):
    """Fifth byte of a key."""

    APPLIED = 0
    OWNED = 1
    QUEUE = 2
    CQ = 3
    HEAD = 4
    LEASE = 5
    ID = 6
    KEY = 7
    BROKER = 8
    TOMBSTONE = 9
    # This replica's own too, as LOCAL is.
    UNFINISHED = 10
    CONFIGURATION = 11
    MOVE = 12
    PENDING = 13
    PIN = 14
    TRACE = 15
    CLIENT_NAME = 16
    QUEUE_PLACE = 17
    OWN_REVISION = 18
    RETRACTED = 19
    ENDED = 20
    # Rows of key-value tables; `strata_kv` lays them out.
    KV_TABLE = 30
    KV_ITEM = 31
    KV_CHANGE = 32
    KV_EXPIRY = 33
    KV_REPLY = 34
    KV_SETTLED = 35
    LITE_PARENT = 36
    LITE_NUMBER = 37
    LITE_NAME = 38
    TIER_RANGE = 40
    TIER_OBJECT = 41
    TIER_QUEUE = 42
    TIER_LOCAL = 43
    TIER_DISPATCH = 44
    TIER_PAUSED = 45
    # This replica's own: in no checkpoint and no snapshot.
    LOCAL = 255


CHECKPOINT_KINDS = (
    RowKind.APPLIED,
    RowKind.OWNED,
    RowKind.QUEUE,
    RowKind.HEAD,
    RowKind.LEASE,
    RowKind.BROKER,
    RowKind.TOMBSTONE,
    RowKind.CONFIGURATION,
    RowKind.MOVE,
    RowKind.PENDING,
    RowKind.QUEUE_PLACE,
    RowKind.OWN_REVISION,
    RowKind.RETRACTED,
    RowKind.ENDED,
    RowKind.KV_TABLE,
    RowKind.KV_ITEM,
    RowKind.KV_CHANGE,
    RowKind.KV_EXPIRY,
    RowKind.KV_REPLY,
    RowKind.KV_SETTLED,
    RowKind.LITE_PARENT,
    RowKind.LITE_NUMBER,
    RowKind.LITE_NAME,
    RowKind.TIER_RANGE,
    RowKind.TIER_OBJECT,
    RowKind.TIER_QUEUE,
    RowKind.TIER_LOCAL,
    RowKind.TIER_DISPATCH,
    RowKind.TIER_PAUSED,
)
"""Kinds that a checkpoint holds; the others are rebuilt from it and from the frames."""

_KIND_KEY = struct.Struct(">IB")
_OWNED_KEY = struct.Struct(">IBH")
_QUEUE_KEY = struct.Struct(">IBII")
_CQ_KEY = struct.Struct(">IBIIQ")
_HEAD_KEY = struct.Struct(">IBIII")
_LEASE_KEY = struct.Struct(">IBIIIQ")
_DAY_KEY = struct.Struct(">IBH")
_ID_KEY = struct.Struct(">IBHI")
_KEY_KEY = struct.Struct(">IBHIQIQ")
_KEY_HEAD = struct.Struct(">IBHI")
_KEY_TAIL_BYTES = 20
_KEY_PREFIX = struct.Struct(">IBHIQ")
_BROKER_KEY = struct.Struct(">IBQ")
_TOMBSTONE_KEY = struct.Struct(">IBBI")

_APPLIED = struct.Struct(">BQQQQ")
# Without a low index, as version 1 wrote it.
_APPLIED_1 = struct.Struct(">BQQQ")
_APPLIED_VERSION = 2
_OWNED = struct.Struct(">H")
_OWN_REVISION = struct.Struct(">Q")
_QUEUE = struct.Struct(">QQQIB")
_HEAD = struct.Struct(">QI")
_ID = struct.Struct(">IQ")
_BROKER = struct.Struct(">QQQ")
_TOMBSTONE = struct.Struct(">Q")
_TOMBSTONE_RUN = struct.Struct(">QI")
_CONFIGURATION_INDEX = struct.Struct(">Q")
_MOVE = struct.Struct(">IQI")
_LOCAL = struct.Struct(">QQQ")

_OFFSET = struct.Struct(">Q")
# An id's last 8 bytes grow with time: in front they keep inserts nearly sorted.
_ID_TAIL_AT = 9
_QUEUE_SEALED = 1
# Followed by a queue count.
_QUEUE_REHASHED = 2
_QUEUE_COUNT = struct.Struct(">H")


def day_of(group_time_ms: int) -> int:
    """Return the day bucket of expiring rows (rule 27)."""
    return group_time_ms // MESSAGE_DAY_MS


# Keys -------------------------------------------------------------------------------------------


def raft_group_prefix(raft_group: int) -> bytes:
    """Return the prefix of all rows of a raft group."""
    return raft_group.to_bytes(4)


def kind_prefix(raft_group: int, kind: RowKind) -> bytes:
    """Return the prefix of a raft group's rows of one kind."""
    return _KIND_KEY.pack(raft_group, kind)


def prefix_end(prefix: bytes) -> bytes:
    """Return the smallest key above all keys with a prefix; b"" when there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else b""


def applied_key(raft_group: int) -> bytes:
    """Return the key of the applied row."""
    return _KIND_KEY.pack(raft_group, RowKind.APPLIED)


def owned_key(raft_group: int, first_slot: int) -> bytes:
    """Return the key of a run of owned slots."""
    return _OWNED_KEY.pack(raft_group, RowKind.OWNED, first_slot)


def queue_key(raft_group: int, topic_id: int, queue: int) -> bytes:
    """Return the key of a queue's row."""
    return _QUEUE_KEY.pack(raft_group, RowKind.QUEUE, topic_id, queue)


def cq_key(raft_group: int, topic_id: int, queue: int, base_offset: int) -> bytes:
    """Return the key of a consume queue row; a reverse seek from an offset's key finds its row."""
    return _CQ_KEY.pack(raft_group, RowKind.CQ, topic_id, queue, base_offset)


def cq_prefix(raft_group: int, topic_id: int, queue: int) -> bytes:
    """Return the prefix of a queue's consume queue rows."""
    return _QUEUE_KEY.pack(raft_group, RowKind.CQ, topic_id, queue)


def head_key(raft_group: int, consumer_group_id: int, topic_id: int, queue: int) -> bytes:
    """Return the key of a head row."""
    return _HEAD_KEY.pack(raft_group, RowKind.HEAD, consumer_group_id, topic_id, queue)


def lease_key(
    raft_group: int, consumer_group_id: int, topic_id: int, queue: int, offset: int
) -> bytes:
    """Return the key of a lease row."""
    return _LEASE_KEY.pack(raft_group, RowKind.LEASE, consumer_group_id, topic_id, queue, offset)


def lease_prefix(raft_group: int, consumer_group_id: int, topic_id: int, queue: int) -> bytes:
    """Return the prefix of lease rows; with 8 bytes of an offset behind it, a lease's key."""
    return _HEAD_KEY.pack(raft_group, RowKind.LEASE, consumer_group_id, topic_id, queue)


def id_key(raft_group: int, day: int, topic_id: int, message_id: bytes) -> bytes:
    """Return the key of a message id (17 bytes)."""
    head = _ID_KEY.pack(raft_group, RowKind.ID, day, topic_id)
    return head + message_id[_ID_TAIL_AT:] + message_id[:_ID_TAIL_AT]


def message_key_key(
    raft_group: int, day: int, topic_id: int, key_hash: int, queue: int, offset: int
) -> bytes:
    """Return the key of one use of a message key; its value is empty."""
    return _KEY_KEY.pack(raft_group, RowKind.KEY, day, topic_id, key_hash, queue, offset)


def message_keys_head(raft_group: int, day: int, topic_id: int) -> bytes:
    """Return what the keys of all uses of message keys in a topic on a day begin with."""
    return _KEY_HEAD.pack(raft_group, RowKind.KEY, day, topic_id)


def message_key_tails(queue: int, uses: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return what follows `message_keys_head` for each (offset, key hash) of a queue."""
    numbers = [number for offset, key_hash in uses for number in (key_hash, queue, offset)]
    tails = struct.pack(">" + "QIQ" * len(uses), *numbers)
    return [tails[at : at + _KEY_TAIL_BYTES] for at in range(0, len(tails), _KEY_TAIL_BYTES)]


def message_key_prefix(raft_group: int, day: int, topic_id: int, key_hash: int) -> bytes:
    """Return the prefix of all uses of a message key on a day."""
    return _KEY_PREFIX.pack(raft_group, RowKind.KEY, day, topic_id, key_hash)


def parse_message_key_key(key: bytes) -> tuple[int, int]:
    """Return (queue, offset)."""
    queue, offset = _KEY_KEY.unpack(key)[-2:]
    return queue, offset


def day_prefix(raft_group: int, kind: RowKind, day: int) -> bytes:
    """Return the prefix of a day's rows of kind ID or KEY: expiry deletes up to it."""
    return _DAY_KEY.pack(raft_group, kind, day)


def broker_key(raft_group: int, broker_boot_id: int) -> bytes:
    """Return the key of a broker's last append."""
    return _BROKER_KEY.pack(raft_group, RowKind.BROKER, broker_boot_id)


def tombstone_key(raft_group: int, what: int, dropped_id: int) -> bytes:
    """Return the key of a dropped topic or consumer group (`DropKind`)."""
    return _TOMBSTONE_KEY.pack(raft_group, RowKind.TOMBSTONE, what, dropped_id)


def move_key(raft_group: int, topic_id: int, queue: int) -> bytes:
    """Return the key of a queue's move away from this raft group."""
    return _QUEUE_KEY.pack(raft_group, RowKind.MOVE, topic_id, queue)


def queue_place_key(raft_group: int, topic_id: int, queue: int) -> bytes:
    """Return the key of a queue that does not follow its slot."""
    return _QUEUE_KEY.pack(raft_group, RowKind.QUEUE_PLACE, topic_id, queue)


def retracted_key(raft_group: int, topic_id: int, queue: int, offset: int) -> bytes:
    """Return the key of an offset whose message was taken back."""
    return _CQ_KEY.pack(raft_group, RowKind.RETRACTED, topic_id, queue, offset)


def offset_of_key(key: bytes) -> int:
    """Return the offset that ends a key of kind CQ, LEASE or RETRACTED."""
    (offset,) = _OFFSET.unpack_from(key, len(key) - _OFFSET.size)
    return int(offset)


def parse_queue_key(key: bytes) -> tuple[int, int]:
    """Return (topic id, queue) of a key of kind QUEUE, CQ, MOVE, QUEUE_PLACE or RETRACTED."""
    _, _, topic_id, queue = _QUEUE_KEY.unpack_from(key)
    return topic_id, queue


def parse_head_key(key: bytes) -> tuple[int, int, int]:
    """Return (consumer group id, topic id, queue) of a key of kind HEAD or LEASE."""
    _, _, consumer_group_id, topic_id, queue = _HEAD_KEY.unpack_from(key)
    return consumer_group_id, topic_id, queue


# Values -----------------------------------------------------------------------------------------


class AppliedRow(NamedTuple):
    """How far a raft group's rows are, and what trims left of its log.

    Attributes:
        raft_index, term: of the last applied entry.
        group_time_ms: its stamp, or that of the last entry with one.
        low_index: smallest raft index that rows still point at; 0: nothing was trimmed yet.
    """

    raft_index: int
    term: int
    group_time_ms: int
    low_index: int = 0

    def encode(self) -> bytes:
        """Return the value."""
        return _APPLIED.pack(_APPLIED_VERSION, *self)

    @classmethod
    def decode(cls, value: bytes) -> AppliedRow:
        """Parse the value."""
        layout = _APPLIED_1 if len(value) == _APPLIED_1.size else _APPLIED
        return cls(*layout.unpack(value)[1:])


class ConfigurationRow(NamedTuple):
    """Members of the raft group as of the applied index.

    Attributes:
        raft_index: of the configuration entry; 0: the configuration that the raft group began with.
        payload: the entry's payload.
    """

    raft_index: int
    payload: bytes

    def encode(self) -> bytes:
        """Return the value."""
        return _CONFIGURATION_INDEX.pack(self.raft_index) + self.payload

    @classmethod
    def decode(cls, value: bytes) -> ConfigurationRow:
        """Parse the value."""
        (raft_index,) = _CONFIGURATION_INDEX.unpack_from(value)
        return cls(raft_index, value[_CONFIGURATION_INDEX.size :])


class MoveRow(NamedTuple):
    """Where a sealed queue went (rule 18).

    Attributes:
        epoch: the one that ended here; the next one is open elsewhere.
        end_offset: where the next one starts.
        destination: its raft group.
    """

    epoch: int
    end_offset: int
    destination: int

    def encode(self) -> bytes:
        """Return the value."""
        return _MOVE.pack(*self)

    @classmethod
    def decode(cls, value: bytes) -> MoveRow:
        """Parse the value."""
        return cls(*_MOVE.unpack(value))


class LocalRow(NamedTuple):
    """Owner of these rows, on this node only.

    Attributes:
        replica_id: the replica that wrote the raft group's rows.
        installing_index, installing_term: of the snapshot whose rows are being written; 0: the
            rows are whole.
    """

    replica_id: int
    installing_index: int = 0
    installing_term: int = 0

    def encode(self) -> bytes:
        """Return the value."""
        return _LOCAL.pack(*self)

    @classmethod
    def decode(cls, value: bytes) -> LocalRow:
        """Parse the value."""
        return cls(*_LOCAL.unpack(value))


class QueueRow(NamedTuple):
    """A queue that holds, or held, messages."""

    next_offset: int
    min_offset: int
    last_store_time_ms: int
    epoch: int
    sealed: bool = False
    # The smallest queue count of the topic by which message groups may be put here (rule 23).
    queue_count: int = 0

    def encode(self) -> bytes:
        """Return the value."""
        flags = _QUEUE_SEALED if self.sealed else 0
        if not self.queue_count:
            return _QUEUE.pack(*self[:4], flags)
        queue_count = _QUEUE_COUNT.pack(self.queue_count)
        return _QUEUE.pack(*self[:4], flags | _QUEUE_REHASHED) + queue_count

    @classmethod
    def decode(cls, value: bytes) -> QueueRow:
        """Parse the value."""
        *numbers, flags = _QUEUE.unpack_from(value)
        queue_count = 0
        if flags & _QUEUE_REHASHED:
            (queue_count,) = _QUEUE_COUNT.unpack_from(value, _QUEUE.size)
        return cls._make((*numbers, bool(flags & _QUEUE_SEALED), queue_count))


class HeadRow(NamedTuple):
    """Where a consumer group is on a queue."""

    head: int
    generation: int

    def encode(self) -> bytes:
        """Return the value."""
        return _HEAD.pack(*self)

    @classmethod
    def decode(cls, value: bytes) -> HeadRow:
        """Parse the value."""
        return cls(*_HEAD.unpack(value))


class MessagePosition(NamedTuple):
    """Value of the id row of a message that took its offset when it was stored."""

    queue: int
    offset: int

    def encode(self) -> bytes:
        """Return the value."""
        return _ID.pack(*self)

    @classmethod
    def decode(cls, value: bytes) -> MessagePosition:
        """Parse the value."""
        return cls(*_ID.unpack(value))


class BrokerRow(NamedTuple):
    """A broker's last append and its result, for repeats (rule 23)."""

    sequence: int
    raft_index: int
    store_time_ms: int
    # See `commands.decode_resolution`.
    resolution: bytes

    def encode(self) -> bytes:
        """Return the value."""
        return _BROKER.pack(self.sequence, self.raft_index, self.store_time_ms) + self.resolution

    @classmethod
    def decode(cls, value: bytes) -> BrokerRow:
        """Parse the value."""
        return cls._make((*_BROKER.unpack_from(value), value[_BROKER.size :]))


def encode_owned(slot_count: int) -> bytes:
    """Return the value of an owned row."""
    return _OWNED.pack(slot_count)


def decode_owned(value: bytes) -> int:
    """Return the slot count of an owned row."""
    (slot_count,) = _OWNED.unpack(value)
    return int(slot_count)


def encode_queue_place(is_here: bool) -> bytes:
    """Return the value of a queue place row."""
    return bytes((is_here,))


def decode_queue_place(value: bytes) -> bool:
    """Return whether the queue is in the raft group, whatever owns its slot."""
    return bool(value[0])


def encode_own_revision(revision: int) -> bytes:
    """Return the value of the own revision row."""
    return _OWN_REVISION.pack(revision)


def decode_own_revision(value: bytes) -> int:
    """Return the newest metadata revision on which slots were granted or revoked."""
    (revision,) = _OWN_REVISION.unpack(value)
    return int(revision)


def encode_tombstone(group_time_ms: int, first_id: int, last_id: int) -> bytes:
    """Return the value of the tombstone of a run of ids; its key has the first one."""
    if first_id == last_id:
        return _TOMBSTONE.pack(group_time_ms)
    return _TOMBSTONE_RUN.pack(group_time_ms, last_id)


def tombstone_last_id(first_id: int, value: bytes) -> int:
    """Return the last id of a tombstone by its first id and its value."""
    if len(value) == _TOMBSTONE.size:
        return first_id
    _, last_id = _TOMBSTONE_RUN.unpack(value)
    return int(last_id)
