"""Uploads that are cut off, doubled or damaged: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands.common import CommandKind, command_kind
from strata_mq.commands.rare import DropKind
from strata_mq.commands.tier import TierChangeCommand, encode_tier_change
from strata_state.memory_store import MemoryStore
from strata_state.ports import StateError
from strata_storage.base.errors import Refused
from strata_storage.leading.proposer import Proposer
from strata_storage.rows.tier_state import StaleEntry, StaleEntryError
from strata_storage.tiering.sources import queue_runs
from strata_storage.tiering.uploader import Uploader
from strata_storage.tiering.uploads import ObjectUploads
from strata_storage.upkeep.retention import FixedRetention
from strata_testing import ManualClock, until
from strata_testing.simulated_disk import SimulatedDisk
from strata_testing.storage_node import GROUP, NodeUnderTest
from strata_tier.objects.names import DEFAULT_SPACE
from strata_tier.objects.spaces import Stores
from strata_tier.objects.state import (
    CommitRanges,
    DropTopics,
    ObjectRef,
    TierChange,
    TieredObject,
    TieredQueue,
    TieredRange,
    encode_change,
)
from strata_tier.store.drivers.memory import MemoryObjectStore
from strata_tier.store.ports import Body, ObjectInfo, StoreUnavailableError
from tests.integration.storage.tiered_node import (
    Tier,
    empty_log,
    fetch_all,
    fill,
    is_uploaded,
    retain,
    tiered_node,
    upload,
    uploader_of,
)

STEPS = ("before the dispatch", "before the put", "half way", "before the commit", "after it")


class HaltingStore(MemoryObjectStore):
    """A store at which an upload comes to a halt."""

    def __init__(self, tier: Tier, step: str, halted: Callable[[], None]) -> None:
        super().__init__(tier.bucket)
        self._step = step
        self._halted = halted

    async def put(
        self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False
    ) -> ObjectInfo:
        if self._step == "half way":
            assert callable(body)
            sent = 0
            async for part in body():
                sent += len(part)
                if sent > 1_000_000:
                    break
        if self._step in ("before the put", "half way"):
            self._halt(key)
        info = await super().put(key, body, size_bytes=size_bytes)
        if self._step == "before the commit":
            self._halt(key)
        return info

    def _halt(self, key: str) -> None:
        self._halted()
        raise StoreUnavailableError(self.name, key, "halted")


def uploads_of(node: NodeUnderTest) -> ObjectUploads:
    """Return what brings objects to the store."""
    return uploader_of(node)._uploads


def committed_keys(node: NodeUnderTest) -> set[str]:
    """Return the objects that the raft group knows."""
    metadata = node.app.node.engine(GROUP).machine.tier.metadata
    return {held.ref.key for held in metadata.objects()}


def sets_in(tier: Tier) -> set[str]:
    """Return the objects with messages that are in the store."""
    return {key for key in tier.keys if key.endswith(".set")}


@pytest.mark.parametrize("step", STEPS)
async def test_a_node_that_dies_while_it_uploads_leaves_one_object(
    tmp_path: Path, step: str
) -> None:
    """Killed at any step, the node that starts again brings all to the tier, once."""
    rng, tier, clock = random.Random(11), Tier(), ManualClock()
    disk, rows = SimulatedDisk(1), MemoryStore()
    crashed: list[tuple[SimulatedDisk, MemoryStore]] = []

    def halted() -> None:
        crashed.append((disk.snapshot(1), rows.after_crash()))

    async with tiered_node(tmp_path, tier, clock=clock, disk=disk, store=rows) as node:
        expected = await fill(node, rng, 26)
        if step == "before the dispatch":
            halted()
        elif step == "after it":
            await upload(node)
            halted()
        else:
            uploads_of(node)._stores = Stores(HaltingStore(tier, step, halted))
            with pytest.raises(StoreUnavailableError):
                await upload(node)
    disk, rows = crashed[0]
    disk.power_loss()
    async with tiered_node(tmp_path, tier, clock=clock, disk=disk, store=rows) as node:
        await upload(node)
        assert sets_in(tier) == committed_keys(node)
        await empty_log(node)
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))


async def test_two_uploads_of_one_dispatch_are_one_object(tmp_path: Path) -> None:
    """A leader that was deposed and its successor write the same bytes under the same name."""
    rng, tier = random.Random(12), Tier()
    async with tiered_node(tmp_path, tier) as node:
        await fill(node, rng, 3)
        node.clock.advance(31)
        uploader = uploader_of(node)
        # Nobody else uploads meanwhile.
        async with uploader._stepping:
            assert await uploader._dispatch()
            engine = node.app.node.engine(GROUP)
            dispatch = engine.machine.tier.dispatch
            rows = uploader._machine.consume_queues
            queues = [await queue_runs(rows, each, 500) for each in dispatch]
            plan = await uploads_of(node).plan(GROUP, queues, DEFAULT_SPACE)
            deposed = await uploads_of(node).upload(engine.replica_id, plan)
            before = {key: value[0] for key, value in tier.bucket.objects.items()}
            await uploader._upload(dispatch)
        assert {key: value[0] for key, value in tier.bucket.objects.items()} == before
        # The deposed one comes too late: its ranges are committed already.
        assert committed_keys(node) == {deposed.key}


async def test_a_stale_entry_changes_nothing(tmp_path: Path) -> None:
    """A commit that doubles a range is answered; the replica serves and uploads as before."""
    rng, tier = random.Random(13), Tier()
    async with tiered_node(tmp_path, tier) as node:
        expected = await fill(node, rng, 13)
        await upload(node)
        engine, uploader = node.app.node.engine(GROUP), uploader_of(node)
        (held,) = engine.machine.tier.metadata.objects()
        ranges = list(engine.machine.tier.metadata.ranges(7, 1))
        change = encode_change(CommitRanges(held.ref, ranges, 1))
        async with uploader.turn:
            with pytest.raises(StaleEntryError, match="is tiered up to"):
                await uploader.propose(encode_tier_change(TierChangeCommand(False, change)))
        assert list(engine.machine.tier.metadata.objects()) == [held]
        assert not engine.replica.read_only
        for queue, messages in (await fill(node, rng, 13)).items():
            expected[queue] += messages
        await upload(node)
        await empty_log(node)
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))


@pytest.mark.parametrize("overtaken", [CommandKind.TIER_DISPATCH, CommandKind.TIER_CHANGE])
async def test_an_uploader_that_is_overtaken_looks_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overtaken: CommandKind
) -> None:
    """The uploader goes on after any entry before its own, and everything is in the tier."""
    rng, tier = random.Random(17), Tier(flush_age_ms=100)
    async with tiered_node(tmp_path, tier) as node:
        propose, doubled = Proposer.propose, 0

        def twice(
            self: Proposer, payload: tuple[bytes, ...], *rest: Callable[[], None]
        ) -> asyncio.Future[int]:
            nonlocal doubled
            if command_kind(payload[0]) == overtaken and not doubled:
                doubled += 1
                propose(self, payload)
            return propose(self, payload, *rest)

        monkeypatch.setattr(Proposer, "propose", twice)
        expected = await fill(node, rng, 26)

        def is_uploaded_later() -> bool:
            node.clock.advance(1)
            return is_uploaded(node)

        await until(is_uploaded_later, step_s=0.05)
        assert doubled == 1
        assert sets_in(tier) == committed_keys(node)
        await empty_log(node)
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))


async def test_a_rescan_that_fails_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that cannot be read just after an entry came too late do not end the uploads."""
    rng, tier = random.Random(19), Tier(flush_age_ms=100)
    async with tiered_node(tmp_path, tier) as node:
        commit, rescan = Uploader._commit, Uploader._rescan
        commits = rescans = 0

        async def stale_once(self: Uploader, ref: ObjectRef, ranges: Sequence[TieredRange]) -> int:
            nonlocal commits
            commits += 1
            if commits == 1:
                raise StaleEntryError(StaleEntry(1, "a test says so"))
            return await commit(self, ref, ranges)

        async def failing_once(self: Uploader) -> None:
            nonlocal rescans
            rescans += 1
            if rescans == 1:
                raise StateError("not now")
            await rescan(self)

        monkeypatch.setattr(Uploader, "_commit", stale_once)
        monkeypatch.setattr(Uploader, "_rescan", failing_once)
        await fill(node, rng, 1)

        def is_uploaded_later() -> bool:
            node.clock.advance(1)
            return is_uploaded(node)

        await until(is_uploaded_later, step_s=0.05)
        assert rescans == 2
        assert sets_in(tier) == committed_keys(node)


async def test_a_commit_of_many_queues_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ends between two of its entries is gone on with; every message is there once."""
    rng, tier = random.Random(18), Tier()
    async with tiered_node(tmp_path, tier) as node:
        uploader = uploader_of(node)
        monkeypatch.setattr(uploader, "_options", replace(uploader._options, ranges_per_entry=1))
        propose, changes = Proposer.propose, 0

        def refusing(
            self: Proposer, payload: tuple[bytes, ...], *rest: Callable[[], None]
        ) -> asyncio.Future[int]:
            nonlocal changes
            if command_kind(payload[0]) == CommandKind.TIER_CHANGE:
                changes += 1
                if changes == 2:
                    raise Refused(pb.OUTCOME_OVERLOADED, "not now")
            return propose(self, payload, *rest)

        monkeypatch.setattr(Proposer, "propose", refusing)
        expected = await fill(node, rng, 26)
        with pytest.raises(Refused):
            await upload(node)
        tiered = node.app.node.engine(GROUP).machine.tier
        assert [tiered.commit_offset(7, queue) is None for queue in expected] == [False, True]
        await upload(node)
        assert is_uploaded(node)
        assert sets_in(tier) == committed_keys(node)
        await empty_log(node)
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))


async def test_a_damaged_copy_is_uploaded_again_from_the_log(tmp_path: Path) -> None:
    """One flipped byte is found before the log gives anything up, and repaired."""
    rng, tier = random.Random(14), Tier()
    async with tiered_node(tmp_path, tier) as node:
        expected = await fill(node, rng, 26)
        await upload(node)
        for key in sets_in(tier):
            data, time_ms = tier.bucket.objects[key]
            at = rng.randrange(len(data) // 2)
            flipped = data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]
            tier.bucket.objects[key] = flipped, time_ms
        node.clock.advance(61)
        await retain(node)
        await empty_log(node)
        assert sets_in(tier) == committed_keys(node)
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))


async def test_what_is_trimmed_leaves_the_store_after_a_while(tmp_path: Path) -> None:
    """Objects of which retention left nothing are deleted, others stay."""
    rng, tier, clock = random.Random(15), Tier(), ManualClock()
    retention = FixedRetention(200_000)
    async with tiered_node(tmp_path, tier, clock=clock, retention=retention) as node:
        await fill(node, rng, 3)
        await upload(node)
        old = sets_in(tier)
        clock.advance(200)
        await fill(node, rng, 3)
        await upload(node)
        new = sets_in(tier) - old
        assert old
        assert new
        for _ in range(3):
            await retain(node)
        assert sets_in(tier) == old | new
        clock.advance(tier.config.delete_grace_ms / 1_000)
        metadata = node.app.node.engine(GROUP).machine.tier.metadata
        assert {held.ref.key for held in metadata.objects() if held.dropped_at_ms} == old
        led, now_ms = node.app.node.tiering._led[GROUP], uploader_of(node).now_ms()
        await led.publisher.publish()
        await led.retention._delete(now_ms)
        assert sets_in(tier) == new
        assert committed_keys(node) == new


async def test_a_paused_raft_group_uploads_nothing(tmp_path: Path) -> None:
    """Paused by an entry, also after a restart, until it is resumed."""
    rng, tier, clock = random.Random(16), Tier(), ManualClock()
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        await node.app.node.tiering.pause(node.app.node.engine(GROUP), paused=True)
        await fill(node, rng, 2)
        await upload(node)
        assert not tier.keys
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        await upload(node)
        assert not tier.keys
        await node.app.node.tiering.pause(node.app.node.engine(GROUP), paused=False)
        await upload(node)
        assert sets_in(tier)


async def test_deletions_are_planned_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread reads the objects; one that is another one by then is not deleted."""
    rng, tier = random.Random(20), Tier()
    threads: list[int] = []
    async with tiered_node(tmp_path, tier) as node:
        await fill(node, rng, 3)
        await upload(node)
        metadata = node.app.node.engine(GROUP).machine.tier.metadata

        def planned(*_: object) -> list[TieredObject]:
            threads.append(threading.get_ident())
            # As if they were committed once more since.
            return [replace(held, live_ranges=0, dropped_at_ms=1) for held in metadata.objects()]

        monkeypatch.setattr("strata_storage.tiering.retain.plan_deletes", planned)
        before = sets_in(tier)
        assert before
        await node.app.node.tiering._led[GROUP].retention._delete(uploader_of(node).now_ms())
        assert sets_in(tier) == committed_keys(node) == before
    assert threads
    assert threading.get_ident() not in threads


async def test_a_drop_of_many_topics_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry drops a bounded number of topics, and all of them are dropped."""
    changes: list[TierChange] = []

    async def taken(make: Callable[[int], TierChange]) -> None:
        changes.append(make(7))

    async with tiered_node(tmp_path, Tier()) as node:
        retention = node.app.node.tiering._led[GROUP].retention
        topic_ids = range(100, 550)
        metadata = SimpleNamespace(
            queues=lambda: iter([((each, 0), TieredQueue(0, 1)) for each in topic_ids])
        )
        machine = SimpleNamespace(
            tier=SimpleNamespace(metadata=metadata),
            queues=SimpleNamespace(get=lambda *_: None),
            dropped={(DropKind.TOPIC, each) for each in topic_ids},
        )
        with monkeypatch.context() as patch:
            patch.setattr(retention, "_machine", machine)
            patch.setattr(retention, "_change", taken)
            await retention._drop()
    whole = list(topic_ids)
    assert changes == [DropTopics(each, 7) for each in (whole[:200], whole[200:400], whole[400:])]
