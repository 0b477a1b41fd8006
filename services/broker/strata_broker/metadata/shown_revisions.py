"""Waits until the other brokers know what this one knows.

A client may create something by one broker and use it by another one at once, as routes and load
balancers lead it. So a creation is answered when all brokers have heard of it. A broker that is
late is passed over after a while: what is new is unknown to it until it has caught up.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from strata.broker.v1 import peer_pb2
from strata_broker.metadata.metadata import MetadataView

MOST_WAIT_S = 0.5
"""Time after which a broker is passed over."""


class RevisionPeers(Protocol):
    """The other brokers."""

    async def await_revision(self, revision: int, timeout_s: float) -> None:
        """Wait until they show a revision, for so long at most; failures are counted."""


class ShownRevisions:
    """See the module docstring. Used on the event loop only.

    Invariant: one round of calls is under way at a time; it is for all that wait as it begins.

    Attributes:
        view: the metadata as this broker has it.
    """

    def __init__(self, view: MetadataView) -> None:
        self.view = view
        self._peers: RevisionPeers | None = None
        self._round = asyncio.Lock()
        # All other brokers have been asked for it.
        self._asked = -1

    def known_by(self, peers: RevisionPeers) -> None:
        """Wait for these; without them the broker is alone."""
        self._peers = peers

    async def everywhere(self) -> None:
        """Wait until the other brokers know what this one knows now, or are passed over."""
        if self._peers is None:
            return
        revision = self.view.revision
        async with self._round:
            if self._asked < revision:
                asked = self.view.revision
                await self._peers.await_revision(asked, MOST_WAIT_S)
                self._asked = asked

    async def answer(
        self, request: peer_pb2.AwaitRevisionRequest
    ) -> peer_pb2.AwaitRevisionResponse:
        """Wait here, for another broker."""
        await self.view.wait_for_revision(request.revision, MOST_WAIT_S)
        return peer_pb2.AwaitRevisionResponse()
