"""One store, object or entry that fails stops nothing but itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from strata_mq.tier_policy import TierPolicy
from strata_storage.base.errors import Refused
from strata_storage.upkeep.retention import FixedRetention
from strata_testing import ManualClock, until
from strata_testing.simulated_disk import SimulatedDisk
from strata_testing.storage_node import GROUP, NodeUnderTest
from strata_tier.objects.state import TieredObject
from strata_tier.ranges.compaction import CompactionOptions
from strata_tier.ranges.metadata import TierMetadata
from strata_tier.ranges.retention import TierRetentionOptions
from strata_tier.store.drivers.memory import MemoryBucket, MemoryObjectStore
from strata_tier.store.ports import ObjectPage, RefusedError, StoreError, StoreMissingError
from strata_tier.upkeep.bucket import manifests_in, newest_manifest
from strata_tier.upkeep.restore import plan_restore
from tests.integration.storage.tiered_node import (
    POLICY,
    Tier,
    empty_log,
    fill,
    retain,
    tiered_node,
    upload,
    uploader_of,
)
from tests.integration.storage.waiting import delay

OWN_URL = "memory://acme"
PLAIN, OWN = 7, 8
"""Topics: of the default namespace, and of one that has a store of its own."""


class ByTopic:
    """Topic `OWN` is of namespace acme."""

    def tier_policy(self, topic_id: int) -> TierPolicy:
        return POLICY._replace(namespace="acme" if topic_id == OWN else "")


class Refuses:
    """A store that refuses what it is told to, for good."""

    def __init__(self, is_refused: Callable[[str, str], bool]) -> None:
        self._is_refused = is_refused

    async def before(self, operation: str, key: str) -> None:
        if self._is_refused(operation, key):
            raise RefusedError("memory://tier", key, "403 AccessDenied")

    async def after(self, operation: str, key: str) -> None:
        pass


NO_MANIFESTS = Refuses(lambda operation, key: operation == "put" and "/manifests/" in key)


def two_spaces() -> Tier:
    return Tier(ByTopic(), spaces={"acme": {"url": OWN_URL}})


def own_bucket(tier: Tier) -> MemoryBucket:
    return tier.buckets.setdefault(OWN_URL, MemoryBucket())


async def append(node: NodeUnderTest, *topics: int, rounds: int = 5, seed: int = 1) -> None:
    rng = random.Random(seed)
    for _ in range(rounds):
        for topic in topics:
            await node.append([rng.randbytes(400_000)], topic_id=topic, queue=1)
        node.clock.advance(1)


def metadata_of(node: NodeUnderTest) -> TierMetadata:
    return node.app.node.engine(GROUP).machine.tier.metadata


def object_of(node: NodeUnderTest, topic: int) -> TieredObject:
    """Return the object that a topic's first message is in."""
    tiered = next(iter(metadata_of(node).ranges(topic, 1)))
    held = metadata_of(node).object(tiered.object_id)
    assert held is not None
    return held


def offsets(node: NodeUnderTest, topic: int) -> tuple[int, int]:
    """Return up to where a topic is in the tier, and up to where the log need not have it."""
    tier = node.app.node.engine(GROUP).machine.tier
    return tier.commit_offset(topic, 1) or 0, tier.local_offset(topic, 1)


def note_of(node: NodeUnderTest) -> str:
    """Return what `strata tier status` says of failures."""
    return node.app.node.tiering.status(node.app.node.engine(GROUP)).last_failure


async def retain_often(node: NodeUnderTest, turns: int, pause_s: float = 61) -> None:
    for _ in range(turns):
        node.clock.advance(pause_s)
        await retain(node)


# Deletions and manifests (rule 29) ----------------------------------------------------------------


async def _lost_of_newest_manifest(tier: Tier) -> set[str]:
    """Return the objects that the newest manifest names as live and that are gone."""
    store = MemoryObjectStore(tier.bucket)
    names = (await manifests_in(store, "test"))[GROUP]
    manifest = (await newest_manifest(store, "test", names)).manifest
    live = {held.ref.key for held in manifest.objects if held.live_ranges}
    assert live
    return live - set(tier.keys)


async def _compacted(node: NodeUnderTest, tier: Tier, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(rounds):
        await fill(node, rng, 1)
        await upload(node)
    await retain(node)


@pytest.mark.parametrize("is_new_leader", [False, True])
async def test_nothing_is_deleted_that_the_newest_manifest_names(
    tmp_path: Path, *, is_new_leader: bool
) -> None:
    """Compaction goes on while manifests are refused; its inputs stay until one is published."""
    tier, clock = Tier(), ManualClock()
    grace_s = tier.config.delete_grace_ms / 1_000 + 60
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        await _compacted(node, tier, 7, 1)
        tier.bucket.trouble = NO_MANIFESTS
        await _compacted(node, tier, 6, 2)
        dropped = {held.ref.key for held in metadata_of(node).objects() if held.dropped_at_ms}
        assert len(dropped) >= 7
        if not is_new_leader:
            await retain_often(node, 3, grace_s)
            assert await _lost_of_newest_manifest(tier) == set()
            assert "manifest is not published" in note_of(node)
    if is_new_leader:
        clock.advance(60)
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        # It was made before this leader led: what it names is not known here.
        await retain_often(node, 3, grace_s)
        assert await _lost_of_newest_manifest(tier) == set()
        assert dropped <= set(tier.keys)
        tier.bucket.trouble = None
        await retain_often(node, 2, 301)
        assert not dropped & set(tier.keys)
        assert await _lost_of_newest_manifest(tier) == set()
        assert not note_of(node)


async def test_a_raft_group_without_a_manifest_deletes(tmp_path: Path) -> None:
    """Nothing of it could be restored: its deletions do not wait for a manifest."""
    tier = Tier()
    tier.bucket.trouble = NO_MANIFESTS
    async with tiered_node(tmp_path, tier) as node:
        await _compacted(node, tier, 8, 3)
        dropped = {held.ref.key for held in metadata_of(node).objects() if held.dropped_at_ms}
        assert len(dropped) == 8
        await retain_often(node, 2, tier.config.delete_grace_ms / 1_000 + 60)
        assert not dropped & set(tier.keys)


async def test_a_turn_deletes_a_bounded_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest drops first; the others follow in the next turns."""
    bounded = partial(TierRetentionOptions, deletes_max=3)
    monkeypatch.setattr("strata_storage.tiering.config.TierRetentionOptions", bounded)
    tier = Tier()
    async with tiered_node(tmp_path, tier) as node:
        await _compacted(node, tier, 8, 6)
        dropped = {held.ref.key for held in metadata_of(node).objects() if held.dropped_at_ms}
        assert len(dropped) == 8
        node.clock.advance(tier.config.delete_grace_ms / 1_000 + 60)
        left: list[int] = []
        for _ in range(4):
            await retain(node)
            left.append(len(dropped & set(tier.keys)))
        assert left == [5, 2, 0, 0]


async def test_a_job_deletes_nothing_that_the_newest_manifest_names(tmp_path: Path) -> None:
    """A job is told of no object before a manifest without it is published."""
    tier = Tier()
    async with tiered_node(tmp_path, tier) as node:
        await _compacted(node, tier, 7, 4)
        tier.bucket.trouble = NO_MANIFESTS
        await _compacted(node, tier, 2, 5)
        node.clock.advance(tier.config.delete_grace_ms / 1_000 + 60)
        engine, tiering = node.app.node.engine(GROUP), node.app.node.tiering
        assert (await tiering.plan_sweep(engine, ())).doomed == []
        tier.bucket.trouble = None
        await tiering.flush(engine)
        assert len((await tiering.plan_sweep(engine, ())).doomed) >= 7


async def test_a_raft_group_lists_its_own_manifests_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing of all costs each raft group of a large cluster what the whole cluster has."""
    tier = Tier()
    async with tiered_node(tmp_path, tier) as node:
        await _compacted(node, tier, 3, 4)
        listed: list[str] = []
        pages = MemoryObjectStore.list

        async def noted(
            store: MemoryObjectStore, prefix: str = "", after: str = "", limit: int = 1000
        ) -> ObjectPage:
            listed.append(prefix)
            return await pages(store, prefix, after, limit)

        monkeypatch.setattr(MemoryObjectStore, "list", noted)
        await fill(node, random.Random(5), 1)
        await upload(node)
        await node.app.node.tiering.flush(node.app.node.engine(GROUP))
        node.clock.advance(tier.config.delete_grace_ms / 1_000 + 60)
        await retain_often(node, 3)
    manifests = {prefix for prefix in listed if prefix.startswith("test/manifests/")}
    assert manifests == {f"test/manifests/{GROUP:08x}/"}


async def test_damaged_messages_that_wait_do_not_stop_manifests(tmp_path: Path) -> None:
    """The archive has the others, and a restore says how many are missing."""
    tier, disk = Tier(), SimulatedDisk(1)
    async with tiered_node(tmp_path, tier, disk=disk) as node:
        await delay(node, [b"D" * 50_000], 3_600_000)
        await delay(node, [b"W" * 50_000], 3_600_000)
        _damage(disk, b"D" * 1_000)
        await append(node, PLAIN, rounds=1)
        await upload(node)
        await retain(node)
    (group,) = (await plan_restore(MemoryObjectStore(tier.bucket), "test")).raft_groups
    assert [b"W" * 50_000 in each.payload for each in group.entries] == [True]
    assert group.lost_waiting == 1


# Uploads ------------------------------------------------------------------------------------------


async def test_a_space_whose_store_is_gone_stops_no_other(tmp_path: Path) -> None:
    """Others are uploaded meanwhile, it says so, and it is uploaded when its store is back."""
    tier = two_spaces()
    own_bucket(tier).missing = True
    async with tiered_node(tmp_path, tier) as node:
        await append(node, OWN, PLAIN)
        for turn in range(10):
            await append(node, PLAIN, seed=turn)
            try:
                await upload(node)
            except StoreError as error:
                assert "memory://acme" in str(error)
        await upload(node)
        assert offsets(node, PLAIN)[0] == 5 * 11
        assert (offsets(node, OWN)[0], len(uploader_of(node).failures)) == (0, 1)
        assert "memory://acme" in note_of(node)
        assert "memory://acme" in node.app.node.tiering.failure()
        own_bucket(tier).missing = False
        node.clock.advance(301)
        await upload(node)
        assert (offsets(node, OWN)[0], note_of(node)) == (5, "")


async def test_a_flush_uploads_what_can_be_uploaded(tmp_path: Path) -> None:
    """It says which store failed, and tries that store at once when it is asked again."""
    tier = two_spaces()
    own_bucket(tier).missing = True
    async with tiered_node(tmp_path, tier) as node:
        await append(node, OWN, PLAIN)
        engine, tiering = node.app.node.engine(GROUP), node.app.node.tiering
        with pytest.raises(Refused, match="memory://acme"):
            await tiering.flush(engine)
        assert (offsets(node, PLAIN)[0], offsets(node, OWN)[0]) == (5, 0)
        own_bucket(tier).missing = False
        assert await tiering.flush(engine) > 0
        assert offsets(node, OWN)[0] == 5


def _damage(disk: SimulatedDisk, text: bytes) -> None:
    """Turn a bit over where a text is in the log."""
    (name,) = (each for each in disk.names() if each.endswith(".log"))
    disk.flip(name, disk.open(name, create=False).read(0, 1 << 20).index(text) + len(text) // 2)


async def test_a_damaged_entry_stops_only_its_queue(tmp_path: Path) -> None:
    """A sole voter has no other copy of it: all other queues are uploaded, and it is said."""
    tier, disk = Tier(), SimulatedDisk(1)
    async with tiered_node(tmp_path, tier, disk=disk) as node:
        await node.append([b"A" * 50_000], queue=1)
        _damage(disk, b"A" * 1_000)
        for turn in range(5):
            await node.append([bytes([turn]) * 50_000], queue=2)
            await upload(node)
        tier_state = node.app.node.engine(GROUP).machine.tier
        assert (tier_state.commit_offset(7, 1), tier_state.commit_offset(7, 2)) == (None, 5)
        assert not tier_state.dispatch
        assert "topic 7 queue 1 cannot be read" in note_of(node)
        with pytest.raises(Refused, match="queue 1 cannot be read"):
            await node.app.node.tiering.flush(node.app.node.engine(GROUP))


# Retention ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["store", "object"])
async def test_the_log_gives_up_what_other_places_have(tmp_path: Path, what: str) -> None:
    """A store that is gone, or one object that is refused, keeps only its own messages."""
    tier = two_spaces() if what == "store" else Tier()
    async with tiered_node(tmp_path, tier) as node:
        # The one that fails is looked at first.
        bad, good = (OWN, PLAIN) if what == "store" else (PLAIN, OWN)
        for topic in (bad, good):
            await append(node, topic)
            await upload(node)
        refused = object_of(node, bad).ref.key
        if what == "store":
            own_bucket(tier).missing = True
        else:
            tier.bucket.trouble = Refuses(lambda op, key: op == "get" and key == refused)
        await retain_often(node, 4)
        assert (offsets(node, good), offsets(node, bad)) == ((5, 5), (5, 0))
        assert ("memory://acme" if what == "store" else refused) in note_of(node)
        own_bucket(tier).missing, tier.bucket.trouble = False, None
        await retain_often(node, 1, 3_600)
        assert offsets(node, bad) == (5, 5)
        assert not note_of(node)


async def test_refused_objects_before_others_keep_none_of_them(tmp_path: Path) -> None:
    """However many objects of a store are refused, the others are reached in later turns."""
    tier = Tier()
    async with tiered_node(tmp_path, tier) as node:
        for topic in range(1, 9):
            await append(node, topic, rounds=1)
            await upload(node)
        refused = {object_of(node, topic).ref.key for topic in range(1, 8)}
        assert len(refused) == 7
        tier.bucket.trouble = Refuses(lambda op, key: op == "get" and key in refused)
        await retain_often(node, 8)
        assert offsets(node, 8) == (1, 1)


async def test_a_store_that_is_gone_keeps_no_dropped_objects_of_others(tmp_path: Path) -> None:
    """They are deleted and forgotten; its own follow when it is back."""
    tier, clock = two_spaces(), ManualClock()
    retention = FixedRetention(200_000)
    async with tiered_node(tmp_path, tier, clock=clock, retention=retention) as node:
        for topic in (OWN, PLAIN):
            await append(node, topic)
            await upload(node)
        bad = object_of(node, OWN).ref.key
        own_bucket(tier).missing = True
        await retain_often(node, 3, 300)
        await retain_often(node, 3, tier.config.delete_grace_ms / 1_000 + 60)
        assert [held.ref.key for held in metadata_of(node).objects()] == [bad]
        assert not [key for key in tier.keys if key.endswith(".set")]
        assert "memory://acme" in note_of(node)
        own_bucket(tier).missing = False
        await retain_often(node, 1, 3_600)
        assert not list(metadata_of(node).objects())
        assert not own_bucket(tier).objects


@pytest.mark.parametrize("is_named", [True, False])
async def test_an_object_that_must_stay_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_named: bool
) -> None:
    """The others of its store are deleted and forgotten, whether or not the store names it."""
    tier, clock, kept = Tier(), ManualClock(), set[str]()
    delete = MemoryObjectStore.delete

    async def refused(self: MemoryObjectStore, keys: Sequence[str]) -> None:
        if kept.isdisjoint(keys):
            await delete(self, keys)
        else:
            raise RefusedError(self.name, min(kept) if is_named else "", "403 AccessDenied")

    monkeypatch.setattr(MemoryObjectStore, "delete", refused)
    retention = FixedRetention(200_000)
    async with tiered_node(tmp_path, tier, clock=clock, retention=retention) as node:
        for topic in range(1, 16):
            await append(node, topic, rounds=1)
            await upload(node)
        keys = {held.ref.key for held in metadata_of(node).objects()}
        assert len(keys) == 15
        kept.add(object_of(node, 3).ref.key)
        await retain_often(node, 3, 300)
        clock.advance(tier.config.delete_grace_ms / 1_000)
        await retain_often(node, 12)
        assert {held.ref.key for held in metadata_of(node).objects()} == kept
        assert {key for key in tier.keys if key.endswith(".set")} == kept
        assert "403 AccessDenied" in note_of(node)
        kept.clear()
        await retain_often(node, 1, 3_600)
        assert not list(metadata_of(node).objects())


async def test_leftovers_of_other_stores_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A default store that fails keeps no other store from being cleaned up."""
    asked: list[str] = []

    async def removed(self: MemoryObjectStore, _: int) -> int:
        asked.append(self.name)
        if self.name == "memory://tier":
            raise StoreMissingError(self.name, "", "the bucket is gone")
        return 1

    monkeypatch.setattr(MemoryObjectStore, "remove_leftovers", removed)
    async with tiered_node(tmp_path, two_spaces()):
        await until(lambda: len(asked) == 2)
    assert asked == ["memory://tier", OWN_URL]


# Compaction and orphans ---------------------------------------------------------------------------


async def test_a_lost_object_does_not_stop_compaction(tmp_path: Path) -> None:
    """The others are merged, orphans are deleted, and the lost one is read now and then only."""
    tier, orphan = Tier(), "test/sets/00000001/0000000000000001-00000000000000aa.set"
    gets: list[str] = []
    async with tiered_node(tmp_path, tier) as node:
        rng = random.Random(1)
        for _ in range(7):
            await fill(node, rng, 3)
            await upload(node)
        await empty_log(node)
        lost = min(metadata_of(node).objects(), key=lambda held: held.committed_at_ms).ref
        del tier.bucket.objects[lost.key]
        for _ in range(12):
            await fill(node, rng, 3)
            await upload(node)
        aged_ms = node.clock.wall_ms() - 10 * 86_400_000
        tier.bucket.objects[orphan] = (b"x" * 1_000, aged_ms)

        def noted(operation: str, key: str) -> bool:
            gets.extend([key] if operation == "get" else [])
            return False

        tier.bucket.trouble = Refuses(noted)
        node.clock.advance(22_000)
        for _ in range(10):
            node.clock.advance(61)
            await retain(node)
        assert orphan not in tier.keys
        live = {held.ref.key for held in metadata_of(node).objects() if held.live_ranges}
        assert lost.key in live
        assert len(live) < CompactionOptions().sets_min, live
        assert gets.count(lost.key) <= 5
        assert lost.key in note_of(node)


async def test_orphans_of_other_stores_are_deleted(tmp_path: Path) -> None:
    """A store that is gone keeps only its own orphans, whichever is looked at first."""
    tier, orphan = two_spaces(), "test/sets/00000001/0000000000000001-00000000000000aa.set"
    async with tiered_node(tmp_path, tier) as node:
        await append(node, OWN, PLAIN)
        await upload(node)
        aged_ms = node.clock.wall_ms() - 10 * 86_400_000
        for bucket in (tier.bucket, own_bucket(tier)):
            bucket.objects[orphan] = (b"x", aged_ms)
        for missing in (own_bucket(tier), tier.bucket):
            missing.missing = True
            node.clock.advance(22_000)
            await retain(node)
            missing.missing = False
        assert orphan not in tier.keys
        assert orphan not in own_bucket(tier).objects
