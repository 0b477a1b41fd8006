"""Messages that a leader proposed and whose rows are still missing: their future positions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
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

    def find(self, message_id: bytes, raft_index: int) -> Place:
        """Return where a message that is one of these is in the entry `raft_index`."""
        place = self.places[self.ids.index(message_id)]
        if self.queue == NO_QUEUE:
            return PendingRef(raft_index, place)
        return MessagePosition(self.queue, place)


class StoredRuns:
    """Messages that the parts of a batch store, in their order.

    Each look-up takes the same time however many parts there are: a batch may have a part for
    each of a thousand topics, and thousands of parts of one topic.

    Attributes:
        all: of all topics.
    """

    __slots__ = ("_by_id", "_ends", "all")

    def __init__(self) -> None:
        self.all: list[Stored] = []
        # topic -> id -> messages of which it is one
        self._by_id: dict[int, dict[bytes, Stored]] = {}
        # (topic, queue) -> offset behind the last one
        self._ends: dict[tuple[int, int], int] = {}

    def add(self, run: Stored) -> None:
        """Take in what a part stores."""
        self.all.append(run)
        self._by_id.setdefault(run.topic_id, {}).update(dict.fromkeys(run.ids, run))
        if run.queue != NO_QUEUE:
            self._ends[run.topic_id, run.queue] = run.places[-1] + 1

    def end_of(self, topic_id: int, queue: int) -> int | None:
        """Return the next offset of a queue; None: these are in other queues."""
        return self._ends.get((topic_id, queue))

    def has_any(self, topic_id: int, ids: set[bytes]) -> bool:
        """Whether a message with one of some ids is stored."""
        known = self._by_id.get(topic_id)
        # The smaller side is walked through.
        return known is not None and not known.keys().isdisjoint(ids)

    def find(self, topic_id: int, message_id: bytes, raft_index: int) -> Place | None:
        """Return where a message with an id is in the entry `raft_index`; None: not here."""
        run = self._by_id.get(topic_id, _NO_RUNS).get(message_id)
        return None if run is None else run.find(message_id, raft_index)


_NO_RUNS: Mapping[bytes, Stored] = {}


class InFlight(NamedTuple):
    """The messages of an entry whose rows are not there yet."""

    future: asyncio.Future[int]
    runs: StoredRuns


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
