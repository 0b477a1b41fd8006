"""Lease requests of consumers and operators: ack, new visible time, reset, inspection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout import QueueRow
from strata_mq.leases import LeaseChange, QueueLeases, merge_changes
from strata_state.rows import ConsumerKey
from strata_storage.base.errors import Refused
from strata_storage.base.interests import InterestStream
from strata_storage.leading.pops.lease_set import LeaseSet, Section
from strata_storage.leading.pops.lease_sets import LeaseSets
from strata_storage.leading.pops.pop_calls import unreadable_until_ms
from strata_storage.leading.pops.waiters import Waiters
from strata_storage.leading.proposer import Proposer, committed
from strata_storage.reads.offsets import Offsets
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.ownership import Topic

_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)


Handle = tuple[int, int, int, int]
"""Offset, lease number, generation and end of a lease, as in its receipt handle."""


GiveBack = Callable[[QueueLeases, "LeaseRef", int], LeaseChange | None]
"""Takes a lease and its attempt back, at a group time; None: the lease did not hold."""


class QueueHandles(NamedTuple):
    """Handles of one call that name leases of one queue.

    Attributes:
        places: of the handles in the call.
        handles: in the same order.
    """

    places: list[int]
    handles: list[Handle]


class LeaseRef(NamedTuple):
    """Names one lease: the fields of a receipt handle."""

    consumer_group_id: int
    topic_id: int
    queue: int
    offset: int
    lease_number: int
    generation: int
    visible_at_ms: int

    @property
    def key(self) -> ConsumerKey:
        """(consumer group id, topic id, queue)."""
        return self.consumer_group_id, self.topic_id, self.queue


class QueueTimes(NamedTuple):
    """Store times of messages of a queue, 0 where there is no such message.

    Attributes:
        oldest_ms: of the first one.
        consumed_ms: of the one before the cursor.
        cursor_ms: of the one at the cursor.
        newest_ms: of the last one.
    """

    oldest_ms: int
    consumed_ms: int
    cursor_ms: int
    newest_ms: int


class StateDetails(NamedTuple):
    """Numbers that are asked for beside a consumer group's position."""

    max_open_offsets: int = 0
    times: bool = False


_NO_DETAILS = StateDetails()


@dataclass(frozen=True, slots=True)
class ConsumerQueue:
    """Where a consumer group is on a queue.

    Attributes:
        started: its position is stored; else this is where it would begin.
        open_offsets: below head and not consumed, as many as were asked for.
        times: store times, if they were asked for.
    """

    queue: int
    min_offset: int
    next_offset: int
    cursor: int
    head: int
    in_flight: int
    waiting: int
    started: bool = False
    open_offsets: Sequence[int] = ()
    times: QueueTimes | None = None

    @property
    def is_deliverable(self) -> bool:
        """Whether a message is new to the group, or waits to be delivered again."""
        head = max(self.head, self.min_offset) if self.started else self.min_offset
        return bool(self.waiting) or head < self.next_offset


class LeaseCalls:
    """Serves these calls for one leader in one term."""

    def __init__(
        self,
        machine: GroupMachine,
        proposer: Proposer,
        sets: LeaseSets,
        *,
        waiters: Waiters,
        offsets: Offsets,
    ) -> None:
        self._machine = machine
        self._proposer = proposer
        self._sets = sets
        self._waiters = waiters
        self._offsets = offsets

    def ack(
        self,
        handles: Mapping[ConsumerKey, QueueHandles],
        *,
        repeated: bool = False,
    ) -> tuple[list[bool], asyncio.Future[int] | None]:
        """Consume messages: (which handles are valid, when that is committed).

        Args:
            handles: by queue, with the place of each in the call, from 0 on without a gap.
            repeated: an earlier try may have consumed some; then they are valid, however late.

        Raises:
            Refused: not now; nothing was acked.
        """
        self._sets.check_open()
        # Found before anything changes: finding may be refused.
        sets = {key: self._sets.find(key) for key in handles}
        now_ms = self._proposer.now_ms()
        valid = [False] * sum([len(mine.places) for mine in handles.values()])
        changes: list[Section] = []
        for key, lease_set in sets.items():
            if lease_set is None:
                continue
            mine = handles[key]
            acked, change = lease_set.leases.ack_all(mine.handles, now_ms, repeated=repeated)
            for at, one in zip(mine.places, acked, strict=True):
                valid[at] = one
            if change is not None:
                changes.append((lease_set, change))
        if not changes:
            return valid, None
        return valid, self._sets.propose(changes)

    async def settle(self, future: asyncio.Future[int] | None) -> None:
        """Wait until acks are committed; without any, until what memory says is certain.

        A repeat waits for what may be the first one's entry; a handle is called void only by a
        replica that still leads: under another leader it may be good.

        Raises:
            Refused: leadership was lost.
        """
        if future is None:
            await self._proposer.applied()
        else:
            await committed(future)

    async def release(
        self, undelivered: Sequence[LeaseRef], unreadable: Sequence[LeaseRef] = ()
    ) -> int:
        """Give back leases on messages that nobody was given; return how many of them held.

        One entry for all. A repeat finds none, and waits for what may be the first one's entry.

        Args:
            undelivered: their messages are visible at once.
            unreadable: nobody can read their messages now: they are put off.

        Raises:
            Refused: not now; nothing was released, or leadership was lost.
        """
        self._sets.check_open()
        places: dict[ConsumerKey, list[tuple[LeaseRef, GiveBack]]] = {}
        for refs, give_back in ((undelivered, _release), (unreadable, _put_off)):
            for ref in refs:
                places.setdefault(ref.key, []).append((ref, give_back))
        # Found before anything changes: finding may be refused.
        sets = {key: self._sets.find(key) for key in places}
        now_ms = self._proposer.now_ms()
        released = 0
        sections: list[Section] = []
        for key, lease_set in sets.items():
            if lease_set is None:
                continue
            found = [give_back(lease_set.leases, ref, now_ms) for ref, give_back in places[key]]
            changes = [change for change in found if change is not None]
            if changes:
                released += len(changes)
                sections.append((lease_set, merge_changes(changes)))
        await self.settle(self._sets.propose(sections) if sections else None)
        return released

    async def change_invisible(
        self, ref: LeaseRef, invisible_ms: int, *, repeated: bool = False
    ) -> LeaseRef:
        """Set when a leased message is visible again; return the lease's new name.

        `repeated`: an earlier try may have done it; then its result is returned again.

        Raises:
            Refused: OUTCOME_INVALID_HANDLE, or not now.
        """
        self._sets.check_open()
        lease_set = self._sets.find(ref.key)
        lease, future = None, None
        if lease_set is not None:
            leases, now_ms = lease_set.leases, self._proposer.now_ms()
            handle = (ref.offset, ref.lease_number, ref.generation, ref.visible_at_ms)
            lease, change = leases.change_invisible(*handle, invisible_ms, now_ms)
            if change is not None:
                future = self._sets.propose([(lease_set, change)])
            elif repeated:
                lease = leases.changed_before(*handle, invisible_ms, now_ms)
        await self.settle(future)
        if lease is None:
            raise invalid_handle(ref)
        return ref._replace(lease_number=lease.lease_number, visible_at_ms=lease.visible_at_ms)

    # Operators ----------------------------------------------------------------------------------

    async def reset(
        self, consumer_group_id: int, topic: Topic, queues: Sequence[int], target: ResetTarget
    ) -> list[ConsumerQueue]:
        """Move a consumer group's cursor on queues; every lease handed out before is void.

        Raises:
            Refused: not owned, or not now.
        """
        self._sets.check_exists(consumer_group_id, topic.topic_id)
        self._sets.check_open()
        keys = [
            (consumer_group_id, topic.topic_id, queue)
            for queue in self._offsets.choose(topic, queues)
        ]
        if any(key[1:] in self._sets.held_queues for key in keys):
            # Its rows would come behind the end of the queue, and stay forever.
            raise Refused(pb.OUTCOME_NOT_READY, "a queue is just ending or losing a message")
        # Found before anything changes: finding may be refused.
        sets = {key: self._sets.find_or_start(key, latest=False) for key in keys}
        # So are the offsets: a row that cannot be read refuses all or nothing.
        offsets = {key: self._target_offset(key, target) for key in keys}
        moves = [
            (lease_set, offsets[key])
            for key, lease_set in sets.items()
            if target.offset is None or not self._is_stored(lease_set, offsets[key])
        ]
        sections = []
        for lease_set, offset in moves:
            change = lease_set.leases.reset(offset)
            if target.forget:
                # In memory it is a consumer group that just came, whose head is not stored.
                change = change._replace(head_changed=False, clear=True, forget=True)
            sections.append((lease_set, change))
        if sections:
            future = self._sets.propose(sections)
            self._waiters.wake_group(topic.topic_id, consumer_group_id)
            await committed(future)
        return [self._state(key, _NO_DETAILS) for key in keys]

    def states(
        self,
        consumer_group_id: int,
        topic: Topic,
        queues: Sequence[int] = (),
        details: StateDetails = _NO_DETAILS,
    ) -> list[ConsumerQueue]:
        """Return where a consumer group is on queues of a topic; none named: all owned here.

        Raises:
            Refused: OUTCOME_WRONG_GROUP for one that is not here.
        """
        return [
            self._state((consumer_group_id, topic.topic_id, queue), details)
            for queue in self._offsets.choose(topic, queues)
        ]

    async def settle_states(
        self, consumer_group_id: int, topic: Topic, states: Sequence[ConsumerQueue]
    ) -> None:
        """Wait until states are committed, which were read in this turn of the event loop.

        An ack that is under way may be lost with this leader. Its message is delivered again then,
        so nobody may take it for consumed and go on behind it (rules 3 and 18).

        Raises:
            Refused: what was decided cannot be proposed now, or leadership was lost.
        """
        sets = [
            self._sets.in_memory((consumer_group_id, topic.topic_id, state.queue))
            for state in states
        ]
        if any(lease_set is not None and lease_set.in_flight for lease_set in sets):
            self._sets.check_open()
            await self._proposer.settled()

    def arm(
        self, stream: InterestStream, place: ConsumerKey, states: Sequence[ConsumerQueue]
    ) -> bool:
        """Let a broker be told, once, when a pop may find something; if it would find nothing now.

        Args:
            stream: of the broker.
            place: (consumer group id, topic id, queue or ANY_QUEUE).
            states: of the place's queues, read in this turn of the event loop (rule 35).

        Returns:
            Whether the broker will be told.
        """
        if any(state.is_deliverable for state in states):
            return False
        consumer_group_id, topic_id, queue = place
        return self._waiters.interests.arm(stream, topic_id, consumer_group_id, queue)

    def _is_stored(self, lease_set: LeaseSet, offset: int) -> bool:
        """Whether nothing lies below this offset and it is the stored head.

        Pull consumers store their offsets again and again.
        """
        leases = lease_set.leases
        if leases.head != offset or leases.cursor() != offset or lease_set.in_flight:
            return False
        stored = self._machine.rows.heads.get(lease_set.key)
        # A filter may have moved the head in memory only.
        return stored is not None and stored.head == offset

    def _target_offset(self, key: ConsumerKey, target: ResetTarget) -> int:
        _, topic_id, queue = key
        row = self._machine.queues.get(topic_id, queue) or _EMPTY_QUEUE
        if target.time_ms is not None:
            return self._offsets.by_time(topic_id, queue, row, target.time_ms)
        if target.latest:
            return row.next_offset
        wanted = row.min_offset if target.offset is None else target.offset
        return min(max(wanted, row.min_offset), row.next_offset)

    def _state(self, key: ConsumerKey, details: StateDetails) -> ConsumerQueue:
        _, topic_id, queue = key
        row = self._machine.queues.get(topic_id, queue) or _EMPTY_QUEUE
        found = self._sets.find(key)
        cursor = row.min_offset if found is None else found.leases.cursor()
        times = self._times(topic_id, queue, row, cursor) if details.times else None
        if found is None:
            start = row.min_offset
            return ConsumerQueue(queue, start, row.next_offset, start, start, 0, 0, times=times)
        leases = found.leases
        open_offsets = [offset for offset, _ in leases.rows()] if details.max_open_offsets else ()
        return ConsumerQueue(
            queue,
            row.min_offset,
            row.next_offset,
            cursor,
            leases.head,
            leases.in_flight,
            leases.waiting,
            # A pop of an empty queue starts a set in memory only.
            self._machine.rows.heads.get(key) is not None,
            open_offsets[: details.max_open_offsets],
            times,
        )

    def _times(self, topic_id: int, queue: int, row: QueueRow, cursor: int) -> QueueTimes:
        def store_time_ms(offset: int) -> int:
            if not row.min_offset <= offset < row.next_offset:
                return 0
            run = self._machine.consume_queues.covering(topic_id, queue, offset)
            return 0 if run is None else run[1].store_time_ms

        return QueueTimes(
            store_time_ms(row.min_offset),
            store_time_ms(cursor - 1),
            store_time_ms(cursor),
            row.last_store_time_ms,
        )


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Where a reset goes: a time, the end, an offset (put inside the queue), else the start.

    `forget`: no position is kept, the consumer group is as one that never came.
    """

    time_ms: int | None = None
    latest: bool = False
    offset: int | None = None
    forget: bool = False


def _release(leases: QueueLeases, ref: LeaseRef, now_ms: int) -> LeaseChange | None:
    return leases.release_undelivered(ref.offset, ref.lease_number, ref.generation, now_ms)


def _put_off(leases: QueueLeases, ref: LeaseRef, now_ms: int) -> LeaseChange | None:
    """Keep a message invisible until its lease would have ended; one that has ended is visible."""
    until_ms = unreadable_until_ms(ref.visible_at_ms, now_ms)
    change = leases.reschedule_undelivered(ref.offset, ref.lease_number, ref.generation, until_ms)
    return _release(leases, ref, now_ms) if change is None else change


def invalid_handle(ref: LeaseRef) -> Refused:
    """Return the refusal of a handle that names no lease that can still be changed."""
    return Refused(
        pb.OUTCOME_INVALID_HANDLE,
        f"no lease {ref.lease_number} on offset {ref.offset} of queue {ref.queue}",
    )
