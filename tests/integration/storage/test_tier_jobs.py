"""Jobs outside ask a leader: it commits what is proven, and lets go what it dropped."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from strata.admin.v1 import admin_pb2
from strata.storage.v1 import storage_pb2 as pb
from strata.storage.v1 import tier_pb2
from strata_mq.tier_policy import TierLevel, TierPolicy
from strata_placement.jobs import compact_rows, sweep_rows
from strata_placement.source.runs import SourceError
from strata_storage.servicers.tiering import TierServicer
from strata_storage.tiering.options import OutsideOptions
from strata_storage.tiering.parts import FixedTierPolicies
from strata_storage.tiering.uploader import Uploader
from strata_testing import ManualClock
from strata_testing.storage_node import CONTEXT, GROUP, NodeUnderTest, node_under_test
from strata_tier.base.errors import TierError
from strata_tier.objects.state import (
    CommitRanges,
    ObjectRef,
    ReplaceRanges,
    TieredRange,
    encode_change,
)
from strata_tier.ranges.compaction import CompactionOptions, plan_compaction
from strata_tier.upkeep.compact import CompactOptions, write_output
from tests.integration.storage.tiered_node import (
    LOCAL_MS,
    Tier,
    fetch_all,
    retain,
    some_messages,
    tiered_node,
    upload,
    uploader_of,
)

HOME = "test"
SETS = 9
GRACE_S = 3_601

Answer = TypeVar("Answer")


def forced_tier(**config: object) -> Tier:
    """Return a tier that all reads go to, and that nodes do not compact."""
    policies = FixedTierPolicies(TierPolicy(TierLevel.FORCE, LOCAL_MS))
    return Tier(policies, **{"compaction": False, "home": HOME} | config)


async def fill_sets(node: NodeUnderTest, rng: random.Random) -> dict[int, list[bytes]]:
    """Upload small sets of two queues; return what each queue holds."""
    expected: dict[int, list[bytes]] = {1: [], 2: []}
    for _ in range(SETS):
        for queue, messages in expected.items():
            more = some_messages(rng, 5)
            await node.append(more, queue=queue)
            messages += more
        await upload(node)
    return expected


async def check_all(node: NodeUnderTest, expected: dict[int, list[bytes]]) -> None:
    """Check that readers get every message where it was."""
    for queue, messages in expected.items():
        assert await fetch_all(node, queue) == list(enumerate(messages))


def rpc_of(node: NodeUnderTest) -> TierServicer:
    """Return what answers jobs."""
    return node.server.handler(TierServicer)


def live_keys(node: NodeUnderTest) -> set[str]:
    """Return the objects that hold something that is needed."""
    metadata = node.app.node.engine(GROUP).machine.tier.metadata
    return {held.ref.key for held in metadata.objects() if held.live_ranges}


def state_of(node: NodeUnderTest) -> list[tuple[bytes, bytes]]:
    """Return all of the tier state."""
    return list(node.app.node.engine(GROUP).machine.tier.metadata.rows())


async def written(node: NodeUnderTest, salt: int = 1) -> ReplaceRanges:
    """Write the object of a compaction, as a job does; not committed."""
    metadata = node.app.node.engine(GROUP).machine.tier.metadata
    plan = plan_compaction(metadata, CompactionOptions(sets_min=1, ranges_per_run_min=1))
    assert plan is not None, "small sets are worth a compaction"
    (output,) = plan.outputs
    parts = node.app.node.tiering._parts
    assert parts is not None
    options = CompactOptions(salt=salt)
    now_ms = uploader_of(node).now_ms()
    return await write_output(parts.place.stores, metadata, HOME, GROUP, output, options, now_ms)


async def replaced(
    node: NodeUnderTest, change: ReplaceRanges | CommitRanges | bytes
) -> tier_pb2.ReplaceTierRangesResponse:
    """Ask for a commit."""
    data = change if isinstance(change, bytes) else encode_change(change)
    request = tier_pb2.ReplaceTierRangesRequest(raft_group=GROUP, change=data)
    return await rpc_of(node).replace_tier_ranges(request, CONTEXT)


async def planned(node: NodeUnderTest, *old_keys: str) -> tier_pb2.PlanTierSweepResponse:
    """Ask what may go."""
    request = tier_pb2.PlanTierSweepRequest(raft_group=GROUP, old_keys=old_keys)
    return await rpc_of(node).plan_tier_sweep(request, CONTEXT)


async def forgotten(node: NodeUnderTest, *object_ids: int) -> int:
    """Say that objects were deleted."""
    request = tier_pb2.ForgetTierObjectsRequest(raft_group=GROUP, object_ids=object_ids)
    response = await rpc_of(node).forget_tier_objects(request, CONTEXT)
    assert not response.HasField("refusal"), response.refusal
    return response.forgotten


class Leaders:
    """`TierLeaders` without a broker, for a thread beside the node's event loop."""

    def __init__(self, node: NodeUnderTest) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()

    def replace(self, raft_group: int, change: bytes) -> int:
        return self._wait(replaced(self._node, change)).replaced_ranges

    def plan_sweep(
        self, raft_group: int, old_keys: Sequence[str]
    ) -> admin_pb2.PlanTierSweepResponse:
        plan = self._wait(planned(self._node, *old_keys))
        doomed = [
            admin_pb2.DoomedObject(object_id=each.object_id, space=each.space, key=each.key)
            for each in plan.doomed
        ]
        return admin_pb2.PlanTierSweepResponse(
            doomed=doomed, orphan_keys=plan.orphan_keys, valid_ms=plan.valid_ms
        )

    def forget(self, raft_group: int, object_ids: Sequence[int]) -> int:
        return self._wait(forgotten(self._node, *object_ids))

    def _wait(self, asked: Coroutine[Any, Any, Answer]) -> Answer:
        answer = asyncio.run_coroutine_threadsafe(asked, self._loop).result(60)
        refusal = getattr(answer, "refusal", None)
        if refusal is not None and refusal.outcome:
            raise SourceError(refusal.reason)
        return answer


async def test_jobs_compact_and_sweep_what_a_node_leaves_to_them(tmp_path: Path) -> None:
    """Every message is where readers look for it, before, after, and when old objects are gone."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    folder = tmp_path / "bucket"
    url, tier = f"posix://{folder}", forced_tier(url=f"posix://{folder}")
    async with tiered_node(tmp_path / "node", tier) as node:
        expected = await fill_sets(node, random.Random(seed))
        small = live_keys(node)
        await retain(node)
        assert live_keys(node) == small, "nodes leave it to the job"
        assert len(small) == SETS
        leaders = Leaders(node)
        # Changes that are committed in one millisecond have one time.
        node.clock.advance(1)
        work, damaged = await asyncio.to_thread(compact_rows.work_of, url, "", 4, 7)
        assert damaged == []
        results = await asyncio.to_thread(compact_rows.compacted, url, work, leaders)
        assert [(each.refused, each.replaced_ranges) for each in results] == [("", 2)]
        assert len(live_keys(node)) == 1
        await check_all(node, expected)
        # A second run of the same manifest: all of it comes too late.
        after = state_of(node)
        again, _ = await asyncio.to_thread(compact_rows.work_of, url, "", 4, 8)
        late = await asyncio.to_thread(compact_rows.compacted, url, again, leaders)
        assert [(each.refused, each.replaced_ranges) for each in late] == [("", 0)]
        assert state_of(node) == after
        orphan = folder / late[0].key
        now_ms = int(orphan.stat().st_mtime * 1_000)
        groups, _ = await asyncio.to_thread(sweep_rows.work_of, url, "")
        node.clock.advance(GRACE_S)
        # Until then the newest manifest names the small objects as live.
        await node.app.node.tiering.flush(node.app.node.engine(GROUP))
        options = sweep_rows.SweepOptions(keys_at_once=4)
        # A young object may be on its way, whatever else is listed.
        os.utime(orphan, (1.0, 1.0))
        (dry,) = await asyncio.to_thread(
            sweep_rows.swept, url, groups, leaders, replace(options, is_dry=True), lambda: now_ms
        )
        assert (dry.listed, dry.old, dry.orphans, dry.doomed) == (SETS + 2, 1, 1, SETS)
        assert orphan.exists()
        (swept,) = await asyncio.to_thread(
            sweep_rows.swept, url, groups, leaders, options, lambda: now_ms
        )
        assert swept == sweep_rows.Swept(GROUP, SETS + 2, 1, 1, SETS, SETS)
        left = {str(path.relative_to(folder)) for path in folder.rglob("*.set")}
        assert left == live_keys(node)
        await check_all(node, expected)


async def test_what_is_proven_is_committed_once(tmp_path: Path) -> None:
    """A call that is repeated, after its answer was lost, changes nothing more."""
    tier = forced_tier()
    async with tiered_node(tmp_path, tier) as node:
        expected = await fill_sets(node, random.Random(41))
        change = await written(node)
        assert (await replaced(node, change)).replaced_ranges == 2
        after = state_of(node)
        assert (await replaced(node, change)).replaced_ranges == 0
        assert state_of(node) == after
        assert live_keys(node) == {change.ref.key}
        await check_all(node, expected)


async def test_a_dropped_object_never_serves_again(tmp_path: Path) -> None:
    """A change of long ago, whose object may be deleted at any time, comes too late."""
    async with tiered_node(tmp_path, forced_tier()) as node:
        expected = await fill_sets(node, random.Random(42))
        first, second = [
            replace(await written(node, salt), group_time_ms=1 << 60) for salt in (1, 2)
        ]
        assert first.ref.key != second.ref.key
        for change in (first, second):
            assert (await replaced(node, change)).replaced_ranges == 2
        after = state_of(node)
        assert (await replaced(node, first)).replaced_ranges == 0
        assert state_of(node) == after
        assert live_keys(node) == {second.ref.key}
        await check_all(node, expected)


def _renamed(change: ReplaceRanges, **ref: Any) -> ReplaceRanges:
    other: ObjectRef = replace(change.ref, **ref)
    ranges = [each._replace(object_id=other.object_id) for each in change.ranges]
    return ReplaceRanges(other, ranges, change.group_time_ms)


def _with_ranges(change: ReplaceRanges, of: Callable[[TieredRange], TieredRange]) -> ReplaceRanges:
    return replace(change, ranges=[of(each) for each in change.ranges])


WRONG: dict[str, tuple[Callable[[ReplaceRanges], bytes], str]] = {
    "no change": (lambda change: b"no change", "tier change"),
    "cut": (lambda change: encode_change(change)[:-1], "damaged"),
    "another change": (
        lambda change: encode_change(CommitRanges(change.ref, change.ranges, 0)),
        "a job may only replace ranges",
    ),
    "nothing": (lambda change: encode_change(replace(change, ranges=())), "0 ranges"),
    "a queue twice": (
        lambda change: encode_change(replace(change, ranges=[*change.ranges, *change.ranges])),
        "named twice",
    ),
    "another home": (
        lambda change: encode_change(_renamed(change, key=f"other{change.ref.key[4:]}")),
        "is no object of raft group",
    ),
    "another raft group's folder": (
        lambda change: encode_change(
            _renamed(change, key=change.ref.key.replace("sets/00000001", "sets/00000002"))
        ),
        "is no object of raft group",
    ),
    "another id": (
        lambda change: encode_change(_renamed(change, object_id=change.ref.object_id ^ 1)),
        "is no object of raft group",
    ),
    "another raft group": (
        lambda change: encode_change(_renamed(change, raft_group=GROUP + 1)),
        "is no object of raft group",
    ),
    "another space": (
        lambda change: encode_change(_renamed(change, space="acme")),
        "another space",
    ),
    "other bytes": (
        lambda change: encode_change(_renamed(change, length=change.ref.length - 1)),
        "were committed",
    ),
    "another root": (
        lambda change: encode_change(_renamed(change, root_checksum=change.ref.root_checksum ^ 1)),
        "root",
    ),
    "fewer messages": (
        lambda change: encode_change(
            _with_ranges(change, lambda each: each._replace(message_count=1))
        ),
        "readers have",
    ),
    "too many bytes": (
        lambda change: encode_change(
            _with_ranges(change, lambda each: each._replace(bodies_bytes=(1 << 64) - 1))
        ),
        "readers have",
    ),
    "other blocks": (
        lambda change: encode_change(
            _with_ranges(change, lambda each: each._replace(first_block=1 - each.first_block))
        ),
        "do not hold offsets",
    ),
}


async def test_what_is_wrong_changes_nothing(tmp_path: Path) -> None:
    """Each is refused with a reason; the right one is taken afterwards, and readers see no odds."""
    async with tiered_node(tmp_path, forced_tier()) as node:
        expected = await fill_sets(node, random.Random(43))
        before, change = state_of(node), await written(node)
        for name, (wrong, reason) in WRONG.items():
            response = await replaced(node, wrong(change))
            assert response.refusal.outcome == pb.OUTCOME_INVALID, name
            assert reason in response.refusal.reason, name
            assert state_of(node) == before, name
        assert (await replaced(node, change)).replaced_ranges == 2
        await check_all(node, expected)


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_damaged_object_is_not_committed(tmp_path: Path, *, is_gone: bool) -> None:
    """A changed byte anywhere in it is found before readers are sent there."""
    tier = forced_tier()
    async with tiered_node(tmp_path, tier) as node:
        expected = await fill_sets(node, random.Random(44))
        before, change = state_of(node), await written(node)
        stored, time_ms = tier.bucket.objects[change.ref.key]
        data = bytearray(stored)
        data[len(data) // 3] ^= 1
        tier.bucket.objects[change.ref.key] = bytes(data), time_ms
        if is_gone:
            del tier.bucket.objects[change.ref.key]
        response = await replaced(node, change)
        assert response.refusal.outcome == pb.OUTCOME_INVALID
        assert change.ref.key in response.refusal.reason
        assert state_of(node) == before
        await check_all(node, expected)


async def test_a_paused_tier_takes_nothing_and_gives_no_orphans(tmp_path: Path) -> None:
    """While uploads do not get on, what looks given up may still be committed."""
    async with tiered_node(tmp_path, forced_tier()) as node:
        await fill_sets(node, random.Random(45))
        change = await written(node)
        request = tier_pb2.SetTierPausedRequest(raft_group=GROUP, paused=True)
        await rpc_of(node).set_tier_paused(request, CONTEXT)
        response = await replaced(node, change)
        assert response.refusal.outcome == pb.OUTCOME_INVALID
        assert "paused" in response.refusal.reason
        assert not (await planned(node, change.ref.key)).orphan_keys
        request.paused = False
        await rpc_of(node).set_tier_paused(request, CONTEXT)
        assert (await replaced(node, change)).replaced_ranges == 2


async def test_only_what_nobody_committed_is_an_orphan(tmp_path: Path) -> None:
    """A job names keys: those that are live, foreign or no keys stay."""
    async with tiered_node(tmp_path, forced_tier()) as node:
        await fill_sets(node, random.Random(46))
        change = await written(node)
        own = change.ref.key
        others = [
            *live_keys(node),
            own.replace("test/", "other/"),
            own.replace("00000001", "00000002"),
            f"{HOME}/sets/00000001/README.md",
            "nothing",
        ]
        plan = await planned(node, *others, own)
        assert list(plan.orphan_keys) == [own]
        assert not plan.doomed
        many = await planned(node, *[own] * 1_001)
        assert many.refusal.outcome == pb.OUTCOME_INVALID
        assert "it may have 1000" in many.refusal.reason


async def test_nothing_is_committed_under_a_name_that_is_being_deleted(tmp_path: Path) -> None:
    """The sweep may delete it until its time is over; after that it can be committed."""
    async with tiered_node(tmp_path, forced_tier()) as node:
        expected = await fill_sets(node, random.Random(47))
        before, change = state_of(node), await written(node)
        plan = await planned(node, change.ref.key)
        assert list(plan.orphan_keys) == [change.ref.key]
        refused = await replaced(node, change)
        assert refused.refusal.outcome == pb.OUTCOME_OVERLOADED
        assert state_of(node) == before
        node.clock.advance(plan.valid_ms / 1_000 + 1)
        assert (await replaced(node, change)).replaced_ranges == 2
        await check_all(node, expected)


async def test_a_new_leader_writes_nothing_that_a_sweep_may_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier leader may have told a job of an object that nobody committed for days."""

    async def fails(*_: object) -> int:
        raise TierError("the leader ends here")

    clock, tier, rng = ManualClock(), forced_tier(), random.Random(49)
    messages = some_messages(rng, 5)
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        await node.append(messages, queue=1)
        with monkeypatch.context() as patch, pytest.raises(TierError, match="ends here"):
            patch.setattr(Uploader, "_commit", fails)
            await upload(node)
        (key,) = [key for key in tier.keys if "/sets/" in key]
    content, _ = tier.bucket.objects[key]
    long_ago_ms = clock.wall_ms() - 3 * 86_400_000
    tier.bucket.objects[key] = (content, long_ago_ms)
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        with pytest.raises(TierError, match="may be being deleted by a sweep"):
            await uploader_of(node).step()
        assert tier.bucket.objects[key] == (content, long_ago_ms), "it was not even written"
        clock.advance(OutsideOptions().lease_ms / 1_000 + 1)
        await upload(node)
        assert live_keys(node) == {key}
        await check_all(node, {1: messages})


async def test_only_what_was_dropped_long_ago_is_forgotten(tmp_path: Path) -> None:
    """Live objects, and objects that were dropped within the grace time, stay known."""
    async with tiered_node(tmp_path, forced_tier()) as node:
        expected = await fill_sets(node, random.Random(48))
        metadata = node.app.node.engine(GROUP).machine.tier.metadata
        small = [held.ref.object_id for held in metadata.objects()]
        change = await written(node)
        assert (await replaced(node, change)).replaced_ranges == 2
        live = change.ref.object_id
        before = state_of(node)
        assert not (await planned(node)).doomed
        assert await forgotten(node, *small, live, 12345) == 0
        assert state_of(node) == before
        node.clock.advance(GRACE_S)
        assert {each.object_id for each in (await planned(node)).doomed} == set(small)
        assert await forgotten(node, small[0], small[0], live, 12345) == 1
        assert {each.object_id for each in (await planned(node)).doomed} == set(small[1:])
        assert await forgotten(node, *small) == SETS - 1
        assert [held.ref.object_id for held in metadata.objects()] == [live]
        await check_all(node, expected)


async def test_who_does_not_lead_says_so(tmp_path: Path) -> None:
    """A raft group that is not hosted is refused, and so is everything without a tier."""
    async with tiered_node(tmp_path / "1", forced_tier()) as node:
        request = tier_pb2.PlanTierSweepRequest(raft_group=GROUP + 1)
        response = await rpc_of(node).plan_tier_sweep(request, CONTEXT)
        assert response.refusal.outcome == pb.OUTCOME_UNKNOWN_GROUP
    async with node_under_test(tmp_path / "2") as node:
        assert "no tier" in (await planned(node)).refusal.reason
        assert "no tier" in (await replaced(node, b"")).refusal.reason
