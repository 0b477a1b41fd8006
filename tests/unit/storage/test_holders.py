"""Clients that live (rule 25)."""

from __future__ import annotations

from strata_runtime.stalls import OwnStalls
from strata_storage.leading.pops.holders import Holders
from strata_testing.clock import ManualClock


def test_a_client_lives_while_some_broker_reports_it() -> None:
    """Silence of 15 s kills; a report by any broker keeps."""
    holders = Holders(15.0, OwnStalls(0.1))
    assert holders.report(1, [7], [], [], 0.0, full=False)
    assert not holders.report(1, [7, 8], [], [], 0.0, full=True)
    assert not holders.report(2, [7], [], [], 10.0, full=True)
    assert not holders.is_dead(7, 20.0, silent_too=True)
    assert holders.is_dead(8, 20.0, silent_too=True)
    assert not holders.is_dead(8, 20.0, silent_too=False)


def test_a_change_report_keeps_the_rest_of_the_list() -> None:
    """`full` replaces the list; without it clients are added and those that left are gone."""
    holders = Holders(15.0, OwnStalls(0.1))
    holders.report(1, [7, 8], [], [], 0.0, full=True)
    holders.report(1, [9], [8], [], 10.0, full=False)
    assert not holders.is_dead(7, 20.0, silent_too=True)
    assert holders.is_dead(8, 10.0, silent_too=False)
    holders.report(1, [8], [], [], 11.0, full=False)
    assert not holders.is_dead(8, 12.0, silent_too=True)


def test_what_was_taken_just_before_a_goodbye_is_settled_after_a_moment() -> None:
    """Its broker may be about to say that nobody was given it; repeats change nothing."""
    holders = Holders(15.0, OwnStalls(0.1), goodbye_s=1.0)
    holders.report(1, [7], [], [], 5.0, full=True)
    assert holders.settled_s(7, 9.0) == 9.0
    holders.report(1, [], [7], [], 10.0, full=False)
    assert holders.settled_s(7, 10.0) == 9.0
    holders.report(1, [], [7], [], 10.5, full=False)
    assert holders.settled_s(7, 10.9) == 9.0
    assert holders.settled_s(7, 11.0) == 11.0


def test_nobody_is_there_when_the_broker_or_the_client_has_gone() -> None:
    """A client that holds nothing is of no interest; a broker may come back."""
    holders = Holders(15.0, OwnStalls(0.1))
    holders.touch(7, 0.0)
    assert not holders.is_nobody_there(1, 7, 1.0)
    assert holders.is_nobody_there(1, 7, 15.0)
    assert not holders.is_nobody_there(1, None, 15.0)
    holders.brokers.watches(1)
    holders.brokers.unwatched(1, 20.0)
    assert not holders.is_nobody_there(1, None, 22.9)
    assert holders.is_nobody_there(1, None, 23.0)
    holders.brokers.watches(1)
    assert not holders.is_nobody_there(1, None, 24.0)


def test_limits_hold() -> None:
    """Oldest brokers and clients are forgotten first."""
    holders = Holders(15.0, OwnStalls(0.1), max_brokers=1, max_clients=2)
    holders.report(1, [1, 2, 3], [], [], 0.0, full=True)
    assert len(holders) == 2
    holders.report(2, [4], [], [], 0.0, full=True)
    assert holders.report(1, [], [], [], 0.0, full=False), "the first broker was forgotten"


def test_a_client_that_one_broker_hears_no_more_lives_by_another_one() -> None:
    """It is dead when nobody reported it for long, not when one took it off."""
    holders = Holders(15.0, OwnStalls(0.1))
    holders.report(1, [7, 8], [], [], 0.0, full=True)
    holders.report(2, [7], [], [], 0.0, full=True)
    holders.report(1, [], [], [7], 10.0, full=False)
    holders.report(2, [], [], [], 10.0, full=False)
    assert not holders.is_dead(7, 20.0, silent_too=True)
    holders.report(2, [], [], [7], 11.0, full=False)
    holders.report(1, [], [], [], 24.0, full=False)
    assert not holders.is_dead(7, 24.0, silent_too=True)
    assert holders.is_dead(7, 26.0, silent_too=True)
    assert not holders.is_dead(8, 26.0, silent_too=True)


def test_a_node_that_stood_still_does_not_hold_it_against_clients_and_brokers() -> None:
    """Reports came meanwhile and nobody read them; what was silent before and after is silence."""
    clock = ManualClock(0.0)
    stalls = OwnStalls(0.5, time_s=clock.monotonic_s)
    holders = Holders(15.0, stalls)

    def live(seconds: int) -> float:
        for _ in range(2 * seconds):
            clock.advance(0.5)
            stalls.turn()
        return clock.monotonic_s()

    holders.report(1, [7], [], [], live(1), full=True)
    holders.brokers.watches(1)
    holders.brokers.unwatched(1, live(5))
    clock.advance(60.0)
    now_s = clock.monotonic_s()
    assert not holders.is_nobody_there(1, 7, now_s)
    stalls.turn()
    assert not holders.is_nobody_there(1, 7, now_s)
    assert holders.brokers.lost(now_s) == []
    assert not holders.is_dead(7, live(9), silent_too=True)
    assert holders.brokers.is_lost(1, clock.monotonic_s())
    assert holders.is_dead(7, live(1), silent_too=True)
    holders.report(1, [7], [], [], now_s := live(1), full=True)
    assert not holders.is_dead(7, now_s + 14.9, silent_too=True)
    assert holders.is_dead(7, now_s + 15.0, silent_too=True)
