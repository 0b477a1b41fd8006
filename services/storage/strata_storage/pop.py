"""Pop: leases on messages for a consumer group, answered when they are committed (rule 24)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.cq_rows import CqRow
from strata_mq.leases import Columns, Lease, Taken, TakeRequest
from strata_mq.rows import MoveRow, QueueRow
from strata_runtime.clock import Clock
from strata_storage.config import EngineOptions
from strata_storage.errors import Refused
from strata_storage.lease_sets import LeaseSet, LeaseSets, Section
from strata_storage.machine import GroupMachine
from strata_storage.ownership import Topic
from strata_storage.proposer import Proposer, committed
from strata_storage.reader import Location, MessageReader
from strata_storage.waiters import Waiters

# New offsets whose columns are read for one pop at a time; filters make it read on.
_COLUMNS_AT_ONCE = 256
_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class PopCall:
    """One pop.

    `queue` -1: any queue of the topic here. `latest`: where a new group starts. `repeated`: an
    earlier pop of the same attempt may have taken leases that nobody was told of. `known_sealed`:
    how many of the queues the caller knows to be sealed here.
    """

    consumer_group_id: int
    topic: Topic
    queue: int
    take: TakeRequest
    latest: bool
    wait_s: float
    repeated: bool = False
    known_sealed: int = 0


class Delivered(NamedTuple):
    """One message with its lease."""

    queue: int
    offset: int
    generation: int
    store_time_ms: int
    lease: Lease
    message: bytes


class _Caught(NamedTuple):
    """One lease. The generation is that of the take: a reset may come before the answer."""

    lease_set: LeaseSet
    generation: int
    offset: int
    lease: Lease


@dataclass(slots=True)
class _Catch:
    """What one look at the queues gave: leases with the place of their messages."""

    sections: list[Section]
    leases: list[_Caught]
    taken_bytes: int = 0
    repeated: bool = False


class Popper:
    """Serves pops for one leader in one term."""

    def __init__(
        self,
        machine: GroupMachine,
        proposer: Proposer,
        sets: LeaseSets,
        waiters: Waiters,
        reader: MessageReader,
        clock: Clock,
        options: EngineOptions,
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

    async def pop(self, call: PopCall) -> list[Delivered]:
        """Lease messages; wait up to `wait_s` for some; empty when there were none.

        Empty at once for a caller who does not know which of the queues are sealed here: some of
        their messages are elsewhere.

        Raises:
            Refused: not owned, limits, leadership lost.
        """
        self._sets.check_exists(call.consumer_group_id, call.topic.topic_id)
        deadline_s = self._clock.monotonic_s() + call.wait_s
        while True:
            self._sets.check_open()
            if not call.repeated and len(self.sealed(call)) != call.known_sealed:
                return []
            catch = self._take(call)
            if catch.leases:
                break
            if catch.sections:
                # Filters passed over messages: the head moved, nobody waits for that.
                self._sets.propose(catch.sections)
                if self._ready(call):
                    continue
            else:
                self._sets.flush_kept()
            time_left_s = deadline_s - self._clock.monotonic_s()
            if time_left_s <= 0 or not await self._waiters.wait(
                call.topic.topic_id, call.consumer_group_id, call.queue, time_left_s
            ):
                return []
        return await self._deliver(call, catch)

    def sealed(self, call: PopCall) -> Sequence[tuple[int, MoveRow]]:
        """Return which of the queues that a pop asks for are sealed, and where they went.

        Raises:
            Refused: a queue is not here.
        """
        if not self._machine.moves:
            return ()
        return self._machine.sealed_of(call.topic.topic_id, self._queues_here(call))

    async def _deliver(self, call: PopCall, catch: _Catch) -> list[Delivered]:
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
        if len(catch.leases) >= call.take.max_messages:
            # This pop took what it may; there may be more for the next one.
            self._waiters.wake_group(call.topic.topic_id, call.consumer_group_id)
        return await self._read(catch)

    # Deciding -----------------------------------------------------------------------------------

    def _take(self, call: PopCall) -> _Catch:
        if call.repeated and call.take.attempt:
            again = self._take_again(call)
            if again.leases:
                return again
        catch = _Catch([], [])
        for queue in self._queues(call):
            self._take_queue(call, queue, catch)
            if catch.repeated or len(catch.leases) >= call.take.max_messages:
                break
            if catch.taken_bytes >= call.take.max_bytes:
                break
        if call.take.attempt and call.take.fifo and catch.leases and not catch.repeated:
            self._remember_attempt(call, catch)
        return catch

    def _take_again(self, call: PopCall) -> _Catch:
        """Return what the attempt has leased already."""
        catch = _Catch([], [])
        now_ms = self._proposer.now_ms()
        for queue in self._queues(call):
            lease_set = self._sets.find((call.consumer_group_id, call.topic.topic_id, queue))
            if lease_set is not None:
                leases = lease_set.leases.of_attempt(call.take.attempt, now_ms)
                self._catch(catch, lease_set, Taken(leases, None, repeated=True))
        return catch

    def _take_queue(self, call: PopCall, queue: int, catch: _Catch) -> None:
        key = (call.consumer_group_id, call.topic.topic_id, queue)
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
        columns = self._columns(catch, lease_set, row.next_offset, request.max_messages)
        taken = leases.take(request, now_ms, row.next_offset, columns)
        self._catch(catch, lease_set, taken)

    def _columns(
        self, catch: _Catch, lease_set: LeaseSet, next_offset: int, max_messages: int
    ) -> list[Columns]:
        """Return columns of new offsets from head on; head passes over offsets without message."""
        _, topic_id, queue = lease_set.key
        first, count = lease_set.leases.wants_columns(next_offset)
        if not count:
            return []
        queues = self._machine.consume_queues
        limit = max(_COLUMNS_AT_ONCE, max_messages)
        runs = queues.runs(topic_id, queue, first, min(count, limit))
        if not runs or runs[0][0] > first:
            following = queues.next_run(topic_id, queue, first)
            first = next_offset if following is None else following[0]
            catch.sections.append((lease_set, lease_set.leases.pass_over(first)))
            runs = queues.runs(topic_id, queue, first, limit)
        columns: list[Columns] = []
        for base, run in runs:
            if columns and base != columns[-1].base_offset + len(columns[-1].lengths):
                break
            columns.append(Columns(base, run.tag_hashes, run.group_hashes, run.lengths))
        return columns

    def _catch(self, catch: _Catch, lease_set: LeaseSet, taken: Taken) -> None:
        if taken.change is not None:
            catch.sections.append((lease_set, taken.change))
        catch.repeated = catch.repeated or taken.repeated
        for offset, lease in taken.leases:
            catch.leases.append(_Caught(lease_set, lease_set.leases.generation, offset, lease))
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

    def _remember_attempt(self, call: PopCall, catch: _Catch) -> None:
        key = (call.consumer_group_id, call.topic.topic_id, call.take.attempt)
        self._attempts[key] = tuple(
            dict.fromkeys(caught.lease_set.key[2] for caught in catch.leases)
        )
        if len(self._attempts) > self._options.attempts_max:
            self._attempts.popitem(last=False)

    def _ready(self, call: PopCall) -> bool:
        """Whether another look makes sense at once."""
        now_ms = self._proposer.now_ms()
        for queue in self._queues(call):
            key = (call.consumer_group_id, call.topic.topic_id, queue)
            row = self._machine.queues.get(call.topic.topic_id, queue)
            found = self._sets.find(key)
            if row and found and found.leases.peek_ready(now_ms, row.next_offset):
                return True
        return False

    def _give_back(self, catch: _Catch) -> None:
        """Release leases that could not be proposed: they were given to nobody."""
        now_ms = self._proposer.now_ms()
        for lease_set, _, offset, lease in catch.leases:
            leases = lease_set.leases
            _, change = leases.change_invisible(
                offset, lease.lease_number, leases.generation, lease.visible_at_ms, 0, now_ms
            )
            if change is not None:
                self._sets.keep(lease_set, change)

    # Reading ------------------------------------------------------------------------------------

    async def _read(self, catch: _Catch) -> list[Delivered]:
        """Read the messages.

        One that is damaged stays leased and is tried again later; one that is gone, because a
        repair of the log gave it up, is consumed.

        Raises:
            Refused: OUTCOME_CORRUPT, not one message can be read.
        """
        found: list[tuple[_Caught, CqRow]] = []
        locations: list[Location] = []
        base, row, row_set = 0, None, None
        for caught in catch.leases:
            lease_set, _, offset, _ = caught
            if row is None or row_set is not lease_set or not base <= offset < base + row.count:
                run = self._machine.consume_queues.covering(*lease_set.key[1:], offset)
                if run is None:
                    self._consume_lost(caught)
                    continue
                base, row = run
                row_set = lease_set
            found.append((caught, row))
            locations.append(Location(row.raft_index, *row.location(offset - base)))
        messages = await self._reader.read(locations)
        delivered = [
            Delivered(
                caught.lease_set.key[2],
                caught.offset,
                caught.generation,
                row.store_time_ms,
                caught.lease,
                message,
            )
            for (caught, row), message in zip(found, messages, strict=True)
            if message is not None
        ]
        if found and not delivered:
            raise Refused(pb.OUTCOME_CORRUPT, "no message of this pop can be read from disk")
        return delivered

    def _consume_lost(self, caught: _Caught) -> None:
        """Ack a message that is gone, so that its lease does not hold up the cursor."""
        lease_set, generation, offset, lease = caught
        _, change = lease_set.leases.ack(
            offset, lease.lease_number, generation, lease.visible_at_ms, self._proposer.now_ms()
        )
        if change is not None:
            self._sets.keep(lease_set, change)
