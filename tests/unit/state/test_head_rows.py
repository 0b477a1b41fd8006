"""Head rows of a topic are found among those of many topics and consumer groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from strata_mq.layout import HeadRow
from strata_state.memory_store import MemoryStore
from strata_state.ports import Row
from strata_state.rows import ConsumerKey, HeadRows

LAST = 2**32 - 1
NUMBERS = st.sampled_from((0, 1, 2, 3, 255, 256, LAST - 1, LAST))
KEYS = st.tuples(NUMBERS, st.integers(0, 60) | NUMBERS, st.integers(0, 3))


class CountingStore(MemoryStore):
    """Counts the rows that scans give."""

    rows_read = 0

    def scan(self, begin: bytes, end: bytes) -> Iterator[Row]:
        for row in super().scan(begin, end):
            self.rows_read += 1
            yield row


def put_all(store: MemoryStore, raft_group: int, keys: Sequence[ConsumerKey]) -> HeadRows:
    rows, batch = HeadRows(store, raft_group), store.new_batch()
    for key in keys:
        rows.put(batch, key, HeadRow(1, 1))
    store.write(batch)
    return rows


@given(st.lists(KEYS, max_size=200, unique=True), st.integers(0, 60) | NUMBERS)
def test_all_of_a_topic_and_no_other(keys: list[ConsumerKey], topic_id: int) -> None:
    store = MemoryStore()
    rows = put_all(store, 7, keys)
    put_all(store, 8, [(1, topic_id, 9)])
    assert rows.of_topic(topic_id) == sorted(key for key in keys if key[1] == topic_id)


def test_a_group_of_many_topics_is_not_read_whole() -> None:
    """Dropping a topic once read every position of every consumer group."""
    store = CountingStore()
    keys = [(group, topic_id, 0) for group in (1, 2) for topic_id in range(10_000)]
    rows = put_all(store, 1, keys)
    assert rows.of_topic(5_000) == [(1, 5_000, 0), (2, 5_000, 0)]
    assert store.rows_read < 100
