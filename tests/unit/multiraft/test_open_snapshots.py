"""Snapshots whose calls are cut: they expire, free their place and close their rows, always."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from strata_multiraft.base.errors import SnapshotRefused
from strata_multiraft.base.snapshots import SnapshotFetch, SnapshotPart, SnapshotRows, SnapshotStart
from strata_sim.rows_machine import RowsMachine, RowsReader
from strata_testing import until
from tests.unit.multiraft.test_snapshots import OPTIONS, Cluster, expected

CLOSER = "multiraft.snapshot-close"


class Giver:
    """Node 1, which leads, with every reader that it opened."""

    def __init__(self, node: Any, machine: RowsMachine, patch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.multiraft = node.multiraft
        self.tasks = node.multiraft._tasks
        self.readers: list[RowsReader] = []

        def open_snapshot() -> RowsReader:
            self.readers.append(RowsMachine.open_snapshot(machine))
            return self.readers[-1]

        patch.setattr(machine, "open_snapshot", open_snapshot)

    def parts(self, target: int, rows_after: bytes = b"") -> Any:
        return self.multiraft.snapshot_parts(SnapshotFetch(1, 1, target, 21, 1, rows_after, 0))

    async def cut_call(self, target: int, rows_after: bytes = b"") -> None:
        """Make a call that ends after its first part."""
        parts = self.parts(target, rows_after)
        assert isinstance(await anext(parts), SnapshotStart)
        await parts.aclose()

    def open_count(self) -> int:
        return sum(not reader.is_closed for reader in self.readers)

    def fill_tasks(self) -> None:
        """Let other work take every task that is left."""
        while len(self.tasks) < self.tasks._max_tasks:
            self.tasks.spawn("other", asyncio.Event().wait())


@pytest.fixture
async def giver(
    make_node: Any,
    settled: Callable[[], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Giver]:
    """Yield a node with one raft group, as a nameserver is; the parameter is its idle time."""
    options = replace(OPTIONS, max_raft_groups=1, snapshot_idle_ms=request.param)
    cluster = Cluster(make_node, settled, options)
    for node in cluster.nodes.values():
        await node.multiraft.start()
    await cluster.leave_behind()
    giver = Giver(cluster.nodes[1], cluster.machines[1], monkeypatch)
    yield giver
    giver.node.gate.open()
    for node in cluster.nodes.values():
        await node.multiraft.stop()
    assert giver.node.fatal == []


def idle_ms(value: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("giver", [value], indirect=True)


def payloads(parts: list[SnapshotPart]) -> list[bytes]:
    return [value for part in parts if isinstance(part, SnapshotRows) for value in part.values]


@idle_ms(10_000)
async def test_cut_calls_take_no_tasks(giver: Giver) -> None:
    """A flaky link cuts many calls; the snapshots stay open and cost one task together."""
    loops = [name for name in giver.tasks.names if name != CLOSER]
    for target in (8, 9):
        await giver.cut_call(target)
        for _ in range(20):
            await giver.cut_call(target, rows_after=b"\x00")
    assert giver.tasks.names == sorted([*loops, CLOSER])
    assert len(giver.readers) == giver.open_count() == 2
    assert payloads([part async for part in giver.parts(8, rows_after=b"\x00")]) == expected(20)
    await until(lambda: giver.open_count() == 1)
    assert [reader.is_closed for reader in giver.readers] == [True, False]


@idle_ms(20)
async def test_snapshots_expire_when_no_task_is_left(giver: Giver) -> None:
    """Places come back, rows are closed and the node lives, with any other work beside it."""
    await giver.cut_call(8)
    giver.fill_tasks()
    for _ in range(8):
        await giver.cut_call(8, rows_after=b"\x00")
    await giver.cut_call(9)
    with pytest.raises(SnapshotRefused, match="max_snapshots_open"):
        await giver.cut_call(7)
    await until(lambda: giver.open_count() == 0)
    assert giver.node.fatal == []
    await giver.cut_call(7)
    await giver.cut_call(6)
    assert [reader.is_closed for reader in giver.readers] == [True, True, False, False]


@idle_ms(60)
async def test_a_resumed_call_outlives_the_expiry_of_the_cut_one(giver: Giver) -> None:
    """The wait for a target ends when it calls, and begins anew when that call is cut."""
    await giver.cut_call(8)
    parts = giver.parts(8, rows_after=b"\x00")
    assert isinstance(await anext(parts), SnapshotStart)
    await asyncio.sleep(0.15)
    assert giver.open_count() == 1
    await parts.aclose()
    assert payloads([part async for part in giver.parts(8, rows_after=b"\x00")]) == expected(20)
    assert len(giver.readers) == 1
    await until(lambda: giver.open_count() == 0)


@idle_ms(10_000)
async def test_a_slow_disk_bounds_the_rows_that_are_held(giver: Giver) -> None:
    """A target that begins anew again and again is refused until earlier rows are closed."""
    giver.node.gate.close()
    with pytest.raises(SnapshotRefused, match="still being closed"):
        for _ in range(20):
            await giver.cut_call(8)
    assert giver.open_count() == len(giver.readers) == 4
    giver.node.gate.open()
    await until(lambda: giver.open_count() == 0)
    await giver.cut_call(8)
    assert giver.open_count() == 1


@idle_ms(10_000)
async def test_a_stop_closes_all_rows(giver: Giver) -> None:
    """Rows of a call under way, of a cut one and of one being closed go, though one refuses."""
    await giver.cut_call(8)
    under_way = giver.parts(9)
    assert isinstance(await anext(under_way), SnapshotStart)
    giver.node.gate.close()
    await giver.cut_call(8)
    await until(lambda: giver.node.gate.waiting == 1)
    assert giver.open_count() == 3
    stopping = asyncio.ensure_future(giver.multiraft.stop())
    await asyncio.sleep(0.01)
    giver.node.gate.open()
    await stopping
    assert [reader.is_closed for reader in giver.readers] == [True, True, True]
    with pytest.raises(SnapshotRefused, match="the node stops"):
        await anext(under_way)


@idle_ms(10_000)
async def test_rows_that_cannot_be_closed_keep_no_others_open(
    giver: Giver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop reports the failure after it has closed the rest."""

    def refuse() -> None:
        raise OSError("the cursor is broken")

    for target in (8, 9):
        await giver.cut_call(target)
    monkeypatch.setattr(giver.readers[0], "close", refuse)
    with pytest.raises(OSError, match="the cursor is broken"):
        await giver.multiraft.stop()
    assert giver.readers[1].is_closed
