"""Tier state of a raft group: queues, ranges, objects, and their changes.

Values and their bytes (docs/data-layout.md section 9, "Tier state"). The raft state is the
manifest of record (rule 28): the leader decides a change (`decide`), it is an entry, and every
replica applies it blindly to a `metadata.TierMetadata`. The objects themselves never change.

Invariants: the ranges of a queue are in order and have no gap from its first to its commit offset,
except for offsets that another raft group holds as its own epoch (rule 18). An object's live ranges
and bytes are the sums over the ranges that name it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from strata_tier.base.errors import TierError
from strata_tier.objects.layout import ObjectKind

VERSION = 1

_CHANGE = struct.Struct(">BBHIQ")
_OBJECT = struct.Struct(">QBBHHHQII")
_RANGE = struct.Struct(">IIQQIIQQQQ")
_DROP = struct.Struct(">IIQ")
_OBJECT_ID = struct.Struct(">Q")
_TOPIC = struct.Struct(">I")

_COMMIT, _REPLACE, _DROP_BELOW, _FORGET, _DROP_TOPICS = range(1, 6)


class TieredRange(NamedTuple):
    """Offsets `first_offset` to `end_offset - 1` of a queue, in one object.

    Blocks `first_block` to `first_block + block_count - 1` of the object cover exactly these.
    """

    topic_id: int
    queue: int
    first_offset: int
    end_offset: int
    first_block: int
    block_count: int
    message_count: int
    bodies_bytes: int
    min_time_ms: int
    max_time_ms: int
    object_id: int


class TieredQueue(NamedTuple):
    """Extent of a queue in the tier: offsets `first_offset` to `commit_offset - 1` are there."""

    first_offset: int
    commit_offset: int


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """Names an object and pins its bytes.

    Attributes:
        object_id: unique; part of the key.
        kind: what it holds.
        key: its name in the store of `space`.
        space: "" or the namespace's own store.
        length: bytes.
        root_checksum: CRC32C of its root, and so of everything in it.
        raft_group: that wrote it.
    """

    object_id: int
    kind: ObjectKind
    key: str
    space: str
    length: int
    root_checksum: int
    raft_group: int


@dataclass(frozen=True, slots=True)
class TieredObject:
    """An object that was committed.

    Attributes:
        ref: which.
        live_ranges, live_bytes: ranges of this raft group in it, and the bytes of their bodies.
        committed_at_ms: group time of the commit.
        dropped_at_ms: group time at which its last range went; 0: it is live.
        bodies_bytes: bytes of the bodies of all ranges that ever were committed of it.
    """

    ref: ObjectRef
    live_ranges: int
    live_bytes: int
    committed_at_ms: int
    dropped_at_ms: int = 0
    bodies_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CommitRanges:
    """Ranges of an object, each from the commit offset of its queue on (rule 28).

    Behind it only if the queue was elsewhere in between, as a later epoch (rule 18).
    """

    ref: ObjectRef
    ranges: Sequence[TieredRange]
    group_time_ms: int


@dataclass(frozen=True, slots=True)
class ReplaceRanges:
    """Ranges of an object that take the place of those that cover the same offsets."""

    ref: ObjectRef
    ranges: Sequence[TieredRange]
    group_time_ms: int


@dataclass(frozen=True, slots=True)
class DropRanges:
    """(topic id, queue, first offset that is kept) of queues: ranges wholly below it go."""

    queues: Sequence[tuple[int, int, int]]
    group_time_ms: int


@dataclass(frozen=True, slots=True)
class ForgetObjects:
    """Dropped objects that were deleted from their stores."""

    object_ids: Sequence[int]
    group_time_ms: int


@dataclass(frozen=True, slots=True)
class DropTopics:
    """Topics of which nothing is kept."""

    topic_ids: Sequence[int]
    group_time_ms: int


TierChange = CommitRanges | ReplaceRanges | DropRanges | ForgetObjects | DropTopics


def encode_change(change: TierChange) -> bytes:
    """Return a change as bytes of a raft entry."""
    match change:
        case CommitRanges(ref, ranges, time_ms):
            return _head(_COMMIT, len(ranges), time_ms) + _object_and_ranges(ref, ranges)
        case ReplaceRanges(ref, ranges, time_ms):
            return _head(_REPLACE, len(ranges), time_ms) + _object_and_ranges(ref, ranges)
        case DropRanges(queues, time_ms):
            rows = b"".join([_DROP.pack(*queue) for queue in queues])
            return _head(_DROP_BELOW, len(queues), time_ms) + rows
        case ForgetObjects(object_ids, time_ms):
            rows = b"".join([_OBJECT_ID.pack(object_id) for object_id in object_ids])
            return _head(_FORGET, len(object_ids), time_ms) + rows
        case DropTopics(topic_ids, time_ms):
            rows = b"".join([_TOPIC.pack(topic_id) for topic_id in topic_ids])
            return _head(_DROP_TOPICS, len(topic_ids), time_ms) + rows


def decode_change(data: bytes) -> TierChange:
    """Return the change that `encode_change` made bytes of.

    Raises:
        TierError: the bytes are none, or of another version.
    """
    try:
        what, version, _, count, time_ms = _CHANGE.unpack_from(data)
        if version != VERSION:
            raise TierError(f"tier change of version {version}")
        body = data[_CHANGE.size :]
        match what:
            case 1 | 2:
                ref, at = decode_ref(body)
                ranges = list(_decode_ranges(body[at:], ref.object_id))
                _check_count(count, len(ranges))
                kind = CommitRanges if what == _COMMIT else ReplaceRanges
                return kind(ref, ranges, time_ms)
            case 3:
                queues = list(_DROP.iter_unpack(body))
                _check_count(count, len(queues))
                return DropRanges(queues, time_ms)
            case 4:
                ids = [object_id for (object_id,) in _OBJECT_ID.iter_unpack(body)]
                _check_count(count, len(ids))
                return ForgetObjects(ids, time_ms)
            case 5:
                topics = [topic_id for (topic_id,) in _TOPIC.iter_unpack(body)]
                _check_count(count, len(topics))
                return DropTopics(topics, time_ms)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise TierError(f"tier change is damaged: {error}") from error
    raise TierError(f"unknown tier change {what}")


def encode_ref(ref: ObjectRef) -> bytes:
    """Return the bytes that name an object in a change."""
    key, space = ref.key.encode(), ref.space.encode()
    head = _OBJECT.pack(
        ref.object_id,
        ref.kind,
        0,
        len(key),
        len(space),
        0,
        ref.length,
        ref.root_checksum,
        ref.raft_group,
    )
    return head + key + space


def decode_ref(data: bytes) -> tuple[ObjectRef, int]:
    """Return what `encode_ref` made bytes of, and how many they were."""
    object_id, kind, _, key_bytes, space_bytes, _, length, root_checksum, raft_group = (
        _OBJECT.unpack_from(data)
    )
    at = _OBJECT.size
    key = data[at : at + key_bytes].decode()
    at += key_bytes
    space = data[at : at + space_bytes].decode()
    ref = ObjectRef(object_id, ObjectKind(kind), key, space, length, root_checksum, raft_group)
    return ref, at + space_bytes


def _head(what: int, count: int, group_time_ms: int) -> bytes:
    return _CHANGE.pack(what, VERSION, 0, count, group_time_ms)


def _object_and_ranges(ref: ObjectRef, ranges: Sequence[TieredRange]) -> bytes:
    assert all(each.object_id == ref.object_id for each in ranges), "ranges of another object"
    return encode_ref(ref) + b"".join([_RANGE.pack(*each[:-1]) for each in ranges])


def _decode_ranges(data: bytes, object_id: int) -> Iterator[TieredRange]:
    for fields in _RANGE.iter_unpack(data):
        yield TieredRange._make((*fields, object_id))


def _check_count(expected: int, found: int) -> None:
    if expected != found:
        raise TierError(f"tier change has {found} items, not {expected}")
