"""Plan of compactions: which objects are merged, and into which. Pure; `compact` does the work.

Uploads make stream sets in which a queue has a few kilobytes each, so a reader of one queue would
need a request for each of them. Compaction takes the oldest sets with ranges of similar small size
and rewrites their messages: queues with much data into their own objects, other queues side by side
into larger sets, with one range instead of many. Data that retention ended is left out.

A set is merged with sets of the same *level*, the order of magnitude of its ranges, so that a byte
is rewritten once per level and not once per compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from strata_state.memory_store import MemoryStore
from strata_tier.objects.layout import ObjectKind
from strata_tier.objects.names import DEFAULT_SPACE
from strata_tier.objects.state import TieredObject, TieredRange
from strata_tier.ranges.metadata import QueueKey, TierMetadata
from strata_tier.ranges.metadata_memory import MemoryTierMetadata

_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """When and how objects are put together.

    Attributes:
        sets_min: sets of one level that are worth a compaction.
        input_bytes: live bytes of one compaction at most, unless it is one object.
        output_bytes: bodies of one written object at most, unless it is one range; the writer
            holds them in memory.
        own_object_bytes: a queue with so much in one compaction gets objects of its own.
        level_0_bytes: ranges up to this on average are level 0 ...
        level_factor: ... and each level's are so many times larger.
        ranges_per_run_min: a compaction puts so many ranges into one on average, at least.
        large_range_bytes: sets whose ranges are as large on average stay as they are.
        live_share: a set of whose bodies less than this share is live is written again, with
            others of the kind or alone.
    """

    sets_min: int = 8
    input_bytes: int = 512 * _MIB
    output_bytes: int = 64 * _MIB
    own_object_bytes: int = 16 * _MIB
    level_0_bytes: int = 16 * _KIB
    level_factor: int = 8
    ranges_per_run_min: float = 2.0
    large_range_bytes: int = 8 * _MIB
    live_share: float = 0.25


class CompactedQueue(NamedTuple):
    """Ranges of one queue that follow each other and become one."""

    key: QueueKey
    ranges: Sequence[TieredRange]

    @property
    def bodies_bytes(self) -> int:
        """Bytes of its messages."""
        return sum([tiered.bodies_bytes for tiered in self.ranges])


class CompactionOutput(NamedTuple):
    """An object to be written."""

    space: str
    kind: ObjectKind
    queues: Sequence[CompactedQueue]


class CompactionPlan(NamedTuple):
    """One compaction: objects that it empties, objects that it writes."""

    inputs: Sequence[TieredObject]
    outputs: Sequence[CompactionOutput]


def plan_compactions(
    metadata: MemoryTierMetadata, options: CompactionOptions, most: int
) -> list[CompactionPlan]:
    """Decide on compactions that may be done side by side: none reads what another one does.

    Args:
        metadata: what is planned is taken out of it.
        options: of each.
        most: so many at most.
    """
    plans: list[CompactionPlan] = []
    batch = MemoryStore().new_batch()
    while len(plans) < most and (plan := plan_compaction(metadata, options)) is not None:
        plans.append(plan)
        taken = {held.ref.object_id for held in plan.inputs}
        for key, _ in list(metadata.queues()):
            for tiered in metadata.ranges(*key):
                if tiered.object_id in taken:
                    metadata.delete_range(batch, tiered)
        for object_id in taken:
            metadata.delete_object(batch, object_id)
    return plans


def plan_compaction(
    metadata: TierMetadata,
    options: CompactionOptions,
    is_left_out: Callable[[TieredObject], bool] | None = None,
) -> CompactionPlan | None:
    """Decide on the next compaction of a raft group; None: none is worth it.

    Reads the whole tier state: for a thread, if it is large.

    Args:
        metadata: of the raft group.
        options: of a compaction.
        is_left_out: objects that it is not to read; default: none.
    """
    sets = [
        held
        for held in metadata.objects()
        if held.live_ranges
        and held.ref.kind is ObjectKind.STREAM_SET
        and not (is_left_out and is_left_out(held))
    ]
    for inputs in _choices(sets, options):
        runs = list(_runs(metadata, {held.ref.object_id for held in inputs}))
        # Without this, ranges that never meet would be written again and again.
        if sum([len(run.ranges) for _, run in runs]) >= options.ranges_per_run_min * len(runs):
            plan = _plan(inputs, runs, options)
            if plan is not None:
                return plan
    dead = [held for held in sets if held.live_bytes < held.bodies_bytes * options.live_share]
    if not dead:
        return None
    inputs = _oldest(dead, options.input_bytes)
    runs = list(_runs(metadata, {held.ref.object_id for held in inputs}))
    return _plan(inputs, runs, options)


def _plan(
    inputs: Sequence[TieredObject],
    runs: Iterable[tuple[str, CompactedQueue]],
    options: CompactionOptions,
) -> CompactionPlan | None:
    """Return what to write of some inputs; those that would come out as they are stay."""
    by_id = {held.ref.object_id: held for held in inputs}
    outputs = [output for output in _outputs(runs, options) if not _is_as_it_was(output, by_id)]
    if not outputs:
        return None
    read = {
        tiered.object_id for output in outputs for queue in output.queues for tiered in queue.ranges
    }
    return CompactionPlan([held for held in inputs if held.ref.object_id in read], outputs)


def _is_as_it_was(output: CompactionOutput, inputs: Mapping[int, TieredObject]) -> bool:
    """Whether an output is all of one input, of which nothing was dropped.

    Its name would be the same, and it would be counted once more and written again and again.
    """
    ids = [tiered.object_id for queue in output.queues for tiered in queue.ranges]
    held = inputs[ids[0]]
    return (
        ids == [held.ref.object_id] * held.live_ranges
        and held.live_bytes == held.bodies_bytes
        and output.kind is held.ref.kind
    )


def replaceable(metadata: TierMetadata, ranges: Iterable[TieredRange]) -> list[TieredRange]:
    """Return which ranges of a written object may still be put in place. For the leader.

    Whole ranges must stand where a new one goes: retention, or another leader's compaction, may
    have changed that since it was planned. One that stands there already is left alone, or it
    would be counted once more.
    """
    return [
        new
        for new in ranges
        if (standing := standing_for(metadata, new))
        and all(old.object_id != new.object_id for old in standing)
    ]


def standing_for(metadata: TierMetadata, new: TieredRange) -> list[TieredRange]:
    """Return the whole ranges that stand where a new one is to go; none: they are others."""
    found: list[TieredRange] = []
    at = new.first_offset
    for old in metadata.ranges(new.topic_id, new.queue, new.first_offset):
        if at >= new.end_offset or old.first_offset != at:
            break
        found.append(old)
        at = old.end_offset
    return found if at == new.end_offset else []


def _choices(
    sets: Sequence[TieredObject], options: CompactionOptions
) -> Iterator[list[TieredObject]]:
    """Yield sets that may be put together: those of each level, then small ones of any."""
    by_level: dict[int, list[TieredObject]] = {}
    for held in sets:
        average = held.live_bytes // held.live_ranges
        if average < options.large_range_bytes:
            by_level.setdefault(_level(average, options), []).append(held)
    for level in sorted(by_level):
        yield from _enough(by_level[level], options)
    yield from _enough([held for of_level in by_level.values() for held in of_level], options)


def _enough(
    objects: Sequence[TieredObject], options: CompactionOptions
) -> Iterator[list[TieredObject]]:
    chosen = _oldest(objects, options.input_bytes)
    if len(chosen) >= options.sets_min:
        yield chosen


def _level(range_bytes: int, options: CompactionOptions) -> int:
    level, limit = 0, options.level_0_bytes
    while range_bytes > limit:
        level += 1
        limit *= options.level_factor
    return level


def _oldest(objects: Iterable[TieredObject], input_bytes: int) -> list[TieredObject]:
    chosen: list[TieredObject] = []
    left_bytes = input_bytes
    for held in sorted(objects, key=lambda each: (each.committed_at_ms, each.ref.object_id)):
        left_bytes -= held.live_bytes
        if chosen and left_bytes < 0:
            break
        chosen.append(held)
    return chosen


def _runs(metadata: TierMetadata, object_ids: set[int]) -> Iterator[tuple[str, CompactedQueue]]:
    """Yield (space, run) of ranges in these objects that follow each other in their queue."""
    spaces: dict[int, str] = {}
    for object_id in object_ids:
        held = metadata.object(object_id)
        spaces[object_id] = held.ref.space if held is not None else DEFAULT_SPACE
    for key, _ in metadata.queues():
        run: list[TieredRange] = []
        for tiered in metadata.ranges(*key):
            is_input = tiered.object_id in object_ids
            if run and not (is_input and _continues(run[-1], tiered, spaces)):
                yield spaces[run[-1].object_id], CompactedQueue(key, run)
                run = []
            if is_input:
                run.append(tiered)
        if run:
            yield spaces[run[-1].object_id], CompactedQueue(key, run)


def _continues(last: TieredRange, tiered: TieredRange, spaces: dict[int, str]) -> bool:
    follows = last.end_offset == tiered.first_offset
    return follows and spaces[last.object_id] == spaces[tiered.object_id]


def _outputs(
    runs: Iterable[tuple[str, CompactedQueue]], options: CompactionOptions
) -> Iterator[CompactionOutput]:
    """Give large runs objects of their own and put the others of a space side by side."""
    shared_of: dict[str, _Shared] = {}
    for space, run in runs:
        shared = shared_of.setdefault(space, _Shared(space, options.output_bytes))
        for part in _parts(run, options.output_bytes):
            if part.bodies_bytes >= options.own_object_bytes:
                yield CompactionOutput(space, ObjectKind.ONE_QUEUE, [part])
            else:
                yield from shared.add(part)
    for shared in shared_of.values():
        yield from shared.end()


class _Shared:
    """The set of a space that is being filled."""

    def __init__(self, space: str, limit_bytes: int) -> None:
        self._space = space
        self._limit_bytes = limit_bytes
        self._queues: list[CompactedQueue] = []
        self._size_bytes = 0

    def add(self, part: CompactedQueue) -> Iterator[CompactionOutput]:
        """Take a part in; yield the set before it if the part does not go into that one."""
        part_bytes = part.bodies_bytes
        # A queue has one range per object.
        is_there = bool(self._queues) and self._queues[-1].key == part.key
        if is_there or self._size_bytes + part_bytes > self._limit_bytes:
            yield from self.end()
        self._queues.append(part)
        self._size_bytes += part_bytes

    def end(self) -> Iterator[CompactionOutput]:
        """Yield the set as it is."""
        if self._queues:
            yield CompactionOutput(self._space, ObjectKind.STREAM_SET, self._queues)
        self._queues, self._size_bytes = [], 0


def _parts(run: CompactedQueue, output_bytes: int) -> Iterator[CompactedQueue]:
    """Cut a run that is too large for one object, between ranges."""
    part: list[TieredRange] = []
    size = 0
    for tiered in run.ranges:
        if part and size + tiered.bodies_bytes > output_bytes:
            yield CompactedQueue(run.key, part)
            part, size = [], 0
        part.append(tiered)
        size += tiered.bodies_bytes
    yield CompactedQueue(run.key, part)
