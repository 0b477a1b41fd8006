"""Clients that live (rule 25)."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

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


def test_clients_that_brokers_have_crowd_out_nobody() -> None:
    """One that just took a lease, and that no broker has reported yet, is not forgotten."""
    holders = Holders(15.0, OwnStalls(0.1), max_clients=4)
    holders.report(1, [1, 2, 3], [], [], 0.0, full=True)
    for client in (9, 1, 2, 3):
        holders.touch(client, 1.0)
    holders.report(1, [], [], [], 2.0, full=False)
    assert not holders.is_dead(9, 3.0, silent_too=True)
    assert len(holders) == 4


def test_a_broker_that_stopped_is_forgotten_with_its_clients() -> None:
    """Each start of a broker has another boot id; what it had before is not kept forever."""
    holders = Holders(15.0, OwnStalls(0.1))
    for start in range(20):
        holders.report(
            start, range(1_000 * start, 1_000 * (start + 1)), [], [], 60.0 * start, full=True
        )
    assert len(holders) == 1_000
    assert holders.report(0, [], [], [], 60.0 * 20, full=False), "a full list is wanted"


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


class CountedTimes(OrderedDict[int, float]):
    """Counts how often a time is set."""

    set_count = 0

    def __setitem__(self, client: int, at_s: float) -> None:
        self.set_count += 1
        super().__setitem__(client, at_s)


def test_a_report_costs_what_it_changes() -> None:
    """However many clients the broker has; those that it does not name live on by it."""
    holders = Holders(15.0, OwnStalls(0.1))
    holders.report(1, range(5_000), [], [], 0.0, full=True)
    times = holders._seen_at_s = CountedTimes()
    holders.report(1, [5_000], [1], [2, 3], 10.0, full=False)
    assert times.set_count <= 3
    assert dict(times) == {2: 0.0, 3: 0.0}
    dead = [client for client in range(5_001) if holders.is_dead(client, 20.0, silent_too=True)]
    assert dead == [1, 2, 3]


class NaiveHolders:
    """Looks at all clients of a broker at each report."""

    def __init__(self) -> None:
        self.brokers: dict[int, set[int]] = {}
        self.heard_at_s: dict[int, float] = {}
        self.seen_at_s: dict[int, float] = {}
        self.gone_at_s: dict[int, float] = {}

    def report(
        self,
        broker: int,
        live: set[int],
        gone: set[int],
        silent: set[int],
        now_s: float,
        *,
        full: bool,
    ) -> bool:
        if broker not in self.brokers and not full:
            return True
        before = self.brokers.get(broker, set())
        there = self.brokers[broker] = ((set() if full else before) | live) - silent - gone
        for client in gone:
            self.seen_at_s.pop(client, None)
            self.gone_at_s.setdefault(client, now_s)
        for client in there:
            self.touch(client, now_s)
        self.heard_at_s[broker] = now_s
        for each, at_s in self.heard_at_s.items():
            if at_s < now_s - 30.0:
                self.brokers.pop(each, None)
        return False

    def touch(self, client: int, now_s: float) -> None:
        self.seen_at_s[client] = now_s
        self.gone_at_s.pop(client, None)

    def state(self, client: int, now_s: float) -> tuple[bool, bool, float]:
        gone_at_s = self.gone_at_s.get(client)
        is_gone = gone_at_s is not None
        is_silent = now_s - self.seen_at_s.get(client, -100.0) >= 15.0
        settled_s = now_s
        if gone_at_s is not None and now_s - gone_at_s < 1.0:
            settled_s = gone_at_s - 1.0
        return is_gone, is_gone or is_silent, settled_s


@pytest.mark.parametrize("seed", range(20))
def test_holders_are_as_if_each_report_looked_at_all_clients(seed: int) -> None:
    """Three brokers report six clients that come, move, say goodbye and fall silent, at random."""
    chance = random.Random(seed)
    holders, naive = Holders(15.0, OwnStalls(0.1)), NaiveHolders()
    now_s = 0.0
    for _ in range(2_000):
        now_s += chance.choice((0.0, 0.25, 0.5, 4.0, 8.0))
        if chance.random() < 0.1:
            client = chance.randrange(6)
            holders.touch(client, now_s)
            naive.touch(client, now_s)
        else:
            named = {client: chance.randrange(6) for client in range(6)}
            live, gone, silent = (
                {client for client, part in named.items() if part == which} for which in range(3)
            )
            broker, full = chance.randrange(3), chance.random() < 0.2
            wanted = holders.report(broker, live, gone, silent, now_s, full=full)
            assert wanted == naive.report(broker, live, gone, silent, now_s, full=full)
        for client in range(6):
            found = (
                holders.is_dead(client, now_s, silent_too=False),
                holders.is_dead(client, now_s, silent_too=True),
                holders.settled_s(client, now_s),
            )
            assert found == naive.state(client, now_s), f"seed {seed}, client {client}"
