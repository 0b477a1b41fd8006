"""Bytes of large requests of all connections that are being received or not yet answered.

A server collects a request, copies it and holds it until it is answered, so the bytes of large
requests under way are limited, in shares. Further large requests wait at their clients. Addresses
take turns, and so do the connections of an address, so that a connection with many large requests
does not delay the others; the requests of one connection go in the order in which they began. A
request that its connection's or its address's share keeps out lets others pass. Small requests are
not counted: they fit in a stream's first window.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol, TypeAlias

from strata_edge.shares import Shares, add_to


class UploadingConnection(Protocol):
    """One connection, as the budget sees it."""

    @property
    def network(self) -> str:
        """Its address, as shares count it (`addresses.network_of`)."""

    def admit(self, stream: int) -> None:
        """Let a stream that waited go on."""


# Streams of a connection with the sizes of their requests, in order; and such connections.
_Streams: TypeAlias = "OrderedDict[int, int]"
_Connections: TypeAlias = "OrderedDict[UploadingConnection, _Streams]"


class LargeRequests:
    """See the module docstring.

    Invariant: who waits fits in as soon as nobody holds anything, whatever its size.

    Args:
        shares: of the bytes of all requests under way.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self.held_bytes = 0
        self._held: dict[tuple[UploadingConnection, int], int] = {}
        self._by_network: dict[str, int] = {}
        self._by_connection: dict[UploadingConnection, int] = {}
        # Addresses in the order of their turns, the connections of each in the order of theirs.
        self._waiting: OrderedDict[str, _Connections] = OrderedDict()
        # Reasons why requests wait since room was last given: the total, or shares of addresses.
        self._is_full = False
        self._full_networks: set[str] = set()
        self._granting = False

    @property
    def waiting(self) -> int:
        """Number of requests that wait for their turn."""
        return sum(len(streams) for each in self._waiting.values() for streams in each.values())

    def ask(self, who: UploadingConnection, stream: int, size_bytes: int) -> bool:
        """Return whether a request may come at once; if not, `admit` is called in its turn.

        The next message of a stream takes the place of the one before.
        """
        key = who, stream
        self._release(key)
        self._forget(who, stream)
        connections = self._waiting.setdefault(who.network, OrderedDict())
        connections.setdefault(who, OrderedDict())[stream] = size_bytes
        self._grant()
        return key in self._held

    def end(self, who: UploadingConnection, stream: int) -> None:
        """A request was answered, or given up; nothing if it is unknown."""
        self._forget(who, stream)
        self._release((who, stream))
        self._grant()

    def others_wait_for(self, who: UploadingConnection) -> bool:
        """Return whether somebody waits for what a connection holds."""
        own: _Connections = self._waiting.get(who.network, OrderedDict())
        neighbours = len(own) > (who in own)
        if self._is_full:
            return neighbours or len(self._waiting) > bool(own)
        return neighbours and who.network in self._full_networks

    def _forget(self, who: UploadingConnection, stream: int) -> None:
        connections = self._waiting.get(who.network)
        streams = connections.get(who) if connections else None
        if connections is None or streams is None:
            return
        streams.pop(stream, None)
        if not streams:
            del connections[who]
            if not connections:
                del self._waiting[who.network]

    def _release(self, key: tuple[UploadingConnection, int]) -> None:
        size_bytes = self._held.pop(key, 0)
        if size_bytes:
            self._count(key[0], -size_bytes)

    def _count(self, who: UploadingConnection, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        add_to(self._by_network, who.network, size_bytes)
        add_to(self._by_connection, who, size_bytes)

    def _grant(self) -> None:
        # To let one go on may end a connection, and with it what another holds.
        if self._granting:
            return
        self._granting = True
        while (first := self._first_that_fits()) is not None:
            who, stream, size_bytes = first
            self._waiting[who.network].move_to_end(who)
            self._waiting.move_to_end(who.network)
            self._forget(who, stream)
            self._held[who, stream] = size_bytes
            self._count(who, size_bytes)
            who.admit(stream)
        self._granting = False

    def _first_that_fits(self) -> tuple[UploadingConnection, int, int] | None:
        shares = self._shares
        self._is_full = False
        self._full_networks.clear()
        for network, connections in self._waiting.items():
            for who, streams in connections.items():
                stream, size_bytes = next(iter(streams.items()))
                held_bytes = self._by_connection.get(who, 0)
                if not _fits(held_bytes, size_bytes, shares.per_connection):
                    continue
                if not _fits(self._by_network.get(network, 0), size_bytes, shares.per_address):
                    # The first keeps its place: smaller ones behind it would pass without end.
                    self._full_networks.add(network)
                    break
                if not _fits(self.held_bytes, size_bytes, shares.total):
                    self._is_full = True
                    return None
                return who, stream, size_bytes
        return None


def _fits(held_bytes: int, size_bytes: int, limit_bytes: int) -> bool:
    """Whether a request fits in: one of any size does where nothing is held."""
    return not held_bytes or held_bytes + size_bytes <= limit_bytes
