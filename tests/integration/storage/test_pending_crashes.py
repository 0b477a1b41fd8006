"""Power failures while messages wait and are resolved: what was answered stays (rules 1, 5, 6)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_state.memory_store import MemoryStore
from strata_testing import ManualClock
from strata_testing.simulated_disk import SimulatedDisk
from strata_testing.storage_node import GROUP, NodeUnderTest, node_under_test, small_config
from tests.integration.storage.waiting import delay, end, half, let_pass, pop_bodies

_MOMENTS_MAX = 12
COMMIT, ROLLBACK = pb.TRANSACTION_END_COMMIT, pb.TRANSACTION_END_ROLLBACK


@dataclass
class Promises:
    """Messages whose request was answered."""

    delayed: set[bytes] = field(default_factory=set)
    committed: set[bytes] = field(default_factory=set)
    rolled_back: set[bytes] = field(default_factory=set)
    # Halves that nobody ended, or whose end was not answered.
    open: set[bytes] = field(default_factory=set)

    def copy(self) -> Promises:
        return Promises(
            set(self.delayed), set(self.committed), set(self.rolled_back), set(self.open)
        )


@dataclass
class Moment:
    """Promises and files at the moment when the power failed."""

    promises: Promises
    store: MemoryStore
    disk: SimulatedDisk


async def work(node: NodeUnderTest, rng: random.Random, promises: Promises, seed: int) -> None:
    """Store delayed messages and halves, end some of the halves, let time pass."""
    names: list[tuple[bytes, pb.PendingRef]] = []
    for number in range(12):
        bodies = [b"delayed %d-%d-%d" % (seed, number, at) for at in range(rng.randrange(1, 4))]
        await delay(node, bodies, rng.randrange(3_000))
        promises.delayed.update(bodies)
        body = b"half %d-%d" % (seed, number)
        promises.open.add(body)
        names.append((body, await half(node, body, check_after_ms=3_600_000)))
        if rng.random() < 0.7:
            body, name = names.pop(rng.randrange(len(names)))
            how = rng.choice((COMMIT, ROLLBACK))
            assert not (await end(node, name, how)).HasField("refusal")
            promises.open.discard(body)
            (promises.committed if how == COMMIT else promises.rolled_back).add(body)
        let_pass(node, 0.4)
        if rng.random() < 0.3:
            await node.app.node.flush_once()


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_answered_is_lost_by_a_power_failure(tmp_path: Path, seed: int) -> None:
    """At every write and sync: delayed and committed ones come once, rolled back ones never."""
    print(f"seed {seed}")
    rng, promises, moments = random.Random(seed), Promises(), list[Moment]()
    clock, disk, store = ManualClock(), SimulatedDisk(seed), MemoryStore()

    def look(operation: str, name: str) -> None:
        if operation in ("write", "sync") and len(moments) < _MOMENTS_MAX and rng.random() < 0.25:
            crashed = disk.snapshot(len(moments))
            moments.append(Moment(promises.copy(), store.after_crash(), crashed))

    config = small_config()
    async with node_under_test(
        tmp_path, clock=clock, disk=disk, store=store, config=config
    ) as node:
        disk.on_call = look
        await work(node, rng, promises, seed)
    assert len(moments) > 5
    for moment in moments:
        await check_after(moment, tmp_path, clock)


async def check_after(moment: Moment, folder: Path, clock: ManualClock) -> None:
    """Start from what the power failure left, let all delays pass, read everything."""
    moment.disk.power_loss()
    config, promises = small_config(), moment.promises
    async with node_under_test(
        folder, clock=clock, disk=moment.disk, store=moment.store, config=config
    ) as node:
        let_pass(node, 10)
        found: list[bytes] = []
        while popped := await pop_bodies(node, wait_ms=100, invisible_ms=36_000_000):
            found += popped
        assert len(found) == len(set(found)), "a message came twice"
        given = set(found)
        assert promises.delayed <= given, "a delayed message is lost"
        assert promises.committed <= given, "a committed message is lost"
        assert not promises.rolled_back & given, "a rolled back message came"
        rows = node.app.node.engine(GROUP).machine.rows
        waiting = sum(1 for _ in rows.pending.scan())
        halves = {body for body in given if body.startswith(b"half")}
        # An end that was not answered may have happened.
        assert halves <= promises.committed | promises.open
        assert waiting >= len(promises.open - halves) - 1
