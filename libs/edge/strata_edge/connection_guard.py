"""Limits on the frames of one connection beside its calls, and its turn for large requests.

- Frames that are not requests (resets, pings, settings, long headers) cost a connection time. It
  may be in debt for a while; then it is not read until the debt is paid. Its address pays, too.
- A large request is received when there is room (`LargeRequests`). Until then the client gets no
  window for more of it (flow control, RFC 9113, 5.2).
  It holds its room until its answer begins: how fast a client reads has a limit of its own.
- Headers without end, and requests that hold room for which others wait and come too slowly, end
  the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from strata_edge.client_frames import ClientFrames
from strata_edge.guard_limits import GuardLimits
from strata_edge.http2_frames import ServerFrames, window_update
from strata_edge.large_requests import LargeRequests


class Debt:
    """Seconds that somebody has yet to pay, by waiting.

    Args:
        monotonic_s: time.
    """

    __slots__ = ("_due_s", "_monotonic_s")

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._due_s = 0.0

    @property
    def left_s(self) -> float:
        """Return the part of the debt that is not paid."""
        return max(0.0, self._due_s - self._monotonic_s())

    def add(self, cost_s: float) -> None:
        """Owe more."""
        self._due_s = max(self._due_s, self._monotonic_s()) + cost_s


class RelayGuard(Protocol):
    """Answers what a relay asks about its connection; see `ConnectionGuard`."""

    @property
    def reached(self) -> bool:
        """See `ConnectionGuard.reached`."""

    @property
    def fault(self) -> str:
        """See `ConnectionGuard.fault`."""

    @property
    def large_bytes(self) -> int:
        """See `ConnectionGuard.large_bytes`."""

    def delaying_bytes(self) -> int:
        """See `ConnectionGuard.delaying_bytes`."""

    def insert_by(self, insert: Callable[[bytes], None]) -> None:
        """See `ConnectionGuard.insert_by`."""

    def from_client(self, data: memoryview) -> float:
        """See `ConnectionGuard.from_client`."""

    def from_server(self, data: memoryview) -> memoryview:
        """See `ConnectionGuard.from_server`."""

    def close(self) -> None:
        """See `ConnectionGuard.close`."""


class NoGuard:
    """A `RelayGuard` of a connection whose protocol has its limits in the server."""

    reached = False
    fault = ""
    large_bytes = 0

    def delaying_bytes(self) -> int:
        """Delay nobody."""
        return 0

    def insert_by(self, insert: Callable[[bytes], None]) -> None:
        """Say nothing to the client."""

    def from_client(self, data: memoryview) -> float:
        """Pause never."""
        return 0.0

    def from_server(self, data: memoryview) -> memoryview:
        """Pass everything on."""
        return data

    def close(self) -> None:
        """Nothing is to be given back."""


class ConnectionGuard:
    """Follows one connection; see the module docstring.

    Args:
        limits: of the connection.
        large: room for large requests, of all connections.
        own: the connection's debt.
        address: the debt of all connections of the client's address.
        network: what counts as the client's address.
    """

    def __init__(
        self,
        limits: GuardLimits,
        large: LargeRequests,
        own: Debt,
        *,
        address: Debt,
        network: str = "",
    ) -> None:
        self.network = network
        self._large = large
        self._own = own
        self._address = address
        self._limits = limits
        self._client = ClientFrames(limits)
        self._server = ServerFrames()
        # Large requests under way, and those that wait, with the bytes that the server would take.
        self._under_way: set[int] = set()
        self._held: dict[int, int] = {}
        self._insert: Callable[[bytes], None] = lambda _: None

    def insert_by(self, insert: Callable[[bytes], None]) -> None:
        """Say frames to the client by `insert`, which finds the place for them."""
        self._insert = insert

    @property
    def reached(self) -> bool:
        """Whether a frame may stand behind what was sent to the client."""
        return self._server.reached

    @property
    def fault(self) -> str:
        """Why the connection cannot go on; empty: it can."""
        return self._client.fault

    @property
    def large_bytes(self) -> int:
        """Bytes that have come of large requests."""
        return self._client.large_bytes

    def delaying_bytes(self) -> int:
        """Return what is yet to come of requests for whose room others wait; 0: nobody waits."""
        left_bytes = sum(map(self._client.left_bytes, self._under_way - self._held.keys()))
        return left_bytes if left_bytes and self._large.others_wait_for(self) else 0

    def from_client(self, data: memoryview) -> float:
        """Take in what the client sent; return for how long nothing more of it is read."""
        client = self._client
        client.pass_over(data)
        if client.reset:
            for stream in client.reset:
                self._ended(stream)
            client.reset.clear()
        if client.begun:
            for stream, size_bytes in client.begun:
                self._under_way.add(stream)
                self._held[stream] = self._held.get(stream, 0)
                if self._large.ask(self, stream, size_bytes):
                    self.admit(stream)
            client.begun.clear()
        self._server.listening = client.follows or bool(self._under_way)
        if not client.cost_s:
            return 0.0
        return self._pay()

    def from_server(self, data: memoryview) -> memoryview:
        """Take in what the server sent; return what goes on to the client, which may be empty."""
        server = self._server
        if self._held or server.withholds:
            data = memoryview(server.sift(data, self._held))
        else:
            server.pass_over(data)
        if server.ended:
            for stream in server.ended:
                self._ended(stream)
            server.ended.clear()
        if server.answered:
            for stream in server.answered & self._under_way:
                # The server may say something before it has the whole message.
                if not self._client.left_bytes(stream) and stream not in self._held:
                    self._give_back(stream)
            server.answered.clear()
        if server.resets:
            self._client.cost_s += server.resets * self._limits.reset_cost_s
            server.resets = 0
        return data

    def admit(self, stream: int) -> None:
        """See `Uploader`: pass on what the server has let the client send meanwhile."""
        increment = self._held.pop(stream, 0)
        if increment:
            self._insert(window_update(stream, increment))

    def close(self) -> None:
        """The connection has ended."""
        self._insert = lambda _: None
        for stream in list(self._under_way):
            self._ended(stream)

    def _ended(self, stream: int) -> None:
        self._client.forget(stream)
        self._held.pop(stream, None)
        if stream in self._under_way:
            self._give_back(stream)

    def _give_back(self, stream: int) -> None:
        self._under_way.discard(stream)
        self._large.end(self, stream)

    def _pay(self) -> float:
        """Return how long the connection has to wait for what it asked."""
        limits = self._limits
        cost_s, self._client.cost_s = self._client.cost_s, 0.0
        self._own.add(cost_s)
        self._address.add(cost_s / limits.control_connections_per_address)
        credit_s = limits.control_credit_ms / 1_000
        wait_s = self._own.left_s - credit_s
        if self._own.left_s > limits.control_grace_ms / 1_000:
            wait_s = max(wait_s, self._address.left_s - credit_s)
        return min(max(0.0, wait_s), limits.max_control_pause_ms / 1_000)
