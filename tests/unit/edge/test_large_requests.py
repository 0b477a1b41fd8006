"""Large requests take turns by address and connection, each within its share."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from strata_edge.large_requests import LargeRequests
from strata_edge.shares import Shares


@dataclass(eq=False)
class Connection:
    """A connection that remembers what was let in."""

    network: str
    admitted: list[int] = field(default_factory=list)

    def admit(self, stream: int) -> None:
        self.admitted.append(stream)


def test_who_waits_for_its_own_share_lets_others_pass() -> None:
    """A connection's share, an address's share and the total keep out who they are for."""
    large = LargeRequests(Shares(total=20, per_address=10, per_connection=5))
    one, two, three = (Connection("a") for _ in range(3))
    other, late, last = Connection("b"), Connection("c"), Connection("d")
    assert large.ask(one, 1, 5)
    assert not large.ask(one, 3, 1), "its connection's share is used up"
    assert not large.others_wait_for(one), "it waits for itself"
    assert large.ask(two, 1, 5)
    assert not large.ask(three, 1, 1), "its address's share is used up"
    assert large.others_wait_for(one)
    assert large.others_wait_for(two)
    assert large.ask(other, 1, 5), "another address has its own"
    assert not large.others_wait_for(other)
    large.end(two, 1)
    assert (one.admitted, three.admitted) == ([1], [1])
    assert (large.held_bytes, large.waiting) == (11, 1)
    assert not large.ask(late, 1, 30)
    assert not large.ask(last, 1, 1), "nobody passes a request that waits for the total"
    assert large.others_wait_for(other)
    assert large.others_wait_for(late)
    large.end(late, 1)
    assert last.admitted == [1]


def test_addresses_take_turns() -> None:
    """An address with many connections that wait delays another address by one of them."""
    large = LargeRequests(Shares(total=10, per_address=10, per_connection=10))
    holder, single = Connection("a"), Connection("b")
    many = [Connection("a") for _ in range(5)]
    assert large.ask(holder, 1, 10)
    assert not any(large.ask(each, 1, 10) for each in many)
    assert not large.ask(single, 1, 10)
    large.end(holder, 1)
    assert [each.admitted for each in many] == [[1], [], [], [], []]
    large.end(many[0], 1)
    assert single.admitted == [1]


asks = st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(1, 12), st.booleans())


@given(st.lists(asks, max_size=60))
def test_shares_hold_and_nobody_waits_for_ever(steps: list[tuple[int, int, int, bool]]) -> None:
    """Only who holds nothing may exceed a share; when all have ended, nothing is held."""
    shares = Shares(total=20, per_address=12, per_connection=6)
    large = LargeRequests(shares)
    connections = [Connection(str(number // 2)) for number in range(6)]
    sizes: dict[tuple[Connection, int], int] = {}
    for who, stream, size_bytes, ends in steps:
        key = connections[who], stream
        if ends:
            large.end(*key)
            sizes.pop(key, None)
        else:
            sizes[key] = size_bytes
            large.ask(*key, size_bytes)
        held = dict(large._held)
        groups = [(shares.total, list(held.values()))]
        for one in connections:
            own = [size for (each, _), size in held.items() if each is one]
            of_address = [size for (each, _), size in held.items() if each.network == one.network]
            groups += [(shares.per_connection, own), (shares.per_address, of_address)]
        assert all(len(group) <= 1 or sum(group) <= limit for limit, group in groups)
        assert large.held_bytes == sum(held.values())
        assert len(held) + large.waiting == len(sizes)
    while large.held_bytes:
        large.end(*next(iter(large._held)))
    assert large.waiting == 0
    assert not large._by_connection
    assert not large._by_network
