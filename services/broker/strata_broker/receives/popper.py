"""Pops a public queue, wherever its messages are.

Usually that is one pop that waits at one raft group. Where queues moved, several raft groups are
asked in turn, first without waiting, then each for a slice that grows while nothing comes: pops
at two raft groups at once would take leases twice for one answer. A pop that waits where a queue
just moved away is given up and looks again; where the metadata lag behind, the raft group itself
says which of its queues have left. Invariants: what is leased is returned to the caller; an ordered
consumer gets nothing of an epoch while an older one has messages that are not acked (rule 18).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.base.receive_config import ReceiveSection
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.places import PopPlace, Wanted, places_of
from strata_broker.storage_client.attempts import Attempts
from strata_broker.storage_client.pop_ends import PopTicket
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.requests import Code, RequestError
from strata_mq.slots import slot_of
from strata_runtime.clock import Clock

PopFor = Callable[[PopPlace, int], storage_pb2.PopRequest]
"""Makes the request of a pop at a place that waits for so many milliseconds."""


class Popped(NamedTuple):
    """Leased messages of one raft group."""

    raft_group: int
    response: storage_pb2.PopResponse


class Popper:
    """See the module docstring."""

    def __init__(
        self, view: MetadataView, storage: StorageClient, config: ReceiveSection, *, clock: Clock
    ) -> None:
        self._view = view
        self._storage = storage
        self._config = config
        self._clock = clock
        self._turn = 0
        # By topic id.
        self._attempts = Attempts()
        view.on_move(self._moved)
        view.on_slots(self._slots_moved)
        # (raft group, topic, queue, consumer group) -> until when it is known to be drained
        self._drained_until_s: OrderedDict[tuple[int, int, int, int], float] = OrderedDict()
        # (raft group, topic, queue or ANY_QUEUE) -> how many of the queues have left, as it told
        self._left: OrderedDict[tuple[int, int, int], int] = OrderedDict()

    async def pop(
        self,
        topic: TopicRow,
        wanted: Wanted,
        pop_for: PopFor,
        wait_ms: int,
        ticket: PopTicket,
    ) -> Popped:
        """Return messages, or none at the end of the wait, or when the ticket is ended.

        Raises:
            RequestError: refused for good, or FORBIDDEN, nobody serves the queue.
        """
        deadline_s = self._clock.monotonic_s() + wait_ms / 1000
        slice_ms = 0
        while True:
            version = self._view.placement_version
            places = places_of(self._view, topic, wanted)
            if not places:
                raise RequestError(Code.FORBIDDEN, "no readable queue")
            if len(places) == 1:
                slice_ms = wait_ms
            popped, waited = await self._round(topic, places, pop_for, slice_ms, deadline_s, ticket)
            if popped is not None:
                return popped
            ended = ticket.ended or self._clock.monotonic_s() >= deadline_s
            # The one raft group that was asked has waited for as long as it was to.
            alone = len(places) == 1 and waited
            if ended or (alone and self._view.placement_version == version):
                return Popped(places[0].raft_group, storage_pb2.PopResponse())
            if not waited:
                # The metadata lag behind storage, or older epochs are still worked on.
                await asyncio.sleep(self._config.moved_pause_ms / 1000)
            slice_ms = min(
                max(slice_ms * 2, self._config.first_slice_ms), self._config.max_slice_ms
            )

    async def _round(
        self,
        topic: TopicRow,
        places: Sequence[PopPlace],
        pop_for: PopFor,
        slice_ms: int,
        deadline_s: float,
        ticket: PopTicket,
    ) -> tuple[Popped | None, bool]:
        """Ask every place once, until one has messages; also return whether any was waited at.

        It ends early when the metadata say that something is elsewhere.
        """
        self._turn += 1
        version = self._view.placement_version
        waited = False
        for number in range(len(places)):
            if ticket.ended:
                break
            place = places[(number + self._turn) % len(places)]
            left_ms = round((deadline_s - self._clock.monotonic_s()) * 1000)
            request = pop_for(place, max(min(slice_ms, left_ms), 0))
            left_key = (place.raft_group, topic.topic_id, place.queue)
            request.known_sealed = self._left.get(left_key, 0)
            request.number = ticket.number
            try:
                if request.fifo and not await self._may_serve(topic, place, request):
                    continue
                if self._view.placement_version != version:
                    return None, False
                async with self._attempts.of(topic.topic_id, str(place.raft_group)):
                    response = await self._storage.pop(request, ticket)
                if response.moved:
                    self._take_in_left(topic, left_key, response)
                    continue
                waited = True
            except errors.MovedError:
                continue
            except TimeoutError:
                response = await self._after_giving_up(pop_for(place, 0))
            if response.messages:
                return Popped(place.raft_group, response), True
        return None, waited

    def _take_in_left(
        self, topic: TopicRow, key: tuple[int, int, int], response: storage_pb2.PopResponse
    ) -> None:
        """Learn which queues have left a raft group."""
        self._view.learn(topic, key[0], response.sealed)
        self._left[key] = len(response.sealed)
        self._left.move_to_end(key)
        if len(self._left) > self._config.max_cached_drains:
            self._left.popitem(last=False)

    async def _after_giving_up(self, request: storage_pb2.PopRequest) -> storage_pb2.PopResponse:
        """Ask for what a pop that was given up may have leased all the same."""
        request.repeated = True
        try:
            return await self._storage.pop(request)
        except errors.MovedError:
            return storage_pb2.PopResponse()

    def _moved(self, topic_id: int) -> None:
        """Give up what waits for messages of the topic now, unless an answer is on its way.

        Who looks from now on knows where to; its leases would be lost for nothing.
        """
        self._attempts.give_up(topic_id, grace_s=self._config.moved_grace_ms / 1000)

    def _slots_moved(self, slots: Set[int]) -> None:
        """Give up what waits for messages of topics with queues in these slots."""
        for topic_id in self._attempts.keys():  # noqa: SIM118 (no mapping)
            topic = self._view.topic_by_id(topic_id) if isinstance(topic_id, int) else None
            if topic is not None and any(
                slot_of(topic.slot_base, queue) in slots for queue in range(topic.queue_count)
            ):
                self._moved(topic.topic_id)

    async def _may_serve(
        self, topic: TopicRow, place: PopPlace, request: storage_pb2.PopRequest
    ) -> bool:
        """Whether every older epoch of the queue is drained by the consumer group."""
        for raft_group in place.older:
            if not await self._is_drained(raft_group, topic, place.queue, request):
                return False
        return True

    async def _is_drained(
        self, raft_group: int, topic: TopicRow, queue: int, request: storage_pb2.PopRequest
    ) -> bool:
        key = (raft_group, topic.topic_id, queue, request.consumer_group_id)
        now_s = self._clock.monotonic_s()
        if self._drained_until_s.get(key, 0.0) > now_s:
            return True
        try:
            response = await self._storage.call(
                raft_group,
                "GetConsumerState",
                storage_pb2.GetConsumerStateRequest(
                    raft_group=raft_group,
                    consumer_group_id=request.consumer_group_id,
                    topic=request.topic,
                    queues=(queue,),
                ),
                storage_pb2.GetConsumerStateResponse,
            )
        except errors.MovedError:
            # It holds nothing of the queue any more.
            return True
        if any(state.cursor < state.next_offset for state in response.queues):
            return False
        # A reset may bring it back to life, hence only for a while.
        self._drained_until_s[key] = now_s + self._config.drained_cache_ms / 1000
        self._drained_until_s.move_to_end(key)
        if len(self._drained_until_s) > self._config.max_cached_drains:
            self._drained_until_s.popitem(last=False)
        return True
