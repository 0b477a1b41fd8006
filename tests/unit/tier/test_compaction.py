"""Compaction, retention and sweeps: nothing that is kept is lost, what is dropped goes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_tier.base.errors import DamagedObjectError
from strata_tier.objects.layout import ObjectKind
from strata_tier.objects.names import (
    ManifestName,
    object_folders,
    queue_object_key,
    set_key,
)
from strata_tier.objects.plan import Author, PlanOptions, QueueRuns, plan_object
from strata_tier.objects.spaces import Stores
from strata_tier.objects.state import DropRanges, ForgetObjects, TieredObject
from strata_tier.ranges.compaction import (
    CompactionOptions,
    CompactionPlan,
    plan_compaction,
    plan_compactions,
    replaceable,
)
from strata_tier.ranges.manifest import manifest_of
from strata_tier.ranges.metadata import ChangeError
from strata_tier.ranges.metadata_rows import RowTierMetadata
from strata_tier.ranges.retention import TierRetentionOptions, plan_deletes
from strata_tier.reads.read_options import TierReadOptions
from strata_tier.reads.reader import TierFetch, TierReader
from strata_tier.store.drivers.memory import MemoryObjectStore
from strata_tier.upkeep.compact import (
    CompactOptions,
    delete_objects,
    delete_orphans,
    put_object,
    write_output,
)
from tests.unit.tier.objects import HOME, RAFT_GROUP, Message, Tier, messages_of, queue_of

OPTIONS = CompactionOptions(
    sets_min=3,
    input_bytes=100_000,
    output_bytes=4_000,
    own_object_bytes=2_000,
    level_0_bytes=300,
    level_factor=4,
    large_range_bytes=10_000,
)


async def _compact(tier: Tier, options: CompactionOptions = OPTIONS) -> int:
    """Do one compaction; return how many objects were written."""
    plan = plan_compaction(tier.metadata, options)
    if plan is None:
        return 0
    for output in plan.outputs:
        change = await write_output(
            Stores(tier.store), tier.metadata, HOME, RAFT_GROUP, output, CompactOptions(300), 9_000
        )
        assert replaceable(tier.metadata, change.ranges) == list(change.ranges)
        tier.apply(change)
    assert all(not tier.metadata.object(each.ref.object_id).live_ranges for each in plan.inputs)  # type: ignore[union-attr]
    return len(plan.outputs)


async def _all_of(tier: Tier, topic_id: int, queue: int) -> dict[int, bytes]:
    """Return offset -> message, as a reader gets them."""
    reader = TierReader(
        Stores(tier.store), TierReadOptions(), Metrics.disabled(), clock=SystemClock()
    )
    found: dict[int, bytes] = {}
    known = tier.metadata.queue(topic_id, queue)
    assert known is not None
    offset = known.first_offset
    while offset < known.commit_offset:
        fetched = await reader.fetch(tier.metadata, TierFetch(topic_id, queue, offset, 50, 100_000))
        found |= {each.offset: each.message for each in fetched.messages}
        offset = fetched.resume_offset
    await reader.close()
    return found


async def test_small_ranges_become_one() -> None:
    """Queues with little data come side by side, one with much gets an object of its own."""
    tier = Tier(MemoryObjectStore())
    for first in range(0, 40, 10):
        queues = [queue_of(messages_of(1, queue, range(first, first + 10))) for queue in range(5)]
        heavy = messages_of(2, 0, range(first, first + 10), body_bytes=100)
        await tier.add([*queues, queue_of(heavy)])
    assert await _compact(tier) == 4
    metadata = tier.metadata
    for queue in range(5):
        assert len(list(metadata.ranges(1, queue))) == 1
        assert await _all_of(tier, 1, queue) == {
            each.offset: each.stored for each in messages_of(1, queue, range(40))
        }
    (tiered,) = metadata.ranges(2, 0)
    held = metadata.object(tiered.object_id)
    assert held is not None
    assert (held.ref.kind, held.live_ranges) == (ObjectKind.ONE_QUEUE, 1)
    assert len(await _all_of(tier, 2, 0)) == 40


async def test_what_never_meets_is_not_written_again() -> None:
    """Sets whose ranges have others between them are left alone, so that compaction ends."""
    tier = Tier(MemoryObjectStore())
    for number in range(6):
        first = number * 10
        body_bytes = 40 if number % 2 else 2_000
        messages = messages_of(1, 0, range(first, first + 10), body_bytes=body_bytes)
        await tier.add([queue_of(messages)])
    assert plan_compaction(tier.metadata, replace(OPTIONS, input_bytes=3_000)) is None


async def test_compaction_comes_to_an_end() -> None:
    """Repeated compaction without new data stops by itself."""
    tier = Tier(MemoryObjectStore())
    for first in range(0, 300, 10):
        offsets = range(first, first + 10)
        await tier.add([queue_of(messages_of(1, queue, offsets)) for queue in (0, 1)])
    rounds = 0
    while await _compact(tier):
        rounds += 1
        assert rounds < 20
    assert len(list(tier.metadata.ranges(1, 0))) <= 10
    assert len(await _all_of(tier, 1, 0)) == 300


async def test_a_set_that_is_mostly_dead_is_written_again() -> None:
    """Retention of one topic frees the bytes that another topic's messages hold in place."""
    tier = Tier(MemoryObjectStore())
    big = messages_of(1, 0, range(50), body_bytes=400)
    await tier.add([queue_of(big), queue_of(messages_of(2, 0, range(3)))])
    assert plan_compaction(tier.metadata, OPTIONS) is None
    tier.apply(DropRanges([(1, 0, 50)], 8_000))
    assert await _compact(tier) == 1
    (held,) = [held for held in tier.metadata.objects() if held.live_ranges]
    assert held.ref.length < 2_000
    assert len(await _all_of(tier, 2, 0)) == 3


async def test_a_damaged_input_is_not_laundered() -> None:
    """A flipped byte in an input stops the compaction; nothing is written over it."""
    store = MemoryObjectStore()
    tier = Tier(store)
    refs = [
        await tier.add([queue_of(messages_of(1, 0, range(first, first + 10)))])
        for first in (0, 10, 20)
    ]
    data, modified_ms = store.bucket.objects[refs[1].key]
    damaged = data[:100] + bytes([data[100] ^ 1]) + data[101:]
    store.bucket.objects[refs[1].key] = damaged, modified_ms
    before = dict(store.bucket.objects)
    with pytest.raises(DamagedObjectError):
        await _compact(tier)
    assert store.bucket.objects == before


async def test_a_replacement_that_came_too_late_is_left_out() -> None:
    """Ranges that retention changed are not put back; the unchanged change would be refused."""
    tier = Tier(MemoryObjectStore())
    for first in (0, 10, 20):
        offsets = range(first, first + 10)
        await tier.add([queue_of(messages_of(1, queue, offsets)) for queue in (0, 1)])
    plan = plan_compaction(tier.metadata, OPTIONS)
    assert plan is not None
    (output,) = plan.outputs
    change = await write_output(
        Stores(tier.store), tier.metadata, HOME, RAFT_GROUP, output, CompactOptions(), 9_000
    )
    tier.apply(DropRanges([(1, 0, 12)], 9_500))
    kept = replaceable(tier.metadata, change.ranges)
    assert [each.queue for each in kept] == [1]
    with pytest.raises(ChangeError):
        tier.apply(change)
    tier.apply(replace(change, ranges=kept))
    assert len(await _all_of(tier, 1, 0)) == 18


async def test_a_replacement_that_is_there_already_is_left_out() -> None:
    """Asked once more, nothing is counted twice."""
    tier = Tier(MemoryObjectStore())
    for first in (0, 10, 20):
        await tier.add([queue_of(messages_of(1, 0, range(first, first + 10)))])
    plan = plan_compaction(tier.metadata, OPTIONS)
    assert plan is not None
    change = await write_output(
        Stores(tier.store),
        tier.metadata,
        HOME,
        RAFT_GROUP,
        plan.outputs[0],
        CompactOptions(),
        9_000,
    )
    assert replaceable(tier.metadata, change.ranges) == list(change.ranges)
    tier.apply(change)
    assert replaceable(tier.metadata, change.ranges) == []


async def test_compactions_side_by_side_share_no_object() -> None:
    """As many as are wanted or worth it; done in any order, every message is read back."""
    tier = Tier(MemoryObjectStore())
    for first in range(0, 120, 10):
        offsets = range(first, first + 10)
        queues = [queue_of(messages_of(1, queue, offsets)) for queue in (0, 1)]
        await tier.add(queues, time_ms=1_000 + first)
    options = replace(OPTIONS, input_bytes=3_500)
    name = ManifestName(RAFT_GROUP, 1, 1)

    def plans(most: int) -> list[CompactionPlan]:
        manifest = manifest_of(tier.metadata, HOME, name, 1, 1)
        return plan_compactions(manifest.metadata(), options, most)

    assert len(plans(2)) == 2
    planned = plans(100)
    inputs = [held.ref.object_id for plan in planned for held in plan.inputs]
    assert len(planned) >= 3
    assert len(inputs) == len(set(inputs))
    for plan in reversed(planned):
        for output in plan.outputs:
            change = await write_output(
                Stores(tier.store),
                tier.metadata,
                HOME,
                RAFT_GROUP,
                output,
                CompactOptions(),
                9_000,
            )
            assert replaceable(tier.metadata, change.ranges) == list(change.ranges)
            tier.apply(change)
    for queue in (0, 1):
        expected = {each.offset: each.stored for each in messages_of(1, queue, range(120))}
        assert await _all_of(tier, 1, queue) == expected


drawn_steps = st.lists(
    st.tuples(st.sampled_from(("add", "add", "compact", "drop", "sweep")), st.integers(0, 3)),
    min_size=5,
    max_size=25,
)


@settings(deadline=None, max_examples=25)
@given(steps=drawn_steps, seed=st.integers(0, 2**16))
@example(  # A set that would have been put together from itself alone.
    steps=[
        ("add", 3),
        ("drop", 1),
        ("add", 0),
        ("compact", 0),
        ("add", 2),
        ("add", 0),
        ("add", 3),
        ("add", 2),
        ("compact", 0),
        ("drop", 3),
        ("compact", 0),
    ],
    seed=3195,
)
async def test_any_life_of_a_tier_keeps_what_is_kept(
    steps: list[tuple[str, int]], seed: int
) -> None:
    """Uploads, compactions, drops and sweeps in any order: each kept message is read back."""
    chance = random.Random(seed)
    store = MemoryObjectStore()
    tier = Tier(store)
    model: dict[int, dict[int, bytes]] = {}
    firsts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for number, (what, queue) in enumerate(steps):
        now_ms = number * 1_000
        if what == "add":
            queues = []
            for each in range(queue + 1):
                first = ends.get(each, 5)
                offsets = sorted(chance.sample(range(first, first + 12), chance.randint(1, 8)))
                size = chance.choice((20, 60, 300))
                messages = [
                    Message(1, each, offset, body_bytes=size, time_ms=offset) for offset in offsets
                ]
                queues.append(queue_of(messages, first, first + 12))
                model.setdefault(each, {}).update({m.offset: m.stored for m in messages})
                firsts.setdefault(each, first)
                ends[each] = first + 12
            await tier.add(queues, time_ms=now_ms)
        elif what == "compact":
            await _compact(tier)
        elif what == "drop" and queue in ends:
            firsts[queue] = min(firsts[queue] + chance.randint(1, 20), ends[queue])
            tier.apply(DropRanges([(1, queue, firsts[queue])], now_ms))
        elif what == "sweep":
            dead = plan_deletes(tier.metadata, now_ms, TierRetentionOptions(grace_ms=2_000))
            ids = await delete_objects(Stores(store), HOME, dead)
            tier.apply(ForgetObjects(ids, now_ms))
    for queue, messages_by_offset in model.items():
        kept = {at: body for at, body in messages_by_offset.items() if at >= firsts[queue]}
        assert await _all_of(tier, 1, queue) == kept
    live = {held.ref.key for held in tier.metadata.objects()}
    assert live == set(store.bucket.objects)


async def test_dropped_objects_are_deleted_after_a_grace_time() -> None:
    """Only dropped objects go, the oldest first, not before their time, and then their rows."""
    store = MemoryObjectStore()
    tier = Tier(store)
    refs = [await tier.add([queue_of(messages_of(1, queue, [0]))]) for queue in range(3)]
    tier.apply(DropRanges([(1, 1, 1)], 5_000))
    tier.apply(DropRanges([(1, 0, 1)], 6_000))
    options = TierRetentionOptions(grace_ms=1_000)
    assert plan_deletes(tier.metadata, 5_999, options) == []
    dead = plan_deletes(tier.metadata, 7_000, options)
    assert [held.ref for held in dead] == [refs[1], refs[0]]
    assert plan_deletes(tier.metadata, 6_500, options) == dead[:1]
    del dead[1:]
    tier.apply(ForgetObjects(await delete_objects(Stores(store), HOME, dead), 7_000))
    assert sorted(store.bucket.objects) == sorted(ref.key for ref in (refs[0], refs[2]))
    assert [held.ref for held in plan_deletes(tier.metadata, 7_000, options)] == [refs[0]]


async def test_objects_of_another_home_are_never_deleted() -> None:
    """A restored cluster forgets what it dropped of the old one, and leaves it in the store."""
    store = MemoryObjectStore()
    tier = Tier(store)
    ref = await tier.add([queue_of(messages_of(1, 0, [0]))])
    tier.apply(DropRanges([(1, 0, 1)], 5_000))
    dead = plan_deletes(tier.metadata, 7_000, TierRetentionOptions(grace_ms=0))
    assert await delete_objects(Stores(store), "restored", dead) == [ref.object_id]
    assert list(store.bucket.objects) == [ref.key]


async def test_orphans_go_when_they_are_old() -> None:
    """Old objects that no state knows are deleted; young ones, known ones and others' are not."""
    store = MemoryObjectStore()
    tier = Tier(store)
    known = await tier.add([queue_of(messages_of(1, 0, [0]))])
    plan = plan_object(tier.author, [queue_of(messages_of(9, 0, [0]))], PlanOptions())
    young = set_key(HOME, RAFT_GROUP, 1, 11)
    other = set_key(HOME, RAFT_GROUP + 1, 1, 12)
    compacted = queue_object_key(HOME, RAFT_GROUP, (9, 0, 0), 13)
    for key, modified_ms in ((plan.key, 1_000), (young, 9_000), (other, 1_000), (compacted, 1_000)):
        store.bucket.objects[key] = b"bytes", modified_ms
    store.bucket.objects[known.key] = store.bucket.objects[known.key][0], 1_000
    options = TierRetentionOptions(orphan_ms=5_000)
    gone = await delete_orphans(store, tier.metadata, HOME, RAFT_GROUP, 10_000, options)
    assert gone == [plan.key, compacted]
    assert sorted(store.bucket.objects) == sorted((known.key, young, other))


async def test_foreign_objects_are_no_orphans() -> None:
    """Objects of others in the folders stay, also under names that no key may have."""
    store = MemoryObjectStore()
    tier = Tier(store)
    folders = object_folders(HOME, RAFT_GROUP)
    names = ("", "README", "my notes.set", "folder/", "backup.set", f"{11:016x}-{12:016x}.set.bak")
    foreign = [folder + name for folder in folders for name in names]
    orphan = set_key(HOME, RAFT_GROUP, 1, 11)
    for key in (*foreign, orphan):
        store.bucket.objects[key] = b"bytes", 1_000
    options = TierRetentionOptions(orphan_ms=5_000)
    gone = await delete_orphans(store, tier.metadata, HOME, RAFT_GROUP, 10_000, options)
    assert gone == [orphan]
    assert sorted(store.bucket.objects) == sorted(foreign)


async def test_only_old_objects_are_looked_up_in_a_search_for_orphans() -> None:
    """The tier state, which may be large, is not read whole."""
    asked: list[int] = []

    class Asked(RowTierMetadata):
        def object(self, object_id: int) -> TieredObject | None:
            asked.append(object_id)
            return super().object(object_id)

        def objects(self) -> Iterator[TieredObject]:
            raise AssertionError("all objects are read")

    store = MemoryObjectStore()
    tier = Tier(store)
    refs = [await tier.add([queue_of(messages_of(1, queue, [0]))]) for queue in range(3)]
    for ref, modified_ms in zip(refs, (1_000, 1_000, 9_000), strict=True):
        store.bucket.objects[ref.key] = b"bytes", modified_ms
    metadata, options = Asked(tier.rows, RAFT_GROUP), TierRetentionOptions(orphan_ms=5_000)
    assert not await delete_orphans(store, metadata, HOME, RAFT_GROUP, 10_000, options)
    assert sorted(asked) == sorted(ref.object_id for ref in refs[:2])
    assert set(store.bucket.objects) == {ref.key for ref in refs}


async def test_an_object_is_compared_after_its_upload() -> None:
    """A store that shows other bytes than were sent is found before anything is committed."""

    class Lying(MemoryObjectStore):
        async def get(self, key: str, position: int = 0, length: int | None = None) -> bytes:
            data = await super().get(key, position, length)
            return data[:-1] + bytes([data[-1] ^ 1])

    nothing = QueueRuns(1, 0, 5, 9, ())
    plan = plan_object(Author(HOME, RAFT_GROUP), [nothing], PlanOptions())
    assert (await put_object(MemoryObjectStore(), plan)).key == plan.key
    with pytest.raises(DamagedObjectError, match="not what was sent"):
        await put_object(Lying(), plan)
