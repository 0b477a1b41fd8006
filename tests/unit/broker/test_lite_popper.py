"""Receives of lite topics that wait: who looks when a place may have messages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.base.lite_config import LiteSection
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.places import ANY_QUEUE, PopPlace, Wanted
from strata_broker.receives.lite_consumers import LiteConsumers, LiteKey
from strata_broker.receives.lite_popper import LitePopper
from strata_broker.receives.overdue_places import OverduePlaces
from strata_broker.receives.targets import Popped, ReceiveTarget
from strata_broker.storage_client.pop_ends import PopTicket
from strata_broker.storage_client.quiet_places import ConsumerPlace, LostPromises
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock, until
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


class Renumbering:
    """A lite topic that ended: it begins anew with another number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def forget(self, topic_id: int, number: int) -> None:
        """Forget an old number."""

    async def numbers(self, topic: TopicRow, names: tuple[str, ...]) -> dict[str, int]:
        """Return the new number."""
        return dict.fromkeys(names, self.number)

    def raft_group(self, topic: TopicRow, name: str) -> int:
        """Return where it is."""
        return 1


@pytest.mark.parametrize("exclusive", [True, False])
async def test_a_lite_topic_that_begins_anew_has_one_client_in_an_exclusive_group(
    receives: LiteReceives, monkeypatch: pytest.MonkeyPatch, exclusive: bool
) -> None:
    """Another client subscribed to it since; the one before learns that when it looks."""
    lost: list[tuple[str, str]] = []
    receives.consumers.on_lost = lambda client_id, name: lost.append((client_id, name))
    old = receives.subscribe(1, "a")
    new = old._replace(queue=old.queue + 1)
    other = receives.consumers.heard(receives.key._replace(client_id="other"))
    before = receives.consumers.find(receives.key)
    assert before is not None
    before.exclusive = other.exclusive = exclusive
    receives.consumers.add(other, {"a": new})
    monkeypatch.setattr(receives.popper, "_directory", Renumbering(new.queue))
    pop = receives.storage.pop

    async def moved(request: storage_pb2.PopRequest, *more: Any) -> storage_pb2.PopResponse:
        if request.queue == old.queue:
            raise errors.refused(storage_pb2.OUTCOME_WRONG_GROUP)
        return await pop(request, *more)

    monkeypatch.setattr(receives.storage, "pop", moved)
    receive = receives.begin(1)
    await receives.parked(1)
    holders = receives.consumers.of_place(new)
    assert other in holders
    assert (before in holders) is not exclusive
    assert lost == ([(CLIENT, "a")] if exclusive else [])
    assert (receives.consumers.find(receives.key) is None) is exclusive
    assert receives.consumers.count == (1 if exclusive else 2)
    receive.cancel()
    await asyncio.gather(receive, return_exceptions=True)


class Resting:
    """Lite topics that rest, and the quiet places of their broker."""

    def __init__(self, most: int) -> None:
        self.clock, self.leaders = ManualClock(), FakeLeaders()
        self.quiet = new_quiet(self.leaders, self.clock, max_quiet_places=most, max_quiet_ms=60_000)
        self.ready: list[ConsumerPlace] = []
        self.overdue = OverduePlaces(
            self.ready.append, self.clock, longest_s=60, most=most, per_s=100
        )
        self.quiet.on_lost(self.overdue.lost)

    def rests(self, number: int, raft_group: int = 1, node: str = NODE) -> ConsumerPlace:
        """A look at a lite topic finds nothing."""
        place = ConsumerPlace(raft_group, 7, GROUP, number)
        with self.quiet.look(place) as look:
            look.asks(node)
            assert look.settle(told_later=True)
            self.overdue.rests(place, look.node)
        return place


async def test_a_lost_node_lets_every_lite_topic_be_looked_at_that_relied_on_it() -> None:
    """Also those that made room for other quiet places because they rested for too long."""
    resting = Resting(most=3)
    old = [resting.rests(number) for number in range(3)]
    resting.clock.advance(61)
    new = resting.rests(3)
    assert (resting.ready, len(resting.quiet)) == (old[:1], 1)
    resting.quiet.closed(NODE)
    await until(lambda: not len(resting.overdue))
    assert sorted(resting.ready) == [*old, new]


async def test_only_lite_topics_of_the_lost_promise_are_looked_at() -> None:
    """By node and by raft group; one that got another promise meanwhile rests on."""
    resting = Resting(most=100)
    resting.quiet.opened("other", 2)
    resting.leaders.leaders[2] = "other"
    first = [resting.rests(number) for number in range(3)]
    second = [resting.rests(number, 2, "other") for number in range(3, 6)]
    resting.leaders.elect(1, "other")
    assert resting.rests(1, 1, "other") == first[1]
    await until(lambda: len(resting.overdue) == 4)
    assert sorted(resting.ready) == [first[0], first[2]]
    resting.quiet.closed(NODE)
    await turn_over()
    assert len(resting.overdue) == 4
    resting.quiet.closed("other")
    await until(lambda: not len(resting.overdue))
    assert sorted(resting.ready[2:]) == [first[1], *second]
    assert not resting.overdue._promised


async def test_a_new_leader_goes_through_no_promises_of_other_raft_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that comes back says in one report that it leads a thousand raft groups."""
    resting = Resting(most=1_000)
    for raft_group in range(1, 101):
        resting.rests(raft_group, raft_group)
    asked: list[tuple[int, str]] = []
    include = LostPromises.include

    def counted(promises: LostPromises, raft_group: int, node: str) -> bool:
        asked.append((raft_group, node))
        return include(promises, raft_group, node)

    monkeypatch.setattr(LostPromises, "include", counted)
    for raft_group in range(1, 101):
        resting.leaders.elect(raft_group, "other")
    assert len(asked) <= 100
    await until(lambda: not len(resting.overdue))
    assert not resting.overdue._promised


async def turn_over() -> None:
    """Let what is called soon be called."""
    for _ in range(3):
        await asyncio.sleep(0)
