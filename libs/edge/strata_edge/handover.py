"""Connections of another protocol on the port of an edge.

Frames of the other protocol begin with their length, whose first byte is 0 for a frame below
16 MiB. Neither HTTP/2 nor TLS begins so. An edge looks at that byte and knows no more of the
protocol: it gives such a connection away. It keeps TLS to itself.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

FIRST_BYTE = b"\0"
"""First byte of a connection of the other protocol."""


class HandedConnection(NamedTuple):
    """A connection that an edge gives away; nothing of it has been read.

    Attributes:
        socket: not blocking; who takes it closes it. With TLS, or behind a front, it leads to the
            edge, which relays the client's bytes.
        peer: address of the client, `host:port`.
        is_secured: whether the client uses TLS.
    """

    socket: socket.socket
    peer: str
    is_secured: bool


ConnectionTaker: TypeAlias = Callable[[HandedConnection], None]


class Handover:
    """Whether, and to whom, an edge gives connections of another protocol away.

    Attributes:
        is_port_shared: whether other processes listen on the port too, so that connections of one
            client meet different processes.

    Args:
        is_port_shared: see the attribute.
    """

    def __init__(self, *, is_port_shared: bool = False) -> None:
        self.is_port_shared = is_port_shared
        self._taker: ConnectionTaker | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether somebody takes such connections."""
        return self._taker is not None

    def to(self, taker: ConnectionTaker) -> None:
        """Give such connections to a taker, on the event loop; must precede the edge's start.

        Args:
            taker: never blocks and never raises.
        """
        self._taker = taker

    def give(self, connection: HandedConnection) -> None:
        """Give one connection away."""
        assert self._taker is not None, "nobody takes connections"
        self._taker(connection)
