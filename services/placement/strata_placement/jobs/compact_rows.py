"""Compaction of the tier's objects: plain Python, run by every task for its share.

The plan is the storage nodes' own (`strata_tier.ranges.compaction`), made from the newest
manifests. It may be out of date: a leader replaces only objects that are still where the plan found
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from strata_placement.jobs.tier_client import TierLeaders
from strata_placement.source.runs import SourceError
from strata_state.memory_store import MemoryStore
from strata_tier import upkeep
from strata_tier.base import DamagedObjectError, TierError
from strata_tier.objects import ReplaceRanges, Stores, TieredObject, encode_change
from strata_tier.ranges import (
    CompactionOptions,
    CompactionOutput,
    Manifest,
    MemoryTierMetadata,
    plan_compactions,
)
from strata_tier.store import OpenWith, StoreError, StoreOptions, open_store
from strata_tier.upkeep import (
    AuditOptions,
    AuditReport,
    CompactOptions,
    verify_object,
    write_output,
)

_MIB = 1024 * 1024
# Limit of one call; a leader takes twice as many.
_RANGES_PER_CALL = 10_000


class OutputWork(NamedTuple):
    """An object to be written.

    Attributes:
        home: id of the cluster.
        raft_group: whose it is.
        output: what goes into it.
        inputs: the objects that this is read from.
        salt: of the run, in the names of its objects.
        known_ms: group time of the last commit that the plan knows of.
    """

    home: str
    raft_group: int
    output: CompactionOutput
    inputs: tuple[TieredObject, ...]
    salt: int
    known_ms: int

    @property
    def bodies_bytes(self) -> int:
        """Bytes of its messages."""
        return sum(queue.bodies_bytes for queue in self.output.queues)


class CompactedOutput(NamedTuple):
    """Result of an output; `refused` is "" if its leader took it."""

    raft_group: int
    key: str
    bytes_read: int
    bytes_written: int
    ranges: int
    replaced_ranges: int
    refused: str


def work_of(
    url: str, home: str, most: int, salt: int, options: CompactionOptions | None = None
) -> tuple[list[OutputWork], list[str]]:
    """Return the objects to be written, and the manifests that are damaged.

    Args:
        url: of the store.
        home: id of the cluster; "": the only one.
        most: compactions of each raft group.
        salt: of this run; not 0.
        options: when and how objects are put together; None: as storage nodes do it.

    Raises:
        StoreError, TierError: the store cannot be read, or holds no such cluster.
    """
    return asyncio.run(_work_of(url, home, most, salt, options or CompactionOptions()))


def compacted(
    url: str, work: Iterable[OutputWork], leaders: TierLeaders, mib_per_s: float | None = None
) -> list[CompactedOutput]:
    """Write objects, prove that they are there, and have them committed, one after another.

    Args:
        url: of the store.
        work: which objects.
        leaders: who commits.
        mib_per_s: budget of this task, of bytes read and of bytes written; None: none.
    """
    return asyncio.run(_compacted(url, work, leaders, mib_per_s))


async def _work_of(
    url: str, home: str, most: int, salt: int, options: CompactionOptions
) -> tuple[list[OutputWork], list[str]]:
    store = await open_store(url)
    try:
        home = await upkeep.one_home(store, home)
        work: list[OutputWork] = []
        damaged: list[str] = []
        for names in (await upkeep.manifests_in(store, home)).values():
            try:
                found = await upkeep.newest_manifest(store, home, names)
            except DamagedObjectError as error:
                damaged.append(str(error))
                continue
            damaged += map(str, found.damaged)
            work += _of_manifest(found.manifest, most, salt, options)
        return work, damaged
    finally:
        await store.close()


def _of_manifest(
    manifest: Manifest, most: int, salt: int, options: CompactionOptions
) -> Iterator[OutputWork]:
    raft_group = manifest.name.raft_group
    held = {each.ref.object_id: each for each in manifest.objects}
    known_ms = max((each.committed_at_ms for each in manifest.objects), default=0)
    for plan in plan_compactions(manifest.metadata(), options, most):
        for output in plan.outputs:
            ids = {tiered.object_id for queue in output.queues for tiered in queue.ranges}
            inputs = tuple(held[object_id] for object_id in sorted(ids))
            yield OutputWork(manifest.home, raft_group, output, inputs, salt, known_ms)


async def _compacted(
    url: str, work: Iterable[OutputWork], leaders: TierLeaders, mib_per_s: float | None
) -> list[CompactedOutput]:
    budget = mib_per_s * _MIB if mib_per_s is not None else None
    options = StoreOptions(upload_bytes_per_s=budget, download_bytes_per_s=budget)
    store = await open_store(url, OpenWith(options))
    try:
        stores = Stores(store)
        return [await _of_output(stores, each, leaders) for each in work]
    finally:
        await store.close()


async def _of_output(stores: Stores, work: OutputWork, leaders: TierLeaders) -> CompactedOutput:
    metadata = MemoryTierMetadata(work.raft_group)
    batch = MemoryStore().new_batch()
    for held in work.inputs:
        metadata.put_object(batch, held)
    done = CompactedOutput(
        work.raft_group, "", work.bodies_bytes, 0, len(work.output.queues), 0, ""
    )
    try:
        change = await write_output(
            stores,
            metadata,
            work.home,
            work.raft_group,
            work.output,
            CompactOptions(salt=work.salt),
            work.known_ms,
        )
        ref = change.ref
        done = done._replace(key=ref.key, bytes_written=ref.length)
        store, report = stores.of(ref.space), AuditReport(work.home)
        await verify_object(store, ref, change.ranges, AuditOptions(), report)
        replaced = await asyncio.to_thread(_commit, leaders, work.raft_group, change)
    except (StoreError, TierError, SourceError) as error:
        return done._replace(refused=str(error))
    return done._replace(replaced_ranges=replaced)


def _commit(leaders: TierLeaders, raft_group: int, change: ReplaceRanges) -> int:
    replaced = 0
    for first in range(0, len(change.ranges), _RANGES_PER_CALL):
        part = replace(change, ranges=change.ranges[first : first + _RANGES_PER_CALL])
        replaced += leaders.replace(raft_group, encode_change(part))
    return replaced
