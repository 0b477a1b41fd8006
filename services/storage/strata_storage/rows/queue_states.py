"""Applied queue rows with a bounded cache in front: a queue costs nothing until it is used."""

from __future__ import annotations

from collections import OrderedDict

from strata_mq.layout import QueueRow
from strata_state.ports import RowBatch
from strata_state.rows import QueueRows
from strata_storage.base.key_index import KeyIndex


class QueueStates:
    """Queue rows of one raft group as of the applied index.

    Args:
        rows: the stored rows.
        max_cached: rows kept in memory; the least lately used go first.
    """

    __slots__ = ("_by_topic", "_cached", "_max_cached", "_rows")

    def __init__(self, rows: QueueRows, max_cached: int) -> None:
        self._rows = rows
        self._max_cached = max_cached
        # None: known to have no row.
        self._cached: OrderedDict[tuple[int, int], QueueRow | None] = OrderedDict()
        self._by_topic: KeyIndex[tuple[int, int]] = KeyIndex()

    def __len__(self) -> int:
        return len(self._cached)

    def get(self, topic_id: int, queue: int) -> QueueRow | None:
        """Return a queue's row; None: nothing was ever stored in it here."""
        key, cached = (topic_id, queue), self._cached
        try:
            state = cached[key]
        except KeyError:
            state = self._rows.get(topic_id, queue)
            self._keep(key, state)
        else:
            cached.move_to_end(key)
        return state

    def put(self, batch: RowBatch, topic_id: int, queue: int, state: QueueRow) -> None:
        """Write a queue's row."""
        self._rows.put(batch, topic_id, queue, state)
        self._keep((topic_id, queue), state)

    def drop(self, batch: RowBatch, topic_id: int, queue: int) -> None:
        """Remove a queue's row."""
        self._rows.delete(batch, topic_id, queue)
        self._keep((topic_id, queue), None)

    def of_topic(self, topic_id: int) -> list[tuple[int, QueueRow]]:
        """Return (queue, row) of all queues of a topic that have a row in the store."""
        return self._rows.of_topic(topic_id)

    def drop_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Remove a topic's queue rows."""
        self._rows.delete_topic(batch, topic_id)
        for key in self._by_topic.pop(topic_id):
            del self._cached[key]

    def forget(self) -> None:
        """Empty the cache."""
        self._cached.clear()
        self._by_topic.clear()

    def _keep(self, key: tuple[int, int], state: QueueRow | None) -> None:
        if key in self._cached:
            self._cached[key] = state
            self._cached.move_to_end(key)
            return
        self._cached[key] = state
        self._by_topic.add(key[0], key)
        if len(self._cached) > self._max_cached:
            evicted, _ = self._cached.popitem(last=False)
            self._by_topic.discard(evicted[0], evicted)
