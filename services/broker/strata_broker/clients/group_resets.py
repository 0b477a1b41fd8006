"""Tells all brokers of resets of consumer groups, whose members may keep positions of their own.

Members of the remoting protocol store their positions every few seconds. So the brokers hear of a
reset before it is carried out, and from then on what such a member stores does not count until it
goes on from the new position. A broker that does not answer is passed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Protocol

from strata.broker.v1 import peer_pb2


class ResetTaker(Protocol):
    """Members of this broker that keep positions of their own."""

    async def take_reset(self, request: peer_pb2.TellResetRequest) -> None:
        """Take in that a reset begins or has ended."""


class ResetPeers(Protocol):
    """The other brokers."""

    async def tell_reset(self, request: peer_pb2.TellResetRequest) -> None:
        """Tell them of a reset; failures are counted."""


class GroupResets:
    """See the module docstring."""

    def __init__(self) -> None:
        self._taker: ResetTaker | None = None
        self._peers: ResetPeers | None = None

    def taken_by(self, taker: ResetTaker) -> None:
        """Tell members of this broker by a taker; without one there are none to tell."""
        self._taker = taker

    def passed_by(self, peers: ResetPeers) -> None:
        """Tell the other brokers by these."""
        self._peers = peers

    async def answer(self, request: peer_pb2.TellResetRequest) -> peer_pb2.TellResetResponse:
        """Take in what another broker tells."""
        if self._taker is not None:
            await self._taker.take_reset(request)
        return peer_pb2.TellResetResponse()

    @asynccontextmanager
    async def resetting(
        self, group: str, topic: str, queues: Collection[int]
    ) -> AsyncIterator[dict[int, int]]:
        """Tell all brokers before and after the block, which resets a group on a topic.

        Args:
            group: of the default namespace.
            topic: likewise.
            queues: that are reset.

        Yields:
            Where the block puts the new offset of each queue; a queue without one was not reset.
        """
        request = peer_pb2.TellResetRequest(consumer_group=group, topic=topic)
        for queue in queues:
            request.queues.add(queue=queue, begins=True)
        await self._tell(request)
        offsets: dict[int, int] = {}
        try:
            yield offsets
        finally:
            for told in request.queues:
                if told.queue in offsets:
                    told.offset = offsets[told.queue]
                else:
                    told.failed = True
            await self._tell(request)

    async def _tell(self, request: peer_pb2.TellResetRequest) -> None:
        others = self._peers
        if others is None:
            await self.answer(request)
        else:
            await asyncio.gather(self.answer(request), others.tell_reset(request))
