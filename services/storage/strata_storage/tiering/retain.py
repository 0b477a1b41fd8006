"""Deletes from the log the messages that the tier has, and expired data from the tier (10, 28).

In one turn of retention, on a leader: ranges below the queues' min offsets and of dropped topics
are dropped; then the log may free messages that are old enough and were read back whole from the
store; then objects without any live range are deleted, some time after the drop, and small ones are
merged.

A store or an object that fails is left alone for a while, and everything else goes on.

Invariants: the log frees no message that this leader, or an earlier one, did not read back. No
object is deleted that the newest manifest names as live: a restore would have a gap (29).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from strata_mq.commands import (
    DropKind,
    LocalQueue,
    TierChangeCommand,
    encode_tier_change,
    encode_tier_local,
)
from strata_mq.layout import QueueRow
from strata_runtime.logs import get_logger
from strata_state.ports import StateError
from strata_storage.base.errors import Refused
from strata_storage.group.engine import GroupEngine
from strata_storage.reads.offsets import Offsets
from strata_storage.tiering.compacting import Compactor, Verify
from strata_storage.tiering.parts import TieringParts
from strata_storage.tiering.publisher import Publisher
from strata_storage.tiering.set_aside import SetAside
from strata_storage.tiering.uploader import UPLOAD_FAILURES, Uploader
from strata_tier.base import TierError
from strata_tier.objects import (
    DropRanges,
    DropTopics,
    ForgetObjects,
    ObjectRef,
    TierChange,
    TieredObject,
    encode_change,
)
from strata_tier.ranges import plan_deletes
from strata_tier.store import (
    ObjectNotFoundError,
    ObjectTooShortError,
    StoreError,
    StoreMissingError,
)
from strata_tier.upkeep import delete_objects

_QUEUES_PER_TURN = 200
# When the entry is applied, all ranges of a topic are looked up, and everything else waits.
_TOPICS_PER_COMMAND = 200
# After a deletion that failed, the next requests are for so many times fewer objects.
_FEWER = 10


class TierRetention:
    """Retention of one leader in one term.

    Args:
        engine: of the raft group.
        uploader: decides on the tier's rows in turn with this.
        parts: of the node.
        verify: reads objects back.
        publisher: knows what the newest manifest names.
    """

    def __init__(
        self,
        engine: GroupEngine,
        uploader: Uploader,
        parts: TieringParts,
        *,
        verify: Verify,
        publisher: Publisher,
    ) -> None:
        self._engine = engine
        self._machine = engine.machine
        self._uploader = uploader
        self._place = parts.place
        self._topics = parts.topics
        self._work = parts.work
        self._options = parts.work.options.local
        self._verify = verify
        self._publisher = publisher
        self._compactor = Compactor(engine, uploader, parts, verify=verify)
        # Objects that were read back whole.
        self._verified: set[int] = set()
        options, clock = self._options.set_aside, parts.work.clock
        # Objects that could not be read back, or deleted, and spaces whose store deletes nothing.
        self._unread: SetAside[int] = SetAside(options, clock)
        self._undeleted: SetAside[int] = SetAside(options, clock)
        self._spaces: SetAside[str] = SetAside(options, clock)
        # Space -> objects of one request, if a deletion failed there.
        self._at_once: dict[str, int] = {}
        # Failures of this turn, by space.
        self._failures: Counter[str] = Counter()
        self._failure = ""
        self._offsets = Offsets(engine.machine)
        self._logger = get_logger("tier")

    def __len__(self) -> int:
        """Return how many objects and spaces failed and are left alone for a while."""
        aside = len(self._unread) + len(self._undeleted) + len(self._spaces)
        return aside + len(self._compactor)

    @property
    def last_failure(self) -> str:
        """Why something is not done; empty: nothing fails."""
        asides = (self._unread, self._undeleted, self._spaces)
        reasons = [self._failure, *(each.reason for each in asides), self._compactor.last_failure]
        return next(filter(None, reasons), "")

    async def turn(self, now_ms: int, floor_index: int) -> None:
        """Do a turn; what fails is logged and tried in a later one, the rest is done.

        Args:
            now_ms: group time.
            floor_index: the log is too large: what it has of earlier entries goes, whatever the
                local retention, once the tier has it; 0: it is not.
        """
        tier = self._machine.tier
        if not tier.is_used:
            return
        self._failures.clear()
        failure = ""
        works = (
            self._drop,
            partial(self._give_up, now_ms, floor_index),
            partial(self._delete, now_ms),
            self._compactor.turn,
        )
        for work in works:
            try:
                await work()
            except (Refused, StateError) as error:
                self._logger.info(
                    "retention of the tier waits",
                    raft_group=self._engine.raft_group,
                    reason=str(error),
                )
                return
            except UPLOAD_FAILURES as error:
                failure = str(error)
                is_news = failure != self._failure
                self._failed("retention of the tier is repeated", error, is_news=is_news)
        self._failure = failure

    def _failed(self, what: str, error: Exception, *, is_news: bool, **where: str) -> None:
        self._work.instruments.failures.add(1, {"work": "retention"})
        if is_news:
            raft_group = self._engine.raft_group
            self._logger.warning(what, raft_group=raft_group, reason=str(error), **where)

    # Objects that nobody may read any more ------------------------------------------------------

    async def _drop(self) -> None:
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
            part = queues[first : first + at_once]
            await self._change(partial(DropRanges, part))
        topic_ids = list(topics)
        for first in range(0, len(topic_ids), _TOPICS_PER_COMMAND):
            await self._change(partial(DropTopics, topic_ids[first : first + _TOPICS_PER_COMMAND]))

    async def _change(self, make: Callable[[int], TierChange]) -> None:
        """Propose a change, of the group time at which it is proposed.

        Not earlier: `Publisher` relies on that.
        """
        async with self._uploader.turn:
            data = encode_change(make(self._uploader.now_ms()))
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
                if budget[0] <= 0 or self._is_left_alone(held.ref):
                    return each.first_offset
                budget[0] -= held.ref.length
                if not await self._is_proven(held.ref):
                    return each.first_offset
        return end

    def _is_left_alone(self, ref: ObjectRef) -> bool:
        return (
            self._unread.holds(ref.object_id)
            or self._failures[ref.space] >= self._options.failures_per_space
        )

    async def _is_proven(self, ref: ObjectRef) -> bool:
        """Read an object back; one that cannot be read, or repaired, is left alone for a while.

        Raises:
            Refused: the raft group does not take the repair.
        """
        try:
            is_whole = await self._is_whole(ref)
        except UPLOAD_FAILURES as error:
            is_gone = isinstance(error, StoreMissingError)
            self._failures[ref.space] += self._options.failures_per_space if is_gone else 1
            is_news = self._unread.add(ref.object_id, str(error))
            self._failed("object is not read back", error, is_news=is_news, key=ref.key)
            return False
        if is_whole:
            self._unread.remove(ref.object_id)
        return is_whole

    async def _is_whole(self, ref: ObjectRef) -> bool:
        """Read an object back; a damaged one is uploaded again from the log, which has it still.

        Raises:
            StoreError: it cannot be read now.
            TierError: it is damaged, and the log does not have all of it.
            Refused, TierError, LogError: the repair failed.
        """
        try:
            await self._verify(ref)
        except (TierError, ObjectNotFoundError, ObjectTooShortError) as error:
            self._work.instruments.objects.add(1, {"result": "damaged"})
            self._logger.warning("object is damaged", key=ref.key, reason=str(error))
            if not await self._uploader.repair(ref.object_id):
                raise TierError(f"{ref.key} is damaged and cannot be repaired: {error}") from error
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
        metadata, options = self._machine.tier.metadata, self._work.options.retention
        # Reads all objects, of which there may be many.
        dead = await self._work.run_read(partial(plan_deletes, metadata, now_ms, options))
        if not dead:
            return
        before_ms = await self._publisher.deletable_before_ms()
        chosen = (
            held
            for held in dead
            if held.dropped_at_ms < before_ms
            and not self._spaces.holds(held.ref.space)
            and not self._undeleted.holds(held.ref.object_id)
        )
        planned = await self._work.run_read(lambda: list(islice(chosen, options.deletes_max)))
        # As it is now: rows may have changed meanwhile.
        by_space: dict[str, list[TieredObject]] = {}
        for held in planned:
            if metadata.object(held.ref.object_id) == held:
                by_space.setdefault(held.ref.space, []).append(held)
        object_ids = [
            object_id
            for space, doomed in by_space.items()
            for object_id in await self._deleted(space, doomed)
        ]
        if not object_ids:
            return
        await self._change(partial(ForgetObjects, object_ids))
        self._verified.difference_update(object_ids)
        self._work.instruments.objects.add(len(object_ids), {"result": "deleted"})

    async def _deleted(self, space: str, doomed: Sequence[TieredObject]) -> list[int]:
        """Delete objects of one space; return the ids of those that are gone.

        Objects of a request that fails are left alone for a while. As a store need not say which
        one it was, the next requests are for fewer of them, until it is found.
        """
        gone: list[int] = []
        left, failures = list(doomed), 0
        at_once = self._at_once.pop(space, len(left))
        while left and failures < self._options.failures_per_space:
            part, left = left[:at_once], left[at_once:]
            try:
                gone += await delete_objects(self._place.stores, self._place.home, part)
            except StoreError as error:
                failures += 1
                kept = self._undeleted_of(space, part, error)
                if isinstance(error, StoreMissingError):
                    break
                if not kept:
                    at_once = max(len(part) // _FEWER, 1)
                left = kept + left
        if failures or at_once < len(doomed):
            self._at_once[space] = at_once if failures else at_once * _FEWER
        if not failures:
            self._spaces.remove(space)
        return gone

    def _undeleted_of(
        self, space: str, part: Sequence[TieredObject], error: StoreError
    ) -> list[TieredObject]:
        """Leave alone what a failed deletion was of; return what may be tried again at once."""
        # A store that is a folder of another puts the folder before the key.
        named = [held for held in part if error.key.endswith(held.ref.key)]
        if isinstance(error, StoreMissingError):
            is_news = self._spaces.add(space, str(error))
        else:
            found = [self._undeleted.add(each.ref.object_id, str(error)) for each in named or part]
            is_news = any(found)
        self._failed("objects are not deleted", error, is_news=is_news, space=space)
        return [held for held in part if held not in named] if named else []
