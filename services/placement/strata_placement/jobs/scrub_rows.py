"""Scrub of the tier's objects: plain Python, run by every task for its share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from strata_tier import upkeep
from strata_tier.base import DamagedObjectError
from strata_tier.objects import ObjectRef, Stores, TieredRange
from strata_tier.ranges import Manifest
from strata_tier.store import OpenWith, StoreError, StoreOptions, open_store
from strata_tier.upkeep import AuditOptions, AuditReport, verify_object

_MIB = 1024 * 1024


class ObjectWork(NamedTuple):
    """An object, and what a manifest says is in it."""

    ref: ObjectRef
    ranges: tuple[TieredRange, ...]


class Scrubbed(NamedTuple):
    """Result of an object; `finding` is "" when it is whole."""

    key: str
    messages: int
    bytes_read: int
    finding: str


def work_of(url: str, home: str) -> tuple[list[ObjectWork], list[str]]:
    """Return the objects that the newest manifests name, and the manifests that are damaged.

    Raises:
        StoreError, TierError: the store cannot be read, or holds no such cluster.
    """
    return asyncio.run(_work_of(url, home))


def scrubbed(url: str, work: Iterable[ObjectWork], mib_per_s: float | None) -> list[Scrubbed]:
    """Read objects whole, one after another, and compare everything with its checksums.

    Args:
        url: of the store.
        work: which objects.
        mib_per_s: budget of this task; None: none.
    """
    return asyncio.run(_scrubbed(url, work, mib_per_s))


async def _work_of(url: str, home: str) -> tuple[list[ObjectWork], list[str]]:
    store = await open_store(url)
    try:
        home = await upkeep.one_home(store, home)
        work: list[ObjectWork] = []
        damaged: list[str] = []
        for names in (await upkeep.manifests_in(store, home)).values():
            try:
                found = await upkeep.newest_manifest(store, home, names)
            except DamagedObjectError as error:
                damaged.append(str(error))
                continue
            damaged += map(str, found.damaged)
            work += _of_manifest(found.manifest)
        return work, damaged
    finally:
        await store.close()


def _of_manifest(manifest: Manifest) -> list[ObjectWork]:
    ranges: dict[int, list[TieredRange]] = {}
    for queue in manifest.queues:
        for tiered in queue.ranges:
            ranges.setdefault(tiered.object_id, []).append(tiered)
    return [
        ObjectWork(held.ref, tuple(ranges.get(held.ref.object_id, ())))
        for held in manifest.objects
        if not held.dropped_at_ms
    ]


async def _scrubbed(
    url: str, work: Iterable[ObjectWork], mib_per_s: float | None
) -> list[Scrubbed]:
    budget = mib_per_s * _MIB if mib_per_s is not None else None
    options = StoreOptions(download_bytes_per_s=budget)
    store = await open_store(url, OpenWith(options))
    try:
        stores = Stores(store)
        return [await _verified(stores, each) for each in work]
    finally:
        await store.close()


async def _verified(stores: Stores, work: ObjectWork) -> Scrubbed:
    report = AuditReport(home="")
    ranges: Sequence[TieredRange] = work.ranges
    finding = ""
    try:
        store = stores.of(work.ref.space)
        await verify_object(store, work.ref, ranges, AuditOptions(), report)
    except (DamagedObjectError, StoreError) as error:
        finding = str(error)
    return Scrubbed(work.ref.key, report.messages, report.bytes_read, finding)
