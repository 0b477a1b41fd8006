"""Takes messages of lite topics for a receive: from places that may have some, one after the other.

A pop that leaves nothing behind in a lite topic makes its place quiet until the storage node tells
(rule 35). Order within a lite topic holds for every consumer group: messages that follow one which
is not acked wait. Invariants: what is leased is returned to the caller; a place whose look was cut
off, or that may have more, is ready again.
"""

from __future__ import annotations

import asyncio

from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.base.lite_config import LiteSection
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.places import PopPlace
from strata_broker.receives.lite_consumers import LiteConsumer, LiteConsumers, LiteKey
from strata_broker.receives.overdue_places import OverduePlaces
from strata_broker.receives.targets import PopFor, Popped, ReceiveTarget
from strata_broker.storage_client.pop_ends import PopTicket
from strata_broker.storage_client.quiet_places import ConsumerPlace
from strata_broker.storage_client.storage_tier import StorageTier
from strata_mq.requests import RequestError
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

# For so long a receive that does not wait looks at places.
_SHORTEST_S = 1.0


class LitePopper:
    """See the module docstring. Used on the event loop only."""

    def __init__(
        self,
        view: MetadataView,
        storage: StorageTier,
        *,
        consumers: LiteConsumers,
        config: LiteSection,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._storage = storage.client
        self._quiet = storage.quiet
        self._consumers = consumers
        self._directory = storage.lite
        self._pause_s = config.look_pause_ms / 1000
        self._clock = clock
        # Places that are looked at again after a pause.
        self._paused: set[ConsumerPlace] = set()
        self._overdue = OverduePlaces(
            self._look_again,
            clock,
            longest_s=self._quiet.max_quiet_s,
            most=self._quiet.max_places,
            per_s=config.overdue_looks_per_s,
        )
        self._quiet.on_news(lambda place: None if place is None else consumers.news(place))
        self._quiet.on_lost(self._overdue.lost)
        metrics.gauge("strata_broker_lite_subscriptions", lambda: consumers.count)
        metrics.gauge("strata_broker_lite_resting", lambda: len(self._overdue))
        self._looks = metrics.counter("strata_broker_lite_looks_total")

    async def pop(
        self, target: ReceiveTarget, pop_for: PopFor, wait_ms: int, ticket: PopTicket
    ) -> Popped:
        """Return messages of one lite topic, or none at the end of the wait.

        Raises:
            RequestError: refused for good.
        """
        key = LiteKey(target.client_id, target.consumer_group_id, target.topic.topic_id)
        deadline_s = self._clock.monotonic_s() + max(wait_ms / 1000, _SHORTEST_S)
        wait_until_s = self._clock.monotonic_s() + wait_ms / 1000
        try:
            while not ticket.ended:
                consumer = self._consumers.find(key)
                if consumer is not None:
                    consumer.heard_s = self._clock.monotonic_s()
                    popped = await self._round(consumer, target, pop_for, ticket, deadline_s)
                    if popped is not None:
                        return popped
                left_s = wait_until_s - self._clock.monotonic_s()
                if left_s <= 0 or ticket.ended:
                    break
                await self._wait(key, ticket, left_s)
            return Popped(0, storage_pb2.PopResponse())
        finally:
            # It may have been woken for what it did not take, also if it was cancelled.
            self._pass_on(key)

    def _pass_on(self, key: LiteKey) -> None:
        """Let another receive of the client look, if there is something to look for."""
        consumer = self._consumers.find(key)
        if consumer is not None and consumer.ready:
            self._consumers.wake(key)

    async def _wait(self, key: LiteKey, ticket: PopTicket, left_s: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended() -> None:
            if not waiter.done():
                waiter.set_result(None)

        ticket.on_ended = ended
        try:
            await self._consumers.wait(key, waiter, left_s)
        finally:
            ticket.on_ended = None

    async def _round(
        self,
        consumer: LiteConsumer,
        target: ReceiveTarget,
        pop_for: PopFor,
        ticket: PopTicket,
        deadline_s: float,
    ) -> Popped | None:
        """Look at ready places until one has messages, or the time is over."""
        # An earlier try of the same receive may have leases there, so that it is not news.
        first = consumer.attempts.pop(target.attempt, None)
        if first is not None and first in consumer.names:
            consumer.ready[first] = None
            consumer.ready.move_to_end(first, last=False)
        while consumer.ready and not ticket.ended and self._clock.monotonic_s() < deadline_s:
            place, _ = consumer.ready.popitem(last=False)
            if place != first and self._quiet.quiet_until_s(place):
                continue
            topic = self._view.topic_by_id(target.topic.topic_id) or target.topic
            response: storage_pb2.PopResponse | None = None
            try:
                request = pop_for(topic, PopPlace(place.raft_group, place.queue))
                response = await self._look(consumer, topic, place, request, ticket)
            except BaseException:
                self._again(consumer, place)
                raise
            finally:
                target.looked(response)
            if response is not None and response.messages:
                consumer.served(target.attempt, place)
                return Popped(place.raft_group, response)
        return None

    async def _look(
        self,
        consumer: LiteConsumer,
        topic: TopicRow,
        place: ConsumerPlace,
        request: storage_pb2.PopRequest,
        ticket: PopTicket,
    ) -> storage_pb2.PopResponse | None:
        """Pop at one place; None: there is no such lite topic any more."""
        request.number = ticket.number
        request.fifo = True
        self._looks.add(1)
        try:
            with self._quiet.look(place) as look:
                response = await self._storage.pop(request, ticket, look)
                is_quiet = look.settle(response.told_later)
        except errors.MovedError:
            await self._number_anew(consumer, topic, place)
            return None
        if is_quiet:
            self._overdue.rests(place, look.node)
        elif response.messages or response.unfinished or look.told:
            self._again(consumer, place)
        else:
            self._pause(place)
        return response

    async def _number_anew(
        self, consumer: LiteConsumer, topic: TopicRow, place: ConsumerPlace
    ) -> None:
        """Subscribe again to a lite topic that ended: it begins anew."""
        name = consumer.names.get(place)
        self._directory.forget(place.topic_id, place.queue)
        if name is None:
            return
        try:
            numbers = await self._directory.numbers(topic, (name,))
            raft_group = self._directory.raft_group(topic, name)
        except RequestError:
            self._pause(place)
            return
        if consumer.names.get(place) == name:
            new = place._replace(raft_group=raft_group, queue=numbers[name])
            if new == place:
                # Storage does not know yet that it has it.
                self._pause(place)
            else:
                self._consumers.renumber(consumer, name, new)

    def _look_again(self, place: ConsumerPlace) -> None:
        self._quiet.forget(place)
        self._consumers.news(place)

    def _again(self, consumer: LiteConsumer, place: ConsumerPlace) -> None:
        if place in consumer.names:
            consumer.ready[place] = None

    def _pause(self, place: ConsumerPlace) -> None:
        """Let a place be looked at after a while: nobody promised to tell of it."""
        if place in self._paused:
            return
        self._paused.add(place)

        def over() -> None:
            self._paused.discard(place)
            self._consumers.news(place)

        asyncio.get_running_loop().call_later(self._pause_s, over)
