"""Messages that a leader proposed and whose rows are still missing: their future positions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from strata_mq.commands import Duplicate
from strata_mq.layout import NO_QUEUE, MessagePosition, PendingRef

Place = MessagePosition | PendingRef
"""Where a message is: its offset, or the name of one that was stored to wait."""


class Stored(NamedTuple):
    """Messages of a part that are stored.

    Attributes:
        topic_id: their topic.
        queue: where they go; `NO_QUEUE`: they wait.
        places: their offsets; of messages that wait, their ordinals in the batch.
        ids: their ids.
    """

    topic_id: int
    queue: int
    places: Sequence[int]
    ids: list[bytes]

    def find(self, topic_id: int, message_id: bytes, raft_index: int) -> Place | None:
        """Return where a message with an id is in the entry `raft_index`; None: not here."""
        if topic_id != self.topic_id or message_id not in self.ids:
            return None
        place = self.places[self.ids.index(message_id)]
        if self.queue == NO_QUEUE:
            return PendingRef(raft_index, place)
        return MessagePosition(self.queue, place)


class StoredRuns:
    """Messages that the parts of a batch store, in their order.

    They are found by topic, because a batch may have a part for each of a thousand topics.

    Attributes:
        all: of all topics.
    """

    __slots__ = ("_by_topic", "all")

    def __init__(self) -> None:
        self.all: list[Stored] = []
        self._by_topic: dict[int, list[Stored]] = {}

    def add(self, run: Stored) -> None:
        """Take in what a part stores."""
        self.all.append(run)
        self._by_topic.setdefault(run.topic_id, []).append(run)

    def of_topic(self, topic_id: int) -> Sequence[Stored]:
        """Return what the parts before store of a topic."""
        return self._by_topic.get(topic_id, ())


class InFlight(NamedTuple):
    """The messages of an entry whose rows are not there yet."""

    future: asyncio.Future[int]
    runs: list[Stored]


def is_known(runs: Sequence[Stored], ids: set[bytes]) -> bool:
    """Whether one of some ids is stored by these runs of the topic."""
    return any(not ids.isdisjoint(run.ids) for run in runs)


def find_in(
    runs: Sequence[Stored], topic_id: int, message_id: bytes, raft_index: int
) -> Place | None:
    """Return where a message with an id is in the entry `raft_index`; None: not in these runs."""
    for run in runs:
        found = run.find(topic_id, message_id, raft_index)
        if found is not None:
            return found
    return None


def committed_index(future: asyncio.Future[int]) -> int:
    """Return the index of a committed entry; 0: it is not committed yet."""
    if not future.done() or future.cancelled() or future.exception() is not None:
        return 0
    return future.result()


def duplicate_of(ordinal: int, first: Place) -> Duplicate:
    """Return that the message with an ordinal is stored already."""
    if isinstance(first, PendingRef):
        return Duplicate(ordinal, 0, 0, first)
    return Duplicate(ordinal, *first)
