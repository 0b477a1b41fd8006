"""Where the messages of a queue are: CQ rows, the newest ones from memory (bounded).

A pop reads the columns of the rows that follow its head. Consumers mostly read what was just
appended, so the newest rows of active queues are kept as apply wrote them.

Invariant: the cached rows of a queue are its newest ones, all of them from the first cached on.
Offsets below the queue's next offset that no row covers hold nothing: a repair gave them up, or
their messages were taken back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from strata_mq.layout import CqRow
from strata_state.ports import RowBatch
from strata_state.rows import CqRows
from strata_storage.base.key_index import KeyIndex

# Bytes of a cached row beyond its columns, and per message; unpacked columns are counted in.
_ROW_OVERHEAD_BYTES = 400
_ROW_MESSAGE_BYTES = 60

Run = tuple[int, CqRow]
"""(base offset, row)."""


class _Tail:
    """The newest rows of one queue."""

    __slots__ = ("bases", "rows", "size_bytes")

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.rows: list[CqRow] = []
        self.size_bytes = 0

    def drop_first(self, count: int) -> int:
        """Remove the oldest rows; return their bytes."""
        dropped = sum(_row_bytes(row) for row in self.rows[:count])
        del self.bases[:count]
        del self.rows[:count]
        self.size_bytes -= dropped
        return dropped

    def put_in_place(self, base_offset: int, pieces: Sequence[Run]) -> None:
        """Put smaller rows in the place of one that is in here."""
        at = bisect_left(self.bases, base_offset)
        old = self.rows[at]
        self.bases[at : at + 1] = [base for base, _ in pieces]
        self.rows[at : at + 1] = [row for _, row in pieces]
        self.size_bytes += sum(_row_bytes(row) for _, row in pieces) - _row_bytes(old)


class ConsumeQueues:
    """CQ rows of one raft group.

    Args:
        rows: the stored rows.
        max_bytes: memory for cached rows; the queues appended to longest ago lose theirs first.
    """

    __slots__ = ("_by_topic", "_max_bytes", "_rows", "_tails", "size_bytes")

    def __init__(self, rows: CqRows, max_bytes: int) -> None:
        self._rows = rows
        self._max_bytes = max_bytes
        self._tails: OrderedDict[tuple[int, int], _Tail] = OrderedDict()
        self._by_topic: KeyIndex[tuple[int, int]] = KeyIndex()
        self.size_bytes = 0

    def added(self, topic_id: int, queue: int, base_offset: int, value: bytes) -> None:
        """Take in a row that apply writes."""
        key = (topic_id, queue)
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = _Tail()
            self._by_topic.add(topic_id, key)
        else:
            self._tails.move_to_end(key)
        row = CqRow(value)
        row_bytes = _row_bytes(row)
        tail.bases.append(base_offset)
        tail.rows.append(row)
        tail.size_bytes += row_bytes
        self.size_bytes += row_bytes
        if self.size_bytes > self._max_bytes:
            self._evict()

    def runs(self, topic_id: int, queue: int, first: int, count: int) -> list[Run]:
        """Return the rows that hold offsets first .. first + count - 1, as far as there are any."""
        found: list[Run] = []
        end = first + count
        for base, row in self.from_offset(topic_id, queue, first):
            if base >= end:
                break
            found.append((base, row))
        return found

    def next_run(self, topic_id: int, queue: int, offset: int) -> Run | None:
        """Return the row that holds an offset, or the next one; None: there is none.

        The next one only if a repair of the log gave up what lies between.
        """
        return next(iter(self.from_offset(topic_id, queue, offset)), None)

    def covering(self, topic_id: int, queue: int, offset: int) -> Run | None:
        """Return the row that holds one offset."""
        return next(iter(self.runs(topic_id, queue, offset, 1)), None)

    def replace(
        self,
        batch: RowBatch,
        topic_id: int,
        queue: int,
        base_offset: int,
        pieces: Sequence[tuple[int, bytes]],
    ) -> None:
        """Put smaller rows, (base offset, value) each, in the place of one that is in the store."""
        self._rows.delete(batch, topic_id, queue, base_offset)
        for base, value in pieces:
            self._rows.put(batch, topic_id, queue, base, value)
        tail = self._tails.get((topic_id, queue))
        if tail is not None and tail.bases and tail.bases[0] <= base_offset:
            self.size_bytes -= tail.size_bytes
            tail.put_in_place(base_offset, [(base, CqRow(value)) for base, value in pieces])
            self.size_bytes += tail.size_bytes

    def trim(self, batch: RowBatch, topic_id: int, queue: int, min_offset: int) -> None:
        """Remove rows that lie wholly below `min_offset`."""
        covering = self._rows.covering(topic_id, queue, min_offset)
        keep_from = min_offset if covering is None else covering[0]
        self._rows.delete_below(batch, topic_id, queue, keep_from)
        tail = self._tails.get((topic_id, queue))
        if tail is not None:
            old = bisect_right(tail.bases, keep_from - 1)
            self.size_bytes -= tail.drop_first(old)

    def drop_queue(self, batch: RowBatch, topic_id: int, queue: int) -> None:
        """Remove a queue's rows."""
        self._rows.delete_queue(batch, topic_id, queue)
        tail = self._tails.pop((topic_id, queue), None)
        if tail is not None:
            self._by_topic.discard(topic_id, (topic_id, queue))
            self.size_bytes -= tail.size_bytes

    def drop_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Remove a topic's rows."""
        self._rows.delete_topic(batch, topic_id)
        for key in self._by_topic.pop(topic_id):
            self.size_bytes -= self._tails.pop(key).size_bytes

    def forget(self) -> None:
        """Empty the cache."""
        self._tails.clear()
        self._by_topic.clear()
        self.size_bytes = 0

    def from_offset(self, topic_id: int, queue: int, offset: int) -> Iterator[Run]:
        """Iterate rows from the one that holds `offset` on, or from the next one."""
        tail = self._tails.get((topic_id, queue))
        if tail is not None and tail.bases and tail.bases[0] <= offset:
            at = bisect_right(tail.bases, offset) - 1
            if offset >= tail.bases[at] + tail.rows[at].count:
                at += 1
            return _tail_from(tail, at)
        covering = self._rows.covering(topic_id, queue, offset)
        return self._rows.from_base(topic_id, queue, offset if covering is None else covering[0])

    def before(self, topic_id: int, queue: int, offset: int) -> Run | None:
        """Return the last row that begins at or before `offset`, from the store."""
        return self._rows.at_or_before(topic_id, queue, offset)

    def _evict(self) -> None:
        key, tail = next(iter(self._tails.items()))
        # Half of it: a single busy queue keeps its newest rows.
        self.size_bytes -= tail.drop_first((len(tail.rows) + 1) // 2)
        if not tail.rows:
            del self._tails[key]
            self._by_topic.discard(key[0], key)


def _tail_from(tail: _Tail, at: int) -> Iterator[Run]:
    # By index: a slice would copy the rest of a long tail for a pop that reads one row of it.
    while at < len(tail.bases):
        yield tail.bases[at], tail.rows[at]
        at += 1


def _row_bytes(row: CqRow) -> int:
    count: int = row.count
    return _ROW_OVERHEAD_BYTES + count * _ROW_MESSAGE_BYTES
