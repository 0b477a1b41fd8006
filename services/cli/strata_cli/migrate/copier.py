"""Copies the messages of planned topics, queue by queue, from where the state says.

A *lane* is what is copied in order by one worker: a source queue, or a whole topic whose messages
may have message groups, because then the messages of several source queues meet in one queue of the
target; there the source queue goes first whose next message is the oldest.

One step of a lane: read a batch at the source, send the messages that are not at the target yet,
read back what the target stored, and note both in one place. The read back, not the answer of the
send, says where a message is: so a lost answer, a killed run and a message id that the target had
already all end alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from apache.rocketmq.v2 import definition_pb2
from strata_cli.errors import CliError
from strata_cli.migrate.connections import SourceUnreachableError
from strata_cli.migrate.messages import UncopiableError, copied_message, digest_of, origin_of
from strata_cli.migrate.messages import added as sum_of
from strata_cli.migrate.pace import CopyPace
from strata_cli.migrate.plan import MigrationPlan, PlannedTopic
from strata_cli.migrate.source import MigrationSource, PulledBatch
from strata_cli.migrate.source_rows import SourceQueue
from strata_cli.migrate.state import BatchProgress, MigrationState, StoredCopy
from strata_cli.migrate.target import MigrationTarget, TargetBusyError
from strata_mq.slots import fifo_queue
from strata_remoting import PulledMessage
from strata_runtime.tasks import first_failure

Result = TypeVar("Result")

MAX_BATCH_MESSAGES = 256
MAX_BATCH_BYTES = 1024 * 1024
_TRIES = 10
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.2, 10.0


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """How to copy.

    Attributes:
        workers: lanes that are copied at the same time.
        skips_refused: go on after a message that cannot be copied, and note it.
    """

    workers: int = 8
    skips_refused: bool = False


@dataclass(slots=True)
class _QueueCopy:
    """A source queue while its lane is copied.

    Attributes:
        queue: which one.
        number: of its queue at the target.
        offset: of the next message.
        end: where this round ends.
        stored: messages from `offset` on that are at the target already.
        oldest_ms: store time of the next message, as far as it is known.
    """

    queue: SourceQueue
    number: int
    offset: int
    end: int
    stored: set[int] = field(default_factory=set)
    oldest_ms: int = 0


@dataclass(slots=True)
class _Batch:
    """Messages of one source queue on their way."""

    messages: list[tuple[int, definition_pb2.Message]] = field(default_factory=list)
    refusals: list[tuple[int, str]] = field(default_factory=list)
    next_offset: int = 0
    expired: int = 0
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the bodies are as long as one request may have."""
        return self.size_bytes >= MAX_BATCH_BYTES


class Copier:
    """See the module docstring.

    Args:
        source: where messages are read.
        target: where they go.
        state: what is done.
        pace: limits of the rate.
        options: see `CopyOptions`.
        sleep: waits for seconds before a repeat.
    """

    def __init__(
        self,
        source: MigrationSource,
        target: MigrationTarget,
        state: MigrationState,
        *,
        pace: CopyPace,
        options: CopyOptions,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._target = target
        self._state = state
        self._pace = pace
        self._options = options
        self._sleep = sleep
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """End `copy` after the batches under way."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    async def repeat(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Make a call; repeat it a few times while its server cannot be reached.

        Raises:
            CliError: it refuses, or it could not be reached for too long, or until `stop` was
                called.
        """
        pause_s = _FIRST_PAUSE_S
        for _ in range(_TRIES - 1):
            try:
                return await call()
            except (TargetBusyError, SourceUnreachableError):
                if self.stopping:
                    raise
                await self.pause(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        return await call()

    async def pause(self, pause_s: float) -> None:
        """Wait for so many seconds, or until `stop` is called."""
        waits = [
            asyncio.ensure_future(self._stop.wait()),
            asyncio.ensure_future(self._nap(pause_s)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _nap(self, pause_s: float) -> bool:
        await self._sleep(pause_s)
        return False

    async def copy(self, plan: MigrationPlan) -> None:
        """Copy what the source's queues hold at the begin of each lane.

        Raises:
            CliError: the source or the target failed for good; a repeat goes on from there.
        """
        lanes: list[tuple[PlannedTopic, Sequence[SourceQueue]]] = []
        for topic in plan.topics.values():
            queues = sorted(topic.queues, key=topic.queues.__getitem__)
            lanes += (
                [(topic, queues)]
                if topic.has_message_groups
                else [(topic, (queue,)) for queue in queues]
            )
        waiting = iter(lanes)

        async def work() -> None:
            for topic, queues in waiting:
                if self.stopping:
                    return
                await self._copy_lane(topic, queues)

        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(self._options.workers, len(lanes))):
                    workers.create_task(work())
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from None

    async def _copy_lane(self, topic: PlannedTopic, queues: Sequence[SourceQueue]) -> None:
        copies = [await self._begin(topic, queue) for queue in queues]
        behind = [one for one in copies if one.offset < one.end]
        if not behind:
            return
        numbers = range(topic.queue_count) if topic.has_message_groups else [behind[0].number]
        await self.repeat(lambda: self._read_back(topic.name, numbers))
        for one in behind:
            one.stored = await asyncio.to_thread(self._state.stored_from, one.queue, one.offset)
        while behind and not self.stopping:
            one = min(behind, key=lambda each: each.oldest_ms)
            await self._step(topic, one, numbers)
            behind = [each for each in behind if each.offset < each.end]

    async def _begin(self, topic: PlannedTopic, queue: SourceQueue) -> _QueueCopy:
        window = await self.repeat(lambda: self._source.window(queue))
        # Retries before the position of their consumer group wait no more.
        begin = min(max(window.begin, topic.begins.get(queue, 0)), window.end)
        offset = await asyncio.to_thread(self._state.begin, queue, begin)
        return _QueueCopy(queue, topic.queues[queue], offset, window.end)

    async def _step(self, topic: PlannedTopic, one: _QueueCopy, numbers: Iterable[int]) -> None:
        """Copy one batch of a source queue."""
        batch = await self._read(topic, one)
        missing = [message for offset, message in batch.messages if offset not in one.stored]
        if missing:
            if not await self._has_pace(missing):
                return
            await self._send(topic, one, batch, numbers)
        await self._note(topic, one, batch, numbers)

    async def _has_pace(self, messages: Sequence[definition_pb2.Message]) -> bool:
        """Wait until messages may be sent; return whether `stop` was not called before."""
        size_bytes = sum(len(each.body) for each in messages)
        spent = asyncio.ensure_future(self._pace.spend(len(messages), size_bytes))
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((spent, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not spent.done():
                return False
            await spent
            return True
        finally:
            spent.cancel()
            stopped.cancel()

    async def _read(self, topic: PlannedTopic, one: _QueueCopy) -> _Batch:
        """Read messages until a batch is full or the round's end is reached."""
        batch = _Batch(next_offset=one.offset)
        most = min(MAX_BATCH_MESSAGES, self._pace.most_messages)
        while batch.next_offset < one.end and not batch.is_full and not self.stopping:
            room = most - len(batch.messages) - len(batch.refusals)
            if room <= 0:
                break
            at = batch.next_offset
            pulled = await self.repeat(partial(self._pull, one.queue, at, room))
            for message in pulled.messages:
                if batch.is_full:
                    break
                # The source has deleted messages that it skips within a pull.
                batch.expired += message.queue_offset - batch.next_offset
                self._take(topic, one, batch, message)
                one.oldest_ms = message.stored_ms
                batch.next_offset = message.queue_offset + 1
            if pulled.messages:
                continue
            if at < pulled.window.begin:
                # The source deletes what is too old, also while it is copied. Its own word on where
                # to go on may be far ahead, so only its first offset is followed.
                reached = min(pulled.window.begin, one.end)
                batch.expired += reached - at
                batch.next_offset = reached
            else:
                # The queue became shorter: its broker lost what it had not flushed.
                one.end = at
        return batch

    async def _pull(self, queue: SourceQueue, offset: int, count: int) -> PulledBatch:
        """Return messages, or what the queue holds; who gives none of it is asked again."""
        pulled = await self._source.pull(queue, offset, count)
        if not pulled.messages and pulled.window.begin <= offset < pulled.window.end:
            raise SourceUnreachableError(
                f"{queue} holds messages up to offset {pulled.window.end}, and its broker gives "
                f"none at {offset}"
            )
        return pulled

    def _take(
        self, topic: PlannedTopic, one: _QueueCopy, batch: _Batch, pulled: PulledMessage
    ) -> None:
        try:
            message = copied_message(
                pulled,
                one.queue,
                namespace=self._target.namespace,
                fifo_queues=topic.queue_count if topic.topic_type == "FIFO" else 0,
                number=one.number,
                is_retry=topic.is_retries,
            )
        except UncopiableError as bad:
            self._refused(one, batch, pulled.queue_offset, str(bad))
            return
        batch.messages.append((pulled.queue_offset, message))
        batch.size_bytes += len(message.body)

    def _refused(self, one: _QueueCopy, batch: _Batch, offset: int, reason: str) -> None:
        if not self._options.skips_refused:
            raise CliError(
                f"the message at offset {offset} of {one.queue} cannot be copied: {reason}; "
                "--skip-refused notes such messages and goes on",
                "refused",
            )
        batch.refusals.append((offset, reason))

    async def _send(
        self, topic: PlannedTopic, one: _QueueCopy, batch: _Batch, numbers: Iterable[int]
    ) -> None:
        """Send the messages of a batch that are not at the target."""
        is_uncertain = False

        async def attempt() -> None:
            nonlocal is_uncertain
            if is_uncertain:
                # The attempt before may have stored some: they must not be sent again.
                await self._read_back(topic.name, numbers)
                one.stored |= await asyncio.to_thread(
                    self._state.stored_from, one.queue, one.offset
                )
                is_uncertain = False
            done = one.stored | {offset for offset, _ in batch.refusals}
            left = [each for each in batch.messages if each[0] not in done]
            if not left:
                return
            is_uncertain = True
            await self._send_some(one, batch, left)

        await self.repeat(attempt)

    async def _send_some(
        self,
        one: _QueueCopy,
        batch: _Batch,
        some: Sequence[tuple[int, definition_pb2.Message]],
    ) -> None:
        """Send messages in order; find out which of them are refused.

        A request with one bad message is refused whole, so its halves are sent in turn.
        """
        reasons = await self._target.send(one.number, [message for _, message in some])
        left = [each for each, reason in zip(some, reasons, strict=True) if reason]
        if left and len(some) == 1:
            self._refused(one, batch, left[0][0], reasons[0])
        elif left:
            half = (len(left) + 1) // 2
            for part in filter(None, (left[:half], left[half:])):
                await self._send_some(one, batch, part)

    async def _note(
        self, topic: PlannedTopic, one: _QueueCopy, batch: _Batch, numbers: Iterable[int]
    ) -> None:
        """Read back what is stored, and note it with the progress of the source queue."""
        refused = {offset for offset, _ in batch.refusals}
        wanted = {offset for offset, _ in batch.messages} - refused
        stored: set[int] = set()
        # A message group is elsewhere while its topic gets more queues.
        for looked_at in (_queues_of(topic, one, batch), numbers):
            await self.repeat(partial(self._read_back, topic.name, looked_at))
            stored = await asyncio.to_thread(self._state.stored_from, one.queue, one.offset)
            if wanted <= stored:
                break
        done = BatchProgress(batch.next_offset, expired=batch.expired, refusals=batch.refusals)
        for offset, message in batch.messages:
            if offset in stored:
                done.copied += 1
                done.bytes += len(message.body)
                done.digest = sum_of(done.digest, digest_of(message))
            elif offset not in refused:
                await self._check_repeated(topic.name, one, offset, message)
                done.repeated += 1
        await asyncio.to_thread(self._state.advance, one.queue, done)
        one.offset = batch.next_offset
        one.stored = {offset for offset in stored if offset >= one.offset}

    async def _check_repeated(
        self, topic: str, one: _QueueCopy, offset: int, message: definition_pb2.Message
    ) -> None:
        """Check that a message that was not stored is one whose id the target has already."""
        message_id = message.system_properties.message_id
        if not await self.repeat(lambda: self._target.has_message(topic, message_id)):
            raise CliError(
                f"the message at offset {offset} of {one.queue} was sent, and the target does not "
                f"have it: id {message_id}"
            )

    async def _read_back(self, topic: str, numbers: Iterable[int]) -> None:
        """Note all copied messages that queues of the target hold since the last look."""
        known = await asyncio.to_thread(self._state.targets, topic)
        for number in numbers:
            _, offset = known[number]
            while True:
                scanned = await self._target.scan(topic, number, offset)
                found = [
                    StoredCopy(at, *origin)
                    for at, message in scanned.messages
                    if (origin := origin_of(message)) is not None
                ]
                if scanned.resume_offset > offset:
                    await asyncio.to_thread(
                        self._state.absorb, topic, number, found, scanned.resume_offset
                    )
                # Behind the end of one raft group's part may be another one's.
                if scanned.resume_offset == offset:
                    break
                offset = scanned.resume_offset


def _queues_of(topic: PlannedTopic, one: _QueueCopy, batch: _Batch) -> set[int]:
    """Return the queues of the target in which the messages of a batch should be."""
    groups = {message.system_properties.message_group for _, message in batch.messages}
    return {one.number, *(fifo_queue(group, topic.queue_count) for group in groups if group)}
