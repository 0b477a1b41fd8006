"""One call at a time per raft group; requests that arrive meanwhile go with the next call.

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
from strata_runtime.timeouts import Timeout

_QUIET_TURNS = 3
"""Turns of the loop without a newcomer after which a call goes out."""

_MAX_GATHER_S = 0.002
"""Longest time for which new requests can hold a call back."""

Wanted = TypeVar("Wanted")
Answer = TypeVar("Answer")
Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class WaitingRequest(Generic[Wanted, Answer]):
    """A request that waits for a call.

    Attributes:
        wanted: the request.
        size_bytes: of the request.
        deadline_s: by the monotonic clock; later the caller does not wait any more.
        answer: the call sets a result or a `RequestError`.
    """

    wanted: Wanted
    size_bytes: int
    deadline_s: float
    answer: asyncio.Future[Answer]

    def settle(self, answer: Answer | Exception) -> None:
        """Answer, unless the caller has gone."""
        if self.answer.done():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


@dataclass(slots=True)
class _Lane(Generic[Wanted, Answer]):
    waiting: deque[WaitingRequest[Wanted, Answer]] = field(default_factory=deque)
    runs: bool = False


Exchange = Callable[[Key, "Sequence[WaitingRequest[Wanted, Answer]]", float], Awaitable[None]]
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
        *,
        clock: Clock,
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
        """Send a request with the next call of a lane.

        Raises:
            RequestError: the call failed; PROXY_TIMEOUT: the deadline passed, and the result is
                unknown.
            TooManyTasksError: the broker does too much; nothing was sent.
        """
        lane = self._lanes.setdefault(key, _Lane())
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if not lane.runs:
            # Before the request is in the lane: one that is refused here must not be sent later.
            self._requests.spawn(self._name, self._run(key, lane), lambda _: self._failed(lane))
            lane.runs = True
        lane.waiting.append(WaitingRequest(wanted, size_bytes, deadline_s, answer))
        try:
            async with Timeout(deadline_s - self._clock.monotonic_s()):
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
        """Answer the requests of a lane that ended; the next request starts it again."""
        lane.runs = False
        while lane.waiting:
            lane.waiting.popleft().settle(unexpected())

    async def _gather(self, lane: _Lane[Wanted, Answer]) -> None:
        """Wait for requests that are about to come: every call costs a round of the replicas."""
        ends_s = self._clock.monotonic_s() + _MAX_GATHER_S
        known, quiet_turns = 0, 0
        while lane.waiting and quiet_turns < _QUIET_TURNS:
            quiet_turns = quiet_turns + 1 if len(lane.waiting) == known else 0
            known = len(lane.waiting)
            if known >= self._max_batch or self._clock.monotonic_s() >= ends_s:
                return
            await asyncio.sleep(0)

    def _next(self, lane: _Lane[Wanted, Answer]) -> list[WaitingRequest[Wanted, Answer]]:
        batch: list[WaitingRequest[Wanted, Answer]] = []
        size_bytes = 0
        while lane.waiting and len(batch) < self._max_batch:
            one = lane.waiting[0]
            if one.answer.done():
                # Its caller has gone, or waited too long: it is not sent.
                lane.waiting.popleft()
                continue
            size_bytes += one.size_bytes
            if batch and size_bytes > self._max_batch_bytes:
                break
            batch.append(lane.waiting.popleft())
        return batch
