"""Shares of addresses, the reserve, and the least that is asked of who holds what others need."""

from __future__ import annotations

import pytest

from strata_edge.addresses import network_of, network_of_peer
from strata_edge.pace import LeastPace, LeastRate
from strata_edge.shares import SharedBudget, Shares


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::9", True),
        ("2001:db8:1:2::9", "2001:db8:1:3::9", False),
        ("[2001:db8::1]", "2001:db8::2", True),
        ("%5B2001:db8::1%5D", "2001:db8::2", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("no address: at all", "no address: either", False),
    ],
)
def test_a_network_of_ipv6_is_one_address(one: str, other: str, *, same: bool) -> None:
    """The first 64 bits count; IPv4 counts as a whole, in IPv6's form, too."""
    assert (network_of(one) == network_of(other)) is same
    assert (network_of_peer(f"{one}:1") == network_of_peer(f"{other}:2")) is same


def test_connections_of_one_network_share() -> None:
    """A client with a /64 has one share, however many of its addresses it uses."""
    budget = SharedBudget(Shares(total=100, per_address=10, per_connection=10))
    for number in range(10):
        budget.take(f"2001:db8::{number}:5000", 1)
    assert not budget.has_room("2001:db8::ffff:6000")
    assert budget.has_room("2001:db8:0:1::1:6000")
    for number in range(10):
        budget.give_back(f"2001:db8::{number}:5000", 1)
    assert not budget._by_address


def test_who_holds_nothing_has_the_reserve() -> None:
    """Beyond the total, a connection that holds nothing may take until the reserve is used up."""
    budget = SharedBudget(Shares(total=10, per_address=10, per_connection=10, reserve=5))
    budget.take("a:1", 12)
    assert not budget.has_room("b:1")
    assert budget.has_room_for_first("b:1")
    assert not budget.has_room_for_first("a:1")
    assert budget.is_used_up("b:1")
    budget.take("b:1", 3)
    assert not budget.has_room_for_first("c:1")
    budget.give_back("a:1", 12)
    assert budget.has_room("c:1")
    assert not budget.is_used_up("c:1")
    assert (budget.held_by("a:1"), budget.held_by("b:1")) == (0, 3)


def test_a_window_asks_the_rate_or_all_there_was() -> None:
    """Too slow is who did less than the rate in a window, and had more to do."""
    pace = LeastPace(LeastRate(window_s=5, bytes_per_s=10), 0, 100, left_bytes=1_000)
    assert not pace.is_too_slow(4, 100, left_bytes=1_000), "the window goes on"
    assert not pace.is_too_slow(5, 150, left_bytes=950)
    assert pace.is_too_slow(10, 199, left_bytes=20)
    assert not pace.is_too_slow(15, 219, left_bytes=0), "it has done all there was"
