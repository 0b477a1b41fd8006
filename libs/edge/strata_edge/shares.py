"""A budget of which no connection and no address can take more than its share (rule 34)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shares:
    """Limits on the amount of something that is held at once.

    Attributes:
        total: by all clients together.
        per_address: by all connections of one address; a load balancer in front of clients has
            one address for all of them.
        per_connection: by one connection.
    """

    total: int
    per_address: int
    per_connection: int


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
            and self._by_address.get(_address(peer), 0) < shares.per_address
        )

    def connection_has_room(self, peer: str) -> bool:
        """Whether a connection's own share is not used up, whatever the others hold."""
        return self._by_connection.get(peer, 0) < self.shares.per_connection

    def has_room_for_first(self, peer: str) -> bool:
        """Whether a connection that holds nothing may take, whatever its address holds."""
        return self.held < self.shares.total and peer not in self._by_connection

    def take(self, peer: str, amount: int) -> None:
        """Hold `amount` more for a connection."""
        self.held += amount
        _add(self._by_connection, peer, amount)
        _add(self._by_address, _address(peer), amount)

    def give_back(self, peer: str, amount: int) -> None:
        """Hold `amount` less for a connection."""
        self.take(peer, -amount)


def _address(peer: str) -> str:
    return peer.rpartition(":")[0]


def _add(held: dict[str, int], key: str, amount: int) -> None:
    left = held.get(key, 0) + amount
    if left:
        held[key] = left
    else:
        held.pop(key, None)
