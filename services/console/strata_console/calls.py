"""Threads for calls to the cluster, which block: as many as may be, however many ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class CallThreads:
    """See the module docstring.

    A browser that goes ends its request, not the call: a thread cannot be interrupted. So a call
    counts until its thread has ended it, and what waits begins no earlier.

    Args:
        most: calls at a time; further ones wait.
    """

    def __init__(self, most: int) -> None:
        self._threads = ThreadPoolExecutor(most, "call")
        self._lock = threading.Lock()
        self._under_way = 0

    @property
    def under_way(self) -> int:
        """Calls that have begun and not ended."""
        return self._under_way

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run blocking work in one of the threads; work that nobody waits for does not begin."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._counted, work)

    def close(self) -> None:
        """Begin no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _counted(self, work: Callable[[], Result]) -> Result:
        with self._lock:
            self._under_way += 1
        try:
            return work()
        finally:
            with self._lock:
                self._under_way -= 1
