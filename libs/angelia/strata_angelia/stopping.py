"""The end of what a server carries out when it stops: one grace for all of it."""

from __future__ import annotations

import asyncio

from strata_runtime.tasks import Tasks

MOMENT_S = 0.25
"""For cancelled calls to end, and for the last answers, if the calls took all the grace."""


async def end_calls(streams: Tasks, calls: Tasks, ends_s: float) -> None:
    """End streams at once and calls when they are done; cancel those that are late.

    Args:
        streams: they have no end of their own: to wait for it would be to use up the grace.
        calls: all others.
        ends_s: when the grace is over, in the loop's time.
    """
    time = asyncio.get_running_loop().time
    await streams.stop(max(MOMENT_S, ends_s - time()))
    await calls.drain(max(0.0, ends_s - time()))
    await calls.stop(max(MOMENT_S, ends_s - time()))
