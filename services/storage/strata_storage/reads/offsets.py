"""Offsets of queues: smallest, next, and by store time. Reads applied rows only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout import CqRow, QueueRow
from strata_storage.base.errors import Refused
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.ownership import Topic

_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """Offsets of one queue."""

    queue: int
    min_offset: int
    next_offset: int
    by_time: int
    last_store_time_ms: int


class Offsets:
    """Answers offset questions of one raft group, on any replica."""

    def __init__(self, machine: GroupMachine) -> None:
        self._machine = machine

    def choose(self, topic: Topic, queues: Sequence[int]) -> Sequence[int]:
        """Return the queues asked for, or all of the topic here when none is named.

        Raises:
            Refused: OUTCOME_WRONG_GROUP for one that is not here.
        """
        machine = self._machine
        if not queues:
            return machine.queues_here(topic)
        for queue in queues:
            if not machine.serves_queue(topic, queue):
                raise Refused(
                    pb.OUTCOME_WRONG_GROUP,
                    f"queue {queue} of topic {topic.topic_id} is not in raft group "
                    f"{machine.raft_group}",
                )
        return queues

    def of_queues(
        self, topic: Topic, queues: Sequence[int], time_ms: int | None
    ) -> list[QueueOffsets]:
        """Return offsets; `by_time` is filled when a time is given."""
        found = []
        for queue in self.choose(topic, queues):
            row = self._machine.queues.get(topic.topic_id, queue) or _EMPTY_QUEUE
            by_time = 0 if time_ms is None else self.by_time(topic.topic_id, queue, row, time_ms)
            found.append(
                QueueOffsets(
                    queue, row.min_offset, row.next_offset, by_time, row.last_store_time_ms
                )
            )
        return found

    def by_time(self, topic_id: int, queue: int, row: QueueRow, time_ms: int) -> int:
        """Return the first offset stored at or after a time; the next offset if there is none."""
        if time_ms > row.last_store_time_ms:
            return row.next_offset
        return self.first_of(topic_id, queue, row, lambda run: run.store_time_ms >= time_ms)

    def first_of(
        self, topic_id: int, queue: int, row: QueueRow, reached: Callable[[CqRow], bool]
    ) -> int:
        """Return the first offset whose run of messages has `reached` something.

        Store times and offset indexes never fall along a queue, so a binary search finds it; all
        messages of a run have the same.
        """
        low, high = row.min_offset, row.next_offset
        while low < high:
            middle = (low + high) // 2
            run = self._machine.consume_queues.before(topic_id, queue, middle)
            if run is None:
                # A repair of the log gave up the first messages of the queue.
                low = middle + 1
                continue
            base, cq_row = run
            if reached(cq_row):
                high = max(base, row.min_offset)
            else:
                low = max(base + cq_row.count, middle + 1)
        return low
