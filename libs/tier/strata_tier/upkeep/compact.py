"""Carries out the plans of `compaction` and `retention`: reads, writes and deletes objects.

It commits nothing: the leader proposes the returned change. An object that is written but not
committed is an orphan, which the sweep of a later leader deletes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from strata_tier.base.errors import DamagedObjectError, TierGapError
from strata_tier.objects.blocks import Block, MessageRun, SearchTerms
from strata_tier.objects.layout import BlockEntry
from strata_tier.objects.names import object_folders, parse_object_key
from strata_tier.objects.open_objects import OpenObject
from strata_tier.objects.plan import (
    Author,
    ObjectPlan,
    PlannedBlock,
    PlanOptions,
    QueueRuns,
    plan_object,
)
from strata_tier.objects.spaces import Stores
from strata_tier.objects.state import ObjectRef, ReplaceRanges, TieredObject, TieredRange
from strata_tier.objects.writer import BlockData, ObjectWriter
from strata_tier.ranges.compaction import CompactedQueue, CompactionOutput
from strata_tier.ranges.metadata import TierMetadata
from strata_tier.ranges.retention import TierRetentionOptions, plan_orphans
from strata_tier.store.ports import Buffer, ObjectStore
from strata_tier.upkeep import bucket

_MIB = 1024 * 1024
# Objects that are looked up before others get their turn of the event loop.
_LOOKUPS_PER_TURN = 200


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """Limits of doing it.

    Attributes:
        block_bytes: bodies of a block that is written.
        tail_bytes: read of an object's end to open it.
        request_bytes: blocks side by side are read together up to this.
        salt: see `PlanOptions`.
    """

    block_bytes: int = _MIB
    tail_bytes: int = 64 * 1024
    request_bytes: int = 8 * _MIB
    salt: int = 0


async def write_output(
    stores: Stores,
    metadata: TierMetadata,
    home: str,
    raft_group: int,
    output: CompactionOutput,
    options: CompactOptions,
    now_ms: int,
) -> ReplaceRanges:
    """Read the ranges of an output, write its object, and prove that it is there.

    Args:
        stores: of all spaces.
        metadata: of the raft group, as it was when the output was planned or later.
        home: id of the cluster.
        raft_group: whose objects.
        output: what to write.
        options: limits.
        now_ms: group time.

    Returns:
        The change to propose, after `compaction.replaceable`.

    Raises:
        StoreError: a store failed.
        DamagedObjectError: an input is damaged; nothing was written.
        TierGapError: an input is not in the tier state any more.
    """
    store = stores.of(output.space)
    blocks = await _read_inputs(store, metadata, output.queues, options)
    queues = [_queue_runs(queue, blocks) for queue in output.queues]
    author = Author(home, raft_group, output.space)
    plan = await asyncio.to_thread(
        plan_object, author, queues, PlanOptions(options.block_bytes, options.salt), output.kind
    )
    ref = await put_object(store, plan)
    return ReplaceRanges(ref, plan.ranges, now_ms)


async def put_object(store: ObjectStore, plan: ObjectPlan) -> ObjectRef:
    """Put an object whose blocks come from blocks in memory, and compare what is there.

    Raises:
        StoreError: the store failed.
        DamagedObjectError: the store shows something else than was sent.
    """
    written: list[tuple[ObjectRef, bytes]] = []

    async def parts() -> AsyncIterator[Buffer]:
        writer = ObjectWriter(plan)
        yield writer.begin()
        for block in plan.blocks:
            columns, bodies = await asyncio.to_thread(_add, writer, block)
            yield columns
            yield bodies
        tail = b"".join(await asyncio.to_thread(writer.finish))
        written[:] = [(writer.ref, tail)]
        yield tail

    info = await store.put(plan.key, parts)
    ref, tail = written[0]
    if info.size_bytes != ref.length:
        raise DamagedObjectError(
            ref.key, f"{info.size_bytes} bytes are there, {ref.length} were sent"
        )
    if await store.get(ref.key, ref.length - len(tail), len(tail)) != tail:
        raise DamagedObjectError(ref.key, "its index is not what was sent")
    return ref


async def delete_objects(stores: Stores, home: str, objects: Iterable[TieredObject]) -> list[int]:
    """Delete dropped objects; return the ids of those to be forgotten.

    Objects of another home are forgotten and stay: a restored cluster reads the old one's objects
    and never changes them (rule 28).

    Args:
        stores: of all spaces.
        home: id of this cluster.
        objects: dropped ones.

    Raises:
        StoreError: a store failed; some may be gone, and are deleted again next time.
    """
    by_space: dict[str, list[TieredObject]] = {}
    for held in objects:
        assert not held.live_ranges, f"object {held.ref.object_id:016x} is live"
        by_space.setdefault(held.ref.space, []).append(held)
    for space, of_space in by_space.items():
        keys = [held.ref.key for held in of_space if held.ref.key.startswith(f"{home}/")]
        if keys:
            await stores.of(space).delete(keys)
    return [held.ref.object_id for of_space in by_space.values() for held in of_space]


async def delete_orphans(
    store: ObjectStore,
    metadata: TierMetadata,
    home: str,
    raft_group: int,
    now_ms: int,
    options: TierRetentionOptions,
) -> list[str]:
    """Delete what a raft group wrote into a store and never committed; return the keys.

    Anything else in its folders, under a name that is none of its objects', is left alone.

    Args:
        store: of one space.
        metadata: of the raft group, as the leader has it, everything committed applied.
        home: id of the cluster.
        raft_group: whose objects.
        now_ms: wall time, to compare with what the store stamped.
        options: limits.

    Raises:
        StoreError: the store failed.
    """
    orphans: list[str] = []
    for folder in object_folders(home, raft_group):
        infos = [
            info
            async for info in bucket.objects_under(store, folder)
            if info.modified_ms + options.orphan_ms <= now_ms
            and parse_object_key(home, raft_group, info.key) is not None
        ]
        known: set[str] = set()
        for count, info in enumerate(infos, 1):
            if _is_known(metadata, home, raft_group, info.key):
                known.add(info.key)
            if count % _LOOKUPS_PER_TURN == 0:
                await asyncio.sleep(0)
        orphans += plan_orphans(infos, frozenset(known), now_ms, options)
    # Looked up once more, with no pause before the deletion: an object that was committed
    # meanwhile stays.
    orphans = [key for key in orphans if not _is_known(metadata, home, raft_group, key)]
    if orphans:
        await store.delete(orphans)
    return orphans


def _is_known(metadata: TierMetadata, home: str, raft_group: int, key: str) -> bool:
    """Whether an object is in the tier state, perhaps as a dropped one."""
    object_id = parse_object_key(home, raft_group, key)
    held = None if object_id is None else metadata.object(object_id)
    return held is not None and held.ref.key == key


async def _read_inputs(
    store: ObjectStore,
    metadata: TierMetadata,
    queues: Sequence[CompactedQueue],
    options: CompactOptions,
) -> dict[tuple[int, int], Block]:
    """Read all blocks of ranges; (object id, number) -> block."""
    ranges_of: dict[int, list[TieredRange]] = {}
    for queue in queues:
        for tiered in queue.ranges:
            ranges_of.setdefault(tiered.object_id, []).append(tiered)
    blocks: dict[tuple[int, int], Block] = {}
    for object_id, ranges in ranges_of.items():
        held = metadata.object(object_id)
        if held is None:
            raise TierGapError(f"object {object_id:016x} is named and not known")
        opened = await OpenObject.open(store, held.ref, options.tail_bytes)
        numbers = sorted(
            number
            for tiered in ranges
            for number in range(tiered.first_block, tiered.first_block + tiered.block_count)
        )
        entries = {number: await opened.entry(number) for number in numbers}
        for group in _side_by_side(entries, options.request_bytes):
            read = await opened.blocks([entries[number] for number in group])
            blocks |= {
                (object_id, number): block for number, block in zip(group, read, strict=True)
            }
    return blocks


def _side_by_side(entries: Mapping[int, BlockEntry], request_bytes: int) -> Iterable[Sequence[int]]:
    """Cut sorted block numbers into groups that one request each can read."""
    group: list[int] = []
    size = 0
    for number, entry in entries.items():
        if group and (number != group[-1] + 1 or size + entry.length > request_bytes):
            yield group
            group, size = [], 0
        group.append(number)
        size += entry.length
    if group:
        yield group


def _queue_runs(queue: CompactedQueue, blocks: Mapping[tuple[int, int], Block]) -> QueueRuns:
    runs: list[MessageRun] = []
    for tiered in queue.ranges:
        for number in range(tiered.first_block, tiered.first_block + tiered.block_count):
            block = blocks[tiered.object_id, number]
            if block.columns.entry.message_count:
                runs.append(block.columns.run(block))
    first, last = queue.ranges[0], queue.ranges[-1]
    return QueueRuns(*queue.key, first.first_offset, last.end_offset, runs)


def _add(writer: ObjectWriter, planned: PlannedBlock) -> tuple[bytes, bytes]:
    return writer.add(_data_of(planned))


def _data_of(planned: PlannedBlock) -> BlockData:
    """Cut the bodies and terms of a planned block out of the blocks that were read."""
    bodies: list[bytes] = []
    terms: list[SearchTerms] = []
    for piece in planned.pieces:
        block = piece.source
        assert isinstance(block, Block)
        first = block.columns.ordinal_at(piece.offsets[0])
        end = first + len(piece.lengths)
        starts = block.columns.starts
        bodies.append(block.bodies[starts[first] : starts[end]])
        terms.append(block.columns.terms.part(first, end))
    return BlockData(b"".join(bodies), SearchTerms.joined(terms))
