"""Ends of transactions that arrive together: one call to storage for each raft group.

Ends of one turn of the event loop share a call, and their decisions share an entry of the log. An
end may be repeated freely: it is answered as the first time. So an end for which a shared call has
no answer (its raft group has no room, a node of an older version) is asked for again alone, and
gets the answer that it would have got alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple, Protocol

from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.base.failures import passed_over, unexpected
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.requests import RequestError
from strata_runtime.clock import Clock
from strata_runtime.tasks import RequestTasks

_END = "end transactions"
_TELL = "tell who ends a transaction"
# Ends whose deadlines are so close have one: the earliest.
_DEADLINES_PER_S = 100


class EndedAt(NamedTuple):
    """Place of a committed message; zeros if it was rolled back, or is with another raft group."""

    queue: int
    offset: int


class EndWaiter(Protocol):
    """Waits for an end, and is told once, unless telling it fails."""

    def ended(self, place: EndedAt) -> None:
        """The half message is ended as it was wanted."""

    def failed(self, failure: RequestError) -> None:
        """It is not, or nobody knows."""


class GatheredEnds:
    """See the module docstring. Used on the event loop only.

    Args:
        storage: is called.
        max_per_call: ends of one call.
        clock: time.
        requests: own the calls.
    """

    def __init__(
        self, storage: StorageClient, *, max_per_call: int, clock: Clock, requests: RequestTasks
    ) -> None:
        self._storage = storage
        self._max_per_call = max_per_call
        self._clock = clock
        self._requests = requests
        # By raft group and deadline.
        self._turn: dict[tuple[int, int], list[_End]] = {}
        self._turn_began_s = 0.0

    async def end(self, raft_group: int, half: storage_pb2.HalfEnd, timeout_s: float) -> EndedAt:
        """Commit or roll back a half message.

        Args:
            raft_group: that has it.
            half: which, and how.
            timeout_s: time for all tries.

        Raises:
            RequestError: INVALID_RECEIPT_HANDLE, or no answer in time.
        """
        waiter = _FutureWaiter()
        self.add(raft_group, half, timeout_s, waiter)
        return await waiter.answer

    def add(
        self, raft_group: int, half: storage_pb2.HalfEnd, timeout_s: float, waiter: EndWaiter
    ) -> None:
        """Commit or roll back a half message, and tell `waiter` what `end` returns or raises.

        Args:
            raft_group: see `end`.
            half: see `end`.
            timeout_s: see `end`.
            waiter: is never told from within this call.
        """
        if not self._turn:
            self._turn_began_s = self._clock.monotonic_s()
            asyncio.get_running_loop().call_soon(self._call_all)
        # Ends of a turn with as much time left have one deadline.
        deadline_s = self._turn_began_s + timeout_s
        key = raft_group, int(deadline_s * _DEADLINES_PER_S)
        self._turn.setdefault(key, []).append(_End(half, deadline_s, waiter))

    def _call_all(self) -> None:
        turn, self._turn = self._turn, {}
        for (raft_group, _), ends in turn.items():
            for first in range(0, len(ends), self._max_per_call):
                self._spawn(raft_group, ends[first : first + self._max_per_call])

    def _spawn(self, raft_group: int, ends: Sequence[_End]) -> None:
        try:
            self._requests.spawn(
                _END, self._call(raft_group, ends), lambda _: self._fail(ends, unexpected())
            )
        except RuntimeError:
            # Too many tasks run, or the broker stops.
            self._fail(ends, errors.too_many_requests())

    async def _call(self, raft_group: int, ends: Sequence[_End]) -> None:
        try:
            if len(ends) == 1:
                await self._call_alone(raft_group, ends[0])
                return
            for one in await self._call_together(raft_group, ends):
                self._spawn(raft_group, (one,))
        except asyncio.CancelledError:
            # The broker stops; those who wait are not tasks of the same owner.
            self._fail(ends, errors.timed_out())
            raise

    async def _call_together(self, raft_group: int, ends: Sequence[_End]) -> Sequence[_End]:
        """End several; return those that are not answered."""
        request = storage_pb2.EndTransactionRequest(
            raft_group=raft_group, halves=[one.half for one in ends]
        )
        try:
            response = await self._ask(raft_group, request, min(one.deadline_s for one in ends))
        except errors.MalformedError:
            return ends
        except RequestError as failure:
            self._fail(ends, failure)
            return ()
        left = []
        for one, outcome in zip_longest(ends, response.halves[: len(ends)]):
            if outcome is not None and outcome.outcome == storage_pb2.OUTCOME_OK:
                self._tell(one, EndedAt(outcome.queue, outcome.offset))
            elif outcome is not None and outcome.outcome == storage_pb2.OUTCOME_INVALID_HANDLE:
                self._fail((one,), errors.refused(outcome.outcome))
            else:
                left.append(one)
        return left

    async def _call_alone(self, raft_group: int, one: _End) -> None:
        try:
            response = await self._ask(raft_group, alone(raft_group, one.half), one.deadline_s)
        except RequestError as failure:
            self._fail((one,), failure)
        else:
            self._tell(one, EndedAt(response.queue, response.offset))

    async def _ask(
        self, raft_group: int, request: storage_pb2.EndTransactionRequest, deadline_s: float
    ) -> storage_pb2.EndTransactionResponse:
        return await self._storage.call(
            raft_group,
            "EndTransaction",
            request,
            storage_pb2.EndTransactionResponse,
            timeout_s=deadline_s - self._clock.monotonic_s(),
        )

    def _tell(self, one: _End, place: EndedAt) -> None:
        one.is_told = True
        try:
            one.waiter.ended(place)
        except Exception as failure:  # noqa: BLE001 - it ends this end, not those beside it
            self._requests.failed(_TELL, failure)
            one.is_told = False
            self._fail((one,), unexpected())

    def _fail(self, ends: Iterable[_End], failure: RequestError) -> None:
        for one in ends:
            if not one.is_told:
                one.is_told = True
                with passed_over(self._requests, _TELL):
                    # Each is raised in another task, which adds its stack.
                    one.waiter.failed(RequestError(failure.code, failure.text))


class _End:
    """An end that is not answered yet, until its waiter was told."""

    __slots__ = ("deadline_s", "half", "is_told", "waiter")

    def __init__(self, half: storage_pb2.HalfEnd, deadline_s: float, waiter: EndWaiter) -> None:
        self.half = half
        self.deadline_s = deadline_s
        self.waiter = waiter
        self.is_told = False


class _FutureWaiter:
    """The waiter of a coroutine, which may be gone when it is told."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: asyncio.Future[EndedAt] = asyncio.get_running_loop().create_future()

    def ended(self, place: EndedAt) -> None:
        if not self.answer.done():
            self.answer.set_result(place)

    def failed(self, failure: RequestError) -> None:
        if not self.answer.done():
            self.answer.set_exception(failure)


def alone(raft_group: int, half: storage_pb2.HalfEnd) -> storage_pb2.EndTransactionRequest:
    """Return the request that ends this half alone."""
    request = storage_pb2.EndTransactionRequest(
        raft_group=raft_group, topic_id=half.topic_id, end=half.end, message_id=half.message_id
    )
    if half.HasField("pending"):
        request.pending.CopyFrom(half.pending)
    return request
