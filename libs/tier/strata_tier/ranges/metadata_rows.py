"""`TierMetadata` as rows of a `StateStore`: kinds 40 to 42 (docs/data-layout.md section 9).

They are among the raft group's other rows, so a batch with them and the applied row is atomic (rule
5), and checkpoints and snapshots contain them like other rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from strata_mq.layout import RowKind, kind_prefix, prefix_end
from strata_state.ports import Row, RowBatch, RowReader
from strata_tier.objects.layout import ObjectKind
from strata_tier.objects.state import ObjectRef, TierChange, TieredObject, TieredQueue, TieredRange
from strata_tier.ranges.metadata import QueueKey, apply_change

_VERSION = 1
_OBJECT_ID = struct.Struct(">Q")
_TOPIC = struct.Struct(">I")
_QUEUE = struct.Struct(">II")
_POSITION = struct.Struct(">IIQ")
_RANGE = struct.Struct(">QQIIQQQQ")
_OBJECT = struct.Struct(">BBHHHQIIQQQIQ")
_OFFSETS = struct.Struct(">QQ")


class RowTierMetadata:
    """The tier state of one raft group in a store that holds those of many."""

    def __init__(self, store: RowReader, raft_group: int) -> None:
        self._store = store
        self._ranges = kind_prefix(raft_group, RowKind.TIER_RANGE)
        self._objects = kind_prefix(raft_group, RowKind.TIER_OBJECT)
        self._queues = kind_prefix(raft_group, RowKind.TIER_QUEUE)

    def queue(self, topic_id: int, queue: int) -> TieredQueue | None:
        """Return a queue's row."""
        value = self._store.get(self._queues + _QUEUE.pack(topic_id, queue))
        return None if value is None else TieredQueue(*_OFFSETS.unpack(value))

    def queues(self, topic_id: int | None = None) -> Iterator[tuple[QueueKey, TieredQueue]]:
        """Iterate queues."""
        topic = b"" if topic_id is None else _TOPIC.pack(topic_id)
        for key, value in self._scan(self._queues + topic):
            topic_and_queue = _QUEUE.unpack_from(key, len(self._queues))
            yield topic_and_queue, TieredQueue(*_OFFSETS.unpack(value))

    def object(self, object_id: int) -> TieredObject | None:
        """Return an object's row."""
        value = self._store.get(self._objects + _OBJECT_ID.pack(object_id))
        return None if value is None else decode_object(object_id, value)

    def objects(self) -> Iterator[TieredObject]:
        """Iterate objects."""
        for key, value in self._scan(self._objects):
            (object_id,) = _OBJECT_ID.unpack_from(key, len(self._objects))
            yield decode_object(object_id, value)

    def covering(self, topic_id: int, queue: int, offset: int) -> TieredRange | None:
        """Return the range that holds an offset: the last one that begins at or before it."""
        lower = self._ranges + _QUEUE.pack(topic_id, queue)
        key = self._ranges + _POSITION.pack(topic_id, queue, offset)
        row = self._store.last_before(lower, key)
        if row is None:
            return None
        found = self._range(row)
        return found if offset < found.end_offset else None

    def ranges(self, topic_id: int, queue: int, first_offset: int = 0) -> Iterator[TieredRange]:
        """Iterate a queue's ranges."""
        holding = self.covering(topic_id, queue, first_offset)
        first = first_offset if holding is None else holding.first_offset
        begin = self._ranges + _POSITION.pack(topic_id, queue, first)
        end = prefix_end(self._ranges + _QUEUE.pack(topic_id, queue))
        return map(self._range, self._store.scan(begin, end))

    def apply(self, batch: RowBatch, change: TierChange, raft_index: int) -> None:
        """Write a change's rows; they become visible with the batch."""
        apply_change(self, batch, change)

    def reload(self, raft_index: int) -> None:
        """Nothing: rows are read when they are asked for."""

    def rows(self) -> Iterator[Row]:
        """Iterate the rows of all three kinds."""
        for prefix in (self._ranges, self._objects, self._queues):
            yield from self._scan(prefix)

    def put_queue(self, batch: RowBatch, key: QueueKey, queue: TieredQueue) -> None:
        """Write a queue's row."""
        batch.put(self._queues + _QUEUE.pack(*key), _OFFSETS.pack(*queue))

    def delete_queue(self, batch: RowBatch, key: QueueKey) -> None:
        """Remove a queue's row."""
        batch.delete(self._queues + _QUEUE.pack(*key))

    def put_object(self, batch: RowBatch, held: TieredObject) -> None:
        """Write an object's row."""
        batch.put(self._objects + _OBJECT_ID.pack(held.ref.object_id), encode_object(held))

    def delete_object(self, batch: RowBatch, object_id: int) -> None:
        """Remove an object's row."""
        batch.delete(self._objects + _OBJECT_ID.pack(object_id))

    def put_range(self, batch: RowBatch, tiered: TieredRange) -> None:
        """Write a range's row."""
        batch.put(self._ranges + _POSITION.pack(*tiered[:3]), encode_range(tiered))

    def delete_range(self, batch: RowBatch, tiered: TieredRange) -> None:
        """Remove a range's row."""
        batch.delete(self._ranges + _POSITION.pack(*tiered[:3]))

    def _range(self, row: Row) -> TieredRange:
        key, value = row
        return decode_range(_POSITION.unpack_from(key, len(self._ranges)), value)

    def _scan(self, prefix: bytes) -> Iterator[Row]:
        return self._store.scan(prefix, prefix_end(prefix))


def encode_range(tiered: TieredRange) -> bytes:
    """Return the value of a range's row."""
    _, _, _, end_offset, *numbers, object_id = tiered
    return _RANGE.pack(object_id, end_offset, *numbers)


def decode_range(position: tuple[int, ...], value: bytes) -> TieredRange:
    """Return the range of a row; `position` is (topic id, queue, first offset)."""
    object_id, end_offset, *numbers = _RANGE.unpack(value)
    return TieredRange._make((*position, end_offset, *numbers, object_id))


def encode_object(held: TieredObject) -> bytes:
    """Return the value of an object's row."""
    ref = held.ref
    key, space = ref.key.encode(), ref.space.encode()
    head = _OBJECT.pack(
        _VERSION,
        ref.kind,
        len(key),
        len(space),
        0,
        ref.length,
        ref.root_checksum,
        held.live_ranges,
        held.live_bytes,
        held.committed_at_ms,
        held.dropped_at_ms,
        ref.raft_group,
        held.bodies_bytes,
    )
    return head + key + space


def decode_object(object_id: int, value: bytes) -> TieredObject:
    """Return the object of a row."""
    (
        _,
        kind,
        key_bytes,
        space_bytes,
        _,
        length,
        root_checksum,
        live_ranges,
        live_bytes,
        committed_at_ms,
        dropped_at_ms,
        raft_group,
        bodies_bytes,
    ) = _OBJECT.unpack_from(value)
    at = _OBJECT.size
    key = value[at : at + key_bytes].decode()
    space = value[at + key_bytes : at + key_bytes + space_bytes].decode()
    ref = ObjectRef(object_id, ObjectKind(kind), key, space, length, root_checksum, raft_group)
    return TieredObject(ref, live_ranges, live_bytes, committed_at_ms, dropped_at_ms, bodies_bytes)
