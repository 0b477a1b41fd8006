"""Pop: leases on messages for a consumer group, answered when they are committed (rule 24).

A pop of a broker that wants to be told does not wait (rule 35): one that leaves nothing behind arms
an interest of its broker in the turn of the event loop in which it looked, so that nothing that
comes from then on is missed, also while its leases are committed.

One *look* at the queues decides on leases without waiting. A filter that lets little through makes
it pass over much: a look is bounded, and a pop that found nothing looks again until its time is
over, giving way to everything else on the event loop in between. So is what its filter costs in
all looks together: a pop that has used that up ends empty, and the next one goes on from there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.filters import EVERYTHING
from strata_mq.layout import MoveRow, QueueRow
from strata_mq.leases import Taken, TakeRequest
from strata_runtime.clock import Clock
from strata_runtime.turns import Turns
from strata_storage.base.config import EngineOptions
from strata_storage.base.errors import Refused
from strata_storage.leading.pops.candidates import Candidates, LookBudget
from strata_storage.leading.pops.lease_sets import LeaseSet, LeaseSets
from strata_storage.leading.pops.pop_calls import Catch, Caught, Delivered, PopAnswer, PopCall
from strata_storage.leading.pops.taken_messages import TakenMessages
from strata_storage.leading.pops.waiters import Waiters
from strata_storage.leading.proposer import Proposer, committed
from strata_storage.reads.reader import Location, MessageReader
from strata_storage.rows.machine import GroupMachine

# For so long a pop that does not wait goes on while its filter lets nothing through.
_MAX_LOOK_S = 1.0
# New offsets that a FIFO pop looks at although it may not take as many: most may be blocked.
_FIFO_AT_ONCE = 256
# Queues remembered of one attempt; others are asked in turn.
_QUEUES_PER_ATTEMPT = 32
_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)


class GroupPopper:
    """Serves pops for one leader in one term."""

    def __init__(
        self,
        machine: GroupMachine,
        proposer: Proposer,
        sets: LeaseSets,
        *,
        waiters: Waiters,
        reader: MessageReader,
        clock: Clock,
        options: EngineOptions,
        turns: Turns,
    ) -> None:
        self._machine = machine
        self._proposer = proposer
        self._sets = sets
        self._waiters = waiters
        self._reader = reader
        self._clock = clock
        self._options = options
        # (consumer group, topic) -> which queue was looked at first; turns so that none starves.
        self._turns: OrderedDict[tuple[int, int], int] = OrderedDict()
        # FIFO: (consumer group, topic, attempt) -> queues that served it, asked first on a repeat.
        self._attempts: OrderedDict[tuple[int, int, int], tuple[int, ...]] = OrderedDict()
        self._candidates = Candidates(machine, reader, turns)
        self._messages = TakenMessages(
            machine, proposer, sets, waiters=waiters, reader=reader, turns=turns
        )
        # Held by the one pop that goes on looking: however many do, each turn of the event loop
        # has one look at most.
        self._again = asyncio.Lock()

    async def pop(self, call: PopCall) -> PopAnswer:
        """Lease messages; wait up to `wait_s` for some; empty when there were none.

        Empty at once for a caller who does not know which of the queues are sealed here: some of
        their messages are elsewhere.

        Raises:
            Refused: not owned, limits, leadership lost.
        """
        self._sets.check_exists(call.consumer_group_id, call.topic.topic_id)
        try:
            wait_s = call.wait_s if call.stream is None else _MAX_LOOK_S
            return await self._pop(call, self._clock.monotonic_s() + wait_s)
        except asyncio.CancelledError:
            # It may have been woken for what it did not come to.
            self._waiters.wake_group(call.topic.topic_id, call.consumer_group_id)
            raise

    async def _pop(self, call: PopCall, deadline_s: float) -> PopAnswer:
        filter_steps_left = self._options.pop_filter_steps
        while True:
            if self._must_tell(call):
                return PopAnswer()
            catch = await self._look(call)
            filter_steps_left -= self._options.pop_scan_filter_steps - catch.budget.filter_steps
            if catch.leases:
                delivered = await self._deliver_or_release(call, catch)
            else:
                delivered = self._settle(catch)
            if delivered:
                return PopAnswer(delivered, catch.told_later)
            if call.is_gone():
                # It may have been woken for what it did not take.
                self._waiters.wake_group(call.topic.topic_id, call.consumer_group_id)
                return PopAnswer()
            if self._must_tell(call):
                # A queue was sealed meanwhile, and woke who waited already.
                return PopAnswer()
            time_left_s = deadline_s - self._clock.monotonic_s()
            if self._look_again(call, catch):
                if filter_steps_left <= 0:
                    self._sets.filter_limited += 1
                if time_left_s <= 0 or filter_steps_left <= 0:
                    # What it did not come to is for the next one.
                    self._waiters.wake_group(call.topic.topic_id, call.consumer_group_id)
                    return PopAnswer(unfinished=True)
                async with self._again:
                    await asyncio.sleep(0)
            elif call.stream is not None:
                return PopAnswer(told_later=catch.told_later)
            elif time_left_s <= 0 or not await self._waiters.wait(
                call.topic.topic_id,
                call.consumer_group_id,
                call.queue,
                time_left_s,
                call.size_bytes,
            ):
                return PopAnswer()

    def _settle(self, catch: Catch) -> list[Delivered]:
        """Propose what a look without leases changed; nobody waits for that."""
        if catch.sections:
            self._sets.propose(catch.sections)
        else:
            self._sets.flush_kept()
        return []

    def sealed(self, call: PopCall) -> Sequence[tuple[int, MoveRow]]:
        """Return which of the queues that a pop asks for are sealed, and where they went.

        Raises:
            Refused: a queue is not here.
        """
        if not self._machine.moves:
            return ()
        return self._machine.sealed_of(call.topic.topic_id, self._queues_here(call))

    def _must_tell(self, call: PopCall) -> bool:
        """Whether the caller does not know which of the queues are sealed here."""
        return not call.repeated and len(self.sealed(call)) != call.known_sealed

    async def _deliver_or_release(self, call: PopCall, catch: Catch) -> list[Delivered]:
        """Deliver; what a caller who leaves meanwhile will not hear of is free at once."""
        try:
            return await self._deliver(call, catch)
        except asyncio.CancelledError:
            self._give_back_now(catch)
            raise

    async def _deliver(self, call: PopCall, catch: Catch) -> list[Delivered]:
        if catch.sections:
            try:
                future = self._sets.propose(catch.sections)
            except Refused:
                self._give_back(catch)
                raise
            await committed(future)
        else:
            # A repeat of an attempt whose entry may still be under way.
            await self._proposer.settled()
        if len(catch.leases) >= call.take.max_messages or self._look_again(call, catch):
            # This pop took what it may, or had no time for more; there may be more for the next.
            self._waiters.wake_group(call.topic.topic_id, call.consumer_group_id)
        if not catch.repeated and call.is_gone():
            # It waited for the log for so long.
            self._give_back_now(catch)
            return []
        try:
            delivered = await self._messages.read(call, catch)
        except Refused:
            self._give_back_now(catch)
            raise
        if not delivered:
            # Nobody is told, so nobody's next decision takes along what became of the messages.
            self._sets.flush_kept()
        return delivered

    # Deciding -----------------------------------------------------------------------------------

    async def _look(self, call: PopCall) -> Catch:
        """Look at the queues once and decide on leases.

        Raises:
            Refused: what was decided before cannot be proposed; too many reads are under way.
        """
        catch = Catch(self._queues(call), LookBudget(self._options))
        is_warmed = self._machine.tier.is_used and await self._warm(call, catch)
        if call.message_filter.needs_messages:
            await self._read_ahead(call, catch)
        if is_warmed or call.message_filter.needs_messages:
            # Meanwhile a queue may have left: no consumer group may start at it here any more.
            here = frozenset(self._queues_here(call))
            catch.queues = [queue for queue in catch.queues if queue in here]
        # Leadership may have ended, or the topic, while this pop read or let others go on.
        self._waiters.check_open()
        self._sets.check_exists(call.consumer_group_id, call.topic.topic_id)
        self._sets.check_open()
        if call.repeated and call.take.attempt:
            self._take_again(call, catch)
        # A lease for nobody would keep the message from everybody else.
        if not catch.leases and not call.is_gone():
            self._take(call, catch)
            self._arm(call, catch)
        return catch

    def _arm(self, call: PopCall, catch: Catch) -> None:
        """Let the broker be told of what comes from now on, if nothing is left behind now."""
        if (
            call.stream is None
            or catch.repeated
            or catch.incomplete
            or self._look_again(call, catch)
            or (catch.leases and not self._all_in_memory(call, catch))
        ):
            return
        catch.told_later = self._waiters.interests.arm(
            call.stream, call.topic.topic_id, call.consumer_group_id, call.queue
        )

    async def _warm(self, call: PopCall, catch: Catch) -> bool:
        """Fetch what this pop may take and the tier alone has: no lease is taken on the rest.

        A lease on a message that cannot be read would use up one of its attempts.

        Returns:
            Whether anything was waited for.

        Raises:
            Refused: none of the queues can be read.
        """
        readable: list[int] = []
        refusal: Refused | None = None
        is_warmed = False
        for queue in catch.queues:
            locations = self._tiered_only(call, queue, catch.budget)
            try:
                if locations:
                    is_warmed = True
                    await self._reader.warm(locations, call.consumer_group_id)
                readable.append(queue)
            except Refused as refused:
                refusal = refused
                catch.incomplete = True
        if refusal is not None and not readable:
            raise refusal
        catch.queues = readable
        return is_warmed

    def _tiered_only(self, call: PopCall, queue: int, budget: LookBudget) -> list[Location]:
        """Return what a pop is likely to take of a queue and the log may lack."""
        topic_id = call.topic.topic_id
        local = self._machine.tier.local_offset(topic_id, queue)
        if not local or not self._machine.serves_queue(call.topic, queue):
            return []
        lease_set = self._sets.find_or_start(
            (call.consumer_group_id, topic_id, queue), latest=call.latest
        )
        row = self._machine.queues.get(topic_id, queue) or _EMPTY_QUEUE
        leases, now_ms = lease_set.leases, self._proposer.now_ms()
        if leases.cursor() >= local or not leases.peek_ready(now_ms, row.next_offset):
            return []
        # Of messages that come again the first one stands for all: it tells whether the tier is
        # there.
        again = [leases.cursor()] if leases.peek_ready(now_ms, leases.head) else []
        return self._candidates.likely(
            lease_set, again, local, call.message_filter, _wanted(call.take), budget
        )

    async def _read_ahead(self, call: PopCall, catch: Catch) -> None:
        """Let the filter decide on messages that have to be read for that."""
        wanted = _wanted(call.take)
        for queue in catch.queues:
            if not self._machine.serves_queue(call.topic, queue):
                continue
            key = (call.consumer_group_id, call.topic.topic_id, queue)
            lease_set = self._sets.find_or_start(key, latest=call.latest)
            row = self._machine.queues.get(call.topic.topic_id, queue) or _EMPTY_QUEUE
            wanted -= await self._candidates.read_ahead(
                lease_set, row.next_offset, call.message_filter, wanted, catch.budget
            )
            # What was learnt is lost if the set was read anew meanwhile: look again at once.
            catch.moved = catch.moved or self._sets.in_memory(key) is not lease_set
            if wanted <= 0:
                return

    def _take(self, call: PopCall, catch: Catch) -> None:
        for queue in catch.queues:
            try:
                self._take_queue(call, queue, catch)
            except Refused:
                # A set that cannot be read now; what other queues gave is to be delivered.
                if not catch.leases:
                    raise
                catch.incomplete = True
                break
            if catch.repeated or len(catch.leases) >= call.take.max_messages:
                break
            if catch.taken_bytes >= call.take.max_bytes:
                break
        if call.take.attempt and call.take.fifo and catch.leases and not catch.repeated:
            self._remember_attempt(call, catch)

    def _take_again(self, call: PopCall, catch: Catch) -> None:
        """Return what the attempt has leased already."""
        now_ms = self._proposer.now_ms()
        for queue in catch.queues:
            lease_set = self._sets.find((call.consumer_group_id, call.topic.topic_id, queue))
            if lease_set is None:
                continue
            leases = lease_set.leases.of_attempt(call.take.attempt, now_ms)
            if leases:
                again = Taken(leases, None, repeated=True)
                self._catch(catch, call, lease_set, again, lease_set.leases.head)

    def _take_queue(self, call: PopCall, queue: int, catch: Catch) -> None:
        key = (call.consumer_group_id, call.topic.topic_id, queue)
        if key[1:] in self._sets.held_queues:
            # A message of it is being recalled (`Recalls`).
            return
        lease_set = self._sets.find_or_start(key, latest=call.latest)
        row = self._machine.queues.get(call.topic.topic_id, queue) or _EMPTY_QUEUE
        leases = lease_set.leases
        now_ms = self._proposer.now_ms()
        # A repeat finds its leases although nothing is ready.
        asks_again = call.take.fifo and call.take.attempt
        if not asks_again and not leases.peek_ready(now_ms, row.next_offset):
            return
        request = call.take
        if catch.leases:
            request = replace(
                request,
                max_messages=request.max_messages - len(catch.leases),
                max_bytes=request.max_bytes - catch.taken_bytes,
            )
        columns = self._candidates.columns(
            lease_set, row.next_offset, call.message_filter, _wanted(request), catch.budget
        )
        head = leases.head
        taken = leases.take(request, now_ms, row.next_offset, columns)
        self._catch(catch, call, lease_set, taken, head)

    def _catch(
        self, catch: Catch, call: PopCall, lease_set: LeaseSet, taken: Taken, head: int
    ) -> None:
        """Take in what a queue gave; its head was at `head` before."""
        leases = lease_set.leases
        change = taken.change
        if change is not None:
            if change.puts:
                catch.sections.append((lease_set, change))
            else:
                self._sets.passed(lease_set)
            catch.moved = catch.moved or leases.head > head
            if call.message_filter is not EVERYTHING:
                new = sum(offset >= head for offset, _ in change.puts)
                self._sets.filtered += leases.head - head - new
        catch.repeated = catch.repeated or taken.repeated
        for offset, lease in taken.leases:
            caught = Caught(lease_set, leases.generation, offset, lease, offset >= head)
            catch.leases.append(caught)
            catch.taken_bytes += lease.length

    def _queues_here(self, call: PopCall) -> Sequence[int]:
        topic = call.topic
        if call.queue >= 0:
            if not self._machine.serves_queue(topic, call.queue):
                raise Refused(
                    pb.OUTCOME_WRONG_GROUP,
                    f"queue {call.queue} of topic {topic.topic_id} is not in raft group "
                    f"{self._machine.raft_group}",
                )
            return (call.queue,)
        return self._machine.queues_here(topic)

    def _queues(self, call: PopCall) -> Sequence[int]:
        topic = call.topic
        queues = self._queues_here(call)
        if len(queues) <= 1 or call.queue >= 0:
            return queues
        key = (call.consumer_group_id, topic.topic_id)
        turn = (self._turns.get(key, -1) + 1) % len(queues)
        self._turns[key] = turn
        self._turns.move_to_end(key)
        if len(self._turns) > self._options.lease_sets_max:
            self._turns.popitem(last=False)
        turned = (*queues[turn:], *queues[:turn])
        served = self._attempts.get((*key, call.take.attempt)) if call.take.attempt else None
        if served:
            return (*served, *(queue for queue in turned if queue not in served))
        return turned

    def _remember_attempt(self, call: PopCall, catch: Catch) -> None:
        key = (call.consumer_group_id, call.topic.topic_id, call.take.attempt)
        self._attempts[key] = tuple(
            islice(
                dict.fromkeys(caught.lease_set.key[2] for caught in catch.leases),
                _QUEUES_PER_ATTEMPT,
            )
        )
        if len(self._attempts) > self._options.attempts_max:
            self._attempts.popitem(last=False)

    def _look_again(self, call: PopCall, catch: Catch) -> bool:
        """Whether another look makes sense at once: this one got somewhere, and not to the end."""
        if not catch.moved and not catch.leases:
            return False
        now_ms = self._proposer.now_ms()
        for queue in catch.queues:
            key = (call.consumer_group_id, call.topic.topic_id, queue)
            row = self._machine.queues.get(call.topic.topic_id, queue)
            found = self._sets.in_memory(key)
            if row and found and found.leases.peek_ready(now_ms, row.next_offset):
                return True
        return False

    def _all_in_memory(self, call: PopCall, catch: Catch) -> bool:
        """Whether `_look_again` knew all queues: a full look ends before the last one."""
        consumer_group_id, topic_id = call.consumer_group_id, call.topic.topic_id
        return all(
            self._sets.in_memory((consumer_group_id, topic_id, queue)) is not None
            or self._machine.queues.get(topic_id, queue) is None
            for queue in catch.queues
        )

    def _give_back_now(self, catch: Catch) -> None:
        """Release what was proposed and given to nobody."""
        # What a repeat found again may have been delivered by the pop before it.
        if catch.repeated:
            return
        self._give_back(catch)
        with suppress(Refused):
            self._sets.flush_kept()

    def _give_back(self, catch: Catch) -> None:
        """Release leases that were given to nobody, whether they were proposed or not."""
        now_ms = self._proposer.now_ms()
        for caught in catch.leases:
            lease_set = self._sets.now(caught.lease_set)
            if lease_set is None:
                continue
            change = lease_set.leases.release_undelivered(
                caught.offset, caught.lease.lease_number, caught.generation, now_ms
            )
            if change is not None:
                self._sets.keep(lease_set, change)


def _wanted(request: TakeRequest) -> int:
    """Return how many new messages a pop should look at."""
    return max(request.max_messages, _FIFO_AT_ONCE) if request.fifo else request.max_messages
