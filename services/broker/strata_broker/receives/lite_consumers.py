"""Subscriptions of lite topics as this broker knows them, and which of them may have messages.

Each client of a consumer group names lite topics. A place (a lite topic for a consumer group) is
*ready* for a client if it may have messages: after the subscription, and whenever its storage node
tells (rule 35). A receive takes from ready places only, in the order in which they became ready; so
its cost does not depend on how many lite topics there are. Invariants: a place that became ready
stays so until somebody looked there; a waiting receive of a client is woken while the client has
ready places.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from strata_broker.storage_client.quiet_places import ConsumerPlace
from strata_runtime.clock import Clock

# Attempts whose places are remembered: a client repeats its last ones.
_MAX_ATTEMPTS = 64


class LiteKey(NamedTuple):
    """One client of a consumer group at one parent topic."""

    client_id: str
    consumer_group_id: int
    topic_id: int


class LiteConsumer:
    """Lite topics of one client.

    Attributes:
        places: by name of the lite topic.
        names: the same by place.
        coming: lite topics that requests add whose numbers are being asked for, with these
            requests; none is in `places`.
        ready: places that may have messages, the one to look at first in front.
        attempts: places that served an attempt; a repeat looks there first.
        version: of the newest subscription that had one.
        exclusive: whether the consumer group lets one client have a lite topic.
        heard_s: when it subscribed or received last.
    """

    __slots__ = (
        "attempts",
        "coming",
        "exclusive",
        "heard_s",
        "key",
        "names",
        "places",
        "ready",
        "version",
    )

    def __init__(self, key: LiteKey, now_s: float) -> None:
        self.key = key
        self.places: dict[str, ConsumerPlace] = {}
        self.names: dict[ConsumerPlace, str] = {}
        self.coming: dict[str, set[object]] = {}
        self.ready: OrderedDict[ConsumerPlace, None] = OrderedDict()
        self.attempts: OrderedDict[int, ConsumerPlace] = OrderedDict()
        self.version = 0
        self.exclusive = False
        self.heard_s = now_s

    def served(self, attempt: int, place: ConsumerPlace) -> None:
        """Note which place served an attempt."""
        if not attempt:
            return
        self.attempts[attempt] = place
        if len(self.attempts) > _MAX_ATTEMPTS:
            self.attempts.popitem(last=False)


class LiteConsumers:
    """See the module docstring. Used on the event loop only.

    Attributes:
        count: subscriptions, and those that are coming.
        on_lost: told the client and the name of a lite topic that another client has.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._consumers: dict[LiteKey, LiteConsumer] = {}
        self._by_place: defaultdict[ConsumerPlace, dict[LiteConsumer, None]] = defaultdict(dict)
        self._by_client: defaultdict[str, dict[LiteConsumer, None]] = defaultdict(dict)
        # Receives that wait; a dict for its order.
        self._waiting: defaultdict[LiteKey, dict[asyncio.Future[None], None]] = defaultdict(dict)
        self.count = 0
        self.on_lost: Callable[[str, str], None] = lambda client_id, name: None

    def find(self, key: LiteKey) -> LiteConsumer | None:
        """Return what a client subscribed to; None: nothing."""
        return self._consumers.get(key)

    def heard(self, key: LiteKey) -> LiteConsumer:
        """Return a client's subscriptions, new ones if there are none, and note that it lives."""
        consumer = self._consumers.get(key)
        if consumer is None:
            consumer = self._consumers[key] = LiteConsumer(key, self._clock.monotonic_s())
            self._by_client[key.client_id][consumer] = None
        consumer.heard_s = self._clock.monotonic_s()
        return consumer

    def expect(self, consumer: LiteConsumer, names: Iterable[str]) -> object:
        """Keep room for lite topics that are not there yet; return what `release` takes.

        A lite topic that is removed meanwhile is not in `coming` any more and must not be added.
        """
        request = object()
        for name in names:
            requests = consumer.coming.get(name)
            if requests is None:
                requests = consumer.coming[name] = set()
                self.count += 1
            requests.add(request)
        return request

    def release(self, consumer: LiteConsumer, names: Iterable[str], request: object) -> None:
        """Give back the room that a request did not use; forget a client that has nothing."""
        for name in names:
            requests = consumer.coming.get(name)
            if requests is not None and request in requests:
                requests.discard(request)
                if not requests:
                    del consumer.coming[name]
                    self.count -= 1
                    self.forget_empty(consumer)

    def add(self, consumer: LiteConsumer, places: Mapping[str, ConsumerPlace]) -> None:
        """Add lite topics, or move those whose number changed; they may have messages."""
        for name, place in places.items():
            old = consumer.places.get(name)
            if old == place:
                continue
            if old is None:
                # Those that were expected are counted already.
                self.count += consumer.coming.pop(name, None) is None
            else:
                self._unlink(consumer, old)
            consumer.places[name] = place
            consumer.names[place] = name
            consumer.ready[place] = None
            self._by_place[place][consumer] = None
        if consumer.ready:
            self.wake(consumer.key)

    def renumber(self, consumer: LiteConsumer, name: str, place: ConsumerPlace) -> None:
        """Move a lite topic that began anew, unless another client of an exclusive group has it."""
        if consumer.exclusive and any(one is not consumer for one in self.of_place(place)):
            self.remove(consumer, (name,))
            self.forget_empty(consumer)
            self.on_lost(consumer.key.client_id, name)
        else:
            self.add(consumer, {name: place})

    def remove(self, consumer: LiteConsumer, names: Iterable[str]) -> None:
        """Remove lite topics; those that are not there do not matter."""
        for name in names:
            self.count -= consumer.coming.pop(name, None) is not None
            place = consumer.places.pop(name, None)
            if place is not None:
                self.count -= 1
                self._unlink(consumer, place)

    def forget_empty(self, consumer: LiteConsumer) -> None:
        """Forget a client that has no lite topics, and expects none: no limit counts it."""
        if not consumer.places and not consumer.coming:
            self.drop(consumer)

    def drop(self, consumer: LiteConsumer) -> None:
        """Forget a client's subscriptions."""
        self.remove(consumer, [*consumer.places, *consumer.coming])
        key = consumer.key
        if self._consumers.get(key) is consumer:
            del self._consumers[key]
        of_client = self._by_client[key.client_id]
        of_client.pop(consumer, None)
        if not of_client:
            del self._by_client[key.client_id]

    def count_of(self, client_id: str) -> int:
        """Return a client's subscriptions, and those that are coming, in all consumer groups."""
        consumers = self._by_client.get(client_id, ())
        return sum(len(one.places) + len(one.coming) for one in consumers)

    def drop_client(self, client_id: str) -> None:
        """Forget a client that said goodbye."""
        for consumer in list(self._by_client.get(client_id, ())):
            self.drop(consumer)

    def drop_silent(self, silent_s: float) -> None:
        """Forget clients that neither subscribed nor received for so long. Looks at all clients."""
        before_s = self._clock.monotonic_s() - silent_s
        for consumer in [one for one in self._consumers.values() if one.heard_s < before_s]:
            self.drop(consumer)

    def of_place(self, place: ConsumerPlace) -> list[LiteConsumer]:
        """Return the clients that subscribed to a lite topic."""
        return list(self._by_place.get(place, ()))

    # Messages -----------------------------------------------------------------------------------

    def news(self, place: ConsumerPlace) -> None:
        """A place may have messages."""
        for consumer in self._by_place.get(place, ()):
            consumer.ready[place] = None
            self.wake(consumer.key)

    def wake(self, key: LiteKey) -> None:
        """Let one waiting receive of a client look."""
        for waiter in self._waiting.get(key, ()):
            if not waiter.done():
                waiter.set_result(None)
                return

    async def wait(self, key: LiteKey, waiter: asyncio.Future[None], timeout_s: float) -> None:
        """Wait until the client may have messages, or the waiter is done otherwise."""
        waiting = self._waiting[key]
        waiting[waiter] = None
        # `asyncio.wait` takes a kilobyte more, for each of thousands that wait.
        timer = asyncio.get_running_loop().call_later(timeout_s, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            del waiting[waiter]
            if not waiting:
                self._waiting.pop(key, None)

    def _unlink(self, consumer: LiteConsumer, place: ConsumerPlace) -> None:
        consumer.names.pop(place, None)
        consumer.ready.pop(place, None)
        of_place = self._by_place[place]
        of_place.pop(consumer, None)
        if not of_place:
            del self._by_place[place]


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
