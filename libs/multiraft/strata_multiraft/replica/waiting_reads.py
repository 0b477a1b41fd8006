"""Readers of one replica, which wait for the leader to be confirmed, then for apply (rule 3).

All readers of one turn of the event loop share one question to the raft core, and so one round of
heartbeats.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

from strata_multiraft.base.in_flight import InFlightLimits


class WaitingReads:
    """Readers that wait.

    Args:
        in_flight: the node's limit on readers.
    """

    __slots__ = ("_appliers", "_asked", "_gathered", "_in_flight", "_ticket", "_waiting_appliers")

    def __init__(self, in_flight: InFlightLimits) -> None:
        self._in_flight = in_flight
        self._ticket = count(1)
        # Not yet asked for; then by the context of the question.
        self._gathered: list[asyncio.Future[int]] = []
        self._asked: dict[int, list[asyncio.Future[int]]] = {}
        # By index. Readers that gave up stay until they are the greater part of it.
        self._appliers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waiting_appliers = 0

    def waits_for_leader(self) -> bool:
        """Tell whether a reader waits for a confirmation."""
        return bool(self._gathered or self._asked)

    def gather(self) -> tuple[asyncio.Future[int], bool]:
        """Add a reader; return the future of its read index and whether it is the first one.

        The caller gives the limit back with `done`.

        Raises:
            Overloaded: too many readers wait.
        """
        self._in_flight.take_read()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._gathered.append(future)
        return future, len(self._gathered) == 1

    def done(self) -> None:
        """Give back what `gather` took."""
        self._in_flight.give_back_read()

    def ask(self) -> int:
        """Return the context of a question for all gathered readers; 0: there are none."""
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return 0
        context = next(self._ticket)
        self._asked[context] = gathered
        return context

    def answer(self, context: int, index: int) -> None:
        """Let the readers of a question go on."""
        for future in self._asked.pop(context, ()):
            if not future.done():
                future.set_result(index)

    def fail(self, error: Exception) -> None:
        """Fail all readers that wait for a confirmation."""
        asked, self._asked = self._asked, {}
        gathered, self._gathered = self._gathered, []
        for futures in (*asked.values(), gathered):
            for future in futures:
                if not future.done():
                    future.set_exception(error)

    async def until_applied(self, index: int) -> None:
        """Wait until `applied` was called with this index or a higher one.

        Raises:
            Overloaded: too many readers wait.
            Exception: what `fail_applying` said.
        """
        self._in_flight.take_read()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._appliers, (index, next(self._ticket), future))
        self._waiting_appliers += 1
        try:
            await future
        finally:
            self._in_flight.give_back_read()
            self._waiting_appliers -= 1
            if len(self._appliers) > 2 * self._waiting_appliers:
                self._forget_who_gave_up()

    def applied(self, index: int) -> None:
        """Release the readers that waited for this index."""
        while self._appliers and self._appliers[0][0] <= index:
            future = heapq.heappop(self._appliers)[2]
            if not future.done():
                future.set_result(None)

    def fail_applying(self, error: Exception) -> None:
        """Fail all readers that wait for apply."""
        appliers, self._appliers = self._appliers, []
        for _, _, future in appliers:
            if not future.done():
                future.set_exception(error)

    def _forget_who_gave_up(self) -> None:
        self._appliers = [applier for applier in self._appliers if not applier[2].done()]
        heapq.heapify(self._appliers)
