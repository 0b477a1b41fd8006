"""Sweep of the tier for one raft group: plain Python, run by every task for its share.

It lists and deletes; the leader says which objects may be deleted. A leader never commits a name
that is being deleted: a sweep begins no deletion after half of its granted time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from strata.admin.v1 import admin_pb2
from strata_placement.jobs.tier_client import TierLeaders
from strata_placement.source.runs import SourceError
from strata_tier import upkeep
from strata_tier.base import DamagedObjectError
from strata_tier.objects import DEFAULT_SPACE, Stores, object_folders
from strata_tier.ranges import TierRetentionOptions
from strata_tier.store import StoreError, open_store

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """How a sweep is done.

    Attributes:
        orphan_ms: age from which an object that nobody committed was given up.
        keys_at_once: objects of one call and of one deletion; leaders take no more than 1,000.
        is_dry: nothing is deleted.
    """

    orphan_ms: int = TierRetentionOptions().orphan_ms
    keys_at_once: int = 500
    is_dry: bool = False


class GroupWork(NamedTuple):
    """A raft group to be swept.

    Attributes:
        home: id of the cluster.
        raft_group: which.
        spaces: where it may have objects.
    """

    home: str
    raft_group: int
    spaces: tuple[str, ...]


class Swept(NamedTuple):
    """Result of a raft group; counts are of objects, `refused` is "" if all was done."""

    raft_group: int
    listed: int = 0
    old: int = 0
    orphans: int = 0
    doomed: int = 0
    forgotten: int = 0
    refused: str = ""


def work_of(url: str, home: str) -> tuple[list[GroupWork], list[str]]:
    """Return the raft groups that have manifests, and the manifests that are damaged.

    Raises:
        StoreError, TierError: the store cannot be read, or holds no such cluster.
    """
    return asyncio.run(_work_of(url, home))


def swept(
    url: str,
    work: Iterable[GroupWork],
    leaders: TierLeaders,
    options: SweepOptions,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> list[Swept]:
    """Sweep raft groups, one after another.

    Args:
        url: of the store.
        work: which raft groups.
        leaders: who says what may go.
        options: limits.
        now_ms: wall time, to compare with what the store stamped.
    """
    return asyncio.run(_swept(url, work, leaders, options, now_ms))


async def _work_of(url: str, home: str) -> tuple[list[GroupWork], list[str]]:
    store = await open_store(url)
    try:
        home = await upkeep.one_home(store, home)
        work: list[GroupWork] = []
        damaged: list[str] = []
        for raft_group, names in (await upkeep.manifests_in(store, home)).items():
            try:
                found = await upkeep.newest_manifest(store, home, names)
            except DamagedObjectError as error:
                damaged.append(str(error))
                continue
            damaged += map(str, found.damaged)
            spaces = {DEFAULT_SPACE, *(held.ref.space for held in found.manifest.objects)}
            work.append(GroupWork(home, raft_group, tuple(sorted(spaces))))
        return work, damaged
    finally:
        await store.close()


async def _swept(
    url: str,
    work: Iterable[GroupWork],
    leaders: TierLeaders,
    options: SweepOptions,
    now_ms: Callable[[], int],
) -> list[Swept]:
    store = await open_store(url)
    try:
        stores = Stores(store)
        return [
            await _Sweep(stores, each, leaders, options=options, now_ms=now_ms).run()
            for each in work
        ]
    finally:
        await store.close()


class _Sweep:
    """The sweep of one raft group."""

    def __init__(
        self,
        stores: Stores,
        work: GroupWork,
        leaders: TierLeaders,
        *,
        options: SweepOptions,
        now_ms: Callable[[], int],
    ) -> None:
        self._stores = stores
        self._work = work
        self._leaders = leaders
        self._options = options
        self._now_ms = now_ms
        self._listed = self._old = self._orphans = self._forgotten = 0
        # (space, key): once forgotten they look like orphans.
        self._doomed: set[tuple[str, str]] = set()

    async def run(self) -> Swept:
        """Sweep, and tell what came of it."""
        refused = ""
        try:
            for space in self._work.spaces:
                async for keys in self._old_keys(space):
                    await self._step(space, keys)
            while await self._step(DEFAULT_SPACE, ()):
                pass
        except (StoreError, SourceError) as error:
            refused = str(error)
        return Swept(
            self._work.raft_group,
            self._listed,
            self._old,
            self._orphans,
            len(self._doomed),
            self._forgotten,
            refused,
        )

    async def _old_keys(self, space: str) -> AsyncIterator[list[str]]:
        """Yield what is too old to be an upload, as much as one call may name."""
        keys: list[str] = []
        store = self._stores.of(space)
        before_ms = self._now_ms() - self._options.orphan_ms
        for folder in object_folders(self._work.home, self._work.raft_group):
            async for info in upkeep.objects_under(store, folder):
                self._listed += 1
                if info.modified_ms > before_ms:
                    continue
                self._old += 1
                keys.append(info.key)
                if len(keys) >= self._options.keys_at_once:
                    yield keys
                    keys = []
        if keys:
            yield keys

    async def _step(self, space: str, old_keys: Sequence[str]) -> int:
        """Ask once, delete what may go; return how many objects were forgotten.

        Args:
            space: where the keys were listed.
            old_keys: what the leader may not know.
        """
        old_keys = [key for key in old_keys if (space, key) not in self._doomed]
        # From before the call, so that it ends before the leader thinks so.
        asked_s = time.monotonic()
        plan = await asyncio.to_thread(self._leaders.plan_sweep, self._work.raft_group, old_keys)
        delete_by_s = asked_s + plan.valid_ms / 2_000
        self._doomed.update((each.space, each.key) for each in plan.doomed)
        self._orphans += len(plan.orphan_keys)
        if self._options.is_dry:
            return 0
        for keys in _parts(plan.orphan_keys, self._options.keys_at_once):
            await self._delete(space, keys, delete_by_s)
        forgotten = 0
        for doomed in _parts(plan.doomed, self._options.keys_at_once):
            forgotten += await self._delete_doomed(doomed, delete_by_s)
        self._forgotten += forgotten
        return forgotten

    async def _delete_doomed(
        self, doomed: Sequence[admin_pb2.DoomedObject], delete_by_s: float
    ) -> int:
        by_space: dict[str, list[str]] = {}
        for each in doomed:
            by_space.setdefault(each.space, []).append(each.key)
        for space, keys in by_space.items():
            await self._delete(space, keys, delete_by_s)
        ids = [each.object_id for each in doomed]
        return await asyncio.to_thread(self._leaders.forget, self._work.raft_group, ids)

    async def _delete(self, space: str, keys: Sequence[str], delete_by_s: float) -> None:
        if time.monotonic() >= delete_by_s:
            raise SourceError("the time for deletions was over; the next sweep goes on")
        await self._stores.of(space).delete(keys)


def _parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
