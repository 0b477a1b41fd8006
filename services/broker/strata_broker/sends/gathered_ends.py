"""Ends of transactions that arrive together: one call to storage for each raft group.

Ends of one turn of the event loop share a call, and their decisions share an entry of the log. An
end may be repeated freely: it is answered as the first time. So an end for which a shared call has
no answer (its raft group has no room, a node of an older version) is asked for again alone, and
gets the answer that it would have got alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.base.failures import unexpected
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.requests import RequestError
from strata_runtime.clock import Clock
from strata_runtime.tasks import RequestTasks

_END = "end transactions"
# Ends whose deadlines are so close have one: the earliest.
_DEADLINES_PER_S = 100

Answer = asyncio.Future[storage_pb2.EndTransactionResponse]


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

    async def end(
        self, request: storage_pb2.EndTransactionRequest, timeout_s: float
    ) -> storage_pb2.EndTransactionResponse:
        """Commit or roll back a half message.

        Args:
            request: of this half alone.
            timeout_s: time for all tries.

        Raises:
            RequestError: INVALID_RECEIPT_HANDLE, or no answer in time.
        """
        loop = asyncio.get_running_loop()
        if not self._turn:
            self._turn_began_s = self._clock.monotonic_s()
            loop.call_soon(self._call_all)
        # Ends of a turn with as much time left have one deadline.
        deadline_s = self._turn_began_s + timeout_s
        answer: Answer = loop.create_future()
        key = request.raft_group, int(deadline_s * _DEADLINES_PER_S)
        self._turn.setdefault(key, []).append(_End(request, answer, deadline_s))
        return await answer

    def _call_all(self) -> None:
        turn, self._turn = self._turn, {}
        for (raft_group, _), ends in turn.items():
            for first in range(0, len(ends), self._max_per_call):
                self._spawn(raft_group, ends[first : first + self._max_per_call])

    def _spawn(self, raft_group: int, ends: Sequence[_End]) -> None:
        try:
            self._requests.spawn(
                _END, self._call(raft_group, ends), lambda _: _fail(ends, unexpected())
            )
        except RuntimeError:
            # Too many tasks run, or the broker stops.
            _fail(ends, errors.too_many_requests())

    async def _call(self, raft_group: int, ends: Sequence[_End]) -> None:
        try:
            if len(ends) == 1:
                await self._call_alone(raft_group, ends[0])
                return
            for one in await self._call_together(raft_group, ends):
                self._spawn(raft_group, (one,))
        except asyncio.CancelledError:
            # The broker stops; those who wait are not tasks of the same owner.
            _fail(ends, errors.timed_out())
            raise

    async def _call_together(self, raft_group: int, ends: Sequence[_End]) -> Sequence[_End]:
        """End several; return those that are not answered."""
        request = storage_pb2.EndTransactionRequest(raft_group=raft_group)
        for one in ends:
            request.halves.append(_half_of(one.request))
        try:
            response = await self._ask(raft_group, request, min(one.deadline_s for one in ends))
        except errors.MalformedError:
            return ends
        except RequestError as failure:
            _fail(ends, failure)
            return ()
        left = []
        for one, outcome in zip_longest(ends, response.halves[: len(ends)]):
            if outcome is not None and outcome.outcome == storage_pb2.OUTCOME_OK:
                place = storage_pb2.EndTransactionResponse(
                    queue=outcome.queue, offset=outcome.offset
                )
                if not one.answer.done():
                    one.answer.set_result(place)
            elif outcome is not None and outcome.outcome == storage_pb2.OUTCOME_INVALID_HANDLE:
                _fail((one,), errors.refused(outcome.outcome))
            else:
                left.append(one)
        return left

    async def _call_alone(self, raft_group: int, one: _End) -> None:
        try:
            response = await self._ask(raft_group, one.request, one.deadline_s)
        except RequestError as failure:
            _fail((one,), failure)
        else:
            if not one.answer.done():
                one.answer.set_result(response)

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


class _End(NamedTuple):
    """An end that waits for its answer."""

    request: storage_pb2.EndTransactionRequest
    answer: Answer
    deadline_s: float


def _half_of(request: storage_pb2.EndTransactionRequest) -> storage_pb2.HalfEnd:
    half = storage_pb2.HalfEnd(topic_id=request.topic_id, end=request.end)
    if request.HasField("pending"):
        half.pending.CopyFrom(request.pending)
    else:
        half.message_id = request.message_id
    return half


def _fail(ends: Sequence[_End], failure: RequestError) -> None:
    for one in ends:
        # Its client may be gone.
        if not one.answer.done():
            # Each is raised in another task, which adds its stack.
            one.answer.set_exception(RequestError(failure.code, failure.text))
