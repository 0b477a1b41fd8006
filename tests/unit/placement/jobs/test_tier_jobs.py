"""Work of each task of a compaction and of a sweep on a bucket, and its calls to a leader."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from strata.admin.v1 import admin_pb2
from strata_placement.jobs.compact_rows import compacted
from strata_placement.jobs.compact_rows import work_of as compactions_of
from strata_placement.jobs.sweep_rows import GroupWork, SweepOptions, Swept, swept
from strata_placement.jobs.sweep_rows import work_of as groups_of
from strata_placement.source.runs import SourceError
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_tier.objects.names import ManifestName, parse_object_key
from strata_tier.objects.spaces import Stores
from strata_tier.objects.state import DropRanges, ForgetObjects, ReplaceRanges, decode_change
from strata_tier.ranges.compaction import CompactionOptions, replaceable
from strata_tier.ranges.manifest import manifest_of
from strata_tier.ranges.retention import TierRetentionOptions, plan_deletes
from strata_tier.reads.read_options import TierReadOptions
from strata_tier.reads.reader import TierFetch, TierReader
from strata_tier.store.opening import open_store
from tests.unit.tier.objects import (
    HOME,
    RAFT_GROUP,
    Tier,
    messages_of,
    put_manifest,
    queue_of,
)

OPTIONS = CompactionOptions(sets_min=3)
SETS = 6
HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


@dataclass
class FakeLeader:
    """A leader that does as real ones do, without a raft log."""

    tier: Tier
    doomed_at_once: int = 1_000
    valid_ms: int = 300_000
    refusal: str = ""
    asked: list[Sequence[str]] = field(default_factory=list)

    def replace(self, raft_group: int, change: bytes) -> int:
        assert raft_group == RAFT_GROUP
        if self.refusal:
            raise SourceError(self.refusal)
        decoded = decode_change(change)
        assert isinstance(decoded, ReplaceRanges)
        kept = replaceable(self.tier.metadata, decoded.ranges)
        if kept:
            self.tier.apply(replace(decoded, ranges=kept))
        return len(kept)

    def plan_sweep(
        self, raft_group: int, old_keys: Sequence[str]
    ) -> admin_pb2.PlanTierSweepResponse:
        assert raft_group == RAFT_GROUP
        if self.refusal:
            raise SourceError(self.refusal)
        self.asked.append(list(old_keys))
        metadata = self.tier.metadata
        dead = plan_deletes(metadata, NOW_MS, TierRetentionOptions())
        known = {held.ref.object_id for held in metadata.objects()}
        ids = {key: parse_object_key(HOME, RAFT_GROUP, key) for key in old_keys}
        return admin_pb2.PlanTierSweepResponse(
            doomed=[
                admin_pb2.DoomedObject(
                    object_id=held.ref.object_id, space=held.ref.space, key=held.ref.key
                )
                for held in dead[: self.doomed_at_once]
            ],
            orphan_keys=[key for key, object_id in ids.items() if object_id not in known],
            valid_ms=self.valid_ms,
        )

    def forget(self, raft_group: int, object_ids: Sequence[int]) -> int:
        self.tier.apply(ForgetObjects(object_ids, NOW_MS))
        return len(object_ids)


@dataclass
class Bucket:
    """A folder with a tier in it."""

    folder: Path
    tier: Tier

    @property
    def url(self) -> str:
        return f"posix://{self.folder}"

    @property
    def keys(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*.set")}

    def messages(self, queue: int, first: int = 0) -> dict[int, bytes]:
        """Return offset -> message, as a reader gets them."""
        return asyncio.run(self._messages(queue, first))

    async def _messages(self, queue: int, first: int) -> dict[int, bytes]:
        store = await open_store(self.url)
        reader = TierReader(
            Stores(store), TierReadOptions(), Metrics.disabled(), clock=SystemClock()
        )
        wanted = TierFetch(1, queue, first, 1_000, 1_000_000)
        fetched = await reader.fetch(self.tier.metadata, wanted)
        await reader.close()
        await store.close()
        return {each.offset: each.message for each in fetched.messages}


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    """Small sets of two queues, ten messages of each, and a manifest."""
    folder = tmp_path / "tier"

    async def fill() -> Tier:
        tier = Tier(await open_store(f"posix://{folder}"))
        for number in range(SETS):
            offsets = range(10 * number, 10 * number + 10)
            queues = [queue_of(messages_of(1, queue, offsets)) for queue in (0, 1)]
            await tier.add(queues, time_ms=1_000 + number)
        name = ManifestName(RAFT_GROUP, 2, 1)
        await put_manifest(tier.store, manifest_of(tier.metadata, HOME, name, 90, 9_000))
        await tier.store.close()
        return tier

    return Bucket(folder, asyncio.run(fill()))


def expected(queue: int) -> dict[int, bytes]:
    """Return what a queue holds."""
    return {each.offset: each.stored for each in messages_of(1, queue, range(10 * SETS))}


def test_a_compaction_writes_proves_and_commits(bucket: Bucket) -> None:
    """One object holds what several held; a second run of the same plan replaces nothing."""
    leader = FakeLeader(bucket.tier)
    work, damaged = compactions_of(bucket.url, "", 4, 1, OPTIONS)
    assert damaged == []
    ((output, done),) = zip(work, compacted(bucket.url, work, leader, 100.0), strict=True)
    assert (done.refused, done.ranges, done.replaced_ranges) == ("", 2, 2)
    bodies = [*expected(0).values(), *expected(1).values()]
    assert done.bytes_read == sum(map(len, bodies))
    assert done.bytes_written == (bucket.folder / done.key).stat().st_size
    assert len(output.inputs) == SETS
    (live,) = [held for held in bucket.tier.metadata.objects() if held.live_ranges]
    assert live.ref.key == done.key
    for queue in (0, 1):
        assert bucket.messages(queue) == expected(queue)
    # A task that Spark runs once more writes the same object.
    (again,) = compacted(bucket.url, work, leader)
    assert (again.key, again.replaced_ranges) == (done.key, 0)


def test_another_run_has_names_of_its_own(bucket: Bucket) -> None:
    """Objects that a killed run left behind are never committed, so that they may be deleted."""
    leader = FakeLeader(bucket.tier, refusal="killed")
    keys = set()
    for salt in (1, 2):
        work, _ = compactions_of(bucket.url, HOME, 4, salt, OPTIONS)
        (done,) = compacted(bucket.url, work, leader)
        assert (done.refused, done.replaced_ranges) == ("killed", 0)
        keys.add(done.key)
    assert len(keys) == 2
    assert all(held.live_ranges for held in bucket.tier.metadata.objects())


def test_a_damaged_input_is_told_and_nothing_is_written(bucket: Bucket) -> None:
    """A changed byte ends the compaction that reads it; readers go on as before."""
    work, _ = compactions_of(bucket.url, "", 4, 1, OPTIONS)
    before = bucket.keys
    path = bucket.folder / work[0].inputs[0].ref.key
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    (done,) = compacted(bucket.url, work, FakeLeader(bucket.tier))
    assert work[0].inputs[0].ref.key in done.refused
    assert bucket.keys == before


def age(bucket: Bucket, key: str, hours: float) -> None:
    """Let an object be as old as this at `NOW_MS`."""
    at_s = NOW_MS / 1_000 - hours * 3_600
    os.utime(bucket.folder / key, (at_s, at_s))


def sweep(bucket: Bucket, leader: FakeLeader, options: SweepOptions) -> Swept:
    """Sweep the one raft group."""
    work, damaged = groups_of(bucket.url, "")
    assert (work, damaged) == ([GroupWork(HOME, RAFT_GROUP, ("",))], [])
    (done,) = swept(bucket.url, work, leader, options, lambda: NOW_MS)
    return done


def orphan_of(bucket: Bucket, number: int) -> str:
    """Leave an object behind that nobody committed; return its key."""
    key = f"{HOME}/sets/{RAFT_GROUP:08x}/{number:016x}-{number:016x}.set"
    (bucket.folder / key).write_bytes(b"given up")
    return key


def test_a_sweep_deletes_what_nobody_needs(bucket: Bucket) -> None:
    """Old orphans and dropped objects go, a few at a time; live and young ones stay."""
    for key in bucket.keys:
        age(bucket, key, 1_000)
    old = [orphan_of(bucket, number) for number in range(5)]
    for key in old:
        age(bucket, key, 49)
    young = orphan_of(bucket, 9)
    age(bucket, young, 47)
    bucket.tier.apply(DropRanges([(1, 0, 30), (1, 1, 30)], 1_000))
    live = {held.ref.key for held in bucket.tier.metadata.objects() if held.live_ranges}
    assert len(live) == 3
    leader = FakeLeader(bucket.tier, doomed_at_once=2)
    done = sweep(bucket, leader, SweepOptions(keys_at_once=4))
    assert done == Swept(RAFT_GROUP, SETS + 6, SETS + 5, 5, 3, 3)
    assert bucket.keys == live | {young}
    assert max(map(len, leader.asked)) == 4
    for queue in (0, 1):
        kept = {at: body for at, body in expected(queue).items() if at >= 30}
        assert bucket.messages(queue, 30) == kept
    again = sweep(bucket, leader, SweepOptions(keys_at_once=4))
    assert (again.orphans, again.doomed, again.forgotten) == (0, 0, 0)


def test_a_dry_run_tells_and_deletes_nothing(bucket: Bucket) -> None:
    """Objects that would go are counted."""
    age(bucket, orphan_of(bucket, 1), 49)
    bucket.tier.apply(DropRanges([(1, 0, 10), (1, 1, 10)], 1_000))
    before = bucket.keys
    done = sweep(bucket, FakeLeader(bucket.tier), SweepOptions(is_dry=True))
    assert (done.orphans, done.doomed, done.forgotten) == (1, 1, 0)
    assert bucket.keys == before


def test_no_deletion_begins_when_the_time_is_over(bucket: Bucket) -> None:
    """A leader may let an object of that name be committed by then."""
    age(bucket, orphan_of(bucket, 1), 49)
    before = bucket.keys
    done = sweep(bucket, FakeLeader(bucket.tier, valid_ms=0), SweepOptions())
    assert "time for deletions was over" in done.refused
    assert bucket.keys == before


def test_a_leader_that_refuses_is_told(bucket: Bucket) -> None:
    """Nothing is deleted without its word."""
    age(bucket, orphan_of(bucket, 1), 49)
    before = bucket.keys
    done = sweep(bucket, FakeLeader(bucket.tier, refusal="no leader"), SweepOptions())
    assert (done.refused, done.orphans) == ("no leader", 0)
    assert bucket.keys == before
