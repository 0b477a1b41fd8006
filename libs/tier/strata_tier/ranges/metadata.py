"""The port of the tier's metadata, and the application of changes to rows (rules 1 and 28).

A `TierMetadata` keeps the tier state of one raft group. Adapters: `metadata_rows` (rows among the
raft group's others, in RocksDB) and `metadata_mirrored` (the same rows, and `metadata_json`'s files
that people can read), chosen by `tier.metadata = rocksdb|json`, under one contract suite.

`apply_change` writes the leader's decision and chooses nothing. A change that does not fit the rows
raises and leaves no trace, on every replica alike. It reads rows to find what to write, so earlier
changes must be in the store: tier changes are applied one by one, each in its own batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from strata_state.ports import Row, RowBatch
from strata_tier.base.errors import TierError
from strata_tier.objects.state import (
    CommitRanges,
    DropRanges,
    DropTopics,
    ForgetObjects,
    ObjectRef,
    ReplaceRanges,
    TierChange,
    TieredObject,
    TieredQueue,
    TieredRange,
)

QueueKey = tuple[int, int]
"""(topic id, queue)."""


class ChangeError(TierError):
    """A change was decided on another tier state than it meets; nothing of it was written."""


class TierMetadata(Protocol):
    """Queues, ranges and objects of one raft group. Reads are short; they show what was written."""

    def queue(self, topic_id: int, queue: int) -> TieredQueue | None:
        """Return how far a queue is in the tier; None: nothing of it ever was."""

    def queues(self, topic_id: int | None = None) -> Iterator[tuple[QueueKey, TieredQueue]]:
        """Iterate queues in order, of one topic or of all."""

    def object(self, object_id: int) -> TieredObject | None:
        """Return an object that was committed and not forgotten."""

    def objects(self) -> Iterator[TieredObject]:
        """Iterate objects, by id."""

    def covering(self, topic_id: int, queue: int, offset: int) -> TieredRange | None:
        """Return the range that holds an offset."""

    def ranges(self, topic_id: int, queue: int, first_offset: int = 0) -> Iterator[TieredRange]:
        """Iterate a queue's ranges in order, from the one that holds `first_offset` on."""

    def apply(self, batch: RowBatch, change: TierChange, raft_index: int) -> None:
        """Write a committed change (`apply_change`); `batch` also holds the applied row.

        Args:
            batch: written by the caller, before the next change.
            change: what the leader decided.
            raft_index: of its entry; one that was taken in before is taken for a repeat, where
                the state does not live and die with the batch.

        Raises:
            ChangeError: it contradicts the state.
        """

    def reload(self, raft_index: int) -> None:
        """Take in that rows were read again, or replaced by a snapshot: they are of this index."""

    def rows(self) -> Iterator[Row]:
        """Iterate everything as rows of kinds 40 to 42, for a checkpoint or a snapshot."""

    def put_queue(self, batch: RowBatch, key: QueueKey, queue: TieredQueue) -> None:
        """Write a queue's row."""

    def delete_queue(self, batch: RowBatch, key: QueueKey) -> None:
        """Remove a queue's row."""

    def put_object(self, batch: RowBatch, held: TieredObject) -> None:
        """Write an object's row."""

    def delete_object(self, batch: RowBatch, object_id: int) -> None:
        """Remove an object's row."""

    def put_range(self, batch: RowBatch, tiered: TieredRange) -> None:
        """Write a range's row."""

    def delete_range(self, batch: RowBatch, tiered: TieredRange) -> None:
        """Remove a range's row."""


def apply_change(metadata: TierMetadata, batch: RowBatch, change: TierChange) -> None:
    """Write the rows of a change.

    Raises:
        ChangeError: it contradicts the rows; nothing was written.
    """
    writes = _Writes(metadata)
    match change:
        case CommitRanges(ref, ranges, time_ms):
            _commit(metadata, writes, ranges)
            _count(metadata, writes, _Counts(ref).added(ranges), time_ms)
        case ReplaceRanges(ref, ranges, time_ms):
            replaced = [old for each in ranges for old in _replaced(metadata, each)]
            for old in replaced:
                writes.delete_range(old)
            for each in ranges:
                writes.put_range(each)
            _count(metadata, writes, _Counts(ref).added(ranges).removed(replaced), time_ms)
        case DropRanges(queues, time_ms):
            dropped = [old for queue in queues for old in _drop_below(metadata, writes, *queue)]
            _count(metadata, writes, _Counts().removed(dropped), time_ms)
        case DropTopics(topic_ids, time_ms):
            dropped = [old for topic in topic_ids for old in _drop_topic(metadata, writes, topic)]
            _count(metadata, writes, _Counts().removed(dropped), time_ms)
        case ForgetObjects(object_ids, _):
            _forget(metadata, writes, object_ids)
    writes.into(batch)


class _Writes:
    """Writes of a change, kept until all of it was found to fit."""

    __slots__ = ("_metadata", "_writes")

    def __init__(self, metadata: TierMetadata) -> None:
        self._metadata = metadata
        self._writes: list[Callable[[RowBatch], None]] = []

    def put_queue(self, key: QueueKey, queue: TieredQueue) -> None:
        put = self._metadata.put_queue
        self._writes.append(lambda batch: put(batch, key, queue))

    def delete_queue(self, key: QueueKey) -> None:
        delete = self._metadata.delete_queue
        self._writes.append(lambda batch: delete(batch, key))

    def put_object(self, held: TieredObject) -> None:
        put = self._metadata.put_object
        self._writes.append(lambda batch: put(batch, held))

    def delete_object(self, object_id: int) -> None:
        delete = self._metadata.delete_object
        self._writes.append(lambda batch: delete(batch, object_id))

    def put_range(self, tiered: TieredRange) -> None:
        put = self._metadata.put_range
        self._writes.append(lambda batch: put(batch, tiered))

    def delete_range(self, tiered: TieredRange) -> None:
        delete = self._metadata.delete_range
        self._writes.append(lambda batch: delete(batch, tiered))

    def into(self, batch: RowBatch) -> None:
        for write in self._writes:
            write(batch)


class _Counts:
    """How the live ranges and bytes of objects change; `ref` is an object that may be new."""

    def __init__(self, ref: ObjectRef | None = None) -> None:
        self.ref = ref
        self.of: dict[int, tuple[int, int]] = {} if ref is None else {ref.object_id: (0, 0)}
        self.added_bytes = 0

    def added(self, ranges: Sequence[TieredRange]) -> _Counts:
        for each in ranges:
            count, size = self.of.get(each.object_id, (0, 0))
            self.of[each.object_id] = count + 1, size + each.bodies_bytes
            self.added_bytes += each.bodies_bytes
        return self

    def removed(self, ranges: Sequence[TieredRange]) -> _Counts:
        for each in ranges:
            count, size = self.of.get(each.object_id, (0, 0))
            self.of[each.object_id] = count - 1, size - each.bodies_bytes
        return self


def _commit(metadata: TierMetadata, writes: _Writes, ranges: Sequence[TieredRange]) -> None:
    for each in ranges:
        key = each.topic_id, each.queue
        known = metadata.queue(*key)
        if known is not None and each.first_offset < known.commit_offset:
            raise ChangeError(
                f"topic {each.topic_id} queue {each.queue} is tiered up to "
                f"{known.commit_offset}, a commit begins at {each.first_offset}"
            )
        first = each.first_offset if known is None else known.first_offset
        writes.put_range(each)
        writes.put_queue(key, TieredQueue(first, each.end_offset))


def _replaced(metadata: TierMetadata, new: TieredRange) -> list[TieredRange]:
    """Return the ranges that cover exactly the offsets of a new one."""
    found: list[TieredRange] = []
    at = new.first_offset
    for old in metadata.ranges(new.topic_id, new.queue, new.first_offset):
        if at == new.end_offset:
            break
        if old.first_offset != at or old.end_offset > new.end_offset:
            break
        found.append(old)
        at = old.end_offset
    if at != new.end_offset:
        raise ChangeError(
            f"offsets {new.first_offset} to {new.end_offset} of topic {new.topic_id} queue "
            f"{new.queue} are replaced, whole ranges end at {at}"
        )
    return found


def _drop_below(
    metadata: TierMetadata, writes: _Writes, topic_id: int, queue: int, first_offset: int
) -> list[TieredRange]:
    known = metadata.queue(topic_id, queue)
    if known is None or first_offset <= known.first_offset:
        return []
    dropped: list[TieredRange] = []
    for old in metadata.ranges(topic_id, queue):
        if old.end_offset > first_offset:
            break
        writes.delete_range(old)
        dropped.append(old)
    # Nothing is uploaded of what retention ended before its upload: the commit offset follows.
    commit_offset = max(known.commit_offset, first_offset)
    writes.put_queue((topic_id, queue), TieredQueue(first_offset, commit_offset))
    return dropped


def _drop_topic(metadata: TierMetadata, writes: _Writes, topic_id: int) -> list[TieredRange]:
    dropped: list[TieredRange] = []
    for key, _ in list(metadata.queues(topic_id)):
        of_queue = list(metadata.ranges(*key))
        for old in of_queue:
            writes.delete_range(old)
        writes.delete_queue(key)
        dropped += of_queue
    return dropped


def _count(metadata: TierMetadata, writes: _Writes, counts: _Counts, time_ms: int) -> None:
    """Write the rows of objects whose ranges came or went."""
    new_id = None if counts.ref is None else counts.ref.object_id
    for object_id, (count, size) in counts.of.items():
        held = metadata.object(object_id)
        if held is None:
            if counts.ref is None or object_id != new_id:
                raise ChangeError(f"object {object_id:016x} is not known")
            held = TieredObject(counts.ref, 0, 0, time_ms)
        elif object_id == new_id and held.ref != counts.ref:
            raise ChangeError(f"object {object_id:016x} was committed with other bytes")
        live_ranges, live_bytes = held.live_ranges + count, held.live_bytes + size
        if live_ranges < 0:
            raise ChangeError(f"object {object_id:016x} has {live_ranges} ranges")
        writes.put_object(
            TieredObject(
                held.ref,
                live_ranges,
                live_bytes,
                held.committed_at_ms,
                0 if live_ranges else held.dropped_at_ms or time_ms,
                held.bodies_bytes + (counts.added_bytes if object_id == new_id else 0),
            ),
        )


def _forget(metadata: TierMetadata, writes: _Writes, object_ids: Sequence[int]) -> None:
    for object_id in object_ids:
        held = metadata.object(object_id)
        if held is not None and held.live_ranges:
            raise ChangeError(f"object {object_id:016x} is forgotten, but it is live")
        writes.delete_object(object_id)
