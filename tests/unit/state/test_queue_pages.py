"""A walk over all queues in pages sees each queue once, also while queues come."""

from __future__ import annotations

import random

from strata_mq.layout import QueueRow
from strata_state.memory_store import MemoryStore
from strata_state.rows import QueueRows


def row(next_offset: int) -> QueueRow:
    return QueueRow(0, next_offset, 0, 0, False)


def test_pages_of_queues_join_without_gaps() -> None:
    """Pages of any size give all queues of one raft group in order, and none of another."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chooser = random.Random(seed)
    store = MemoryStore()
    mine, other = QueueRows(store, 2), QueueRows(store, 3)
    keys = sorted({(chooser.randrange(1, 60), chooser.randrange(5)) for _ in range(150)})
    batch = store.new_batch()
    for number, key in enumerate(keys):
        mine.put(batch, *key, row(number))
        other.put(batch, *key, row(1_000))
    store.write(batch)
    for size in (1, 7, len(keys), 1_000):
        found: list[tuple[int, int, QueueRow]] = []
        place = None
        while page := mine.after(place, size):
            assert len(page) <= size
            found += page
            place = page[-1][:2]
        assert found == [(*key, row(number)) for number, key in enumerate(keys)]


def test_a_queue_behind_the_walk_comes_with_a_later_page() -> None:
    """Rows that are written between two pages show if the walk has not passed their place."""
    store = MemoryStore()
    rows = QueueRows(store, 1)
    batch = store.new_batch()
    for topic_id in (1, 5):
        rows.put(batch, topic_id, 0, row(1))
    store.write(batch)
    (first,) = rows.after(None, 1)
    batch = store.new_batch()
    rows.put(batch, 3, 0, row(2))
    rows.put(batch, 0, 0, row(2))
    store.write(batch)
    assert [each[0] for each in (first, *rows.after(first[:2], 9))] == [1, 3, 5]
