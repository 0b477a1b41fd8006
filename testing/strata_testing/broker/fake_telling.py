"""The part of a storage node in memory that is about its watch streams."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from strata.storage.v1 import storage_pb2


class FakeTelling:
    """Interests of brokers, any message tells all of them; and what brokers say of checks."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        # Transaction checks of which a broker said that a producer was given them.
        self.given_checks: list[storage_pb2.GivenCheck] = []
        # (broker boot id, number of its stream) -> what it is told; places it wants to be told of.
        self.streams: dict[tuple[int, int], asyncio.Queue[storage_pb2.WatchResponse]] = {}
        self.armed: dict[tuple[int, int], list[storage_pb2.DeliverablePlace]] = defaultdict(list)

    def _reportchecks(
        self, request: storage_pb2.ReportChecksRequest, _: storage_pb2.Refusal | None
    ) -> storage_pb2.ReportChecksResponse:
        self.given_checks += request.checks
        return storage_pb2.ReportChecksResponse()

    @contextmanager
    def telling(
        self, request: storage_pb2.WatchRequest
    ) -> Iterator[asyncio.Queue[storage_pb2.WatchResponse]]:
        """Open a stream; what it is told of places is in the queue."""
        key = request.broker_boot_id, request.stream
        told = self.streams[key] = asyncio.Queue()
        try:
            yield told
        finally:
            self.streams.pop(key, None)
            self.armed.pop(key, None)

    def came(self) -> None:
        """Let pops that wait look again, and tell brokers of all places that they asked for."""
        self.arrived.set()
        for key, places in self.armed.items():
            if places and key in self.streams:
                self.streams[key].put_nowait(storage_pb2.WatchResponse(deliverable=places))
        self.armed.clear()

    def arm(self, request: storage_pb2.PopRequest) -> bool:
        """Note what a pop asks for; False: its stream is not open."""
        key = request.broker_boot_id, request.tell_stream
        if key not in self.streams:
            return False
        place = storage_pb2.DeliverablePlace(
            raft_group=request.raft_group,
            topic_id=request.topic.topic_id,
            consumer_group_id=request.consumer_group_id,
            queue=request.queue,
        )
        self.armed[key].append(place)
        return True


async def first_of(
    *queues: asyncio.Queue[storage_pb2.WatchResponse],
) -> storage_pb2.WatchResponse:
    """Return the next item of whichever queue has one first."""
    gets = [asyncio.ensure_future(queue.get()) for queue in queues]
    try:
        await asyncio.wait(gets, return_when=asyncio.FIRST_COMPLETED)
        first = next(get for get in gets if get.done())
        for get, queue in zip(gets, queues, strict=True):
            if get.done() and get is not first:
                queue.put_nowait(get.result())
        return first.result()
    finally:
        for get in gets:
            get.cancel()
