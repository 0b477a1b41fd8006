"""Service that returns the memory of a burst to the system when the burst is over.

The collector hardly ever examines old objects (`garbage.GC_THRESHOLDS`), and the C library keeps
freed memory. Failed calls leave cycles that contain whole requests: 80 clients with settings of
8 MiB left 690 MB behind. So a process that has grown is collected and trimmed; a process that does
not grow pays nothing.

A collection stops the event loop for as long as it takes to walk everything that lives: 9,000
parked receives made it 0.3 s, every second or two. So young objects are collected first, since a
burst is young; old ones only if that gave back too little. Looks have a limited share of the time.
A process that fills its caches grows and has no garbage: walks of all that lives, on a busy machine
some seconds each, came one after the other. So a walk in vain is followed by the next one when the
process has doubled, or when it grows no more (docs/adr/0063).

A look in the middle of a burst finds little, and what the burst frees later does not show: the C
library keeps it. So further looks follow, at growing distances, until they find nothing any more.
While the last look was too expensive for another one, they trim and collect nothing: a trim runs in
a thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path

from strata_runtime.clock import Clock, SystemClock
from strata_runtime.metrics import Metrics, MetricSpec
from strata_runtime.tasks import OnFatal, Tasks

_MIB = 1 << 20
_STATM = Path("/proc/self/statm")
_YOUNG, _ALL = 1, 2  # generations of the collector
# A look that took a second is followed by none for so many seconds.
_PAUSE_PER_LOOK = 30.0
# Growth since a walk of everything in vain, of what stayed then, at which there is the next one.
_WALK_GROWTH = 1.0
# The first look after one that found a burst, and the longest pause between two of them.
_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 64.0

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_memory_returned_bytes_total",
        "counter",
        "bytes",
        "Resident memory returned to the system after the process had grown.",
    ),
)


class MemoryReturn:
    """See the module docstring.

    Args:
        metrics: where it shows what went back.
        on_fatal: told when the loop ends.
        interval_s: time between two looks.
        growth_bytes: above what stayed last time, from which on it is worth a look at everything.
        resident_bytes: reads the resident memory of this process; 0: unknown.
        trim: gives back what the C library keeps; runs in a thread.
        collect: collects cycles up to a generation.
        clock: how long looks take.
    """

    name = "memory return"

    def __init__(
        self,
        metrics: Metrics,
        on_fatal: OnFatal,
        *,
        interval_s: float = 1.0,
        growth_bytes: int = 48 * _MIB,
        resident_bytes: Callable[[], int] = lambda: _resident_bytes(),
        trim: Callable[[], None] = lambda: _trim(),
        collect: Callable[[int], object] = gc.collect,
        clock: Clock | None = None,
    ) -> None:
        metrics.declare(METRICS)
        self._returned = metrics.counter("strata_memory_returned_bytes_total")
        self._interval_s = interval_s
        self._growth_bytes = growth_bytes
        self._resident_bytes = resident_bytes
        self._trim = trim
        self._collect = collect
        self._clock = clock or SystemClock()
        self._earliest_s = 0.0
        # When to look although nothing has grown; None: not at all.
        self._again_s: float | None = None
        self._pause_s = _FIRST_PAUSE_S
        # After a walk of everything in vain, the bytes in use at which there is another one; 0: the
        # last one was not in vain.
        self._walk_above_bytes = 0
        # Bytes in use before the burst.
        self._base_bytes = 0
        self._floor_bytes = 0
        self._tasks = Tasks(self.name, on_fatal)

    async def start(self) -> None:
        """Begin to look."""
        self._floor_bytes = self._resident_bytes()
        self._tasks.spawn("look", self._look_for_ever())

    async def stop(self, grace_s: float) -> None:
        """Look no more."""
        await self._tasks.stop()

    async def check(self) -> bool:
        """Give back what a burst left; return whether there was reason to look for it."""
        before = self._resident_bytes()
        now_s = self._clock.monotonic_s()
        grown = before >= self._floor_bytes + self._growth_bytes
        again = self._again_s is not None and now_s >= self._again_s
        if not grown:
            self._floor_bytes = min(self._floor_bytes, before)
        if now_s < self._earliest_s:
            if again:
                await self._trim_alone(before)
            return again
        if not (grown or again):
            return False
        if self._again_s is None:
            self._base_bytes = self._floor_bytes
        # The last look of a series: nothing has grown for two minutes.
        is_calm = not grown and self._pause_s * 2 > _LONGEST_PAUSE_S
        after = await self._give_back(is_calm)
        ended_s = self._clock.monotonic_s()
        self._earliest_s = ended_s + (ended_s - now_s) * _PAUSE_PER_LOOK
        self._returned.add(max(0, before - after))
        # The memory that stayed seems to be in use: growth beyond it is a reason to look.
        self._floor_bytes = after
        self._plan_next(grown or before - after >= self._growth_bytes / 4)
        return True

    async def _trim_alone(self, before: int) -> None:
        """Give back what the C library keeps; the series of looks goes on afterwards."""
        await asyncio.to_thread(self._trim)
        after = self._resident_bytes()
        self._returned.add(max(0, before - after))
        self._floor_bytes = min(self._floor_bytes, after)
        is_found = before - after >= self._growth_bytes / 4
        self._pause_s = _FIRST_PAUSE_S if is_found else min(self._pause_s * 2, _LONGEST_PAUSE_S / 2)
        self._again_s = self._clock.monotonic_s() + self._pause_s

    async def _give_back(self, is_calm: bool) -> int:
        """Collect and trim; return what is resident then."""
        resident_bytes = await self._collect_and_trim(_YOUNG)
        is_early = resident_bytes < self._walk_above_bytes and not is_calm
        if resident_bytes < self._base_bytes + self._growth_bytes or is_early:
            return resident_bytes
        after = await self._collect_and_trim(_ALL)
        is_in_vain = resident_bytes - after < self._growth_bytes / 4
        self._walk_above_bytes = int(after * (1 + _WALK_GROWTH)) if is_in_vain else 0
        return after

    async def _collect_and_trim(self, generation: int) -> int:
        self._collect(generation)
        await asyncio.to_thread(self._trim)
        return self._resident_bytes()

    def _plan_next(self, found: bool) -> None:
        """Look again soon after a look that found something, later and later after others."""
        self._pause_s = _FIRST_PAUSE_S if found else self._pause_s * 2
        goes_on = self._pause_s <= _LONGEST_PAUSE_S
        self._again_s = self._clock.monotonic_s() + self._pause_s if goes_on else None

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.check()


def _resident_bytes() -> int:
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        # Another system than Linux.
        return 0


def _trim() -> None:
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        # Another C library than glibc.
        return
