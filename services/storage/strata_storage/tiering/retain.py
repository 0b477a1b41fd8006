"""Deletes from the log the messages that the tier has, and expired data from the tier (10, 28).

In one turn of retention, on a leader: ranges below the queues' min offsets and of dropped topics
are dropped; then the log may free messages that are old enough and were read back whole from the
store; then objects without any live range are deleted, some time after the drop, and small ones are
merged.

Invariant: the log frees no message that this leader, or an earlier one, did not read back.
"""

from __future__ import annotations

import asyncio
from functools import partial

from strata_mq.commands import (
    DropKind,
    LocalQueue,
    TierChangeCommand,
    encode_tier_change,
    encode_tier_local,
)
from strata_mq.layout import QueueRow
from strata_runtime.logs import get_logger
from strata_seglog.errors import LogError
from strata_state.ports import StateError
from strata_storage.base.errors import Refused
from strata_storage.group.engine import GroupEngine
from strata_storage.reads.offsets import Offsets
from strata_storage.tiering.compacting import Compactor, Verify
from strata_storage.tiering.parts import TieringParts
from strata_storage.tiering.uploader import Uploader
from strata_tier.base import TierError
from strata_tier.objects import (
    DropRanges,
    DropTopics,
    ForgetObjects,
    ObjectRef,
    TierChange,
    encode_change,
)
from strata_tier.ranges import plan_deletes
from strata_tier.store import ObjectNotFoundError, ObjectTooShortError, StoreError
from strata_tier.upkeep import delete_objects

_QUEUES_PER_TURN = 200
# When the entry is applied, all ranges of a topic are looked up, and everything else waits.
_TOPICS_PER_COMMAND = 200


class TierRetention:
    """Retention of one leader in one term.

    Args:
        engine: of the raft group.
        uploader: decides on the tier's rows in turn with this.
        parts: of the node.
        verify: reads objects back.
    """

    def __init__(
        self, engine: GroupEngine, uploader: Uploader, parts: TieringParts, *, verify: Verify
    ) -> None:
        self._engine = engine
        self._machine = engine.machine
        self._uploader = uploader
        self._place = parts.place
        self._topics = parts.topics
        self._work = parts.work
        self._options = parts.work.options.local
        self._verify = verify
        self._compactor = Compactor(engine, uploader, parts, verify=verify)
        # Objects that were read back whole.
        self._verified: set[int] = set()
        self._offsets = Offsets(engine.machine)
        self._logger = get_logger("tier")

    async def turn(self, now_ms: int, floor_index: int) -> None:
        """Do a turn; what fails is logged and tried in the next one.

        Args:
            now_ms: group time.
            floor_index: the log is too large: what it has of earlier entries goes, whatever the
                local retention, once the tier has it; 0: it is not.
        """
        tier = self._machine.tier
        if not tier.is_used:
            return
        try:
            await self._drop(now_ms)
            await self._give_up(now_ms, floor_index)
            await self._delete(now_ms)
            await self._compactor.turn()
        except (Refused, StateError) as error:
            self._logger.info(
                "retention of the tier waits",
                raft_group=self._engine.raft_group,
                reason=str(error),
            )
        except (StoreError, TierError, LogError) as error:
            self._work.instruments.failures.add(1, {"work": "retention"})
            self._logger.warning(
                "retention of the tier is repeated",
                raft_group=self._engine.raft_group,
                reason=str(error),
            )

    # Objects that nobody may read any more ------------------------------------------------------

    async def _drop(self, now_ms: int) -> None:
        queues: list[tuple[int, int, int]] = []
        topics: dict[int, None] = {}
        for count, ((topic_id, queue), tiered) in enumerate(self._machine.tier.metadata.queues()):
            if count % _QUEUES_PER_TURN == 0:
                await asyncio.sleep(0)
            row = self._machine.queues.get(topic_id, queue)
            if (DropKind.TOPIC, topic_id) in self._machine.dropped:
                topics[topic_id] = None
            elif row is not None and row.min_offset > tiered.first_offset:
                queues.append((topic_id, queue, row.min_offset))
        at_once = self._options.queues_per_command
        for first in range(0, len(queues), at_once):
            await self._change(DropRanges(queues[first : first + at_once], now_ms))
        topic_ids = list(topics)
        for first in range(0, len(topic_ids), _TOPICS_PER_COMMAND):
            await self._change(DropTopics(topic_ids[first : first + _TOPICS_PER_COMMAND], now_ms))

    async def _change(self, change: TierChange) -> None:
        async with self._uploader.turn:
            data = encode_change(change)
            await self._uploader.propose(encode_tier_change(TierChangeCommand(False, data)))

    # Messages that the log may give up ----------------------------------------------------------

    async def _give_up(self, now_ms: int, floor_index: int) -> None:
        found: list[LocalQueue] = []
        budget = [self._options.verify_bytes_per_turn]
        for count, ((topic_id, queue), tiered) in enumerate(self._machine.tier.metadata.queues()):
            if count % _QUEUES_PER_TURN == 0:
                await asyncio.sleep(0)
            row = self._machine.queues.get(topic_id, queue)
            if row is None or not self._topics.is_tiered(topic_id):
                continue
            row = row._replace(
                min_offset=max(row.min_offset, self._machine.tier.local_offset(topic_id, queue)),
                next_offset=min(row.next_offset, tiered.commit_offset),
            )
            if row.min_offset < row.next_offset:
                wanted = self._wanted(topic_id, queue, row, now_ms, floor_index)
                local = await self._proven(topic_id, queue, row.min_offset, wanted, budget)
                if local > row.min_offset:
                    found.append(LocalQueue(topic_id, queue, local))
        at_once = self._options.queues_per_command
        for first in range(0, len(found), at_once):
            async with self._uploader.turn:
                kept = [each for each in found[first : first + at_once] if self._holds(each)]
                if kept:
                    await self._uploader.propose(encode_tier_local(kept))

    def _wanted(
        self, topic_id: int, queue: int, row: QueueRow, now_ms: int, floor_index: int
    ) -> int:
        """Return up to where the log need not keep a queue; `row` ends where the tier does."""
        cutoff_ms = now_ms - self._topics.local_retention_ms(topic_id)
        return self._offsets.first_of(
            topic_id,
            queue,
            row,
            lambda run: run.store_time_ms >= cutoff_ms and run.offset_index >= floor_index,
        )

    async def _proven(
        self, topic_id: int, queue: int, first: int, end: int, budget: list[int]
    ) -> int:
        """Return up to where objects were read back whole, reading them as the budget allows."""
        if first >= end:
            return first
        metadata = self._machine.tier.metadata
        for each in metadata.ranges(topic_id, queue, first):
            if each.first_offset >= end:
                break
            held = metadata.object(each.object_id)
            if held is None:
                return each.first_offset
            if each.object_id not in self._verified:
                if budget[0] <= 0:
                    return each.first_offset
                budget[0] -= held.ref.length
                if not await self._is_whole(held.ref):
                    return each.first_offset
        return end

    async def _is_whole(self, ref: ObjectRef) -> bool:
        """Read an object back; a damaged one is uploaded again from the log, which has it still.

        Raises:
            StoreError: it cannot be read now.
            Refused, TierError, LogError: the repair failed.
        """
        try:
            await self._verify(ref)
        except (TierError, ObjectNotFoundError, ObjectTooShortError) as error:
            self._work.instruments.objects.add(1, {"result": "damaged"})
            self._logger.warning("object is damaged", key=ref.key, reason=str(error))
            await self._uploader.repair(ref.object_id)
            return False
        self._verified.add(ref.object_id)
        self._work.instruments.objects.add(1, {"result": "verified"})
        return True

    def _holds(self, each: LocalQueue) -> bool:
        """Whether a decision still fits what is applied."""
        committed = self._machine.tier.commit_offset(each.topic_id, each.queue)
        return committed is not None and each.local <= committed

    # Deletion -----------------------------------------------------------------------------------

    async def _delete(self, now_ms: int) -> None:
        """Delete objects that were dropped long enough ago, a bounded number."""
        metadata = self._machine.tier.metadata
        # Reads all objects, of which there may be many.
        planned = await self._work.run_read(
            partial(plan_deletes, metadata, now_ms, self._work.options.retention)
        )
        # As it is now: rows may have changed meanwhile.
        doomed = [held for held in planned if metadata.object(held.ref.object_id) == held]
        if not doomed:
            return
        object_ids = await delete_objects(self._place.stores, self._place.home, doomed)
        await self._change(ForgetObjects(object_ids, now_ms))
        self._verified.difference_update(object_ids)
        self._work.instruments.objects.add(len(object_ids), {"result": "deleted"})
