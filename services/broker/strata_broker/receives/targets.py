"""Wishes and results of receives: the values that the poppers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strata.storage.v1 import storage_pb2
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.places import ANY_QUEUE, PopPlace, Wanted
from strata_broker.receives.waiting_room import LineKey

PopFor = Callable[[TopicRow, PopPlace], storage_pb2.PopRequest]
"""Makes the request of a pop at a place."""

Looked = Callable[[storage_pb2.PopResponse | None], None]
"""Hears what a pop brought; None: nothing."""


class Popped(NamedTuple):
    """Leased messages of one raft group."""

    raft_group: int
    response: storage_pb2.PopResponse


def _nobody(_: storage_pb2.PopResponse | None) -> None:
    pass


class ReceiveTarget(NamedTuple):
    """Source of a receive.

    Attributes:
        topic: of the messages.
        wanted: the public queue.
        consumer_group_id: who receives.
        filter_bytes: of the messages; receives with other filters do not wait behind one another.
        repeats: an earlier receive of the same attempt may have leases, in the raft groups of the
            public queue only: this one looks there itself, and nowhere else.
        looked: hears what each pop brought, as soon as it has ended.
        by_level: any queue, and the highest level first.
        max_messages: most that the receive takes.
        client_id: whose lite topics a receive of their parent takes from.
        attempt: names a receive that its client repeats if it gets no answer; 0: none.
    """

    topic: TopicRow
    wanted: Wanted
    consumer_group_id: int
    filter_bytes: bytes = b""
    repeats: bool = False
    looked: Looked = _nobody
    by_level: bool = False
    max_messages: int = 1
    client_id: str = ""
    attempt: int = 0

    @property
    def line(self) -> LineKey:
        """The line in which the receive waits."""
        target: tuple[str, int] = ("", self.wanted.queue)
        if self.repeats and self.wanted.queue == ANY_QUEUE:
            target = (self.wanted.home.broker_name, ANY_QUEUE)
        return LineKey(self.topic.topic_id, self.consumer_group_id, self.filter_bytes, target)
