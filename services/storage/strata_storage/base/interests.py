"""Interests of brokers: each is told once, as soon as a pop may find something.

A pop that leaves nothing behind *arms* an interest of its broker in its place. The first event that
could let another pop of the place find something tells the broker and ends the interest (rule 35).
Invariants: an interest is told or its stream ends; a broker that reads slowly is told of a place
once, however often the place was armed meanwhile; all interests and what brokers have not read yet
share one limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class DeliverablePlace(NamedTuple):
    """Where a pop takes messages for a consumer group; `queue` as the pop named it, or -1."""

    raft_group: int
    topic_id: int
    consumer_group_id: int
    queue: int


class ArmedPlaces(Protocol):
    """Where interests are armed; forgets those of a stream that ended."""

    def forget(self, place: DeliverablePlace, stream: InterestStream) -> None:
        """End an interest without telling anybody."""


class Interests:
    """The limit that all streams of a node share.

    Args:
        limit: interests, and places that brokers have not read yet.

    Attributes:
        used: how many there are.
    """

    __slots__ = ("_limit", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    def try_take(self) -> bool:
        """Whether there is room for one more; takes it."""
        if self.used >= self._limit:
            return False
        self.used += 1
        return True

    def give_back(self, count: int = 1) -> None:
        """Give room back."""
        self.used -= count


class InterestStream:
    """One stream to a broker.

    Args:
        interests: the limit.
        wake: called when there is something to tell.
    """

    __slots__ = ("_armed", "_ended", "_interests", "_told", "_wake")

    def __init__(self, interests: Interests, wake: Callable[[], None]) -> None:
        self._interests = interests
        self._wake = wake
        self._ended = False
        self._armed: dict[DeliverablePlace, ArmedPlaces] = {}
        # Not read by the broker yet; a dict for its order.
        self._told: dict[DeliverablePlace, None] = {}

    @property
    def has_news(self) -> bool:
        """Whether the broker is to be told of places."""
        return bool(self._told)

    def arm(self, place: DeliverablePlace, where: ArmedPlaces) -> bool:
        """Note an interest; False: the stream has ended, or there are too many."""
        before = self._armed.get(place)
        if self._ended or (before is None and not self._interests.try_take()):
            return False
        if before is not None and before is not where:
            # It is of an earlier term, which told and forgot its own.
            before.forget(place, self)
        self._armed[place] = where
        return True

    def tell(self, place: DeliverablePlace) -> None:
        """End an interest and tell the broker, once for all that it has not read."""
        if self._armed.pop(place, None) is None:
            return
        if place in self._told:
            self._interests.give_back()
            return
        self._told[place] = None
        self._wake()

    def take_told(self, limit: int) -> list[DeliverablePlace]:
        """Remove and return the places that wait longest to be sent."""
        taken = list(self._told)[:limit] if len(self._told) > limit else list(self._told)
        for place in taken:
            del self._told[place]
        self._interests.give_back(len(taken))
        return taken

    def end(self) -> None:
        """Forget everything: the broker looks again at all places of this node."""
        self._ended = True
        self._interests.give_back(len(self._armed) + len(self._told))
        armed, self._armed = self._armed, {}
        self._told.clear()
        for place, where in armed.items():
            where.forget(place, self)
