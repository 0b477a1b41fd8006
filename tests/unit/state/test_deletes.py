"""Few rows are deleted one by one, many as a range; both ways the same ones go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strata_mq.layout import HeadRow, MoveRow, QueueRow
from strata_state.memory_store import MemoryBatch, MemoryStore
from strata_state.ports import RowBatch
from strata_state.rows import GroupRows

FEW, MANY = 16, 17


class NotedBatch(MemoryBatch):
    """A batch that notes ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = 0

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self.ranges += 1
        super().delete_range(begin, end)


def filled(queues: int) -> tuple[MemoryStore, GroupRows]:
    """Rows of topics 6, 7 and 8 and consumer groups 2, 3 and 4, a row each for every queue."""
    store = MemoryStore()
    rows = GroupRows(store, 1)
    batch = store.new_batch()
    for topic_id in (6, 7, 8):
        for queue in range(queues):
            rows.queues.put(batch, topic_id, queue, QueueRow(9, 0, 0, 0))
            rows.moves.put(batch, topic_id, queue, MoveRow(1, 9, 2))
            rows.cq.put(batch, topic_id, 0, queue, b"row")
            rows.heads.put(batch, (topic_id - 4, 7, queue), HeadRow(9, 0))
    store.write(batch)
    return store, rows


@pytest.mark.parametrize("queues", [0, 1, FEW, MANY])
@pytest.mark.parametrize(
    "delete",
    [
        lambda rows, batch: rows.queues.delete_topic(batch, 7),
        lambda rows, batch: rows.moves.delete_topic(batch, 7),
        lambda rows, batch: rows.cq.delete_topic(batch, 7),
        lambda rows, batch: rows.cq.delete_queue(batch, 7, 0),
        lambda rows, batch: rows.cq.delete_below(batch, 7, 0, MANY),
        lambda rows, batch: rows.heads.delete_group(batch, 3),
    ],
    ids=["queues", "moves", "runs", "runs of a queue", "trimmed runs", "heads"],
)
def test_only_many_rows_are_a_range(
    delete: Callable[[GroupRows, RowBatch], None], queues: int
) -> None:
    """A deleted range costs every later read; so a topic or queue with few rows makes none."""
    store, rows = filled(queues)
    before = list(rows.all())
    batch = NotedBatch()
    delete(rows, batch)
    store.write(batch)
    assert batch.ranges == (queues == MANY)
    assert len(before) - len(list(rows.all())) == queues
