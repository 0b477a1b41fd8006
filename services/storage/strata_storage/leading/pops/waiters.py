"""Pops that found nothing and wait for data, an expiry or a release (bounded).

A wake-up is a permission to look again, not a message: per (topic, consumer group) the pop that
waits longest is woken first, and it wakes the next one when it left something behind. So a burst
of data does not wake a thousand pops that find nothing.

Invariant: a woken pop that gives up (its client is gone, its time is over) passes its wake-up on.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from strata.storage.v1 import storage_pb2 as pb
from strata_storage.base.errors import Refused


class Waiter:
    """One parked pop."""

    __slots__ = ("consumer_group_id", "queue", "size_bytes", "topic_id", "woken")

    def __init__(
        self,
        topic_id: int,
        consumer_group_id: int,
        queue: int,
        size_bytes: int,
        woken: asyncio.Future[None],
    ) -> None:
        self.topic_id = topic_id
        self.consumer_group_id = consumer_group_id
        self.queue = queue
        self.size_bytes = size_bytes
        self.woken = woken


# Parked pops of one (topic, consumer group) in the order they came; the key is the waiter's id().
_Line = OrderedDict[int, Waiter]


class Waiters:
    """Parked pops of one raft group.

    Args:
        max_waiters: limit on parked pops.
        max_bytes: limit on their requests, which stay in memory as long.

    Attributes:
        parked_bytes: of the requests of parked pops.
    """

    __slots__ = ("_lines", "_max_bytes", "_max_waiters", "_parked", "_refusal", "parked_bytes")

    def __init__(self, max_waiters: int, max_bytes: int) -> None:
        self._max_waiters = max_waiters
        self._max_bytes = max_bytes
        self.parked_bytes = 0
        self._lines: dict[int, dict[int, _Line]] = {}
        self._parked = 0
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
                pb.OUTCOME_TOO_MANY_WAITERS, f"{self._max_waiters} pops are parked already"
            )
        if self.parked_bytes + size_bytes > self._max_bytes:
            raise Refused(
                pb.OUTCOME_TOO_MANY_WAITERS,
                f"requests of parked pops have {self.parked_bytes} of {self._max_bytes} bytes",
            )
        woken = asyncio.get_running_loop().create_future()
        waiter = Waiter(topic_id, consumer_group_id, queue, size_bytes, woken)
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
        for line in self._lines.get(topic_id, {}).values():
            _wake_first(line, queue)

    def wake_all(self, topic_id: int, queue: int) -> None:
        """Let every pop look again that waits for a queue."""
        for line in self._lines.get(topic_id, {}).values():
            for waiter in line.values():
                if waiter.queue in (-1, queue) and not waiter.woken.done():
                    waiter.woken.set_result(None)

    def wake_group(self, topic_id: int, consumer_group_id: int, queue: int = -1) -> None:
        """Let one pop of a consumer group look again; -1: at any queue."""
        line = self._lines.get(topic_id, {}).get(consumer_group_id)
        if line:
            _wake_first(line, queue)

    def check_open(self) -> None:
        """Let a pop go on unless `refuse_all` was called: it may have missed that.

        Raises:
            Refused: what `refuse_all` gave.
        """
        if self._refusal is not None:
            raise self._refusal

    def refuse_all(self, refusal: Refused) -> None:
        """End every parked pop, because this replica does not lead any more."""
        self._refusal = refusal
        for lines in self._lines.values():
            for line in lines.values():
                for waiter in line.values():
                    if not waiter.woken.done():
                        waiter.woken.set_exception(refusal)

    def _park(self, waiter: Waiter) -> None:
        lines = self._lines.setdefault(waiter.topic_id, {})
        lines.setdefault(waiter.consumer_group_id, OrderedDict())[id(waiter)] = waiter
        self._parked += 1
        self.parked_bytes += waiter.size_bytes

    def _unpark(self, waiter: Waiter) -> None:
        lines = self._lines.get(waiter.topic_id, {})
        line = lines.get(waiter.consumer_group_id)
        if line is None or line.pop(id(waiter), None) is None:
            return
        self._parked -= 1
        self.parked_bytes -= waiter.size_bytes
        if not line:
            del lines[waiter.consumer_group_id]
            if not lines:
                del self._lines[waiter.topic_id]


def _wake_first(line: _Line, queue: int) -> None:
    """Wake the longest waiting pop that may look at `queue` and is not awake already."""
    for waiter in line.values():
        if waiter.woken.done() or (queue >= 0 and waiter.queue not in (-1, queue)):
            continue
        waiter.woken.set_result(None)
        return
