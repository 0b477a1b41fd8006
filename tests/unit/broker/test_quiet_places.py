"""Places that are known to have nothing, and what ends that (rule 35)."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from strata_broker.storage_client.quiet_places import ConsumerPlace, QuietPlaces
from strata_testing import ManualClock
from tests.unit.broker.popping import NODE, STREAM, FakeLeaders, deliverable, new_quiet

PLACE = ConsumerPlace(1, 7, 5, -1)
OTHER = ConsumerPlace(2, 7, 5, -1)


@pytest.fixture
def leaders() -> FakeLeaders:
    return FakeLeaders()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def quiet(leaders: FakeLeaders, clock: ManualClock) -> QuietPlaces:
    return new_quiet(leaders, clock, max_quiet_places=2, max_quiet_ms=10_000)


def look(quiet: QuietPlaces, place: ConsumerPlace = PLACE, *, told_later: bool = True) -> bool:
    """Look at a place that has nothing; return whether it is quiet now."""
    with quiet.look(place) as one:
        assert one.asks(NODE) == STREAM
        return one.settle(told_later)


def test_a_place_is_quiet_until_its_node_tells(quiet: QuietPlaces) -> None:
    """The node's message ends the quiet of that place only; callers that wait are called."""
    news: list[ConsumerPlace | None] = []
    quiet.on_news(news.append)
    assert look(quiet)
    assert look(quiet, OTHER)
    quiet.told(deliverable(PLACE))
    assert quiet.quiet_until_s(PLACE) == 0.0
    assert quiet.quiet_until_s(OTHER) > 0.0
    assert news == [PLACE]


def test_a_place_that_nobody_promised_to_tell_of_is_not_quiet(quiet: QuietPlaces) -> None:
    """The node had no room, or is an older one."""
    assert not look(quiet, told_later=False)
    assert quiet.quiet_until_s(PLACE) == 0.0


def test_what_comes_while_somebody_looks_is_not_forgotten(quiet: QuietPlaces) -> None:
    """The node told before its answer was taken in: the place is looked at again."""
    with quiet.look(PLACE) as one:
        one.asks(NODE)
        quiet.told(deliverable(PLACE))
        assert not one.settle(told_later=True)
    assert quiet.quiet_until_s(PLACE) == 0.0
    assert look(quiet), "the next look is another one"


def test_a_promise_on_a_stream_that_is_no_more_is_void(quiet: QuietPlaces) -> None:
    """It ended, or was opened anew, while the pop was under way."""
    with quiet.look(PLACE) as one:
        one.asks(NODE)
        quiet.closed(NODE)
        quiet.opened(NODE, STREAM + 1)
        assert not one.settle(told_later=True)
    assert quiet.quiet_until_s(PLACE) == 0.0


def test_the_end_of_a_stream_makes_its_places_unknown(
    quiet: QuietPlaces, leaders: FakeLeaders
) -> None:
    """Those of the node; another node's stay quiet."""
    leaders.leaders[2] = "another"
    quiet.opened("another", 9)
    assert look(quiet)
    with quiet.look(OTHER) as one:
        assert one.asks("another") == 9
        assert one.settle(told_later=True)
    news: list[ConsumerPlace | None] = []
    quiet.on_news(news.append)
    quiet.closed(NODE)
    assert quiet.quiet_until_s(PLACE) == 0.0
    assert quiet.quiet_until_s(OTHER) > 0.0
    assert news == [None]


def test_a_new_leader_makes_its_raft_group_unknown(
    quiet: QuietPlaces, leaders: FakeLeaders
) -> None:
    """Also when it is only believed to lead, before it says so."""
    assert look(quiet)
    assert look(quiet, OTHER)
    leaders.leaders[1] = "another"
    assert quiet.quiet_until_s(PLACE) == 0.0
    leaders.elect(1, NODE)
    assert quiet.quiet_until_s(PLACE) == 0.0, "what it knew is of an earlier term"
    assert quiet.quiet_until_s(OTHER) > 0.0


def test_no_place_is_quiet_for_ever(quiet: QuietPlaces, clock: ManualClock) -> None:
    """And not more are remembered than the limit says; the old ones make room."""
    assert look(quiet)
    assert look(quiet, OTHER)
    third = ConsumerPlace(3, 7, 5, -1)
    assert not look(quiet, third)
    clock.advance(11)
    assert quiet.quiet_until_s(PLACE) == 0.0
    assert look(quiet, third)
    assert len(quiet) == 1


def test_a_new_leader_ends_the_looks_of_its_raft_group_and_goes_through_no_others(
    quiet: QuietPlaces, leaders: FakeLeaders
) -> None:
    """A node that comes back leads a thousand raft groups, and many receives look meanwhile."""
    places = [ConsumerPlace(number, 7, 5, -1) for number in range(1, 101)]
    looks = [quiet.look(place) for place in places]
    again = quiet.look(PLACE)
    compared = Compared(1)
    with ExitStack() as stack:
        for one in (*looks, again):
            stack.enter_context(one)
        leaders.elect(compared, "other")
        assert [one.told for one in looks] == [True] + [False] * 99
        assert again.told
        assert compared.times < 10
    assert not quiet._looks


class Compared(int):
    """A number that counts how often it is compared."""

    times = 0

    def __eq__(self, other: object) -> bool:
        self.times += 1
        return int(self) == other

    def __hash__(self) -> int:
        return hash(int(self))
