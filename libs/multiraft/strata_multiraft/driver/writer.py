"""The writer's thread: log calls block, so they run here, one after another (rule 30)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class WriterThread:
    """One thread; implements `ports.RunBlocking`."""

    def __init__(self, name: str = "log-writer") -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def __call__(self, work: Callable[[], Result], /) -> Awaitable[Result]:
        """Run `work` in the thread, after everything given before."""
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Wait for the running call and end the thread."""
        self._executor.shutdown(wait=True)
