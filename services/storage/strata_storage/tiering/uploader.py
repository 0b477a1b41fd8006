"""The uploads of one leader to the tier: dispatch, upload, commit, one object after another.

The appends of its raft group never wait for it: it reads applied rows. The contents of an object
are an entry before a byte of it is sent, so the next leader uploads the same object (rule 28); an
object serves only after it was proven to be there, and that is an entry, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import DropKind, TierChangeCommand, encode_tier_change, encode_tier_dispatch
from strata_mq.layout import OffsetRange
from strata_runtime.backoff import Backoff
from strata_runtime.logs import get_logger
from strata_runtime.timeouts import Timeout
from strata_seglog.errors import LogError
from strata_state.ports import StateError
from strata_storage.base.errors import Refused
from strata_storage.group.engine import GroupEngine
from strata_storage.leading.leader import GroupLeader
from strata_storage.leading.proposer import committed
from strata_storage.rows.tier_state import StaleEntryError
from strata_storage.tiering.backlog import Backlog
from strata_storage.tiering.leased_keys import LeasedKeys
from strata_storage.tiering.parts import TieringParts
from strata_storage.tiering.sources import UnreadableQueueError, queue_runs
from strata_storage.tiering.upload_failures import UploadFailures
from strata_tier.base import DamagedObjectError, TierError
from strata_tier.objects import (
    DEFAULT_SPACE,
    CommitRanges,
    ObjectPlan,
    ObjectRef,
    QueueRuns,
    ReplaceRanges,
    TieredRange,
    encode_change,
    put_requests,
)
from strata_tier.ranges import replaceable
from strata_tier.store import ObjectNotFoundError, StoreError, StoreMissingError

UPLOAD_FAILURES = (StoreError, TierError, LogError)
"""Failures of an upload: to be repeated."""

# How often it is looked whether the term goes on, while an entry is being applied.
_LOOK_S = 0.1


class Uploader:
    """Uploads for one leader in one term.

    Args:
        engine: of the raft group.
        leader: of the term; when the engine has another one, this is over.
        parts: of the node.

    Attributes:
        backlog: what waits.
        turn: held by whoever decides on the tier's rows, until that is applied.
        leased: what a job outside may be deleting; nothing is committed under these names.
        failures: what is left out of objects for now, and why.
    """

    def __init__(self, engine: GroupEngine, leader: GroupLeader, parts: TieringParts) -> None:
        self._engine = engine
        self._machine = engine.machine
        self._leader = leader
        self._place = parts.place
        self._topics = parts.topics
        self._work = parts.work
        self._uploads = parts.uploads
        self._options = parts.work.options.upload
        self.failures = UploadFailures(self._options.set_aside, parts.work.clock)
        self.backlog = Backlog(
            engine.machine,
            engine.machine.tier,
            parts.topics.is_tiered,
            options=parts.work.options.upload,
            space_of=parts.topics.space_of,
            left_out=self.failures,
        )
        self.turn = asyncio.Lock()
        self.leased = LeasedKeys(parts.work.clock, parts.work.options.outside)
        # One step at a time: the next one is decided on what this one did.
        self._stepping = asyncio.Lock()
        # Entries that were proposed and are not applied yet.
        self._in_flight = 0
        # Not spread: few uploads of a node are tried at once.
        self._pauses = Backoff(self._options.retry_ms, self._options.retry_max_ms, lambda: 1.0)
        self._logger = get_logger("tier")

    @property
    def leads(self) -> bool:
        """Whether its term goes on."""
        return self._engine.leader is self._leader

    @property
    def is_paused(self) -> bool:
        """Whether nothing is to be uploaded."""
        return self._machine.tier.paused

    @property
    def is_settled(self) -> bool:
        """Whether everything that this leader proposed about the tier is applied."""
        return not self._in_flight

    @property
    def last_failure(self) -> str:
        """Why the last try failed, or why something is left out; empty: nothing fails."""
        return self.failures.reason

    def now_ms(self) -> int:
        """Return the group time."""
        return self._leader.proposer.now_ms()

    async def run(self) -> None:
        """Upload until the term is over."""
        self._leader.on_new_messages = self.backlog.appended
        try:
            await self.rescan()
        except StateError as error:
            # Retention looks again.
            self._waits(error)
        is_stale = False
        while self.leads:
            await asyncio.sleep(self._options.check_interval_ms / 1_000)
            try:
                if is_stale:
                    await self._rescan()
                    is_stale = False
                while self.leads and await self.step():
                    self._pauses.reset()
            except (Refused, StateError) as error:
                self._waits(error)
            except UPLOAD_FAILURES as error:
                is_stale = is_stale or isinstance(error, StaleEntryError)
                if is_stale or self._machine.tier.dispatch:
                    # Else the dispatch was given up for others, which go on at once.
                    await asyncio.sleep(self._pauses.next_s())

    def _waits(self, error: Exception) -> None:
        self._logger.info("upload waits", raft_group=self._engine.raft_group, reason=str(error))

    async def flush(self) -> None:
        """Upload what was stored up to now, however young it is; also what was left out.

        Raises:
            Refused, StoreError, TierError, LogError: as `step`; whatever could be uploaded was.
        """
        began_ms = self.now_ms()
        self.failures.retry_all()
        await self.rescan()
        failed: Exception | None = None
        while self.leads:
            try:
                if not await self.step(at_once=True):
                    break
            except (StoreError, DamagedObjectError) as error:
                if self._machine.tier.dispatch:
                    raise
                failed = failed or error
            ready_ms = self.backlog.ready_ms()
            is_behind = ready_ms is not None and ready_ms <= began_ms
            if not is_behind and not self._machine.tier.dispatch:
                # The rest came later.
                break
        if failed is not None:
            raise failed
        if self.failures.queues.reason:
            raise TierError(self.failures.queues.reason)

    async def rescan(self) -> None:
        """Look at all queues: policies may have changed, and a new leader knows none."""
        await self._in_turns(self.backlog.rescan())

    async def _in_turns(self, steps: Iterable[None]) -> None:
        """Take all steps, a few before others get their turn of the event loop."""
        for count, _ in enumerate(steps, 1):
            if count % self._options.rows_per_turn == 0:
                await asyncio.sleep(0)

    async def _rescan(self) -> None:
        """Forget what was thought to wait: rows are not what they were taken for."""
        self.backlog.forget()
        await self.rescan()

    async def step(self, *, at_once: bool = False) -> bool:
        """Do the next thing; False: there is nothing to do now.

        Args:
            at_once: also when there is little, and that is young.

        Raises:
            Refused: the raft group does not take the entry.
            StoreError, TierError, LogError: the upload failed; to be repeated.
        """
        tier = self._machine.tier
        async with self._stepping:
            if tier.paused:
                return False
            dispatch = tier.dispatch
            try:
                if dispatch:
                    async with self._work.upload_turns:
                        await self._upload(dispatch)
                elif not await self._dispatch(at_once=at_once):
                    return False
            except UPLOAD_FAILURES as error:
                is_of_space = dispatch and isinstance(error, (StoreError, DamagedObjectError))
                space = self._space_of(self._wanted(dispatch)) if is_of_space else None
                self._failed(error, space)
                if space is not None:
                    await self._put_back(dispatch, at_once=at_once)
                raise
            self.failures.worked()
            return True

    def _failed(self, error: Exception, space: str | None) -> None:
        self._work.instruments.failures.add(1, {"work": "upload"})
        if self.failures.failed(error, space):
            self._logger.warning(
                "upload is repeated", raft_group=self._engine.raft_group, reason=str(error)
            )

    async def propose(self, payload: bytes) -> None:
        """Propose an entry about the tier and wait until it is applied.

        To be called with `turn` held, and nothing awaited since it was decided: an entry that
        meets other rows than it was decided on changes nothing.

        Raises:
            Refused: leadership was lost, or limits.
            StaleEntryError: it changed nothing: to be decided anew.
        """
        if not self.leads:
            # This node may lead again, in another term: then somebody else decides.
            raise self._not_leader()
        applied = asyncio.Event()

        def when_applied() -> None:
            self._in_flight -= 1
            applied.set()

        future = self._leader.proposer.propose((payload,), when_applied)
        self._in_flight += 1
        index = await committed(future)
        while not applied.is_set():
            if not self.leads:
                raise self._not_leader()
            with suppress(TimeoutError):
                async with Timeout(_LOOK_S):
                    await applied.wait()
        stale = self._machine.tier.stale
        if stale is not None and stale.raft_index == index:
            raise StaleEntryError(stale)

    def _not_leader(self) -> Refused:
        return Refused(pb.OUTCOME_NOT_LEADER, "leadership was lost")

    # Dispatch -----------------------------------------------------------------------------------

    async def _dispatch(self, *, at_once: bool = False) -> bool:
        await self._scan()
        if not self._has_next(at_once=at_once):
            return False
        ranges: list[OffsetRange] = []
        async with self.turn:
            # Retention waits meanwhile. A topic that is dropped now is left out of the upload, like
            # one that is dropped later.
            await self._in_turns(self.backlog.choose(ranges, self._leader.proposer.now_ms()))
            if ranges:
                await self.propose(encode_tier_dispatch(ranges))
        return bool(ranges)

    async def _scan(self) -> None:
        self.backlog.retry_unknown()
        is_seen = self.backlog.scan(self._options.rows_per_turn)
        while not is_seen:
            await asyncio.sleep(0)
            is_seen = self.backlog.scan(self._options.rows_per_turn)

    def _has_next(self, *, at_once: bool) -> bool:
        """Whether there is an object to make; spaces that fail give way to others."""
        if self._is_next(at_once=at_once):
            return True
        self.failures.nothing_else_waits()
        return self._is_next(at_once=at_once)

    def _is_next(self, *, at_once: bool) -> bool:
        if at_once:
            return self.backlog.ready_ms() is not None
        return self.backlog.is_due(self._leader.proposer.now_ms())

    # Upload -------------------------------------------------------------------------------------

    async def _upload(self, dispatch: Sequence[OffsetRange]) -> None:
        began_s = self._work.clock.monotonic_s()
        sent = await self._sent(self._wanted(dispatch))
        if sent is None:
            await self._give_up(dispatch)
            return
        ref, plan = sent
        async with self.turn:
            committed_ranges = await self._commit(ref, plan.ranges)
        self.failures.uploaded(plan.author.space)
        for each in plan.ranges:
            self.failures.queues.remove((each.topic_id, each.queue))
        await self._in_turns(self.backlog.committed(dispatch))
        took_s = self._work.clock.monotonic_s() - began_s
        result = "committed" if committed_ranges else "given_up"
        self._work.instruments.objects.add(1, {"result": result})
        self._work.instruments.uploaded_bytes.add(ref.length)
        self._work.instruments.upload_ms.record(took_s * 1_000)

    async def _sent(self, ranges: Sequence[OffsetRange]) -> tuple[ObjectRef, ObjectPlan] | None:
        """Upload what can be read of some ranges; None: nothing can.

        Raises:
            UnreadableQueueError: many queues cannot be read: to be repeated, without those.
            StoreError, TierError, LogError: as `step`.
        """
        for left in reversed(range(self._options.unreadable_per_step)):
            rows, at_once = self._machine.consume_queues, self._options.rows_per_turn
            queues = [
                await queue_runs(rows, each, at_once)
                for each in ranges
                if not self.failures.is_queue_aside(each.topic_id, each.queue)
            ]
            if not queues:
                break
            try:
                return await self._uploaded(queues)
            except UnreadableQueueError as error:
                self._leave_out(error)
                if not left:
                    raise
        return None

    def _leave_out(self, error: UnreadableQueueError) -> None:
        """Go on without a queue, which is tried again later: its other messages wait with it."""
        self._work.instruments.failures.add(1, {"work": "upload"})
        if self.failures.queues.add((error.topic_id, error.queue), str(error)):
            self._logger.warning(
                "queue is left out of uploads",
                raft_group=self._engine.raft_group,
                reason=str(error),
            )

    async def _put_back(self, dispatch: Sequence[OffsetRange], *, at_once: bool) -> None:
        """End a dispatch whose space failed, if another space has something to upload.

        Nothing is lost: the messages are in the log, and what was sent of the object is an orphan
        until the same object is sent again.

        Raises:
            Refused, StaleEntryError: as `propose`.
        """
        await self._scan()
        if self._is_next(at_once=at_once):
            await self._give_up(dispatch)

    def _wanted(self, dispatch: Sequence[OffsetRange]) -> list[OffsetRange]:
        return [each for each in dispatch if self._is_wanted(each)]

    def _space_of(self, ranges: Iterable[OffsetRange | QueueRuns]) -> str:
        """Return the space of an object: that of its topics; where they differ, the default one."""
        spaces = {self._topics.space_of(each.topic_id) for each in ranges}
        return spaces.pop() if len(spaces) == 1 else DEFAULT_SPACE

    async def _commit(self, ref: ObjectRef, ranges: Sequence[TieredRange]) -> int:
        """Let readers have an object, and end the dispatch; return of how many ranges.

        A leader that ends between two entries leaves the rest to the next one, in another object.
        """
        self.leased.check_free(ref.key)
        at_once, count = self._options.ranges_per_entry, 0
        for first in range(0, len(ranges), at_once):
            # Retention, or the drop of a topic, may have overtaken the upload.
            part = [each for each in ranges[first : first + at_once] if self._continues(each)]
            ends_dispatch = first + at_once >= len(ranges)
            change = CommitRanges(ref, part, self._leader.proposer.now_ms())
            data = encode_change(change) if part else b""
            if part or ends_dispatch:
                await self.propose(encode_tier_change(TierChangeCommand(ends_dispatch, data)))
            count += len(part)
        return count

    async def _uploaded(self, queues: Sequence[QueueRuns]) -> tuple[ObjectRef, ObjectPlan]:
        """Upload an object to the space of its topics."""
        space = self._space_of(queues)
        plan = await self._uploads.plan(self._engine.raft_group, queues, space)
        await self._check_free(plan)
        oldest_ms = min((each.min_time_ms for each in plan.ranges if each.message_count), default=0)
        age_ms = self.now_ms() - oldest_ms
        ref = await self._uploads.upload(self._engine.replica_id, plan, age_ms)
        requests = put_requests(ref.length, self._work.options.part_bytes)
        self._topics.costs.uploaded(self._engine.raft_group, plan.ranges, ref.length, requests)
        return ref, plan

    async def _check_free(self, plan: ObjectPlan) -> None:
        """Check that no sweep may be deleting an object of this name.

        An earlier leader may have told one of an object that was written long ago and that nobody
        committed. This leader does not know which deletions were told, so such an object waits
        until none holds.

        Raises:
            TierError: one may; to be written again later.
            StoreError: the store does not say.
        """
        self.leased.check_free(plan.key)
        if not self.leased.may_be_inherited():
            return
        # A store that is missing may be one that nothing was put into yet: the put will say.
        with suppress(ObjectNotFoundError, StoreMissingError):
            info = await self._place.stores.of(plan.author.space).head(plan.key)
            age_ms = self._work.clock.wall_ms() - info.modified_ms
            # Half of it: the clocks of a job and of the store are others.
            if age_ms >= self._work.options.retention.orphan_ms / 2:
                raise TierError(f"{plan.key} may be being deleted by a sweep of an earlier leader")

    async def _give_up(self, dispatch: Sequence[OffsetRange]) -> None:
        """End a dispatch of which nothing is left to upload."""
        async with self.turn:
            await self.propose(encode_tier_change(TierChangeCommand(True, b"")))
        await self._in_turns(self.backlog.committed(dispatch))
        self._work.instruments.objects.add(1, {"result": "given_up"})

    async def repair(self, object_id: int) -> bool:
        """Upload once more what a damaged object holds and the log still has.

        Returns:
            Whether there was anything to upload that can be read.

        Raises:
            Refused, StoreError, TierError, LogError: as `step`.
        """
        tier = self._machine.tier
        ranges: list[OffsetRange] = []
        for key, _ in list(tier.metadata.queues()):
            local = tier.local_offset(*key)
            ranges += [
                OffsetRange(*key, each.first_offset, each.end_offset)
                for each in tier.metadata.ranges(*key)
                if each.object_id == object_id and each.first_offset >= local
            ]
            await asyncio.sleep(0)
        if not ranges:
            return False
        async with self._work.upload_turns:
            sent = await self._sent(ranges)
        if sent is None:
            return False
        ref, plan = sent
        if ref.object_id != object_id:
            # Only a part of it, or other blocks: readers are sent to the new one.
            await self.replace(ref, plan.ranges)
        self._work.instruments.objects.add(1, {"result": "repaired"})
        return True

    async def replace(self, ref: ObjectRef, ranges: Sequence[TieredRange]) -> int:
        """Send readers to another object that holds the same, where that is still so.

        Returns:
            How many ranges that were.

        Raises:
            Refused, StaleEntryError: as `propose`; readers of what is left go on as before.
            TierError: the object may be about to be deleted.
        """
        at_once, count = self._options.ranges_per_entry, 0
        metadata = self._machine.tier.metadata
        async with self.turn:
            self.leased.check_free(ref.key)
            for first in range(0, len(ranges), at_once):
                held = metadata.object(ref.object_id)
                if held is not None and not held.live_ranges:
                    # Once dropped it may be deleted at any time: it never serves again.
                    break
                part = replaceable(metadata, ranges[first : first + at_once])
                if part:
                    data = encode_change(ReplaceRanges(ref, part, self.now_ms()))
                    await self.propose(encode_tier_change(TierChangeCommand(False, data)))
                count += len(part)
        return count

    def _is_wanted(self, each: OffsetRange) -> bool:
        known = self._machine.tier.commit_offset(each.topic_id, each.queue)
        return (
            (known is None or known == each.first)
            and (DropKind.TOPIC, each.topic_id) not in self._machine.dropped
            and bool(self._topics.is_tiered(each.topic_id))
        )

    def _continues(self, each: TieredRange) -> bool:
        planned = OffsetRange(each.topic_id, each.queue, each.first_offset, each.end_offset)
        return self._is_wanted(planned)
