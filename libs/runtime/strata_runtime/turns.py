"""Long work of many callers in slices: one slice in each turn of the event loop for all callers.

Work announces its cost in *steps* before each piece; no clock is read. A caller that needs no more
than the rest of the turn does not wait. Other callers queue, and between two slices the loop does
everything else that is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

from strata_runtime.metrics import Counter

Result = TypeVar("Result")


class Turns:
    """See the module docstring. Used on one event loop.

    Args:
        steps_per_turn: size of a slice; its last piece may go beyond it, which later ones pay for.
        steps: counts the steps done.
        waits: counts how often somebody had to wait for another turn.
    """

    __slots__ = ("_begins", "_done", "_left", "_line", "_per_turn", "_steps", "_waits")

    def __init__(self, steps_per_turn: int, steps: Counter, waits: Counter) -> None:
        self._per_turn = self._left = steps_per_turn
        self._steps = steps
        self._waits = waits
        self._done = 0
        self._begins = False
        # First come, first served: nobody's work waits for all of somebody else's.
        self._line = asyncio.Lock()

    async def do(self, work: Generator[int, None, Result]) -> tuple[Result, int]:
        """Do work that yields the steps of each of its pieces before it does it.

        Returns:
            The result of the work, and its steps.
        """
        done = 0
        try:
            while True:
                steps = next(work)
                if self._left <= 0 or self._line.locked():
                    await self._wait()
                self._take(steps)
                done += steps
        except StopIteration as end:
            return end.value, done

    async def _wait(self) -> None:
        self._waits.add(1)
        async with self._line:
            # The wait is for the next turn itself.
            while self._left <= 0:  # noqa: ASYNC110
                await asyncio.sleep(0)

    def _take(self, steps: int) -> None:
        self._left -= steps
        self._done += steps
        if not self._begins:
            self._begins = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Begin a turn."""
        self._begins = False
        self._steps.add(self._done)
        self._done = 0
        self._left = min(self._left + self._per_turn, self._per_turn)
        if self._left <= 0:
            # A piece larger than a slice is paid for by as many turns.
            self._begins = True
            asyncio.get_running_loop().call_soon(self._begin)
