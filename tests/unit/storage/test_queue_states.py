"""The cache of queue rows: dropping a topic leaves the rows of others, cached or not."""

from __future__ import annotations

from strata_mq.layout import QueueRow
from strata_state.memory_store import MemoryStore
from strata_state.rows import QueueRows
from strata_storage.rows.queue_states import QueueStates

MAX_CACHED = 4


def row(number: int) -> QueueRow:
    return QueueRow(number, 0, 0, 0)


def test_a_dropped_topic_leaves_the_others() -> None:
    """Also when some of its rows, and some of theirs, were evicted and came back."""
    store = MemoryStore()
    states = QueueStates(QueueRows(store, 1), MAX_CACHED)
    batch = store.new_batch()
    for topic_id in (1, 2, 3):
        for queue in range(3):
            states.put(batch, topic_id, queue, row(10 * topic_id + queue))
    store.write(batch)
    assert len(states) == MAX_CACHED
    assert states.get(2, 0) == row(20)
    batch = store.new_batch()
    states.drop_topic(batch, 2)
    store.write(batch)
    kept = {(topic, queue): states.get(topic, queue) for topic in (1, 2, 3) for queue in range(3)}
    assert kept == {
        (topic, queue): None if topic == 2 else row(10 * topic + queue)
        for topic in (1, 2, 3)
        for queue in range(3)
    }
    assert len(states) == MAX_CACHED
    # The index of topics follows what is cached.
    assert len(states._by_topic) <= MAX_CACHED
