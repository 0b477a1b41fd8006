"""One call under way per raft group, while what comes meanwhile goes with the next one.

There is no timer: an idle broker adds a few turns of its loop, a busy one batches by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from strata_broker.base import errors
from strata_broker.base.failures import unexpected
from strata_runtime.clock import Clock
from strata_runtime.tasks import RequestTasks

_QUIET_TURNS = 3
"""Turns of the loop without a newcomer after which a call goes out."""

_MAX_GATHER_S = 0.002
"""What newcomers can hold a call back at most."""

Wanted = TypeVar("Wanted")
Answer = TypeVar("Answer")
Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class Waiting(Generic[Wanted, Answer]):
    """One that waits for a call.

    Attributes:
        wanted: what for.
        size_bytes: of it.
        deadline_s: by the monotonic clock, when nobody waits any more.
        answer: set by who makes the call, with a result or a `RequestError`.
    """

    wanted: Wanted
    size_bytes: int
    deadline_s: float
    answer: asyncio.Future[Answer]

    def settle(self, answer: Answer | Exception) -> None:
        """Answer, unless nobody waits any more."""
        if self.answer.done():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


@dataclass(slots=True)
class _Lane(Generic[Wanted, Answer]):
    waiting: deque[Waiting[Wanted, Answer]] = field(default_factory=deque)
    runs: bool = False


Exchange = Callable[[Key, "Sequence[Waiting[Wanted, Answer]]", float], Awaitable[None]]
"""Makes one call for some of one lane, until a deadline, and settles each."""


class Lanes(Generic[Key, Wanted, Answer]):
    """See the module docstring.

    Args:
        name: of the lanes' tasks.
        exchange: makes a call.
        requests: runs a lane as long as somebody waits.
        clock: time.
        max_batch: in one call.
        max_batch_bytes: in one call, unless it is one.
    """

    def __init__(
        self,
        name: str,
        exchange: Exchange[Key, Wanted, Answer],
        requests: RequestTasks,
        clock: Clock,
        *,
        max_batch: int,
        max_batch_bytes: int,
    ) -> None:
        self._name = name
        self._exchange = exchange
        self._requests = requests
        self._clock = clock
        self._max_batch = max_batch
        self._max_batch_bytes = max_batch_bytes
        self._lanes: dict[Key, _Lane[Wanted, Answer]] = {}

    async def call(self, key: Key, wanted: Wanted, size_bytes: int, deadline_s: float) -> Answer:
        """Have something done with the next call of a lane.

        Raises:
            RequestError: what the call failed with; PROXY_TIMEOUT, the deadline passed: whether
                it was done is unknown.
        """
        lane = self._lanes.setdefault(key, _Lane())
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        lane.waiting.append(Waiting(wanted, size_bytes, deadline_s, answer))
        if not lane.runs:
            self._requests.spawn(self._name, self._run(key, lane), lambda _: self._failed(lane))
            lane.runs = True
        try:
            async with asyncio.timeout(deadline_s - self._clock.monotonic_s()):
                return await answer
        except TimeoutError:
            raise errors.timed_out() from None

    async def _run(self, key: Key, lane: _Lane[Wanted, Answer]) -> None:
        while True:
            await self._gather(lane)
            batch = self._next(lane)
            if not batch:
                break
            try:
                await self._exchange(key, batch, max(one.deadline_s for one in batch))
            finally:
                # Nobody is left to wait for a call that has ended, however it did.
                for one in batch:
                    one.settle(unexpected())
        lane.runs = False

    def _failed(self, lane: _Lane[Wanted, Answer]) -> None:
        """Answer who waits for a lane that ended; the next one who comes starts it anew."""
        lane.runs = False
        while lane.waiting:
            lane.waiting.popleft().settle(unexpected())

    async def _gather(self, lane: _Lane[Wanted, Answer]) -> None:
        """Let in who is about to come: a call costs its round of replicas, however few share it."""
        ends_s = self._clock.monotonic_s() + _MAX_GATHER_S
        known, quiet_turns = 0, 0
        while lane.waiting and quiet_turns < _QUIET_TURNS:
            quiet_turns = quiet_turns + 1 if len(lane.waiting) == known else 0
            known = len(lane.waiting)
            if known >= self._max_batch or self._clock.monotonic_s() >= ends_s:
                return
            await asyncio.sleep(0)

    def _next(self, lane: _Lane[Wanted, Answer]) -> list[Waiting[Wanted, Answer]]:
        batch: list[Waiting[Wanted, Answer]] = []
        size_bytes = 0
        while lane.waiting and len(batch) < self._max_batch:
            one = lane.waiting[0]
            if one.answer.done():
                # Its caller has gone, or waited too long: it is not done at all.
                lane.waiting.popleft()
                continue
            size_bytes += one.size_bytes
            if batch and size_bytes > self._max_batch_bytes:
                break
            batch.append(lane.waiting.popleft())
        return batch
