"""Positions that are being stored, by connection.

A client sends positions of a queue one after the other, without waiting for answers, and the latest
one counts. So they are stored in the order in which they came: while one is being stored, perhaps
until a raft group has a leader again, those behind it wait, and then the latest of them is stored
for all.

A client that says goodbye stores its positions first, without waiting for the answer. The members
that take its queues over ask for these positions as soon as they hear of the goodbye, so they hear
of it when the positions are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager

from strata_broker.remoting.exchange import RemotingPeer
from strata_mq.requests import RequestError

Storing = Callable[[], Awaitable[object]]
"""Stores a position.

Raises:
    RequestError: it could not be stored.
"""


class _Queue:
    """Positions of one queue, numbered as they came.

    Attributes:
        lock: whoever has it stores the latest position.
        count: number of the latest position.
        latest: stores it.
        settled: number of the latest position that was stored or could not be.
        failure: why it could not be; None: it was.
        users: how many positions wait, or are being stored.
    """

    __slots__ = ("count", "failure", "latest", "lock", "settled", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0
        self.latest: Storing | None = None
        self.settled = 0
        self.failure: RequestError | None = None
        self.users = 0

    async def store(self, storing: Storing) -> None:
        self.count += 1
        number, self.latest = self.count, storing
        async with self.lock:
            if self.settled < number:
                await self._store_latest()
            if self.failure is not None:
                raise RequestError(self.failure.code, self.failure.text)

    async def _store_latest(self) -> None:
        assert self.latest is not None, "there is no position"
        latest, number = self.latest, self.count
        failure: RequestError | None = None
        try:
            await latest()
        except RequestError as bad:
            failure = bad.without_stack()
        self.settled, self.failure = number, failure


class PositionUpdates:
    """See the module docstring. Used on the event loop only.

    The requests that a connection may have under way bound what is kept here.
    """

    def __init__(self) -> None:
        self._under_way: dict[RemotingPeer, set[asyncio.Future[None]]] = {}
        self._queues: dict[tuple[RemotingPeer, Hashable], _Queue] = {}

    def __len__(self) -> int:
        """Return how many queues have a position that is being stored."""
        return len(self._queues)

    async def store(self, client: RemotingPeer, queue: Hashable, storing: Storing) -> None:
        """Store a position, or a later one of the same queue that has come meanwhile.

        Args:
            client: the connection.
            queue: whose position it is, and of which consumer group.
            storing: stores it.

        Raises:
            RequestError: the position that was to be stored in its place could not be.
        """
        key = (client, queue)
        own = self._queues.setdefault(key, _Queue())
        own.users += 1
        try:
            with self.storing(client):
                await own.store(storing)
        finally:
            own.users -= 1
            if not own.users:
                del self._queues[key]

    @contextmanager
    def storing(self, client: RemotingPeer) -> Iterator[None]:
        """Note that a position of a client is being stored inside the block."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        own = self._under_way.setdefault(client, set())
        own.add(ended)
        try:
            yield
        finally:
            ended.set_result(None)
            own.discard(ended)
            if not own:
                self._under_way.pop(client, None)

    async def settled(self, client: RemotingPeer) -> None:
        """Wait until the positions that a client has sent so far are stored, or have failed."""
        under_way = self._under_way.get(client)
        if under_way:
            await asyncio.wait(tuple(under_way))
