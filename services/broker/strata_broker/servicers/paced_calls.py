"""Calls of connections that were refused too much: each connection has a line that moves slowly.

Other connections do not notice. The pace of refusals bounds what a line lets through, and all lines
together are bounded by count and by bytes (rule 34).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from strata_broker.base import errors
from strata_broker.base.receive_config import RefusalsSection
from strata_broker.base.refusal_pace import RefusalPace
from strata_edge.ports import HotCall
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics


class PacedCalls:
    """Holds calls back until their connection's pace allows them, in the order they came.

    Invariant: a connection that has a line has exactly one timer.

    Args:
        pace: how long a connection has to wait.
        take: takes a call whose turn it is; it must not raise.
        config: how much may wait.
        metrics: how much waits.
    """

    def __init__(
        self,
        pace: RefusalPace,
        take: Callable[[HotCall], None],
        config: RefusalsSection,
        *,
        metrics: Metrics,
    ) -> None:
        self._pace = pace
        self._take = take
        self._lines: dict[str, deque[HotCall]] = {}
        self._calls = Limit("paced calls", config.max_waiting, "calls", metrics=metrics)
        self._bytes = Limit("paced calls", config.max_bytes_waiting, "bytes", metrics=metrics)

    def holds_back(self, call: HotCall) -> bool:
        """Put a call into its connection's line if there is one, or if it has to wait.

        Returns:
            Whether the call waits; if not, the caller takes it.

        Raises:
            RequestError: TOO_MANY_REQUESTS, it would have to wait and there is no room.
        """
        if self._pace.is_idle and not self._lines:
            return False
        peer = call.peer
        line = self._lines.get(peer)
        wait_s = 0.0 if line is not None else self._pace.wait_s(peer)
        if line is None and not wait_s:
            return False
        size_bytes = len(call.request)
        if not self._calls.try_take():
            raise errors.too_many_requests()
        if not self._bytes.try_take(size_bytes):
            self._calls.give_back()
            raise errors.too_many_requests()
        if line is None:
            self._lines[peer] = deque((call,))
            self._move_in(peer, wait_s)
        else:
            line.append(call)
        return True

    def lets_pass(self, peer: str) -> bool:
        """Whether calls of a connection need not wait."""
        if self._pace.is_idle and not self._lines:
            return True
        return peer not in self._lines and not self._pace.wait_s(peer)

    def _move_in(self, peer: str, wait_s: float) -> None:
        asyncio.get_running_loop().call_later(wait_s, self._move, peer)

    def _move(self, peer: str) -> None:
        line = self._lines[peer]
        wait_s = self._pace.wait_s(peer)
        if not wait_s:
            call = line.popleft()
            self._calls.give_back()
            self._bytes.give_back(len(call.request))
            if not call.done():
                self._take(call)
        if line:
            # One call a turn: storage may refuse it only later, and others have their turns.
            self._move_in(peer, wait_s)
        else:
            del self._lines[peer]
