"""Pops that found nothing and wait for data, an expiry or a release (bounded).

Only pops of older brokers wait here; everything that wakes them tells the interests of newer ones
(rule 35). It goes when no broker asks with `wait_ms` any more.

A wake-up is a permission to look again, not a message: per (topic, consumer group) the pop that
waits longest is woken first, and it wakes the next one when it left something behind. So a burst
of data does not wake a thousand pops that find nothing.

Invariants: a woken pop that gives up (its client is gone, its time is over) passes its wake-up on;
a wake-up costs the same however many pops are parked.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from operator import attrgetter

from strata.storage.v1 import storage_pb2 as pb
from strata_storage.base.errors import Refused
from strata_storage.leading.pops.group_interests import ANY_QUEUE, GroupInterests


class ParkedPop:
    """One parked pop; `number` is its place in the order in which pops came."""

    __slots__ = ("consumer_group_id", "number", "queue", "size_bytes", "topic_id", "woken")

    def __init__(
        self,
        topic_id: int,
        consumer_group_id: int,
        queue: int,
        *,
        number: int,
        size_bytes: int,
        woken: asyncio.Future[None],
    ) -> None:
        self.topic_id = topic_id
        self.consumer_group_id = consumer_group_id
        self.queue = queue
        self.number = number
        self.size_bytes = size_bytes
        self.woken = woken


# Parked pops of one (topic, consumer group) by queue and number; those of a queue in the order in
# which they came. No pop in it is woken, and no queue is without a pop.
_Lines = dict[int, OrderedDict[int, ParkedPop]]


class Waiters:
    """Parked pops of one raft group.

    Args:
        max_waiters: limit on parked pops.
        max_bytes: limit on their requests, which stay in memory as long.
        interests: told of everything that wakes a pop.

    Attributes:
        interests: brokers to be told.
        parked_bytes: of the requests of parked pops.
    """

    __slots__ = (
        "_lines",
        "_max_bytes",
        "_max_waiters",
        "_next_number",
        "_parked",
        "_refusal",
        "interests",
        "parked_bytes",
    )

    def __init__(
        self, max_waiters: int, max_bytes: int, interests: GroupInterests | None = None
    ) -> None:
        self.interests = GroupInterests(0) if interests is None else interests
        self._max_waiters = max_waiters
        self._max_bytes = max_bytes
        self.parked_bytes = 0
        self._lines: dict[int, dict[int, _Lines]] = {}
        self._parked = 0
        self._next_number = 0
        self._refusal: Refused | None = None

    def __len__(self) -> int:
        return self._parked

    async def wait(
        self,
        topic_id: int,
        consumer_group_id: int,
        queue: int,
        timeout_s: float,
        size_bytes: int = 0,
    ) -> bool:
        """Park a pop, whose request has this size, until woken.

        Returns:
            False when `timeout_s` passed first.

        Raises:
            Refused: OUTCOME_TOO_MANY_WAITERS, or what `refuse_all` gave.
        """
        self.check_open()
        if self._parked >= self._max_waiters:
            raise Refused(
                pb.OUTCOME_TOO_MANY_WAITERS,
                f"{self._max_waiters} pops wait for messages already (storage.max_waiters)",
            )
        if self.parked_bytes + size_bytes > self._max_bytes:
            raise Refused(
                pb.OUTCOME_TOO_MANY_WAITERS,
                f"the requests of waiting pops have {self.parked_bytes} of {self._max_bytes} bytes "
                "(storage.max_waiter_bytes)",
            )
        woken = asyncio.get_running_loop().create_future()
        self._next_number += 1
        waiter = ParkedPop(
            topic_id,
            consumer_group_id,
            queue,
            number=self._next_number,
            size_bytes=size_bytes,
            woken=woken,
        )
        self._park(waiter)
        try:
            await asyncio.wait((waiter.woken,), timeout=timeout_s)
        except asyncio.CancelledError:
            self._unpark(waiter)
            if waiter.woken.done() and waiter.woken.exception() is None:
                self.wake_group(topic_id, consumer_group_id)
            raise
        self._unpark(waiter)
        if not waiter.woken.done():
            return False
        waiter.woken.result()
        return True

    def wake_topic(self, topic_id: int, queue: int) -> None:
        """Let one pop of every consumer group look at a queue that got data."""
        self.interests.tell_topic(topic_id, queue)
        for lines in list(self._lines.get(topic_id, {}).values()):
            self._wake_first(lines, (ANY_QUEUE, queue))

    def wake_all(self, topic_id: int, queue: int) -> None:
        """Let every pop look again that waits for a queue."""
        self.interests.tell_topic(topic_id, queue)
        for lines in list(self._lines.get(topic_id, {}).values()):
            for named in (ANY_QUEUE, queue):
                for waiter in list(lines.get(named, {}).values()):
                    self._wake(waiter)

    def wake_group(self, topic_id: int, consumer_group_id: int, queue: int = ANY_QUEUE) -> None:
        """Let one pop of a consumer group look again; ANY_QUEUE: at any queue."""
        self.interests.tell_group(topic_id, consumer_group_id, queue)
        lines = self._lines.get(topic_id, {}).get(consumer_group_id)
        if lines:
            self._wake_first(lines, lines if queue == ANY_QUEUE else (ANY_QUEUE, queue))

    def pass_on(self, topic_id: int, consumer_group_id: int, queue: int) -> None:
        """Let another pop look after one that looked at a queue, or at ANY_QUEUE.

        A parked pop may have been woken for another queue, so whichever waits longest is next; a
        broker that is told knows which queue it was told of.
        """
        self.interests.tell_group(topic_id, consumer_group_id, queue)
        if lines := self._lines.get(topic_id, {}).get(consumer_group_id):
            self._wake_first(lines, lines)

    def check_open(self) -> None:
        """Let a pop go on unless `refuse_all` was called: it may have missed that.

        Raises:
            Refused: what `refuse_all` gave.
        """
        if self._refusal is not None:
            raise self._refusal

    def refuse_all(self, refusal: Refused) -> None:
        """End every parked pop, because this replica does not lead any more."""
        self.interests.tell_all()
        self._refusal = refusal
        for groups in list(self._lines.values()):
            for lines in list(groups.values()):
                for line in list(lines.values()):
                    for waiter in list(line.values()):
                        self._unpark(waiter)
                        waiter.woken.set_exception(refusal)

    def _wake_first(self, lines: _Lines, queues: Iterable[int]) -> None:
        """Wake the pop that waits longest of those that may look at one of `queues`."""
        first = [next(iter(lines[queue].values())) for queue in queues if queue in lines]
        if first:
            self._wake(min(first, key=_number))

    def _wake(self, waiter: ParkedPop) -> None:
        self._unpark(waiter)
        waiter.woken.set_result(None)

    def _park(self, waiter: ParkedPop) -> None:
        groups = self._lines.setdefault(waiter.topic_id, {})
        lines = groups.setdefault(waiter.consumer_group_id, {})
        lines.setdefault(waiter.queue, OrderedDict())[waiter.number] = waiter
        self._parked += 1
        self.parked_bytes += waiter.size_bytes

    def _unpark(self, waiter: ParkedPop) -> None:
        """Let a pop wait no more; nothing if it does not wait."""
        groups = self._lines.get(waiter.topic_id, {})
        lines = groups.get(waiter.consumer_group_id, {})
        line = lines.get(waiter.queue, OrderedDict())
        if line.pop(waiter.number, None) is None:
            return
        self._parked -= 1
        self.parked_bytes -= waiter.size_bytes
        if not line:
            del lines[waiter.queue]
        if not lines:
            del groups[waiter.consumer_group_id]
        if not groups:
            del self._lines[waiter.topic_id]


_number = attrgetter("number")
