"""Takes messages for receives, wherever they are; receives wait in lines of the `WaitingRoom`.

A receive of any queue takes what its own broker name has first, and else what any raft group of the
topic has; a receive of one queue takes from wherever the queue's epochs are. Places that are known
to have nothing are left out. No pop waits, and the pops of one receive follow one another: pops at
two raft groups at once would take leases twice for one answer. In a topic of type PRIORITY the
highest level of all raft groups comes first (`serving_order`). Invariants: what is leased is
returned to the caller; an ordered consumer gets nothing of an epoch while an older one has messages
that are not acked (rule 18).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.base.receive_config import ReceiveSection
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.places import ANY_QUEUE, PopPlace, Wanted, places_of
from strata_broker.receives.lite_popper import LitePopper
from strata_broker.receives.serving_order import ServingOrders
from strata_broker.receives.targets import PopFor, Popped, ReceiveTarget
from strata_broker.receives.waiting_room import Line, WaitingRoom
from strata_broker.storage_client.pop_ends import PopTicket
from strata_broker.storage_client.quiet_places import ConsumerPlace
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.requests import Code, RequestError
from strata_runtime.clock import Clock

# A receive that waits for less looks itself, whatever is known: it may read what its client sent.
_SHORT_WAIT_MS = 1_000
# Rounds of a receive that hardly waits: a placement that changes faster keeps it no longer.
_MAX_ROUNDS = 4
# A line looks nowhere else while it waits for a raft group to say whether an epoch is drained.
_DRAINED_TIMEOUT_S = 1.0


class Popper:
    """See the module docstring."""

    def __init__(
        self,
        view: MetadataView,
        storage: StorageClient,
        room: WaitingRoom,
        *,
        orders: ServingOrders,
        lite: LitePopper,
        config: ReceiveSection,
        clock: Clock,
    ) -> None:
        self._view = view
        self._storage = storage
        self._room = room
        self._orders = orders
        self._lite = lite
        self._config = config
        self._clock = clock
        self._turn = 0
        view.on_placement(lambda: room.news(None))
        # (topic id, broker name) -> the row, the version of the placement, the places of the topic
        self._places: OrderedDict[
            tuple[int, str], tuple[TopicRow, int, Sequence[PopPlace], Sequence[PopPlace]]
        ] = OrderedDict()
        # (raft group, topic, queue, consumer group) -> until when it is known to be drained
        self._drained_until_s: OrderedDict[tuple[int, int, int, int], float] = OrderedDict()
        # (raft group, topic, queue or ANY_QUEUE) -> how many of the queues have left, as it told
        self._left: OrderedDict[tuple[int, int, int], int] = OrderedDict()

    @property
    def room(self) -> WaitingRoom:
        """Lines of receives, where other calls may wait for the same news."""
        return self._room

    async def pop(
        self, target: ReceiveTarget, pop_for: PopFor, wait_ms: int, ticket: PopTicket
    ) -> Popped:
        """Return messages, or none at the end of the wait, or when the ticket is ended.

        Raises:
            RequestError: refused for good, or FORBIDDEN, nobody serves the queue.
        """
        if target.topic.is_lite:
            return await self._lite.pop(target, pop_for, wait_ms, ticket)
        deadline_s = self._clock.monotonic_s() + wait_ms / 1000
        near, far = self._places_of(target)
        if wait_ms < _SHORT_WAIT_MS or target.repeats:
            popped = await self._look_everywhere(target, pop_for, ticket)
            if popped is not None:
                return popped
        if self._clock.monotonic_s() < deadline_s and not ticket.ended:
            popped = await self._wait(target, pop_for, deadline_s, ticket)
            if popped is not None:
                return popped
        return Popped((*near, *far)[0].raft_group, storage_pb2.PopResponse())

    async def _look_everywhere(
        self, target: ReceiveTarget, pop_for: PopFor, ticket: PopTicket
    ) -> Popped | None:
        """Look at every place, once more where a round ended because something moved meanwhile.

        Without it a client that does not wait gets nothing, although messages are there.
        """
        for _ in range(_MAX_ROUNDS):
            version = self._view.placement_version
            popped = await self._round(target, pop_for, ticket, None)
            if popped is not None or ticket.ended or self._view.placement_version == version:
                return popped
        return None

    async def _wait(
        self, target: ReceiveTarget, pop_for: PopFor, deadline_s: float, ticket: PopTicket
    ) -> Popped | None:
        """Wait in line for messages; None: the time is over, or the client has gone."""
        seat = self._room.enter(
            target.line,
            ticket,
            partial(self._next_look_s, target),
            client_id=target.client_id,
        )
        try:
            while (left_s := deadline_s - self._clock.monotonic_s()) > 0:
                if not await seat.turn(left_s):
                    break
                popped = await self._round(target, pop_for, ticket, seat.line)
                if popped is not None:
                    return popped
            ticket.unanswered.update(seat.line.unanswered)
            if not ticket.ended:
                self._room.keep(seat, target.client_id)
            return None
        finally:
            seat.leave()

    def _next_look_s(self, target: ReceiveTarget, line: Line) -> float:
        """Return when there may be something at a place; 0.0: now."""
        near, far = self._places_of(target, must_serve=False)
        if not near and not far:
            return 0.0
        return min(self._rest_until_s(target, line, place) for place in (*near, *far))

    def _rest_until_s(self, target: ReceiveTarget, line: Line, place: PopPlace) -> float:
        key = self._key(target, place)
        return self._room.quiet.quiet_until_s(key) or line.paused_until_s(key)

    async def _round(
        self, target: ReceiveTarget, pop_for: PopFor, ticket: PopTicket, line: Line | None
    ) -> Popped | None:
        """Look at every place once that may have something, until one has messages.

        It ends early when the metadata says that something is elsewhere. `line`: None to look at
        all places.
        """
        self._turn += 1
        version = self._view.placement_version
        topic = self._topic(target)
        if target.by_level:
            return await self._round_by_level(topic, target, pop_for, ticket, line)
        for places in self._places_of(target):
            for number in range(len(places)):
                if ticket.ended or self._view.placement_version != version:
                    return None
                place = places[(number + self._turn) % len(places)]
                if line is not None and self._rest_until_s(target, line, place):
                    continue
                request = pop_for(topic, place)
                response: storage_pb2.PopResponse | None = None
                try:
                    key = self._key(target, place)
                    response = await self._look(key, place, request, ticket, line)
                finally:
                    target.looked(response)
                if response is not None and response.messages:
                    return Popped(place.raft_group, response)
        return None

    async def _round_by_level(
        self,
        topic: TopicRow,
        target: ReceiveTarget,
        pop_for: PopFor,
        ticket: PopTicket,
        line: Line | None,
    ) -> Popped | None:
        """Do the same for a topic of type PRIORITY: a place may be asked again for lower levels."""
        places = self._places_by_key(target, line)
        version = self._view.placement_version
        fruitless: set[ConsumerPlace] = set()
        levels = self._orders.begin(
            (topic.topic_id, target.consumer_group_id),
            tuple(places),
            queue_count=topic.queue_count,
            max_messages=target.max_messages,
        )
        try:
            while (ask := levels.next(self._clock.monotonic_s())) is not None:
                if ticket.ended or self._view.placement_version != version:
                    return None
                place = places[ask.place]
                request = pop_for(topic, place)
                ask.fill(request)
                response: storage_pb2.PopResponse | None = None
                try:
                    response = await self._look(ask.place, place, request, ticket, line)
                finally:
                    target.looked(response)
                levels.answered(ask.place, response, self._clock.monotonic_s())
                if response is None or response.unfinished:
                    fruitless.discard(ask.place)
                elif response.messages:
                    return Popped(place.raft_group, response)
                elif response.ready_levels:
                    fruitless.add(ask.place)
        finally:
            levels.end()
        for key in fruitless:
            # Others take what is there: a place that was looked at in vain is not asked at once.
            _pause(line, key)
        return None

    def _places_by_key(
        self, target: ReceiveTarget, line: Line | None
    ) -> dict[ConsumerPlace, PopPlace]:
        """Return the places that may have something, in the order of this round."""
        return {
            key: place
            for some in self._places_of(target)
            for number in range(len(some))
            if (place := some[(number + self._turn) % len(some)])
            and (key := self._key(target, place))
            and (line is None or not self._rest_until_s(target, line, place))
        }

    async def _look(
        self,
        key: ConsumerPlace,
        place: PopPlace,
        request: storage_pb2.PopRequest,
        ticket: PopTicket,
        line: Line | None,
    ) -> storage_pb2.PopResponse | None:
        """Pop at one place; None: it has nothing, or is not there."""
        left_key = (place.raft_group, key.topic_id, place.queue)
        request.known_sealed = self._left.get(left_key, 0)
        request.number = ticket.number
        try:
            if request.fifo and not await self._may_serve(key, place, request, ticket):
                if line is not None:
                    for raft_group in place.older:
                        _note_trouble(line, ticket, raft_group)
                _pause(line, key)
                return None
            with self._room.quiet.look(key) as look:
                response = await self._storage.pop(request, ticket, look)
                is_quiet = look.settle(response.told_later)
        except errors.MovedError:
            _pause(line, key)
            return None
        if response.moved:
            self._take_in_left(left_key, response)
        if line is not None:
            _note_trouble(line, ticket, place.raft_group)
            line.left_behind(more=bool(response.messages) and not is_quiet)
            is_fruitful = response.messages or response.unfinished or response.ready_levels
            if is_quiet or is_fruitful or look.told:
                line.hurry(key)
            else:
                line.pause(key)
        return response

    def _topic(self, target: ReceiveTarget) -> TopicRow:
        """Return a topic's present row: it may grow while a receive waits."""
        return self._view.topic_by_id(target.topic.topic_id) or target.topic

    def _key(self, target: ReceiveTarget, place: PopPlace) -> ConsumerPlace:
        return ConsumerPlace(
            place.raft_group, target.topic.topic_id, target.consumer_group_id, place.queue
        )

    def _places_of(
        self, target: ReceiveTarget, *, must_serve: bool = True
    ) -> tuple[Sequence[PopPlace], Sequence[PopPlace]]:
        """Return where to pop: under the receive's own name, and elsewhere.

        Raises:
            RequestError: FORBIDDEN, nobody serves the queue, if `must_serve`.
        """
        topic, (home, queue) = self._topic(target), target.wanted
        near: Sequence[PopPlace]
        far: Sequence[PopPlace]
        if queue != ANY_QUEUE:
            near, far = places_of(self._view, topic, target.wanted), ()
        else:
            key, version = (topic.topic_id, home.broker_name), self._view.placement_version
            known = self._places.get(key)
            if known is None or known[0] is not topic or known[1] != version:
                known = (topic, version, *self._any_places(topic, target.wanted))
                self._places[key] = known
                self._places.move_to_end(key)
                if len(self._places) > self._config.max_cached_drains:
                    self._places.popitem(last=False)
            near, far = known[2], () if target.repeats else known[3]
        if must_serve and not near and not far:
            raise RequestError(Code.FORBIDDEN, "no readable queue")
        return near, far

    def _any_places(
        self, topic: TopicRow, wanted: Wanted
    ) -> tuple[Sequence[PopPlace], Sequence[PopPlace]]:
        name = wanted.home.broker_name
        home = self._view.home(topic, name) or wanted.home
        near = places_of(self._view, topic, Wanted(home, ANY_QUEUE))
        elsewhere = [
            place
            for other in self._view.homes(topic)
            if other.broker_name != name
            for place in places_of(self._view, topic, Wanted(other, ANY_QUEUE))
        ]
        return near, tuple(place for place in dict.fromkeys(elsewhere) if place not in near)

    def _take_in_left(self, key: tuple[int, int, int], response: storage_pb2.PopResponse) -> None:
        """Learn which queues of a topic have left a raft group."""
        topic = self._view.topic_by_id(key[1])
        if topic is None:
            return
        self._view.learn(topic, key[0], response.sealed)
        self._left[key] = len(response.sealed)
        self._left.move_to_end(key)
        if len(self._left) > self._config.max_cached_drains:
            self._left.popitem(last=False)

    async def _may_serve(
        self,
        key: ConsumerPlace,
        place: PopPlace,
        request: storage_pb2.PopRequest,
        ticket: PopTicket,
    ) -> bool:
        """Whether every older epoch of the queue is drained by the consumer group."""
        for raft_group in place.older:
            if not await self._is_drained(raft_group, key, request, ticket):
                return False
        return True

    async def _is_drained(
        self,
        raft_group: int,
        place: ConsumerPlace,
        request: storage_pb2.PopRequest,
        ticket: PopTicket,
    ) -> bool:
        """Whether an epoch is drained; False: it is not, or its raft group does not answer."""
        key = (raft_group, place.topic_id, place.queue, place.consumer_group_id)
        now_s = self._clock.monotonic_s()
        if self._drained_until_s.get(key, 0.0) > now_s:
            return True
        try:
            response = await self._storage.call(
                raft_group,
                "GetConsumerState",
                storage_pb2.GetConsumerStateRequest(
                    raft_group=raft_group,
                    consumer_group_id=place.consumer_group_id,
                    topic=request.topic,
                    queues=(place.queue,),
                ),
                storage_pb2.GetConsumerStateResponse,
                timeout_s=_DRAINED_TIMEOUT_S,
            )
        except errors.MovedError:
            # It holds nothing of the queue any more.
            return True
        except RequestError as failure:
            if failure.code is not Code.PROXY_TIMEOUT:
                raise
            # As for a pop without a leader: no error for a consumer.
            ticket.unanswered.setdefault(raft_group, f"raft group {raft_group}")
            return False
        ticket.unanswered.pop(raft_group, None)
        if any(state.cursor < state.next_offset for state in response.queues):
            return False
        # A reset may bring it back to life, hence only for a while.
        self._drained_until_s[key] = now_s + self._config.drained_cache_ms / 1000
        self._drained_until_s.move_to_end(key)
        if len(self._drained_until_s) > self._config.max_cached_drains:
            self._drained_until_s.popitem(last=False)
        return True


def _pause(line: Line | None, place: ConsumerPlace) -> None:
    if line is not None:
        line.pause(place)


def _note_trouble(line: Line, ticket: PopTicket, raft_group: int) -> None:
    """Let those who wait in line know why messages may be missing."""
    trouble = ticket.unanswered.get(raft_group)
    if trouble is None:
        line.unanswered.pop(raft_group, None)
    else:
        line.unanswered[raft_group] = trouble
