"""Positions that are being stored, by connection.

A client that says goodbye stores its positions first, without waiting for the answer. The members
that take its queues over ask for these positions as soon as they hear of the goodbye, so they hear
of it when the positions are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from strata_broker.remoting.exchange import RemotingPeer


class PositionUpdates:
    """See the module docstring. Used on the event loop only.

    The requests that a connection may have under way bound what is kept here.
    """

    def __init__(self) -> None:
        self._under_way: dict[RemotingPeer, set[asyncio.Future[None]]] = {}

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
