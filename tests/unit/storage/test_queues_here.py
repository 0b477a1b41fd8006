"""Which queues a pop of "any queue" covers in a raft group."""

from __future__ import annotations

from collections.abc import Callable

from strata_mq.rows import QueueRow
from strata_state.flush import Flusher
from strata_state.memory_store import MemoryStore
from strata_storage.machine import GroupMachine

GROUP = 3
DEAD_LETTERS, MOVED = 7, 8


async def run_here(work: Callable[[], None]) -> None:
    work()


def test_a_queue_that_moved_in_is_no_dead_letter_queue() -> None:
    """Both may bear the raft group's number; only the dead letters' is covered (rule 26)."""
    store = MemoryStore()
    machine = GroupMachine(
        store,
        GROUP,
        Flusher(store, run_here),
        queue_rows_max=10,
        cq_cache_bytes=1_000,
        broker_row_age_ms=1,
        on_leader=lambda term: None,
        on_follower=lambda term, leader: None,
    )
    batch = store.new_batch()
    machine.rows.queues.put(batch, DEAD_LETTERS, GROUP, QueueRow(5, 0, 0, 0))
    machine.rows.queues.put(batch, MOVED, GROUP, QueueRow(9, 4, 0, 1))
    store.write(batch)
    assert list(machine.queues_here(DEAD_LETTERS, 0, 0)) == [GROUP]
    assert list(machine.queues_here(MOVED, 0, 8)) == []
