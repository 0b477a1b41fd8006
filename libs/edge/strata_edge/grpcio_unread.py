"""Answers of a grpcio edge that wait for their clients, in shares.

A client that does not read keeps what others need: while others are refused, a connection has to
go on reading (`EdgeOptions.least_read`), or it is ended. Only a front can do that: grpcio has no
way to end a stream whose client takes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from strata_edge.options import EdgeOptions
from strata_edge.pace import LeastPace
from strata_edge.shares import SharedBudget
from strata_runtime.metrics import Metrics

_LOOK_INTERVAL_S = 0.25


@dataclass(slots=True)
class _Reader:
    """A connection with unread answers: how many, and the bytes that it has taken meanwhile."""

    answers: int = 0
    taken_bytes: int = 0
    pace: LeastPace | None = None


class UnreadAnswer:
    """An answer that a client has not read.

    Args:
        budget: it is counted there.
        readers: connections with such answers, by their peers.
        peer: of the client.
        size_bytes: of all parts.
    """

    __slots__ = ("_budget", "_peer", "_reader", "_readers", "_size_bytes")

    def __init__(
        self, budget: SharedBudget, readers: dict[str, _Reader], peer: str, *, size_bytes: int
    ) -> None:
        self._budget = budget
        self._readers = readers
        self._peer = peer
        self._size_bytes = size_bytes
        self._reader = readers.setdefault(peer, _Reader())
        self._reader.answers += 1
        budget.take(peer, size_bytes)

    def __enter__(self) -> UnreadAnswer:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def taken(self, part_bytes: int) -> None:
        """The transport has taken a part."""
        self._reader.taken_bytes += part_bytes

    def end(self) -> None:
        """It was read, or nobody will read it; called once."""
        self._budget.give_back(self._peer, self._size_bytes)
        self._reader.answers -= 1
        if not self._reader.answers:
            del self._readers[self._peer]


class GrpcioUnread:
    """See the module docstring. Used on the event loop.

    Args:
        options: the limits.
        metrics: where the answers show.
        end_connection: ends the connection of a client, by its `host:port`; None: nobody can.
    """

    def __init__(
        self,
        options: EdgeOptions,
        metrics: Metrics,
        end_connection: Callable[[str], None] | None,
    ) -> None:
        self._least = options.least_read
        self._end_connection = end_connection
        self.budget = SharedBudget(options.unread)
        self._readers: dict[str, _Reader] = {}
        self._looking = False
        metrics.gauge("strata_edge_unread_bytes", lambda: self.budget.held)

    @property
    def held(self) -> int:
        """Return the bytes of all unread answers."""
        return self.budget.held

    def hold(self, peer: str, size_bytes: int) -> UnreadAnswer:
        """Count an answer until its end."""
        return UnreadAnswer(self.budget, self._readers, peer, size_bytes=size_bytes)

    def watch(self) -> None:
        """Somebody is refused: look at who is the cause of it until nobody is any more."""
        if self._end_connection is not None and not self._looking:
            self._look()

    def _look(self) -> None:
        assert self._end_connection is not None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._looking = False
        for peer, reader in list(self._readers.items()):
            left_bytes = self.budget.held_by(peer)
            if not left_bytes or not self.budget.is_used_up(peer):
                reader.pace = None
                continue
            self._looking = True
            done_bytes = reader.taken_bytes
            if reader.pace is None:
                reader.pace = LeastPace(self._least, now_s, done_bytes, left_bytes=left_bytes)
            elif reader.pace.is_too_slow(now_s, done_bytes, left_bytes=left_bytes):
                self._end_connection(peer)
        if self._looking:
            loop.call_later(_LOOK_INTERVAL_S, self._look)
