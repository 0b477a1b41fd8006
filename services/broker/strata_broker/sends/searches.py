"""Messages that an earlier send may have stored are looked for before they are staged (rule 37)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from strata_broker.base import errors
from strata_broker.base.failures import passed_over, unexpected
from strata_broker.storage_client.earlier_sends import EarlierSends
from strata_mq.requests import RequestError
from strata_runtime.tasks import RequestTasks

_LOOK = "look for earlier sends"

# Between two looks for searches whose requests are over: each takes time for all that wait.
_SWEEP_S = 0.1

# All brokers know of a moved queue within a few watch events.
MOVED_PAUSE_S = 0.02


class Destination(NamedTuple):
    """The target of messages: a queue, and the topic's queue count by which it was chosen."""

    raft_group: int
    queue: int
    queue_count: int


class Search(NamedTuple):
    """Messages of one request that go to one place, and what is looked for before they go.

    Attributes:
        destination: where they go if no earlier send is found; it checks for itself.
        indexes: of the messages in their request.
        suspects: of these, the messages that an earlier send may have stored.
        raft_groups: where.
    """

    destination: Destination
    indexes: Sequence[int]
    suspects: frozenset[int]
    raft_groups: Sequence[int]


class Searching(Protocol):
    """The request whose messages are looked for."""

    def is_late(self) -> bool:
        """Whether the time of the request is over."""

    def stage(self, destination: Destination, indexes: Sequence[int]) -> None:
        """Put messages into the batch of their raft group."""

    def refused(self, indexes: Sequence[int], failure: RequestError) -> None:
        """Settle messages that are not stored."""

    def choose_again(
        self, indexes: Sequence[int], refused: Destination, *, may_stay: bool = False
    ) -> None:
        """Stage messages where they go now."""

    async def find_earlier(
        self, earlier: EarlierSends, index: int, raft_groups: Sequence[int]
    ) -> bool:
        """Settle a message that is stored, or of which nobody knows; return whether it was."""

    def is_settled(self) -> bool:
        """Whether the fate of all its messages is known."""

    def failed(self) -> None:
        """Answer with an error, expect nothing more."""


@contextmanager
def ended_by_failure(requests: RequestTasks, name: str, pending: Searching) -> Iterator[None]:
    """End a request when what is done for it fails unexpectedly; nobody else would.

    Args:
        requests: logs and counts the failure.
        name: of the work for the request.
        pending: the request.
    """
    try:
        yield
    except Exception as failure:  # noqa: BLE001 - whatever it is, it ends this request only
        requests.failed(name, failure)
        if not pending.is_settled():
            with passed_over(requests, name):
                pending.failed()


class Searches:
    """Looks for messages, so many at once; further searches wait for room, in their order.

    Those that wait are bounded by the bytes of sends in flight. Invariant: while a search waits,
    room that is given back is used, and a request whose time is over is answered.

    Args:
        earlier: asks raft groups.
        requests: own the tasks.
    """

    def __init__(self, earlier: EarlierSends, requests: RequestTasks) -> None:
        self._earlier = earlier
        self._requests = requests
        self._waiting: deque[tuple[Searching, Search]] = deque()
        # Set while a search waits: others give room back, too, and requests end.
        self._sweep: asyncio.TimerHandle | None = None

    def begin(self, pending: Searching, search: Search) -> None:
        """Stage the messages of a search that no earlier send has stored.

        A search that waits for room ends with its request's time.
        """
        if not search.suspects:
            pending.stage(search.destination, search.indexes)
        elif self._waiting or not self._earlier.try_begin(len(search.suspects)):
            self._waiting.append((pending, search))
            self._sweep_later()
        else:
            self._spawn(pending, search)

    def _spawn(self, pending: Searching, search: Search) -> None:
        """Look; there is room."""
        try:
            self._requests.spawn(_LOOK, self._look(pending, search))
        except RuntimeError:
            # Too many tasks run, or the broker stops.
            self._earlier.end(len(search.suspects))
            pending.refused(search.indexes, errors.too_many_requests())

    def _begin_waiting(self) -> None:
        """Let those begin for which there is room."""
        while self._waiting:
            pending, search = self._waiting.popleft()
            has_begun = True
            with ended_by_failure(self._requests, _LOOK, pending):
                has_begun = self._begins(pending, search)
            if not has_begun:
                self._waiting.appendleft((pending, search))
                return

    def _begins(self, pending: Searching, search: Search) -> bool:
        """Let a search begin, or end with its time; False: there is no room."""
        if pending.is_late():
            pending.refused(search.indexes, errors.timed_out())
        elif self._earlier.try_begin(len(search.suspects)):
            self._spawn(pending, search)
        else:
            return False
        return True

    def _sweep_later(self) -> None:
        if self._sweep is None and self._waiting:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(_SWEEP_S, self._sweep_waiting)

    def _sweep_waiting(self) -> None:
        """Answer those whose time is over, wherever they wait, and look for room."""
        self._sweep = None
        waiting, self._waiting = self._waiting, deque()
        for pending, search in waiting:
            with ended_by_failure(self._requests, _LOOK, pending):
                if pending.is_late():
                    pending.refused(search.indexes, errors.timed_out())
                else:
                    self._waiting.append((pending, search))
        self._begin_waiting()
        self._sweep_later()

    async def _look(self, pending: Searching, search: Search) -> None:
        left = set(search.indexes)

        async def find(index: int) -> None:
            left.discard(index)
            if not await pending.find_earlier(self._earlier, index, search.raft_groups):
                left.add(index)

        try:
            suspects, most = sorted(search.suspects), self._earlier.max_lookups
            for first in range(0, len(suspects), most):
                async with asyncio.TaskGroup() as lookups:
                    for index in suspects[first : first + most]:
                        lookups.create_task(find(index))
            rest, left = sorted(left), set()
            if rest:
                # The topic may have changed meanwhile.
                with ended_by_failure(self._requests, _LOOK, pending):
                    pending.choose_again(rest, search.destination, may_stay=True)
        finally:
            self._earlier.end(len(search.suspects))
            if left:
                pending.refused(tuple(left), unexpected())
            self._begin_waiting()
