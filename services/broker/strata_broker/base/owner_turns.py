"""Large work in turns: a bounded amount at once, so that small work beside it finds the loop free.

Owners that wait take turns, whatever one of them asks for; the work of one owner goes on in the
order in which it came. A turn lasts until its work is done, but only for a limited time: work that
waits for something slow (a raft group without a leader) is not large work meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from strata_runtime.metrics import Metrics, MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_broker_turns_used",
        "gauge",
        "1",
        "Amount of large work that has its turn now.",
        ("of",),
    ),
    MetricSpec(
        "strata_broker_turns_waiting",
        "gauge",
        "1",
        "Amount of large work that waits for its turn.",
        ("of",),
    ),
)


class OwnerTurns:
    """See the module docstring. Used on one event loop; its callers bound how many wait.

    Invariant: the next owner gets its turn as soon as nobody holds anything, whatever the amount.

    Args:
        of: what is done, label `of` of the metrics.
        most: how much may be done at once.
        max_hold_ms: how long one turn lasts at most.
        metrics: where use and waiting are shown.
    """

    __slots__ = ("_max_hold_s", "_most", "_used", "_waiting", "_waiting_amount")

    def __init__(self, of: str, most: int, *, max_hold_ms: int, metrics: Metrics) -> None:
        self._most = most
        self._max_hold_s = max_hold_ms / 1000
        self._used = 0
        self._waiting: OrderedDict[Hashable, deque[_Turn]] = OrderedDict()
        self._waiting_amount = 0
        metrics.declare(METRICS)
        labels = {"of": of}
        metrics.gauge("strata_broker_turns_used", lambda: [(self._used, labels)])
        metrics.gauge("strata_broker_turns_waiting", lambda: [(self._waiting_amount, labels)])

    @property
    def used(self) -> int:
        """Amount that is being done."""
        return self._used

    @property
    def waiting(self) -> int:
        """Amount that waits."""
        return self._waiting_amount

    @asynccontextmanager
    async def of(self, owner: Hashable, amount: int = 1) -> AsyncIterator[None]:
        """Wait for a turn; it ends with the block, or when it has lasted long enough."""
        turn = _Turn(amount)
        if not self._waiting and self._fits(amount):
            self._begin(turn)
        else:
            await self._wait(owner, turn)
        too_long = asyncio.get_running_loop().call_later(self._max_hold_s, self._end, turn)
        try:
            yield
        finally:
            too_long.cancel()
            self._end(turn)

    async def _wait(self, owner: Hashable, turn: _Turn) -> None:
        turn.begun = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        self._waiting_amount += turn.amount
        try:
            await turn.begun
        except asyncio.CancelledError:
            if turn.held:
                self._end(turn)
            else:
                self._forget(owner, turn)
                # It may have been the one that did not fit.
                self._grant()
            raise

    def _forget(self, owner: Hashable, turn: _Turn) -> None:
        turns = self._waiting[owner]
        turns.remove(turn)
        if not turns:
            del self._waiting[owner]
        self._waiting_amount -= turn.amount

    def _fits(self, amount: int) -> bool:
        return not self._used or self._used + amount <= self._most

    def _begin(self, turn: _Turn) -> None:
        turn.held = True
        self._used += turn.amount

    def _end(self, turn: _Turn) -> None:
        if turn.held:
            turn.held = False
            self._used -= turn.amount
            self._grant()

    def _grant(self) -> None:
        while self._waiting:
            owner, turns = next(iter(self._waiting.items()))
            turn = turns[0]
            if not self._fits(turn.amount):
                return
            self._waiting.move_to_end(owner)
            self._forget(owner, turn)
            self._begin(turn)
            if turn.begun is not None and not turn.begun.done():
                turn.begun.set_result(None)


class _Turn:
    """One piece of work: its amount, whether it has its turn, and what it waits on."""

    __slots__ = ("amount", "begun", "held")

    def __init__(self, amount: int) -> None:
        self.amount = amount
        self.held = False
        self.begun: asyncio.Future[None] | None = None
