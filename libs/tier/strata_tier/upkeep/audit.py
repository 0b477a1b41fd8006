"""Verification and inspection of a bucket without a cluster (`strata tier verify`).

Everything is read and every checksum compared: manifests, archives, and of each object that a
manifest names header, root, pages and blocks. Beyond the checksums, the manifest must agree with
the objects: their length and root, the blocks of each range, the offsets of a queue without a gap.
The audit reports all problems instead of stopping at the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from strata_runtime.errors import StrataError
from strata_runtime.tasks import first_failure
from strata_tier.base.errors import DamagedObjectError
from strata_tier.objects.layout import HEADER_BYTES, BlockEntry, ObjectHeader, check, decode_header
from strata_tier.objects.names import (
    DEFAULT_SPACE,
    QUEUE_FOLDER,
    SET_FOLDER,
    ManifestName,
)
from strata_tier.objects.open_objects import OpenObject
from strata_tier.objects.spaces import Stores
from strata_tier.objects.state import ObjectRef, TieredRange
from strata_tier.ranges.manifest import Manifest
from strata_tier.store.ports import (
    ObjectNotFoundError,
    ObjectStore,
    ObjectTooShortError,
    StoreError,
)
from strata_tier.upkeep import bucket

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Limits of a verification.

    Attributes:
        tail_bytes: read of an object's end to open it.
        request_bytes: blocks side by side are read together up to this.
        objects_at_once: objects under verification.
        is_deep: read all bodies too; False: indexes, roots and lengths only.
    """

    tail_bytes: int = 64 * 1024
    request_bytes: int = 8 * _MIB
    objects_at_once: int = 4
    is_deep: bool = True


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong.

    Attributes:
        key: the object, "" if it is about a queue.
        reason: what.
    """

    key: str
    reason: str


@dataclass(slots=True)
class AuditReport:
    """Result of a verification; `findings` empty: all is whole."""

    home: str
    raft_groups: int = 0
    manifests: int = 0
    archives: int = 0
    objects: int = 0
    blocks: int = 0
    messages: int = 0
    bytes_read: int = 0
    unnamed_objects: int = 0
    unnamed_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def found(self, key: str, error: StrataError) -> None:
        """Note what is wrong with an object."""
        reason = error.reason if isinstance(error, DamagedObjectError | StoreError) else str(error)
        self.findings.append(Finding(key, reason))


async def verify(
    stores: Stores, home: str, options: AuditOptions, report: AuditReport | None = None
) -> AuditReport:
    """Verify every manifest and archive of a home, and every object that a manifest names.

    Objects that were dropped, or that only older manifests name, may be gone; while they are there
    they are verified too, for a restore may need an older manifest.

    Args:
        stores: where the home is.
        home: of a cluster.
        options: limits.
        report: a new one to fill in, for whoever looks at it meanwhile.

    Raises:
        StoreError: the store cannot be read at all; what concerns single objects is a finding.
    """
    report = report or AuditReport(home)
    named: set[tuple[str, str]] = set()
    for names in (await bucket.manifests_in(stores.default, home)).values():
        report.raft_groups += 1
        manifests = await _readable(stores.default, home, names, report)
        if manifests:
            await _verify_raft_group(stores, manifests, options, report)
        named |= {(held.ref.space, held.ref.key) for each in manifests for held in each.objects}
    for key in await bucket.metadata_keys(stores.default, home):
        await _verify_archive(stores.default, key, report, may_be_gone=True)
    await _count_unnamed(stores, home, named, report)
    return report


async def verify_object(
    store: ObjectStore,
    ref: ObjectRef,
    ranges: Sequence[TieredRange],
    options: AuditOptions,
    report: AuditReport,
) -> None:
    """Verify one object and that these ranges are in it. Also the step of a scrub.

    Raises:
        DamagedObjectError: it is not what was committed.
        StoreError: the store cannot give it.
    """
    info = await store.head(ref.key)
    if info.size_bytes != ref.length:
        raise DamagedObjectError(ref.key, f"{info.size_bytes} bytes, {ref.length} were committed")
    opened = await OpenObject.open(store, ref, options.tail_bytes)
    header = decode_header(await store.get(ref.key, 0, HEADER_BYTES), ref.key)
    if header != ObjectHeader(ref.kind, ref.raft_group, ref.object_id):
        raise DamagedObjectError(ref.key, "the header is that of another object")
    entries = await opened.entries(0, opened.root.block_count)
    _check_tiles(opened, entries)
    for tiered in ranges:
        _check_range(ref.key, tiered, entries)
    for fence in opened.root.search_pages:
        page = await store.get(ref.key, fence.position, fence.length)
        check(page, fence.checksum, ref.key, f"search page at {fence.position}")
    report.bytes_read += min(options.tail_bytes, ref.length)
    report.objects += 1
    if options.is_deep:
        for group in _groups(entries, options.request_bytes):
            await opened.blocks(group)
            report.blocks += len(group)
            report.messages += sum([entry.message_count for entry in group])
            report.bytes_read += sum([entry.length for entry in group])


async def _readable(
    store: ObjectStore, home: str, names: Sequence[ManifestName], report: AuditReport
) -> list[Manifest]:
    """Return the manifests of a raft group that are whole, the newest last.

    A cluster that runs deletes old ones meanwhile: those that are gone are no findings.
    """
    manifests: list[Manifest] = []
    for name in names:
        try:
            manifests.append(await bucket.read_manifest(store, home, name))
        except ObjectNotFoundError:
            continue
        except DamagedObjectError as error:
            report.found(error.key, error)
    report.manifests += len(manifests)
    return manifests


async def _verify_archive(
    store: ObjectStore, key: str, report: AuditReport, *, may_be_gone: bool
) -> None:
    try:
        await bucket.read_archive(store, key)
        report.archives += 1
    except ObjectNotFoundError as error:
        if not may_be_gone:
            report.found(key, error)
    except DamagedObjectError as error:
        report.found(key, error)


async def _verify_raft_group(
    stores: Stores, manifests: Sequence[Manifest], options: AuditOptions, report: AuditReport
) -> None:
    """Verify what the manifests of a raft group name; the newest one is the last."""
    for manifest in manifests:
        if manifest.checkpoint:
            is_newest = manifest is manifests[-1]
            await _verify_archive(
                stores.default, manifest.checkpoint, report, may_be_gone=not is_newest
            )
    newest = manifests[-1]
    ranges = _ranges_of(newest, report)
    live = {held.ref for held in newest.objects if not held.dropped_at_ms}
    others = {held.ref for each in manifests for held in each.objects} - live
    jobs = [_job(stores, ref, ranges.get(ref.object_id, []), options, report) for ref in live] + [
        _job(stores, ref, [], options, report, may_be_gone=True) for ref in others
    ]
    await _few_at_once(jobs, options.objects_at_once)


def _ranges_of(manifest: Manifest, report: AuditReport) -> dict[int, list[TieredRange]]:
    """Return ranges by object; a hole in a queue and an object that is not listed are findings."""
    ranges: dict[int, list[TieredRange]] = {}
    for queue in manifest.queues:
        at = queue.offsets.first_offset
        for tiered in queue.ranges:
            ranges.setdefault(tiered.object_id, []).append(tiered)
            if tiered.first_offset > at:
                what = f"topic {queue.key[0]} queue {queue.key[1]}"
                reason = f"{what}: offsets {at} to {tiered.first_offset} are in no object"
                report.findings.append(Finding(manifest.key, reason))
            at = tiered.end_offset
    known = {held.ref.object_id for held in manifest.objects}
    for object_id in ranges.keys() - known:
        reason = f"object {object_id:016x} is named and not listed"
        report.findings.append(Finding(manifest.key, reason))
    return ranges


def _job(
    stores: Stores,
    ref: ObjectRef,
    ranges: Sequence[TieredRange],
    options: AuditOptions,
    report: AuditReport,
    *,
    may_be_gone: bool = False,
) -> Callable[[], Awaitable[None]]:
    async def job() -> None:
        try:
            await verify_object(stores.of(ref.space), ref, ranges, options, report)
        except ObjectNotFoundError as error:
            if not may_be_gone:
                report.found(ref.key, error)
        except (DamagedObjectError, ObjectTooShortError) as error:
            report.found(ref.key, error)

    return job


async def _few_at_once(jobs: Iterable[Callable[[], Awaitable[None]]], limit: int) -> None:
    """Run jobs, `limit` of them at a time; the first error ends it, as itself."""
    left = iter(jobs)

    async def work() -> None:
        for job in left:
            await job()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(limit):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise first_failure(errors) from errors


async def _count_unnamed(
    stores: Stores, home: str, named: set[tuple[str, str]], report: AuditReport
) -> None:
    """Count objects that no manifest names: uploads that are newer, or were given up."""
    for space in {DEFAULT_SPACE, *(space for space, _ in named)}:
        for folder in (SET_FOLDER, QUEUE_FOLDER):
            async for info in bucket.objects_under(stores.of(space), f"{home}/{folder}/"):
                if (space, info.key) not in named:
                    report.unnamed_objects += 1
                    report.unnamed_bytes += info.size_bytes


def _check_tiles(opened: OpenObject, entries: Sequence[BlockEntry]) -> None:
    """Check that blocks lie one behind the other, from the header to the first page."""
    at = HEADER_BYTES
    for number, entry in enumerate(entries):
        if entry.position != at:
            raise DamagedObjectError(opened.ref.key, f"block {number} is at {entry.position}")
        at += entry.length


def _check_range(key: str, tiered: TieredRange, entries: Sequence[BlockEntry]) -> None:
    at = tiered.first_offset
    of_range = entries[tiered.first_block : tiered.first_block + tiered.block_count]
    for entry in of_range:
        if entry[:3] != (tiered.topic_id, tiered.queue, at):
            break
        at = entry.end_offset
    if len(of_range) != tiered.block_count or at != tiered.end_offset:
        raise DamagedObjectError(
            key,
            f"topic {tiered.topic_id} queue {tiered.queue}: its blocks do not hold offsets "
            f"{tiered.first_offset} to {tiered.end_offset}",
        )
    messages = sum([entry.message_count for entry in of_range])
    bodies_bytes = sum([entry.bodies_bytes for entry in of_range])
    if (messages, bodies_bytes) != (tiered.message_count, tiered.bodies_bytes):
        raise DamagedObjectError(
            key,
            f"topic {tiered.topic_id} queue {tiered.queue}: its blocks hold {messages} messages "
            f"of {bodies_bytes} bytes, not {tiered.message_count} of {tiered.bodies_bytes}",
        )


def _groups(entries: Sequence[BlockEntry], request_bytes: int) -> Iterable[Sequence[BlockEntry]]:
    first = 0
    size = 0
    for at, entry in enumerate(entries):
        if at > first and size + entry.length > request_bytes:
            yield entries[first:at]
            first, size = at, 0
        size += entry.length
    if entries:
        yield entries[first:]
