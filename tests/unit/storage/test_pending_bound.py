"""Where scans of waiting messages begin: no row below it, few tombstones behind it (rule 27)."""

from __future__ import annotations

import random

import pytest

from strata_mq.layout.batch import PartKind
from strata_mq.layout.pending_rows import PendingKey, PendingRow
from strata_state.memory_store import MemoryStore
from strata_state.rows import GroupRows
from strata_storage.rows.bound import PendingBound
from tests.unit.storage.waiting_leader import LeaderUnderTest

ROW = PendingRow(PartKind.DELAYED, 0, 7, -1, 0, 4, 32, 5, 1, 0, 0, b"\x01" * 17, 0)


@pytest.mark.parametrize("seed", range(5))
def test_no_row_is_ever_below_the_bound(seed: int) -> None:
    """Rows come and go in any order, also earlier ones than all before."""
    chance = random.Random(seed)
    print(f"seed {seed}")
    store = MemoryStore()
    rows = GroupRows(store, 1).pending
    bound = PendingBound(rows)
    waiting: list[PendingKey] = []
    moved = 0
    for step in range(60):
        batch = store.new_batch()
        for number in range(chance.randint(0, 200)):
            key = PendingKey(step * 10 + chance.randint(-50, 500), step, number)
            key = key._replace(due_ms=max(0, key.due_ms))
            bound.put(key)
            rows.put(batch, key, ROW)
            waiting.append(key)
        waiting.sort()
        for _ in range(min(len(waiting), chance.randint(0, 200))):
            bound.removed()
            rows.delete(batch, waiting.pop(0 if chance.random() < 0.9 else -1))
        store.write(batch)
        before = bound.key
        bound.written()
        moved += bound.key > before
        assert next(rows.keys(bound.key), None) == next(rows.keys(), None)
    assert moved


def test_after_other_rows_it_begins_anew() -> None:
    """A snapshot was installed, or a batch was not written."""
    store = MemoryStore()
    bound = PendingBound(GroupRows(store, 1).pending)
    for _ in range(1_000):
        bound.removed()
    bound.written()
    assert bound.key > PendingKey(10**15, 0, 0)
    bound.reset()
    assert bound.key == PendingKey(0, 0, 0)


async def test_apply_moves_the_bound_of_every_replica() -> None:
    """Delivered messages are passed; a message that is stored earlier is found."""
    leader = LeaderUnderTest()
    bodies = [b"%d" % number for number in range(1_500)]
    leader.submit(bodies, [leader.now_ms() + at for at in range(1_500)], PartKind.DELAYED)
    leader.commit()
    leader.clock.now_s = 1.2
    leader.timers.decide(sorted(leader.became)[:1_100], leader.now_ms())
    leader.commit()
    rows = leader.machine.rows.pending
    assert leader.now_ms() - 200 <= leader.machine.pending_bound.due_ms <= next(rows.keys()).due_ms
    leader.wait_for(b"earlier", -60_000)
    assert leader.machine.pending_bound == next(rows.keys())
