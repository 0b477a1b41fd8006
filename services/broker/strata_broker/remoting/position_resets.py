"""Resets of consumer groups, as the members that are connected here have to take them up.

A member keeps a position for each of its queues and stores it every few seconds, whatever the
broker has, also by another connection. So a reset of a group that has members here names the queues
whose position has to be taken up, and until one of them has:

- A position that is sent for such a queue is answered with success and not stored.
- The next pull is answered with PULL_OFFSET_MOVED and the new offset, from which all clients go on:
  they forget the queue's messages that they hold. So is each further pull from elsewhere.

The position is taken up by a pull from there, or when it is stored, after a member was told it.
RocketMQ's brokers do the same (`useServerSideResetOffset`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from strata.broker.v1 import peer_pb2
from strata_broker.remoting.exchange import RemotingPeer
from strata_broker.remoting.members import RemotingMembers
from strata_broker.remoting.position_updates import PositionUpdates
from strata_runtime.clock import Clock
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics

MOST_RESETS = 100_000
"""Queues whose position was not taken up; members may store over a reset of further ones."""

_SILENCE_S = 60.0
"""Time after which a member is not waited for: longer than a pull waits, and than the five seconds
after which a member that has the queue stores its position again."""

_SETTLING_S = 0.5
"""Most time that a reset waits for positions that are being stored as it begins."""

_Place = tuple[str, str, int]
"""Consumer group, topic and number of the queue."""


class _Reset:
    """A position that a member has to take up.

    Attributes:
        offset: where it goes on; None: the reset has not ended.
        until_s: monotonic time at which nobody is waited for any longer.
        is_told: whether a member was told the offset.
    """

    __slots__ = ("is_told", "offset", "until_s")

    def __init__(self, offset: int | None, until_s: float) -> None:
        self.offset = offset
        self.until_s = until_s
        self.is_told = False


class PositionResets:
    """See the module docstring. Used on the event loop only.

    Args:
        members: that are connected here.
        updates: know which positions are being stored.
        clock: monotonic time.
        metrics: what is counted.
    """

    def __init__(
        self,
        members: RemotingMembers,
        updates: PositionUpdates,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._members = members
        self._updates = updates
        self._clock = clock
        self._room = Limit("resets of remoting members", MOST_RESETS, "queues", metrics=metrics)
        self._resets: dict[_Place, _Reset] = {}

    def __len__(self) -> int:
        """Return how many positions were not taken up."""
        return len(self._resets)

    async def take_reset(self, request: peer_pb2.TellResetRequest) -> None:
        """See `ResetTaker.take_reset`; when one that begins was taken, nothing older is stored."""
        self._forget_silent()
        clients = self._members.clients(request.consumer_group)
        for queue in request.queues:
            place = (request.consumer_group, request.topic, queue.queue)
            self._take(place, queue, has_members=bool(clients))
        if any(queue.WhichOneof("state") == "begins" for queue in request.queues):
            await self._settled(clients)

    def is_ignored(self, group: str, topic: str, queue: int, offset: int) -> bool:
        """Whether a position that a member stores is from before a reset."""
        place = (group, topic, queue)
        reset = self._found(place)
        if reset is None:
            return False
        if reset.offset is None:
            return True
        if reset.is_told and offset == reset.offset:
            self._forget(place)
            return False
        reset.until_s = self._clock.monotonic_s() + _SILENCE_S
        return True

    def moved_to(self, group: str, topic: str, queue: int, offset: int) -> int | None:
        """Return where a member that pulls has to go on instead; None: it may pull from there."""
        place = (group, topic, queue)
        reset = self._found(place)
        if reset is None or reset.offset is None:
            return None
        if reset.is_told and offset == reset.offset:
            self._forget(place)
            return None
        reset.is_told = True
        return reset.offset

    def asked(self, client: RemotingPeer, group: str, topic: str, queue: int) -> None:
        """Take in that a client is about to be told the stored position of a queue."""
        reset = self._found((group, topic, queue))
        if reset is not None and reset.offset is not None and self._members.has(client, group):
            reset.is_told = True

    def _take(self, place: _Place, told: peer_pb2.QueueReset, *, has_members: bool) -> None:
        state = told.WhichOneof("state")
        known = self._resets.get(place)
        if state not in ("begins", "offset"):
            if known is not None and known.offset is None:
                self._forget(place)
            return
        if known is None and not (has_members and self._room.try_take()):
            return
        offset = told.offset if state == "offset" else None
        self._resets[place] = _Reset(offset, self._clock.monotonic_s() + _SILENCE_S)

    async def _settled(self, clients: Iterable[RemotingPeer]) -> None:
        """Wait for what members were storing; what waits behind it is not stored any more."""
        waiting = [asyncio.ensure_future(self._updates.settled(client)) for client in clients]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=_SETTLING_S)
            for one in late:
                one.cancel()

    def _found(self, place: _Place) -> _Reset | None:
        reset = self._resets.get(place)
        if reset is not None and reset.until_s <= self._clock.monotonic_s():
            self._forget(place)
            return None
        return reset

    def _forget(self, place: _Place) -> None:
        del self._resets[place]
        self._room.give_back()

    def _forget_silent(self) -> None:
        now_s = self._clock.monotonic_s()
        for place in [place for place, one in self._resets.items() if one.until_s <= now_s]:
            self._forget(place)
