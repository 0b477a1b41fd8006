"""Ends the use of a queue by message groups that an older queue count put there (rule 23).

A message group keeps its queue until every consumer group has consumed what the queue holds of it;
only then is it put where the topic's new queue count says. The leader decides it, because it alone
sees appends and acks in one order: with everything consumed it writes one entry, and from then on
refuses what is placed by an older count. So no two brokers can disagree, whatever they know.

Under steady load there is never a moment without a message on its way. When little is left to
consume, what is placed by the older count is therefore held back for a moment; brokers repeat it.

A consumer group that never read the queue counts as one that consumed nothing of it if it read
another queue of the topic here, or if the caller names it, because it read the topic in another
raft group or subscribes to it. A consumer group that starts later, or is reset, may find messages
of a message group in both queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import RehashCommand, encode_rehash
from strata_mq.layout import QueueRow
from strata_runtime.clock import Clock
from strata_storage.base.config import EngineOptions
from strata_storage.base.errors import Refused
from strata_storage.leading.appends.append import GroupAppender
from strata_storage.leading.pops.lease_sets import LeaseSets
from strata_storage.leading.proposer import Proposer, committed
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.ownership import Topic

_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)
_LOOK_INTERVAL_S = 0.01
# Consumer groups looked at before other tasks get their turn.
_GROUPS_PER_TURN = 64


class Rehashes:
    """Serves `Rehash` for one leader in one term."""

    def __init__(
        self,
        machine: GroupMachine,
        proposer: Proposer,
        sets: LeaseSets,
        *,
        appender: GroupAppender,
        clock: Clock,
        options: EngineOptions,
    ) -> None:
        self._machine = machine
        self._proposer = proposer
        self._sets = sets
        self._appender = appender
        self._clock = clock
        self._options = options

    async def rehash(self, topic: Topic, queue: int, named: Iterable[int] = ()) -> bool:
        """Take message groups by the topic's queue count only, if everything else is consumed.

        Args:
            topic: with its present queue count.
            queue: of an older count.
            named: consumer groups that count although they may never have read the topic here.

        Returns:
            Whether it is so from now on. False: not now, consumers are behind.

        Raises:
            Refused: OUTCOME_WRONG_GROUP; OUTCOME_SEALED: the queue moves; or not the leader.
        """
        topic_id = topic.topic_id
        self._check_open(topic, queue)
        row = self._machine.queues.get(topic_id, queue) or _EMPTY_QUEUE
        if row.queue_count >= topic.queue_count:
            return True
        end_offset = self._appender.next_offset(topic_id, queue)
        behind = end_offset - await self._cursor(topic_id, queue, end_offset, named)
        if behind > self._options.rehash_lag_max:
            return False
        if not self._appender.hold(topic_id, queue, topic.queue_count):
            # Another broker asked already.
            return False
        proposed = False
        try:
            end_offset = self._appender.next_offset(topic_id, queue)
            if not await self._consumed_shortly(topic_id, queue, end_offset, named):
                return False
            self._check_open(topic, queue)
            # Also what filters passed over must be consumed for a new leader.
            self._sets.write_passed(0)
            future = self._proposer.propose(
                (encode_rehash(RehashCommand(topic_id, queue, topic.queue_count)),),
                lambda: self._appender.let_go(topic_id, queue),
            )
            proposed = True
        finally:
            if not proposed:
                self._appender.let_go(topic_id, queue)
        await committed(future)
        return True

    async def is_consumed(self, topic: Topic, queue: int, named: Iterable[int] = ()) -> bool:
        """Whether every consumer group has consumed an epoch that has ended here.

        Raises:
            Refused: acks that were counted cannot be proposed now, or leadership was lost.
        """
        row = self._machine.queues.get(topic.topic_id, queue) or _EMPTY_QUEUE
        cursor = await self._cursor(topic.topic_id, queue, row.next_offset, named)
        if cursor < row.next_offset:
            return False
        # An ack that is under way may be lost with this leader, and its message comes again then.
        self._sets.check_open()
        await self._proposer.applied()
        return True

    def _check_open(self, topic: Topic, queue: int) -> None:
        """Let a queue pass that takes appends here, if every ack that counts is in the log."""
        machine, topic_id = self._machine, topic.topic_id
        self._sets.check_exists(0, topic_id)
        self._sets.check_open()
        if not machine.owns_queue(topic, queue):
            raise Refused(pb.OUTCOME_WRONG_GROUP, f"queue {queue} of topic {topic_id} is elsewhere")
        if self._appender.is_sealed(topic_id, queue):
            raise Refused(pb.OUTCOME_SEALED, f"queue {queue} of topic {topic_id} is being moved")

    async def consumers(self, topic_id: int) -> set[int]:
        """Return the consumer groups that read any queue of a topic here."""
        found = {key[0] for key in self._sets.keys_of_topic(topic_id)}
        for number, consumer_group_id in enumerate(
            self._machine.rows.heads.consumer_groups(topic_id), 1
        ):
            found.add(consumer_group_id)
            if number % _GROUPS_PER_TURN == 0:
                await asyncio.sleep(0)
        return found

    async def _consumed_shortly(
        self, topic_id: int, queue: int, end_offset: int, named: Iterable[int]
    ) -> bool:
        """Wait a moment for what is below an offset to be consumed."""
        deadline_s = self._clock.monotonic_s() + self._options.rehash_hold_ms / 1_000
        while await self._cursor(topic_id, queue, end_offset, named) < end_offset:
            if self._clock.monotonic_s() >= deadline_s:
                return False
            await asyncio.sleep(_LOOK_INTERVAL_S)
        return True

    async def _cursor(
        self, topic_id: int, queue: int, end_offset: int, named: Iterable[int]
    ) -> int:
        """Return the lowest offset that some consumer group has not consumed, at most the end."""
        consumers = await self.consumers(topic_id)
        consumers.update(named)
        row = self._machine.queues.get(topic_id, queue) or _EMPTY_QUEUE
        lowest = end_offset
        # Looked at in one turn: cursors only grow, but new messages come.
        for consumer_group_id in consumers:
            found = self._sets.find((consumer_group_id, topic_id, queue))
            lowest = min(lowest, row.min_offset if found is None else found.leases.cursor())
        return lowest
