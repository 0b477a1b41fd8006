"""Measures how long this process stood still.

A process that was stopped, or whose event loop was held up, hears nobody meanwhile: the silence of
others in this time says nothing about them. Judges of silence subtract `total_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class OwnStalls:
    """See the module docstring. Used on the event loop only.

    Its owner calls `turn` at regular times; a turn that comes much too late ends a stall. A stall
    whose turn has not come yet counts, too, since others may judge before.

    Args:
        turn_s: time between two turns.
        grace_s: a turn that is late by less than this is not late.
        time_s: seconds of the event loop's clock; None: of the running loop.
    """

    __slots__ = ("_grace_s", "_last_s", "_time_s", "_total_s", "_turn_s")

    def __init__(
        self, turn_s: float, *, grace_s: float = 1.0, time_s: Callable[[], float] | None = None
    ) -> None:
        self._turn_s = turn_s
        self._grace_s = grace_s
        self._time_s = time_s or _loop_time_s
        self._total_s = 0.0
        # None before the first turn.
        self._last_s: float | None = None

    def turn(self) -> None:
        """Note that the process goes on."""
        self._total_s = self.total_s
        self._last_s = self._time_s()

    @property
    def total_s(self) -> float:
        """Return the length of all stalls since the first turn, in seconds."""
        if self._last_s is None:
            return self._total_s
        late_s = self._time_s() - self._last_s - self._turn_s
        return self._total_s + late_s if late_s >= self._grace_s else self._total_s


def _loop_time_s() -> float:
    return asyncio.get_running_loop().time()
