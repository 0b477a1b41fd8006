"""How much of the time uploads may take while messages come in.

Uploads and appends share one interpreter: what the one takes the other lacks. As long as the log
grows, an upload rests after each piece of work so that it has its share of the time and no more.
On a quiet node it does not rest, nor when what it uploads has waited for too long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from strata_runtime.clock import Clock
from strata_storage.base.jobs import RunJob

Result = TypeVar("Result")

_LOOK_S = 0.25
"""How often it is looked how much the log grew."""


@dataclass(frozen=True, slots=True)
class PaceOptions:
    """Limits of the pace.

    Attributes:
        share: of a processor that uploads may take while the log grows; 1: they never rest.
        quiet_bytes_per_s: a log that grows by less does not count as growing.
        patience_ms: age of a message from which its upload rests no more.
        rest_max_s: of one rest; an upload waits for the rests of others, too.
    """

    share: float = 0.1
    quiet_bytes_per_s: int = 1024 * 1024
    patience_ms: int = 300_000
    rest_max_s: float = 1.0


class UploadPace:
    """The pace of one node's uploads.

    Args:
        options: limits.
        log_end: returns the position of the log's end.
        clock: time.
        on_rest: told of each rest, in milliseconds.
    """

    def __init__(
        self,
        options: PaceOptions,
        log_end: Callable[[], int],
        clock: Clock,
        *,
        on_rest: Callable[[float], None],
    ) -> None:
        self._options = options
        self._log_end = log_end
        self._clock = clock
        self._on_rest = on_rest
        self._looked_at_s = clock.monotonic_s()
        self._end = log_end()
        self._grows = False
        # When the rests of all uploads so far are over: several at once share the share.
        self._rested_at_s = clock.monotonic_s()

    def is_urgent(self, age_ms: int) -> bool:
        """Whether a message of an age has waited for too long to rest any more."""
        return age_ms > self._options.patience_ms

    def paced(self, run: RunJob) -> RunJob:
        """Return what runs work as `run` does and rests after it."""

        async def run_and_rest(work: Callable[[], Result], /) -> Result:
            result, spent_s = await run(lambda: _timed(work))
            await self._rest(spent_s)
            return result

        return run_and_rest

    async def _rest(self, spent_s: float) -> None:
        options = self._options
        if options.share >= 1 or not self._is_growing():
            return
        now_s = self._clock.monotonic_s()
        added_s = min(spent_s * (1 / options.share - 1), options.rest_max_s)
        self._rested_at_s = max(self._rested_at_s, now_s) + added_s
        rest_s = self._rested_at_s - now_s
        self._on_rest(rest_s * 1_000)
        await asyncio.sleep(rest_s)

    def _is_growing(self) -> bool:
        now_s, end = self._clock.monotonic_s(), self._log_end()
        past_s = now_s - self._looked_at_s
        if past_s >= _LOOK_S:
            self._grows = end - self._end > self._options.quiet_bytes_per_s * past_s
            self._looked_at_s, self._end = now_s, end
        return self._grows


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return what work returns, and the processor time that it took in this thread."""
    began_s = time.thread_time()
    result = work()
    return result, time.thread_time() - began_s
