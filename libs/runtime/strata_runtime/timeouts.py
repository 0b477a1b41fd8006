"""Time limits of blocks of code, on every Python that is supported.

Before Python 3.11.4, `asyncio.timeout` takes its own end for a cancellation in a task that was
cancelled before and went on: by a limit, or by an `asyncio.TaskGroup` whose child failed, which
before Python 3.13 never takes its cancel back. The task then ends without an error.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from strata_runtime.tasks import cancels_of_caller


class Timeout:
    """Ends an `async with` block with TimeoutError; it counts the cancels since it was entered.

    Args:
        delay_s: from now; None: no limit, until `reschedule` sets one.
    """

    __slots__ = ("_cancels", "_limit")

    def __init__(self, delay_s: float | None) -> None:
        self._limit = asyncio.timeout(delay_s)
        self._cancels = 0

    def when(self) -> float | None:
        """Return the end by the event loop's clock, in seconds; None: there is no limit."""
        return self._limit.when()

    def reschedule(self, when_s: float | None) -> None:
        """Set another end by the event loop's clock; a past one ends the block at once."""
        self._limit.reschedule(when_s)

    def expired(self) -> bool:
        """Whether the limit ended the block."""
        return self._limit.expired()

    async def __aenter__(self) -> Timeout:
        await self._limit.__aenter__()
        self._cancels = cancels_of_caller()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._limit.__aexit__(kind, error, trace)
        # A caller that others cancelled meanwhile stays cancelled.
        is_ours = self._limit.expired() and cancels_of_caller() <= self._cancels
        if kind is asyncio.CancelledError and is_ours:
            raise TimeoutError from error
