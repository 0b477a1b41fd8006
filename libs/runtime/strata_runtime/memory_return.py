"""Service that returns the memory of a burst to the system when the burst is over.

The collector hardly ever examines old objects (`loop.GC_THRESHOLDS`), and the C library keeps freed
memory. Failed calls leave cycles that contain whole requests: 80 clients with settings of 8 MiB
left 690 MB behind. So a process that has grown is collected and trimmed, at a limited rate; a
process that does not grow pays nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path

from strata_runtime.metrics import Metrics, MetricSpec
from strata_runtime.tasks import OnFatal, Tasks

_MIB = 1 << 20
_STATM = Path("/proc/self/statm")

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
    ) -> None:
        metrics.declare(METRICS)
        self._returned = metrics.counter("strata_memory_returned_bytes_total")
        self._interval_s = interval_s
        self._growth_bytes = growth_bytes
        self._resident_bytes = resident_bytes
        self._trim = trim
        self._floor_bytes = 0
        self._tasks = Tasks(self.name, on_fatal)

    async def start(self) -> None:
        """Begin to look."""
        self._floor_bytes = self._resident_bytes()
        self._tasks.spawn("look", self._look_for_ever())

    async def stop(self, grace_s: float) -> None:
        """Look no more."""
        await self._tasks.stop()

    async def look(self) -> bool:
        """Give back what a burst left; return whether there had been one."""
        before = self._resident_bytes()
        if before < self._floor_bytes + self._growth_bytes:
            self._floor_bytes = min(self._floor_bytes, before)
            return False
        gc.collect()
        await asyncio.to_thread(self._trim)
        after = self._resident_bytes()
        self._returned.add(max(0, before - after))
        # What stayed is in use: only what comes on top of it is looked at again.
        self._floor_bytes = after
        return True

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look()


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
