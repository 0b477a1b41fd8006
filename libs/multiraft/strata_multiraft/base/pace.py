"""Limit on the bytes per second of background work, so that the foreground does not starve."""

from __future__ import annotations

import asyncio

from strata_runtime.clock import Clock

# Shorter waits are saved up: the event loop's timers are no finer, and each costs a wake-up.
_LEAST_WAIT_S = 0.005


class Pace:
    """One budget for all who share it.

    Args:
        clock: monotonic time.
        bytes_per_second: what may be spent; 0: no limit.
    """

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._paid_until_s = 0.0

    async def spend(self, size_bytes: int) -> None:
        """Return when these bytes may be spent, in the order of the calls."""
        if not self._bytes_per_second:
            return
        now_s = self._clock.monotonic_s()
        self._paid_until_s = max(self._paid_until_s, now_s) + size_bytes / self._bytes_per_second
        wait_s = self._paid_until_s - now_s
        if wait_s >= _LEAST_WAIT_S:
            await asyncio.sleep(wait_s)
