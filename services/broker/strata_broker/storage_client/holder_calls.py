"""Asks every raft group that holds a part of something, all at once.

The state of a topic or of a consumer group is spread over raft groups; the caller merges the
answers. A raft group that no longer has a queue says so, or says where it went: then the metadata
here lags behind, and all raft groups are asked again. So the end of a sealed epoch is never taken
for the end of the queue; it does not matter who told this broker of the next epoch, the answer or
the metadata that came meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from strata_broker.base import errors
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.storage_client.storage_client import StorageClient
from strata_runtime.clock import Clock

Response = TypeVar("Response", bound=Message)
Result = TypeVar("Result")

Ask = Callable[[int, Sequence[int]], Awaitable[Response]]
"""Asks a raft group about queues."""

# Pause when a queue is not where the metadata places it.
_MOVED_PAUSE_S = 0.02


class HolderCalls:
    """See the module docstring.

    Args:
        view: knows the holders; learns of moves.
        storage: makes the calls.
        clock: time.
        timeout_s: for all calls of one method.
    """

    def __init__(
        self, view: MetadataView, storage: StorageClient, clock: Clock, *, timeout_s: float
    ) -> None:
        self._view = view
        self._storage = storage
        self._clock = clock
        self._timeout_s = timeout_s

    async def of_topic(
        self,
        topic: TopicRow,
        rpc: str,
        response_type: type[Response],
        request_for: Callable[[int, Sequence[int]], Message],
    ) -> list[tuple[int, Response]]:
        """Ask every raft group with an epoch of a queue of the topic; return (raft group, answer).

        `request_for` gets the raft group and the queues to name.

        Raises:
            RequestError: refused, or the metadata did not catch up in time.
        """

        async def ask(raft_group: int, queues: Sequence[int]) -> Response:
            request = request_for(raft_group, queues)
            return await self._storage.call(
                raft_group, rpc, request, response_type, timeout_s=self._timeout_s
            )

        return await self._until_found(topic, lambda: self._view.holders(topic), ask)

    async def of_queue(
        self,
        topic: TopicRow,
        queue: int,
        rpc: str,
        response_type: type[Response],
        request_for: Callable[[int], Message],
    ) -> list[tuple[int, Response]]:
        """Ask every raft group with an epoch of one queue.

        Raises:
            RequestError: refused, or the metadata did not catch up in time.
        """

        def holders() -> Mapping[int, Sequence[int]]:
            found = self._view.holders(topic)
            return {number: (queue,) for number, queues in found.items() if queue in queues}

        async def ask(raft_group: int, _queues: Sequence[int]) -> Response:
            request = request_for(raft_group)
            return await self._storage.call(
                raft_group, rpc, request, response_type, timeout_s=self._timeout_s
            )

        return await self._until_found(topic, holders, ask)

    async def of_chosen(
        self,
        topic: TopicRow,
        choose: Callable[[], Iterable[int]],
        rpc: str,
        response_type: type[Response],
        request_for: Callable[[int], Message],
    ) -> list[tuple[int, Response]]:
        """Ask the raft groups that are chosen by the metadata, anew when an answer changes these.

        Raises:
            RequestError: one of them refused, or did not answer.
        """
        while True:
            epochs = self._last_epochs(topic)
            answers = await self.of_raft_groups(choose(), rpc, response_type, request_for)
            self._learn(topic, answers)
            if self._last_epochs(topic) == epochs:
                return answers

    async def of_raft_groups(
        self,
        raft_groups: Iterable[int],
        rpc: str,
        response_type: type[Response],
        request_for: Callable[[int], Message],
    ) -> list[tuple[int, Response]]:
        """Ask raft groups; as many calls as there are raft groups.

        Raises:
            RequestError: one of them refused, or did not answer.
        """
        numbers = list(raft_groups)
        answers = await gather(
            [
                self._storage.call(
                    number, rpc, request_for(number), response_type, timeout_s=self._timeout_s
                )
                for number in numbers
            ]
        )
        return list(zip(numbers, answers, strict=True))

    async def _until_found(
        self,
        topic: TopicRow,
        holders: Callable[[], Mapping[int, Sequence[int]]],
        ask: Ask[Response],
    ) -> list[tuple[int, Response]]:
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        while True:
            epochs = self._last_epochs(topic)
            try:
                answers = await self._ask_each(topic, holders(), ask)
            except errors.MovedError:
                if self._clock.monotonic_s() >= deadline_s:
                    raise
                await asyncio.sleep(_MOVED_PAUSE_S)
                continue
            self._learn(topic, answers)
            if self._last_epochs(topic) == epochs:
                return answers

    async def _ask_each(
        self, topic: TopicRow, holders: Mapping[int, Sequence[int]], ask: Ask[Response]
    ) -> list[tuple[int, Response]]:
        answers = await gather(
            [self._ask_one(topic, number, queues, ask) for number, queues in holders.items()]
        )
        return [answer for each in answers for answer in each]

    async def _ask_one(
        self, topic: TopicRow, raft_group: int, queues: Sequence[int], ask: Ask[Response]
    ) -> list[tuple[int, Response]]:
        """Ask one raft group; queue by queue if it does not have all of them.

        A queue that is only about to be opened there has nothing there.

        Raises:
            RequestError: refused; `MovedError`: a queue is elsewhere.
        """
        try:
            return [(raft_group, await ask(raft_group, queues))]
        except errors.MovedError:
            if len(queues) == 1:
                if self._view.is_opening(topic, raft_group, queues[0]):
                    return []
                raise
        answers = await gather(
            [self._ask_one(topic, raft_group, (queue,), ask) for queue in queues]
        )
        return [answer for each in answers for answer in each]

    def _learn(self, topic: TopicRow, answers: Sequence[tuple[int, Response]]) -> None:
        """Learn from answers where queues have moved."""
        for number, answer in answers:
            self._view.learn(topic, number, getattr(answer, "sealed", ()))

    def _last_epochs(self, topic: TopicRow) -> dict[int, int]:
        """Return the last known epoch of each queue that moved."""
        overrides = self._view.overrides(topic)
        return {queue: override.epochs[-1].epoch for queue, override in overrides.items()}


async def gather(work: Sequence[Awaitable[Result]]) -> list[Result]:
    """Await all; the first failure is raised and ends the others. Callers bound the number."""
    under_way = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*under_way))
    finally:
        # Else a round that is repeated leaves calls behind each time.
        for one in under_way:
            one.cancel()
