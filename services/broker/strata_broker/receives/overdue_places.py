"""Lite topics without messages that are looked at again although nobody told of them.

A storage node that promised to tell may have lost its promise, and a node that is lost tells
nothing. Places that rest for longer than they may, and those of a lost node, become ready again:
a bounded number at a time, because a broker may have 200,000 of them. Invariant: a place that rests
is looked at again, told or not.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from strata_broker.storage_client.quiet_places import ConsumerPlace, LostPromises
from strata_runtime.clock import Clock

# Between two looks for places that rest for too long.
_TICK_S = 1.0
# Places of a lost node that become ready in one turn of the event loop.
_LOST_PER_TURN = 500


class _Rest(NamedTuple):
    """Until when a place rests, who promised to tell, and the places with the same promise."""

    until_s: float
    node: str
    beside: dict[ConsumerPlace, None]


class OverduePlaces:
    """See the module docstring. Used on the event loop only.

    Args:
        ready: lets a place be looked at, quiet or not, if somebody subscribed to it.
        clock: time.
        longest_s: time for which a place rests.
        most: places that rest; the oldest becomes ready when there are more.
        per_s: places that become ready in a second because they rested for too long.
    """

    def __init__(
        self,
        ready: Callable[[ConsumerPlace], None],
        clock: Clock,
        *,
        longest_s: float,
        most: int,
        per_s: int,
    ) -> None:
        self._ready = ready
        self._clock = clock
        self._longest_s = longest_s
        self._most = most
        self._per_tick = max(1, round(per_s * _TICK_S))
        # The first to end in front.
        self._resting: OrderedDict[ConsumerPlace, _Rest] = OrderedDict()
        # Raft group -> node that promised to tell -> places
        self._promised: dict[int, dict[str, dict[ConsumerPlace, None]]] = {}
        # The same of promises that are lost.
        self._lost: list[dict[ConsumerPlace, None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._resting)

    def rests(self, place: ConsumerPlace, node: str) -> None:
        """Take in that a look found nothing, and that a storage node promised to tell."""
        if place in self._resting:
            self._end_rest(place)
        beside = self._promised.setdefault(place.raft_group, {}).setdefault(node, {})
        beside[place] = None
        until_s = self._clock.monotonic_s() + self._longest_s
        self._resting[place] = _Rest(until_s, node, beside)
        if len(self._resting) > self._most:
            oldest = next(iter(self._resting))
            self._end_rest(oldest)
            self._ready(oldest)
        self._wait()

    def lost(self, promises: LostPromises) -> None:
        """Let places be looked at soon: their node is lost, or does not lead any more."""
        one = promises.raft_group
        found = [
            (raft_group, node)
            for raft_group in (self._promised if one is None else (one,))
            for node in self._promised.get(raft_group, ())
            if promises.include(raft_group, node)
        ]
        if found and not self._lost:
            asyncio.get_running_loop().call_soon(self._find)
        self._lost += [self._take(*promise) for promise in found]

    def _find(self) -> None:
        left = _LOST_PER_TURN
        while self._lost and left:
            places = self._lost[-1]
            if not places:
                self._lost.pop()
                continue
            # The last one: a dict that lost many passes over them to find its first one.
            place, _ = places.popitem()
            del self._resting[place]
            self._ready(place)
            left -= 1
        if self._lost:
            asyncio.get_running_loop().call_soon(self._find)

    def _end_rest(self, place: ConsumerPlace) -> None:
        rest = self._resting.pop(place)
        del rest.beside[place]
        by_node = self._promised.get(place.raft_group, {})
        if not rest.beside and by_node.get(rest.node) is rest.beside:
            self._take(place.raft_group, rest.node)

    def _take(self, raft_group: int, node: str) -> dict[ConsumerPlace, None]:
        """Forget the promise of a node for a raft group; return its places."""
        by_node = self._promised[raft_group]
        places = by_node.pop(node)
        if not by_node:
            del self._promised[raft_group]
        return places

    def _wait(self) -> None:
        if self._timer is None and self._resting:
            first_s = next(iter(self._resting.values())).until_s - self._clock.monotonic_s()
            pause_s = max(first_s, min(_TICK_S, self._longest_s))
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = self._clock.monotonic_s()
        for place in list(islice(self._resting, self._per_tick)):
            if self._resting[place].until_s > now_s:
                break
            self._end_rest(place)
            self._ready(place)
        self._wait()
