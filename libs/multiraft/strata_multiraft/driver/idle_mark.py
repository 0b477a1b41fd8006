"""Marks the end of the log once nothing has been written for a while (rule 7).

Damage to the very last write cannot be told from a torn tail until a later frame says that it was
durable. A busy log says so with every write; an idle log gets one mark.
"""

from __future__ import annotations

import asyncio

from strata_multiraft.base.ports import Log
from strata_runtime.blocking import RunBlocking
from strata_seglog.errors import DiskFull, WriteFailed


class IdleMark:
    """Watches how many writes were made.

    Args:
        log: the node's CommitLog.
        run_blocking: the writer's thread; calls run one after another, so a mark never overlaps
            a write.
        interval_ms: a mark comes after one to two of these without a write.
    """

    def __init__(self, log: Log, run_blocking: RunBlocking, interval_ms: int) -> None:
        self._log = log
        self._run_blocking = run_blocking
        self._interval_s = interval_ms / 1000
        self._writes = 0

    def wrote(self) -> None:
        """Note a write."""
        self._writes += 1

    async def run(self) -> None:
        """Mark forever; a failed sync ends the task, and with it the process (rule 7)."""
        seen = marked = 0
        while True:
            await asyncio.sleep(self._interval_s)
            if self._writes != seen:
                seen = self._writes
            elif marked != seen:
                marked = seen
                try:
                    await self._run_blocking(self._log.mark)
                except (DiskFull, WriteFailed):
                    # The log is whole without the mark; the next write will say the same.
                    continue
