"""Blocking work whose end its caller waits for, also when the caller is cancelled.

A cancelled `asyncio.to_thread` leaves its thread behind: a stop would close a file or a database in
the middle of the thread's call, and what the thread opens would be nobody's. Invariant: when
`run_to_end` returns or raises, the work has ended, and a cancelled caller leaves nothing open.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from strata_runtime.errors import one_line

Result = TypeVar("Result")


class RunBlocking(Protocol):
    """Runs work that blocks elsewhere than on the event loop."""

    def __call__(self, work: Callable[[], Result], /) -> Awaitable[Result]:
        """Run `work`; its failure is that of the awaitable."""


async def run_to_end(
    work: Callable[[], Result],
    *,
    run: RunBlocking = asyncio.to_thread,
    undo: Callable[[Result], object] | None = None,
) -> Result:
    """Run blocking work; a cancellation is raised once the work has ended.

    Args:
        work: what blocks.
        run: where it runs; a thread of the loop's own pool if nothing else is given.
        undo: gives the result back, in the same place, when the caller does not get it.

    Raises:
        CancelledError: the caller was cancelled; a failure of the work is its note.
        BaseException: what the work raised.
    """
    running = asyncio.ensure_future(run(work))
    cancelled = await _ended(running)
    if cancelled is None:
        return running.result()
    failure = None if running.cancelled() else running.exception()
    if failure is None and undo is not None and not running.cancelled():
        result = running.result()
        undoing = asyncio.ensure_future(run(lambda: undo(result)))
        await _ended(undoing)
        failure = None if undoing.cancelled() else undoing.exception()
    if failure is not None:
        cancelled.add_note(f"what it waited for failed: {one_line(failure)}")
    raise cancelled


async def _ended(running: asyncio.Future[Result]) -> CancelledError | None:
    """Wait for the end; return the last cancellation that came before it."""
    cancelled = None
    while not running.done():
        try:
            # Unlike `await running`, this does not hand the cancellation on.
            await asyncio.wait([running])
        except CancelledError as error:
            cancelled = error
    return cancelled
