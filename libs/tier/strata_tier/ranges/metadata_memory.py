"""`TierMetadata` in memory: the contents of a manifest, which `metadata_json` writes to files.

A change is visible at once, in whatever batch: no other data must change atomically with it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice

from strata_state.memory_store import MemoryStore
from strata_state.ports import Row, RowBatch
from strata_tier.objects.state import TierChange, TieredObject, TieredQueue, TieredRange
from strata_tier.ranges.metadata import QueueKey, apply_change
from strata_tier.ranges.metadata_rows import RowTierMetadata


class MemoryTierMetadata:
    """The tier state of one raft group."""

    def __init__(self, raft_group: int) -> None:
        self._raft_group = raft_group
        self._queues: dict[QueueKey, TieredQueue] = {}
        self._objects: dict[int, TieredObject] = {}
        # Sorted by first offset; the queue is part of each range, and the same for all.
        self._ranges: dict[QueueKey, list[TieredRange]] = {}

    def queue(self, topic_id: int, queue: int) -> TieredQueue | None:
        """Return how far a queue is in the tier."""
        return self._queues.get((topic_id, queue))

    def queues(self, topic_id: int | None = None) -> Iterator[tuple[QueueKey, TieredQueue]]:
        """Iterate queues in order, as they are at the call."""
        queues = sorted(self._queues.items())
        return iter([item for item in queues if topic_id is None or item[0][0] == topic_id])

    def object(self, object_id: int) -> TieredObject | None:
        """Return an object."""
        return self._objects.get(object_id)

    def objects(self) -> Iterator[TieredObject]:
        """Iterate objects, by id, as they are at the call."""
        return iter([held for _, held in sorted(self._objects.items())])

    def covering(self, topic_id: int, queue: int, offset: int) -> TieredRange | None:
        """Return the range that holds an offset."""
        ranges = self._ranges.get((topic_id, queue), [])
        at = bisect_right(ranges, offset, key=_first_offset) - 1
        return ranges[at] if at >= 0 and offset < ranges[at].end_offset else None

    def ranges(self, topic_id: int, queue: int, first_offset: int = 0) -> Iterator[TieredRange]:
        """Iterate a queue's ranges, as they are at the call."""
        ranges = self._ranges.get((topic_id, queue), [])
        first = bisect_right(ranges, first_offset, key=_end_offset)
        return iter(list(islice(ranges, first, None)))

    def apply(self, batch: RowBatch, change: TierChange, raft_index: int) -> None:
        """Take in a change."""
        apply_change(self, batch, change)

    def reload(self, raft_index: int) -> None:
        """Nothing: there are no rows elsewhere."""

    def rows(self) -> Iterator[Row]:
        """Iterate everything as rows of kinds 40 to 42."""
        store = MemoryStore()
        rows = RowTierMetadata(store, self._raft_group)
        batch = store.new_batch()
        for of_queue in self._ranges.values():
            for tiered in of_queue:
                rows.put_range(batch, tiered)
        for held in self._objects.values():
            rows.put_object(batch, held)
        for key, queue in self._queues.items():
            rows.put_queue(batch, key, queue)
        store.write(batch)
        return rows.rows()

    def put_queue(self, batch: RowBatch, key: QueueKey, queue: TieredQueue) -> None:
        """Keep a queue."""
        self._queues[key] = queue

    def delete_queue(self, batch: RowBatch, key: QueueKey) -> None:
        """Forget a queue."""
        self._queues.pop(key, None)

    def put_object(self, batch: RowBatch, held: TieredObject) -> None:
        """Keep an object."""
        self._objects[held.ref.object_id] = held

    def delete_object(self, batch: RowBatch, object_id: int) -> None:
        """Forget an object."""
        self._objects.pop(object_id, None)

    def put_range(self, batch: RowBatch, tiered: TieredRange) -> None:
        """Keep a range; one that begins at the same offset goes."""
        ranges = self._ranges.setdefault((tiered.topic_id, tiered.queue), [])
        at = bisect_left(ranges, tiered.first_offset, key=_first_offset)
        if at < len(ranges) and ranges[at].first_offset == tiered.first_offset:
            ranges[at] = tiered
        else:
            ranges.insert(at, tiered)

    def delete_range(self, batch: RowBatch, tiered: TieredRange) -> None:
        """Forget the range that begins where this one does."""
        key = tiered.topic_id, tiered.queue
        ranges = self._ranges.get(key, [])
        at = bisect_left(ranges, tiered.first_offset, key=_first_offset)
        if at < len(ranges) and ranges[at].first_offset == tiered.first_offset:
            del ranges[at]
        if not ranges:
            self._ranges.pop(key, None)


def _first_offset(tiered: TieredRange) -> int:
    return tiered.first_offset


def _end_offset(tiered: TieredRange) -> int:
    return tiered.end_offset
