"""Rows of two replicas that are compared."""

from __future__ import annotations

from strata_mq.layout.rows import QueueRow
from strata_mq.slots import FIRST_LITE_QUEUE
from strata_sim.invariants.group_rows import replicated_rows
from strata_state.memory_store import MemoryStore
from strata_state.rows import GroupRows

RAFT_GROUP, TOPIC_ID, QUEUE = 3, 7, 1


def compared(min_offset: int, local_offset: int) -> list[tuple[bytes, bytes]]:
    store = MemoryStore()
    rows = GroupRows(store, RAFT_GROUP)
    batch = store.new_batch()
    rows.queues.put(batch, TOPIC_ID, QUEUE, QueueRow(20, min_offset, 0, 0))
    rows.tier.local.put(batch, TOPIC_ID, QUEUE, local_offset)
    store.write(batch)
    return list(replicated_rows(list(rows.all())))


def test_a_local_offset_counts_above_what_is_trimmed_only() -> None:
    """A rebuild raises it up to what the log gave up, which may be trimmed."""
    assert compared(7, 6) == compared(7, 7)
    assert compared(7, 8) != compared(7, 7)
    assert compared(5, 6) != compared(5, 7)


def test_ids_of_lite_topics_are_compared_until_those_end() -> None:
    """A rebuild finds no entries of a lite topic that ended, and its id rows go with their day."""

    def with_id(queue: int, *, is_there: bool) -> bool:
        store = MemoryStore()
        rows = GroupRows(store, RAFT_GROUP)
        batch = store.new_batch()
        if is_there:
            rows.queues.put(batch, TOPIC_ID, queue, QueueRow(1, 0, 0, 0))
        store.write(batch)
        before = list(replicated_rows(list(rows.all())))
        batch = store.new_batch()
        rows.ids.put_run(batch, 20_000, TOPIC_ID, (bytes(17),), queue, 0)
        store.write(batch)
        return list(replicated_rows(list(rows.all()))) != before

    assert with_id(FIRST_LITE_QUEUE + 2, is_there=True)
    assert not with_id(FIRST_LITE_QUEUE + 2, is_there=False)
    assert with_id(QUEUE, is_there=False)
