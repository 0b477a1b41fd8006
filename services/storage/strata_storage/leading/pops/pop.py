"""Pop: leases on messages for a consumer group, answered when they are committed (rule 24).

A pop of a broker that wants to be told does not wait (rule 35): one that leaves nothing behind arms
an interest of its broker in the turn of the event loop in which it looked, so that nothing that
comes from then on is missed, also while its leases are committed.

One *scan* of the queues decides on leases without waiting. A filter that lets little through makes
it pass over much: a scan is bounded, and a pop that found nothing scans again until its time is
over, giving way to everything else on the event loop in between. So is what its filter costs in
all scans together: a pop that has used that up ends empty, and the next one goes on from there.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from strata_mq.filters import EVERYTHING
from strata_mq.layout import QueueRow
from strata_mq.leases import Taken, TakeRequest
from strata_runtime.clock import Clock
from strata_runtime.turns import Turns
from strata_state.ports import StateError
from strata_storage.base.config import EngineOptions
from strata_storage.base.errors import Refused
from strata_storage.leading.pops.candidates import Candidates, ScanBudget
from strata_storage.leading.pops.lease_set import LeaseSet
from strata_storage.leading.pops.lease_sets import LeaseSets
from strata_storage.leading.pops.levels import bits_of
from strata_storage.leading.pops.pop_calls import Delivered, Leased, PopAnswer, PopCall, Scan
from strata_storage.leading.pops.queue_order import QueueOrder
from strata_storage.leading.pops.taken_messages import TakenMessages
from strata_storage.leading.pops.waiters import Waiters
from strata_storage.leading.proposer import Proposer, committed
from strata_storage.reads.reader import Location, MessageReader
from strata_storage.rows.machine import GroupMachine

# For so long a pop that does not wait goes on while its filter lets nothing through.
_MAX_LOOK_S = 1.0
# New offsets that a FIFO pop looks at although it may not take as many: most may be blocked.
_FIFO_AT_ONCE = 256
_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)


class GroupPopper:
    """Serves pops for one leader in one term.

    Attributes:
        order: which queues a pop looks at.
    """

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
        self.order = QueueOrder(machine, options)
        self._candidates = Candidates(machine, reader, turns)
        self._messages = TakenMessages(
            machine, proposer, sets, waiters=waiters, reader=reader, turns=turns
        )
        # Held by the one pop that continues to scan: with many pops, each turn of the event loop
        # has one scan at most.
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
            answer = await self._pop(call, self._clock.monotonic_s() + wait_s)
        except asyncio.CancelledError:
            # It may have been woken for what it did not come to.
            self._wake_next(call)
            raise
        if call.levels is not None:
            answer = answer._replace(ready_levels=self._ready_levels(call) or 0)
        return answer

    async def _pop(self, call: PopCall, deadline_s: float) -> PopAnswer:
        filter_steps_left = self._options.pop_filter_steps
        while True:
            if self._must_tell(call):
                return PopAnswer()
            scan = await self._scan(call)
            filter_steps_left -= self._options.pop_scan_filter_steps - scan.budget.filter_steps
            if scan.leases:
                delivered = await self._deliver_or_release(call, scan)
            else:
                delivered = self._settle(scan)
            if delivered:
                return PopAnswer(delivered, scan.told_later)
            if call.is_gone():
                # It may have been woken for what it did not take.
                self._wake_next(call)
                return PopAnswer()
            if self._must_tell(call):
                # A queue was sealed meanwhile, and woke who waited already.
                return PopAnswer()
            time_left_s = deadline_s - self._clock.monotonic_s()
            if self._may_give_more(call, scan):
                if filter_steps_left <= 0:
                    self._sets.filter_limited += 1
                if time_left_s <= 0 or filter_steps_left <= 0:
                    # The rest is for the next pop.
                    self._wake_next(call)
                    return PopAnswer(unfinished=True)
                async with self._again:
                    await asyncio.sleep(0)
            elif call.stream is not None:
                return PopAnswer(told_later=scan.told_later)
            elif time_left_s <= 0 or not await self._waiters.wait(
                call.topic.topic_id,
                call.consumer_group_id,
                call.queue,
                time_left_s,
                call.size_bytes,
            ):
                return PopAnswer()

    def _settle(self, scan: Scan) -> list[Delivered]:
        """Propose what a scan without leases changed; nobody waits for that."""
        if scan.sections:
            self._sets.propose(scan.sections)
        else:
            self._sets.flush_kept()
        return []

    def _must_tell(self, call: PopCall) -> bool:
        """Whether the caller does not know which of the queues are sealed here."""
        return not call.repeated and len(self.order.sealed(call)) != call.known_sealed

    async def _deliver_or_release(self, call: PopCall, scan: Scan) -> list[Delivered]:
        """Deliver; what a caller who leaves meanwhile will not hear of is free at once."""
        try:
            return await self._deliver(call, scan)
        except asyncio.CancelledError:
            self._give_back_now(scan)
            raise

    async def _deliver(self, call: PopCall, scan: Scan) -> list[Delivered]:
        if scan.sections:
            try:
                future = self._sets.propose(scan.sections)
            except Refused:
                # A repeat's leases may be its client's; their changes go with the next entry.
                if not scan.repeated:
                    self._give_back(scan)
                raise
            await committed(future)
        else:
            # A repeat of an attempt whose entry may still be under way.
            await self._proposer.settled()
        if len(scan.leases) >= call.take.max_messages or self._may_give_more(call, scan):
            # This pop took what it may, or had no time for more; there may be more for the next.
            self._wake_next(call)
        if not scan.repeated and call.is_gone():
            # It waited for the log for so long.
            self._give_back_now(scan)
            return []
        try:
            delivered = await self._messages.read(call, scan)
        except (Refused, StateError):
            self._give_back_now(scan)
            raise
        if not delivered:
            # Nobody is told, so nobody's next decision takes along what became of the messages.
            self._sets.flush_kept()
        return delivered

    def _wake_next(self, call: PopCall) -> None:
        """Let another pop look after this one."""
        self._waiters.pass_on(call.topic.topic_id, call.consumer_group_id, call.queue)

    # Deciding -----------------------------------------------------------------------------------

    async def _scan(self, call: PopCall) -> Scan:
        """Look at the queues once and decide on leases.

        Raises:
            Refused: what was decided before cannot be proposed; too many reads are under way.
        """
        scan = Scan(self.order.queues(call), ScanBudget(self._options))
        is_warmed = self._machine.tier.is_used and await self._warm(call, scan)
        if call.message_filter.needs_messages:
            await self._read_ahead(call, scan)
        if is_warmed or call.message_filter.needs_messages:
            # Meanwhile a queue may have left: no consumer group may start at it here any more.
            here = frozenset(self.order.queues_here(call))
            scan.queues = [queue for queue in scan.queues if queue in here]
        # Leadership may have ended, or the topic, while this pop read or let others go on.
        self._waiters.check_open()
        self._sets.check_exists(call.consumer_group_id, call.topic.topic_id)
        self._sets.check_open()
        if call.repeated and call.take.attempt:
            self._take_again(call, scan)
        # A lease for nobody would keep the message from everybody else.
        is_for_nobody = call.is_gone() or self.order.is_passed_on(call)
        if not (scan.leases or call.taken_only or is_for_nobody):
            self._take(call, scan)
            self._arm(call, scan)
        return scan

    def _arm(self, call: PopCall, scan: Scan) -> None:
        """Let the broker be told of what comes from now on, if nothing is left behind now."""
        if (
            call.stream is None
            or scan.repeated
            or scan.incomplete
            or self._may_give_more(call, scan)
            or (scan.leases and not self._all_in_memory(call, scan))
            or (call.levels is not None and self._ready_levels(call) != 0)
        ):
            return
        scan.told_later = self._waiters.interests.arm(
            call.stream, call.topic.topic_id, call.consumer_group_id, call.queue
        )

    async def _warm(self, call: PopCall, scan: Scan) -> bool:
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
        for queue in scan.queues:
            locations = self._tiered_only(call, queue, scan.budget)
            try:
                if locations:
                    is_warmed = True
                    await self._reader.warm(locations, call.consumer_group_id)
                readable.append(queue)
            except Refused as refused:
                refusal = refused
                scan.incomplete = True
        if refusal is not None and not readable:
            raise refusal
        scan.queues = readable
        return is_warmed

    def _tiered_only(self, call: PopCall, queue: int, budget: ScanBudget) -> list[Location]:
        """Return what a pop is likely to take of a queue and the log may lack."""
        topic_id = call.topic.topic_id
        local = self._machine.tier.local_offset(topic_id, queue)
        if not local or not self._sets.may_begin(call.topic, queue):
            return []
        lease_set = self._sets.find_or_start(
            (call.consumer_group_id, topic_id, queue), latest=call.latest
        )
        row = self._machine.queues.get(topic_id, queue) or _EMPTY_QUEUE
        leases, now_ms = lease_set.leases, self._proposer.now_ms()
        if leases.cursor() >= local or not leases.peek_ready(now_ms, row.next_offset):
            return []
        # The first of the messages that come again stands for all: it tells whether the tier is
        # there.
        again = [leases.cursor()] if leases.peek_ready(now_ms, leases.head) else []
        return self._candidates.likely(
            lease_set, again, local, call.message_filter, _wanted(call.take), budget
        )

    async def _read_ahead(self, call: PopCall, scan: Scan) -> None:
        """Let the filter decide on messages that have to be read for that."""
        wanted = _wanted(call.take)
        for queue in scan.queues:
            if not self._sets.may_begin(call.topic, queue):
                continue
            key = (call.consumer_group_id, call.topic.topic_id, queue)
            lease_set = self._sets.find_or_start(key, latest=call.latest)
            row = self._machine.queues.get(call.topic.topic_id, queue) or _EMPTY_QUEUE
            wanted -= await self._candidates.read_ahead(
                lease_set, row.next_offset, call.message_filter, wanted, scan.budget
            )
            # The result is lost if the set was read anew meanwhile: scan again at once.
            scan.moved = scan.moved or self._sets.in_memory(key) is not lease_set
            if wanted <= 0:
                return

    def _take(self, call: PopCall, scan: Scan) -> None:
        for queue in scan.queues:
            try:
                self._take_queue(call, queue, scan)
            except (Refused, StateError):
                # A set or a row cannot be read now; what other queues gave is to be delivered, and
                # what they changed is to be proposed: memory has it already.
                if not scan.leases and not scan.sections:
                    raise
                scan.incomplete = True
                break
            if scan.repeated or len(scan.leases) >= call.take.max_messages:
                break
            if scan.taken_bytes >= call.take.max_bytes:
                break
        if call.take.attempt and call.take.fifo and scan.leases and not scan.repeated:
            self.order.remember_attempt(call, scan)

    def _take_again(self, call: PopCall, scan: Scan) -> None:
        """Return what the attempt has leased already."""
        now_ms = self._proposer.now_ms()
        # The first try may have looked at other levels.
        queues = scan.queues if call.levels is None else self.order.queues_here(call)
        for queue in queues:
            lease_set = self._sets.find((call.consumer_group_id, call.topic.topic_id, queue))
            if lease_set is None:
                continue
            leases = [
                (offset, lease)
                for offset, lease in lease_set.leases.of_attempt(call.take.attempt, now_ms)
                # The client may have gone on with the attempt to another broker.
                if not lease.broker or lease.broker == call.take.broker
            ]
            if leases:
                again = Taken(leases, None, repeated=True)
                self._add_leases(scan, call, lease_set, again, lease_set.leases.head)

    def _take_queue(self, call: PopCall, queue: int, scan: Scan) -> None:
        key = (call.consumer_group_id, call.topic.topic_id, queue)
        if key[1:] in self._sets.held_queues:
            # A message of it is being recalled (`Recalls`).
            return
        lease_set = self._sets.find_or_start(key, latest=call.latest)
        row = self._machine.queues.get(call.topic.topic_id, queue) or _EMPTY_QUEUE
        leases = lease_set.leases
        now_ms = self._proposer.now_ms()
        # A repeat finds its leases although nothing is ready.
        asks_again = (
            leases.of_attempt(call.take.attempt, now_ms)
            if call.take.fifo and call.take.attempt
            else ()
        )
        if not asks_again and not leases.peek_ready(now_ms, row.next_offset):
            return
        request = call.take
        if scan.leases:
            request = replace(
                request,
                max_messages=request.max_messages - len(scan.leases),
                max_bytes=request.max_bytes - scan.taken_bytes,
            )
        columns = self._candidates.columns(
            lease_set, row.next_offset, call.message_filter, _wanted(request), scan.budget
        )
        head = leases.head
        taken = leases.take(request, now_ms, row.next_offset, columns)
        if taken.repeated and taken.change is not None:
            self.order.pass_on(call, {lease.broker for _, lease in asks_again})
        self._add_leases(scan, call, lease_set, taken, head)

    def _add_leases(
        self, scan: Scan, call: PopCall, lease_set: LeaseSet, taken: Taken, head: int
    ) -> None:
        """Take in what a queue gave; its head was at `head` before."""
        leases = lease_set.leases
        change = taken.change
        if change is not None:
            if change.puts:
                scan.sections.append((lease_set, change))
            else:
                self._sets.passed(lease_set)
            scan.moved = scan.moved or leases.head > head
            if call.message_filter is not EVERYTHING:
                new = sum(offset >= head for offset, _ in change.puts)
                self._sets.filtered += leases.head - head - new
        scan.repeated = scan.repeated or taken.repeated
        for offset, lease in taken.leases:
            leased = Leased(lease_set, leases.generation, offset, lease, offset >= head)
            scan.leases.append(leased)
            scan.taken_bytes += lease.length

    def _may_give_more(self, call: PopCall, scan: Scan) -> bool:
        """Whether another scan makes sense at once: this one got somewhere, and not to the end."""
        if not scan.moved and not scan.leases:
            return False
        topic_id, now_ms = call.topic.topic_id, self._proposer.now_ms()
        for queue in scan.queues:
            found = self._sets.in_memory((call.consumer_group_id, topic_id, queue))
            if found is not None and self._may_be_ready(queue, topic_id, found, now_ms):
                return True
        return False

    def _may_be_ready(self, queue: int, topic_id: int, found: LeaseSet | None, now_ms: int) -> bool:
        """Whether a queue may give something now.

        A queue may whose set or row is not in memory or cannot be read: the next pop finds out.
        Leases that this pop took must not get lost by it.
        """
        try:
            row = self._machine.queues.get(topic_id, queue)
        except StateError:
            return True
        return row is not None and (
            found is None or found.leases.peek_ready(now_ms, row.next_offset)
        )

    def _ready_levels(self, call: PopCall) -> int | None:
        """Return the queues that may give something now, whatever levels were asked for.

        None: nobody knows; leases that this pop took must not get lost by that.
        """
        consumer_group_id, topic_id = call.consumer_group_id, call.topic.topic_id
        now_ms = self._proposer.now_ms()
        try:
            queues = self.order.queues_here(call)
        except (Refused, StateError):
            return None
        return bits_of(
            [
                queue
                for queue in queues
                if self._may_be_ready(
                    queue,
                    topic_id,
                    self._sets.in_memory((consumer_group_id, topic_id, queue)),
                    now_ms,
                )
            ]
        )

    def _all_in_memory(self, call: PopCall, scan: Scan) -> bool:
        """Whether `_may_give_more` knew all queues: a full scan ends before the last one."""
        consumer_group_id, topic_id = call.consumer_group_id, call.topic.topic_id
        return all(
            self._sets.in_memory((consumer_group_id, topic_id, queue)) is not None
            or not self._may_be_ready(queue, topic_id, None, 0)
            for queue in scan.queues
        )

    def _give_back_now(self, scan: Scan) -> None:
        """Release what was proposed and given to nobody."""
        # A message that a repeat finds again may have been delivered by the pop before it.
        if scan.repeated:
            return
        self._give_back(scan)
        with suppress(Refused):
            self._sets.flush_kept()

    def _give_back(self, scan: Scan) -> None:
        """Release leases that were given to nobody, whether they were proposed or not."""
        now_ms = self._proposer.now_ms()
        for leased in scan.leases:
            lease_set = self._sets.now(leased.lease_set)
            if lease_set is None:
                continue
            change = lease_set.leases.release_undelivered(
                leased.offset, leased.lease.lease_number, leased.generation, now_ms
            )
            if change is not None:
                self._sets.keep(lease_set, change)


def _wanted(request: TakeRequest) -> int:
    """Return how many new messages a pop should look at."""
    return max(request.max_messages, _FIFO_AT_ONCE) if request.fifo else request.max_messages
