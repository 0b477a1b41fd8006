"""An event loop whose clock leaps to the next timer: a test of time limits needs no real time.

A limit of 40 ms ends nothing that is able to go on, however slow the machine is; a test may count
what happened within 50 intervals of 2 ms. It is for tests in one process without sockets.
Where machines die and pause as well, `strata_sim.virtual_loop` is the loop.

A `conftest.py` chooses it for the tests of its folder::

    def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
        return {"leaping": LeapingLoop}
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

_EPOCH_MS = 1_700_000_000_000
# An order by time says who came first, as by a real clock.
_READING_S = 1e-7


class LeapingLoop(asyncio.SelectorEventLoop):
    """See the module docstring.

    Time stands still while a callback is due or a call of `run_in_executor` is under way, but for
    the 0.1 us by which each reading is later than the one before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._in_threads = 0

    def time(self) -> float:
        """Seconds that it leapt so far."""
        self._now_s += _READING_S
        return self._now_s

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run `func` in a thread; no timer comes before its result."""
        future = super().run_in_executor(executor, func, *args)
        self._in_threads += 1
        future.add_done_callback(self._left_thread)
        return future

    def _left_thread(self, _future: asyncio.Future[Any]) -> None:
        self._in_threads -= 1

    def _run_once(self) -> None:
        """Leap if nothing else is to be done, then run what is due."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if not (self._ready or self._stopping or self._in_threads):  # type: ignore[attr-defined]
            while timers and timers[0].cancelled():
                self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
                heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
            if timers:
                self._now_s = max(self._now_s, timers[0].when())
        super()._run_once()  # type: ignore[misc]


class LoopClock:
    """The clock of the event loop that runs, as a `strata_runtime.clock.Clock`."""

    def monotonic_s(self) -> float:
        """Seconds of the event loop."""
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00:00Z, where the loop began at a time of its own."""
        return _EPOCH_MS + int(self.monotonic_s() * 1_000)
