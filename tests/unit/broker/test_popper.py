"""Receives that wait in the broker: who looks, who waits, what ends a wait (rule 35)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from strata.storage.v1 import storage_pb2
from strata_broker.base.receive_config import ReceiveSection
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.places import ANY_QUEUE, PopPlace, Wanted
from strata_broker.receives.targets import Popped, ReceiveTarget
from strata_broker.receives.waiting_room import LineKey, Seat, WaitingRoom
from strata_broker.storage_client.pop_ends import PopTicket
from strata_broker.storage_client.quiet_places import ConsumerPlace, Look, QuietPlaces
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock, until
from strata_testing.leaping_loop import LoopClock
from tests.unit.broker.popping import NODE, FakeLeaders, deliverable, new_popper, new_quiet
from tests.unit.broker.test_moved_queues import topic as topic
from tests.unit.broker.test_moved_queues import view as view

LONG_MS = 60_000
GROUP = 5


class TellingStorage:
    """Raft groups that tell when a message comes to them."""

    def __init__(self, quiet: QuietPlaces) -> None:
        self.quiet = quiet
        self.ready: dict[int, list[int]] = defaultdict(list)
        self.pops: list[int] = []
        self.under_way: dict[int, int] = defaultdict(int)
        self.most_at_once = 0
        self.tells = True

    async def pop(
        self, request: storage_pb2.PopRequest, ticket: PopTicket, look: Look
    ) -> storage_pb2.PopResponse:
        assert not request.wait_ms, "no pop waits at a storage node"
        look.asks(NODE)
        self.pops.append(request.raft_group)
        assert not self.under_way[ticket.number], "the pops of one receive follow one another"
        self.under_way[ticket.number] += 1
        self.most_at_once = max(self.most_at_once, sum(self.under_way.values()))
        response = storage_pb2.PopResponse()
        ready = self.ready[request.raft_group]
        if ready:
            response.messages.add(offset=ready.pop(0))
        response.told_later = self.tells and not ready
        # The answer is on its way.
        for _ in range(5):
            await asyncio.sleep(0)
        self.under_way[ticket.number] -= 1
        return response

    def arrive(self, raft_group: int, *offsets: int) -> None:
        """Let messages come, and tell."""
        self.ready[raft_group] += offsets
        self.quiet.told(deliverable(ConsumerPlace(raft_group, 7, GROUP, ANY_QUEUE)))


class Receives:
    """Receives at one broker."""

    def __init__(self, view: MetadataView, topic: TopicRow, **config: int) -> None:
        self.leaders = FakeLeaders()
        self.quiet = new_quiet(self.leaders, LoopClock())
        self.storage = TellingStorage(self.quiet)
        self.popper = new_popper(view, self.storage, self.quiet, LoopClock(), **config)
        self.view = view
        self.topic = topic
        self.tickets: list[PopTicket] = []

    def begin(
        self, name: str = "strata-1", wait_ms: int = LONG_MS, **target: Any
    ) -> asyncio.Task[Popped]:
        home = self.view.home(self.topic, name)
        assert home is not None
        ticket = PopTicket(len(self.tickets) + 1)
        self.tickets.append(ticket)

        def request(topic: TopicRow, place: PopPlace) -> storage_pb2.PopRequest:
            return storage_pb2.PopRequest(raft_group=place.raft_group, queue=place.queue)

        what = ReceiveTarget(self.topic, Wanted(home, ANY_QUEUE), GROUP, **target)
        return asyncio.ensure_future(self.popper.pop(what, request, wait_ms, ticket))

    async def parked(self, count: int) -> None:
        """Wait until so many wait, and nobody looks."""
        room = self.popper._room
        await until(lambda: len(room) == count and not sum(self.storage.under_way.values()))
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def receives(view: MetadataView, topic: TopicRow) -> Receives:
    return Receives(view, topic)


def offsets(*popped: Popped) -> list[int]:
    return [one.response.messages[0].offset for one in popped]


@pytest.mark.parametrize("raft_group", [1, 2])
async def test_a_message_at_any_raft_group_ends_the_wait(
    receives: Receives, raft_group: int
) -> None:
    """Under whatever name the receive came; one more pop, at that raft group."""
    waiting = receives.begin("strata-1")
    await receives.parked(1)
    assert receives.storage.pops == [1, 2]
    receives.storage.arrive(raft_group, 4)
    popped = await waiting
    assert (popped.raft_group, offsets(popped)) == (raft_group, [4])
    assert receives.storage.pops == [1, 2, raft_group]


async def test_many_receives_and_one_message_wake_no_herd(receives: Receives) -> None:
    """The receive that waits longest gets it, by one pop; all have looked once at each place."""
    waiting = [receives.begin(f"strata-{1 + number % 2}") for number in range(100)]
    await receives.parked(100)
    assert sorted(receives.storage.pops) == [1, 2]
    receives.storage.arrive(2, 9)
    assert offsets(await waiting[0]) == [9]
    await receives.parked(99)
    assert len(receives.storage.pops) == 3
    for ticket in receives.tickets[1:]:
        ticket.ended = True
        assert ticket.on_ended is not None
        ticket.on_ended()
    for one in waiting[1:]:
        assert not (await one).response.messages


async def test_a_burst_is_taken_by_several_at_once(receives: Receives) -> None:
    """While looks leave messages behind; each gets one, nobody is left waiting beside the rest."""
    waiting = [receives.begin() for _ in range(32)]
    await receives.parked(32)
    receives.storage.arrive(1, *range(32))
    popped = [await one for one in waiting]
    assert sorted(offsets(*popped)) == list(range(32))
    assert receives.storage.most_at_once > 4
    assert len(receives.storage.pops) < 2 + 32 + 32


async def test_a_known_quiet_place_is_not_looked_at(receives: Receives) -> None:
    """The next receive only waits; one with a short wait looks itself."""
    assert not (await receives.begin(wait_ms=50)).response.messages
    assert receives.storage.pops == [1, 2]
    waiting = receives.begin(wait_ms=5_000)
    await receives.parked(1)
    assert receives.storage.pops == [1, 2]
    receives.storage.ready[1] = [3]
    assert offsets(await receives.begin(wait_ms=1)) == [3]
    assert receives.storage.pops == [1, 2, 1]
    waiting.cancel()


async def test_a_client_that_goes_leaves_the_line_to_the_next(receives: Receives) -> None:
    """At once, and nothing is taken for it; a cancelled one as well, also while it looks."""
    gone, cancelled, stays = (receives.begin() for _ in range(3))
    await receives.parked(3)
    receives.tickets[0].ended = True
    assert receives.tickets[0].on_ended is not None
    receives.tickets[0].on_ended()
    assert not (await gone).response.messages
    receives.storage.arrive(1, 1, 2)
    await until(lambda: sum(receives.storage.under_way.values()))
    cancelled.cancel()
    assert offsets(await stays) == [2], "the pop of the one before took the first"


async def test_a_client_keeps_its_place_from_a_receive_without_a_message_to_the_next(
    receives: Receives,
) -> None:
    """Else consumers whose receives end before their turn would never get a message."""
    unlucky = receives.begin(client_id="unlucky", wait_ms=200)
    await receives.parked(1)
    others = [receives.begin(client_id=f"other-{number}") for number in range(3)]
    await receives.parked(4)
    assert not (await unlucky).response.messages
    again = receives.begin(client_id="unlucky")
    await receives.parked(4)
    receives.storage.arrive(1, 8)
    assert offsets(await again) == [8]
    # It got one: from now on it is the last.
    again = receives.begin(client_id="unlucky")
    await receives.parked(4)
    receives.storage.arrive(1, 9)
    assert offsets(await others[0]) == [9]
    again.cancel()
    for one in others[1:]:
        one.cancel()


async def test_kept_places_take_bounded_memory_and_end_in_time() -> None:
    """A long filter is not kept for a client that is away; all who stay away are forgotten."""
    clock, config = ManualClock(), ReceiveSection()
    quiet = new_quiet(FakeLeaders(), clock)
    room = WaitingRoom(quiet, config, clock=clock, metrics=Metrics.disabled())

    def comes(client_id: str, filter_bytes: bytes = b"") -> float:
        """A receive comes and ends without a message; since when has its client waited?"""
        key = LineKey(1, GROUP, filter_bytes, -1)
        seat = room.enter(key, PopTicket(1), lambda line: 0.0, client_id=client_id)
        seat.leave()
        room.keep(seat, client_id)
        return seat.since_s

    began_s = clock.monotonic_s()
    for filter_bytes, is_kept in ((b"x" * 1_024, True), (b"x" * 1_025, False)):
        comes("client", filter_bytes)
        clock.advance(1)
        assert (comes("client", filter_bytes) == began_s) is is_kept
        assert len(room._kept) == 1
    for number in range(100):
        comes(f"client-{number}")
    clock.advance(6)
    last_s = clock.monotonic_s()
    assert comes("client-7") == last_s
    assert [client_id for _, client_id in room._kept] == ["client-7"]
    clock.advance(6)
    room.enter(LineKey(1, GROUP, b"", -1), PopTicket(2), lambda line: 0.0, client_id="other")
    assert not room._kept


async def test_a_line_forgets_receives_whose_time_is_over(receives: Receives) -> None:
    """Also while an older one waits in front of them."""
    oldest = receives.begin(client_id="oldest")
    await receives.parked(1)
    for number in range(40):
        await receives.begin(client_id=f"client-{number}", wait_ms=20)
    (lines,) = receives.popper._room._lines.values()
    (line,) = lines.values()
    assert len(line._waiting) <= 8
    oldest.cancel()


async def test_many_clients_that_go_together_do_not_pass_one_another_over(
    receives: Receives,
) -> None:
    """Each leaves its line at once: what it costs does not grow with those that went before."""
    waiting = [receives.begin() for _ in range(300)]
    await receives.parked(300)
    asked = 0

    def ended(seat: Seat) -> bool:
        nonlocal asked
        asked += 1
        return seat._turn is not None and not seat._turn.done()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Seat, "waits", property(ended))
        for ticket in receives.tickets:
            ticket.ended = True
            assert ticket.on_ended is not None
            ticket.on_ended()
        for one in waiting:
            assert not (await one).response.messages
    assert len(receives.popper._room) == 0
    assert asked < 4 * len(waiting)


async def test_a_new_leader_or_a_broken_stream_lets_somebody_look(receives: Receives) -> None:
    """Nobody knows what is there then."""
    waiting = receives.begin()
    await receives.parked(1)
    receives.storage.ready[2] = [5]
    receives.leaders.elect(2, NODE)
    assert offsets(await waiting) == [5]
    waiting = receives.begin()
    await receives.parked(1)
    receives.storage.ready[1] = [6]
    receives.quiet.closed(NODE)
    assert offsets(await waiting) == [6]


async def test_a_place_that_does_not_tell_is_looked_at_again(receives: Receives) -> None:
    """At a bounded pace, as long as somebody waits."""
    receives.storage.tells = False
    waiting = receives.begin()
    await until(lambda: len(receives.storage.pops) > 8)
    receives.storage.ready[2] = [7]
    assert offsets(await waiting) == [7]


async def test_a_repeated_attempt_looks_where_its_leases_are(receives: Receives) -> None:
    """In the raft groups of its own name only, whatever is known of them."""
    assert not (await receives.begin(wait_ms=1)).response.messages
    del receives.storage.pops[:]
    waiting = receives.begin("strata-2", repeats=True)
    await receives.parked(1)
    assert receives.storage.pops == [2]
    receives.storage.arrive(1, 1)
    await receives.parked(1)
    receives.storage.arrive(2, 2)
    assert offsets(await waiting) == [2]


async def test_a_receive_that_does_not_wait_looks_again_after_a_move(receives: Receives) -> None:
    """A round ends when the placement changes in its middle; there was a message all the time."""
    receives.storage.arrive(2, 3)
    receiving = receives.begin("strata-1", wait_ms=0)
    await until(lambda: receives.storage.pops == [1])
    receives.view._tables.new_placement = True
    receives.view._tell()
    assert offsets(await receiving) == [3]
    assert receives.storage.pops == [1, 1, 2]
