"""A budget of which no connection and no address can take more than its share (rule 34)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from strata_edge.addresses import network_of_peer

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Shares:
    """Limits on the amount of something that is held at once.

    Attributes:
        total: by all clients together.
        per_address: by all connections of one address (`addresses.network_of`); a load balancer
            in front of clients has one address for all of them.
        per_connection: by one connection.
        reserve: beyond the total, for connections that hold nothing.
    """

    total: int
    per_address: int
    per_connection: int
    reserve: int = 0


class SharedBudget:
    """Use of a budget, by connection and by address. Used on the event loop.

    Invariant: `held` is the sum over all connections; a connection that holds nothing has no entry.

    Args:
        shares: the limits.
    """

    __slots__ = ("_by_address", "_by_connection", "held", "shares")

    def __init__(self, shares: Shares) -> None:
        self.shares = shares
        self.held = 0
        self._by_connection: dict[str, int] = {}
        self._by_address: dict[str, int] = {}

    def has_room(self, peer: str) -> bool:
        """Whether a connection may take more; what it takes may exceed its share once.

        Args:
            peer: `host:port` of the client.
        """
        shares = self.shares
        return (
            self.held < shares.total
            and self._by_connection.get(peer, 0) < shares.per_connection
            and self._by_address.get(network_of_peer(peer), 0) < shares.per_address
        )

    def connection_has_room(self, peer: str) -> bool:
        """Whether a connection's own share is not used up, whatever the others hold."""
        return self._by_connection.get(peer, 0) < self.shares.per_connection

    def has_room_for_first(self, peer: str) -> bool:
        """Whether a connection that holds nothing may take, whatever its address holds."""
        most = self.shares.total + self.shares.reserve
        return self.held < most and peer not in self._by_connection

    def is_used_up(self, peer: str) -> bool:
        """Whether others may be refused for what the connections of an address hold."""
        held_by_address = self._by_address.get(network_of_peer(peer), 0)
        return self.held >= self.shares.total or held_by_address >= self.shares.per_address

    def held_by(self, peer: str) -> int:
        """Return what a connection holds."""
        return self._by_connection.get(peer, 0)

    def take(self, peer: str, amount: int) -> None:
        """Hold `amount` more for a connection."""
        self.held += amount
        add_to(self._by_connection, peer, amount)
        add_to(self._by_address, network_of_peer(peer), amount)

    def give_back(self, peer: str, amount: int) -> None:
        """Hold `amount` less for a connection."""
        self.take(peer, -amount)


def add_to(held: dict[Key, int], key: Key, amount: int) -> None:
    """Add to what is held under a key; a key that holds nothing has no entry."""
    left = held.get(key, 0) + amount
    if left:
        held[key] = left
    else:
        held.pop(key, None)
