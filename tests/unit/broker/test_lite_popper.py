"""Receives of lite topics that wait: who looks when a place may have messages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strata.storage.v1 import storage_pb2
from strata_broker.base.lite_config import LiteSection
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.places import ANY_QUEUE, PopPlace, Wanted
from strata_broker.receives.lite_consumers import LiteConsumers, LiteKey
from strata_broker.receives.lite_popper import LitePopper
from strata_broker.receives.targets import Popped, ReceiveTarget
from strata_broker.storage_client.pop_ends import PopTicket
from strata_broker.storage_client.quiet_places import ConsumerPlace
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_testing import until
from tests.unit.broker.popping import NODE, FakeLeaders, deliverable, new_quiet
from tests.unit.broker.test_moved_queues import topic as topic
from tests.unit.broker.test_moved_queues import view as view
from tests.unit.broker.test_popper import GROUP, LONG_MS, TellingStorage

CLIENT = "client"


class LiteReceives:
    """Receives of one client of lite topics, at one broker."""

    def __init__(self, view: MetadataView, topic: TopicRow, **storage_client: int) -> None:
        self.leaders = FakeLeaders()
        self.quiet = new_quiet(self.leaders, None, **storage_client)
        self.storage = TellingStorage(self.quiet)
        self.consumers = LiteConsumers(SystemClock())
        self.popper = LitePopper(
            view,
            cast("Any", SimpleNamespace(client=self.storage, quiet=self.quiet, lite=None)),
            consumers=self.consumers,
            config=LiteSection(),
            clock=SystemClock(),
            metrics=Metrics.disabled(),
        )
        self.key = LiteKey(CLIENT, GROUP, topic.topic_id)
        home = view.home(topic, "strata-1")
        assert home is not None
        self._target = ReceiveTarget(topic, Wanted(home, ANY_QUEUE), GROUP, client_id=CLIENT)

    def subscribe(self, raft_group: int, name: str, number: int = 0) -> ConsumerPlace:
        """Add a lite topic that a raft group has."""
        topic_id = self._target.topic.topic_id
        place = ConsumerPlace(raft_group, topic_id, GROUP, (1 << 20) + number)
        self.consumers.add(self.consumers.heard(self.key), {name: place})
        return place

    def begin(self, number: int) -> asyncio.Task[Popped]:
        """Begin a receive that waits long."""

        def request(topic: TopicRow, place: PopPlace) -> storage_pb2.PopRequest:
            return storage_pb2.PopRequest(raft_group=place.raft_group, queue=place.queue)

        popping = self.popper.pop(self._target, request, LONG_MS, PopTicket(number))
        return asyncio.ensure_future(popping)

    async def parked(self, count: int) -> None:
        """Wait until so many receives wait."""
        await until(lambda: len(self.consumers._waiting.get(self.key, ())) == count)

    @property
    def ready(self) -> int:
        """Return how many places of the client are ready."""
        consumer = self.consumers.find(self.key)
        assert consumer is not None
        return len(consumer.ready)


@pytest.fixture
def receives(view: MetadataView, topic: TopicRow) -> LiteReceives:
    return LiteReceives(view, topic)


async def test_a_cancelled_receive_passes_on_what_woke_it(receives: LiteReceives) -> None:
    """The other receive of the client looks, and gets the message."""
    place = receives.subscribe(1, "a")
    first = receives.begin(1)
    await receives.parked(1)
    second = receives.begin(2)
    await receives.parked(2)
    receives.storage.ready[1].append(4)
    # It wakes the first one, which has not looked yet.
    receives.quiet.told(deliverable(place))
    first.cancel()
    async with asyncio.timeout(10):
        popped = await second
    assert [one.offset for one in popped.response.messages] == [4]
    assert first.cancelled()


async def test_a_place_whose_node_never_tells_is_looked_at_again(
    view: MetadataView, topic: TopicRow
) -> None:
    """A promise that was lost costs `max_quiet_ms`, and not the message."""
    receives = LiteReceives(view, topic, max_quiet_ms=20)
    receives.subscribe(1, "a")
    receive = receives.begin(1)
    await receives.parked(1)
    assert len(receives.quiet) == 1
    receives.storage.ready[1].append(4)
    async with asyncio.timeout(10):
        popped = await receive
    assert [one.offset for one in popped.response.messages] == [4]


async def test_a_new_leader_makes_its_own_places_ready(receives: LiteReceives) -> None:
    """Places of other raft groups stay quiet."""
    for number in range(4):
        receives.subscribe(1 + number % 2, f"n{number}", number)
    receive = receives.begin(1)
    await until(lambda: len(receives.quiet) == 4)
    await receives.parked(1)
    del receives.storage.pops[:]
    receives.leaders.elect(2, NODE)
    await until(lambda: len(receives.storage.pops) == 2)
    await receives.parked(1)
    assert receives.storage.pops == [2, 2]
    receives.storage.ready[2].append(4)
    receives.leaders.elect(2, NODE)
    assert [one.offset for one in (await receive).response.messages] == [4]


async def test_a_leader_that_changes_while_somebody_looks(receives: LiteReceives) -> None:
    """A promise of the old leader counts nothing: the place is looked at once more."""
    receives.subscribe(2, "a")
    receive = receives.begin(1)
    await until(lambda: sum(receives.storage.under_way.values()))
    receives.leaders.elect(2, "another")
    await until(lambda: len(receives.storage.pops) >= 2)
    receive.cancel()


async def test_places_of_a_lost_node_become_ready_by_and_by(receives: LiteReceives) -> None:
    """A broker with very many subscriptions does other work meanwhile."""
    for number in range(1_200):
        receives.subscribe(1, f"n{number}", number)
    receive = receives.begin(1)
    await until(lambda: len(receives.quiet) == 1_200 and not receives.ready)
    receive.cancel()
    await asyncio.gather(receive, return_exceptions=True)
    receives.quiet.closed(NODE)
    assert receives.ready == 0
    seen = []
    while receives.ready < 1_200:
        await asyncio.sleep(0)
        seen.append(receives.ready)
    assert seen == [500, 1_000, 1_200]
