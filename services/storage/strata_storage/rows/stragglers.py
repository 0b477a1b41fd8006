"""An Append waits for most of its raft groups: a slow one does not hold up the others.

A call carries the batches of many raft groups and has one answer. The answer is sent when most of
the batches are committed. It says "unknown yet" for the others, and the broker asks for these again
with the same number (rule 22).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

_SHARE_OF_TIMEOUT = 0.8
"""Most of a caller's patience that a call may use: the answer has a way to go."""


async def wait_for_most(
    futures: Sequence[asyncio.Future[Any]], timeout_s: float | None, straggle_s: float
) -> None:
    """Wait until all are done, or the first is and the others take more than twice as long.

    Args:
        futures: of commits; none is cancelled or looked into.
        timeout_s: how long the caller waits; None: forever.
        straggle_s: what the others may take longer than the first in any case.
    """
    waiting = [future for future in futures if not future.done()]
    if not waiting:
        return
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    left_s = None if timeout_s is None else timeout_s * _SHARE_OF_TIMEOUT
    if len(waiting) == len(futures):
        await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        waiting = [future for future in waiting if not future.done()]
        if not waiting or len(waiting) == len(futures):
            return
    first_s = loop.time() - began_s
    grace_s = max(first_s, straggle_s)
    if left_s is not None:
        grace_s = min(grace_s, left_s - first_s)
    await asyncio.wait(waiting, timeout=max(0.0, grace_s))
