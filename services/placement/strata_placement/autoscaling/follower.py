"""One trigger, followed: it reads the cluster at an interval and knows the value to answer.

Invariants: `value` and `read_at_s` change together; a failed reading changes neither. A waiter is
woken by every reading, successful or not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from strata_placement.autoscaling.options import AutoscalerOptions
from strata_placement.autoscaling.rates import GrowthRate, RateHistory, expected_peak
from strata_placement.autoscaling.reader import ClusterReader, ClusterUnreadableError
from strata_placement.autoscaling.trigger import Trigger
from strata_placement.series import PlacementError
from strata_runtime.clock import Clock
from strata_runtime.errors import one_line
from strata_runtime.logs import get_logger

_FIRST_PAUSE_S = 1.0


@dataclass(slots=True)
class Parts:
    """The parts that all followers share.

    Attributes:
        reader: of the cluster.
        options: intervals and limits.
        clock: measures ages, and tells the windows of a history.
        reads: as many readings at once as are allowed.
    """

    reader: ClusterReader
    options: AutoscalerOptions
    clock: Clock
    reads: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.reads = asyncio.Semaphore(self.options.max_concurrent_reads)


class TriggerFollower:
    """See the module docstring.

    Args:
        trigger: what is read.
        scaled_object: NAMESPACE/NAME, for logs and metrics.
        parts: what all followers share.

    Attributes:
        value: of the last successful reading, within the trigger's bounds; None: there was none.
        failure: why the last reading failed; empty: it did not.
        asked_at_s: when KEDA asked last, on the monotonic clock.
    """

    def __init__(self, trigger: Trigger, scaled_object: str, parts: Parts) -> None:
        self.trigger = trigger
        self.scaled_object = scaled_object
        self.value: float | None = None
        self.failure = ""
        self.asked_at_s = parts.clock.monotonic_s()
        options = parts.options
        self._parts = parts
        self._read_at_s = 0.0
        self._growth = GrowthRate(options.rate_window_ms)
        self._history = RateHistory(options.forecast_window_ms, options.history_windows)
        self._has_past = trigger.metric != "forecast"
        self._peak: float | None = None
        self._changed = asyncio.Event()
        self._log = get_logger("autoscaler")

    @property
    def age_ms(self) -> float:
        """Age of the value; 0.0 before there is one."""
        if self.value is None:
            return 0.0
        return (self._parts.clock.monotonic_s() - self._read_at_s) * 1_000

    @property
    def is_usable(self) -> bool:
        """Whether there is a value that is not too old to be served."""
        return self.value is not None and self.age_ms <= self._parts.options.keep_last_ms

    @property
    def is_active(self) -> bool:
        """Whether the target needs replicas at all."""
        return self.value is not None and self.trigger.is_active(self.value)

    async def changed(self) -> None:
        """Wait for the end of the next reading."""
        await self._changed.wait()

    async def run(self, on_read: Callable[[bool], None]) -> None:
        """Read the cluster at the interval, until cancelled.

        Args:
            on_read: told of each reading whether it succeeded.
        """
        while True:
            succeeded = await self.read()
            on_read(succeeded)
            has_value = self.value is not None
            pause_s = self._parts.options.read_interval_ms / 1_000
            if succeeded and not has_value:
                # A rate needs two readings; KEDA waits for the second one.
                pause_s = min(pause_s, _FIRST_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def read(self) -> bool:
        """Read the cluster once; return whether it could be read."""
        try:
            async with self._parts.reads:
                value = await self._measure()
            if value is not None:
                self.value = self.trigger.bounded(value)
                self._read_at_s = self._parts.clock.monotonic_s()
        except (ClusterUnreadableError, PlacementError) as error:
            reason = one_line(error)
            if reason != self.failure:
                self._log.warning(
                    "the cluster cannot be read; the last value holds for a while",
                    scaled_object=self.scaled_object,
                    metric=self.trigger.metric,
                    reason=reason,
                )
            self.failure = reason
            return False
        else:
            self.failure = ""
            return True
        finally:
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def _measure(self) -> float | None:
        trigger, reader, options = self.trigger, self._parts.reader, self._parts.options
        if trigger.metric == "lag":
            return await reader.lag(trigger)
        if trigger.rate == "bytes_per_second":
            rate: float | None = await reader.bytes_per_s()
        else:
            count = await reader.stored(trigger, options.max_topics)
            rate = self._growth.observe(self._parts.clock.monotonic_s() * 1_000, count)
        if rate is None or trigger.metric != "forecast":
            return rate
        return await self._forecast(rate)

    async def _forecast(self, rate: float) -> float:
        """Return the rate to prepare for: what comes within the horizon, at least what is now."""
        options, wall_ms = self._parts.options, self._parts.clock.wall_ms()
        if not self._has_past:
            step_ms = options.forecast_window_ms
            since_ms = wall_ms - step_ms * options.history_windows
            # Without a past the forecast begins with what is seen from now on.
            with contextlib.suppress(ClusterUnreadableError):
                past = await self._parts.reader.past(self.trigger, since_ms, step_ms)
                self._history.begin(past.start_ms, past.values)
            self._has_past = True
        if self._history.observe(wall_ms, rate) or self._peak is None:
            expected = await asyncio.to_thread(self._history.expectation)
            if expected is not None:
                self._peak = expected_peak(expected, self.trigger.horizon_ms)
        most = max(rate, self._history.highest) * options.max_forecast_ratio
        return max(rate, min(self._peak or 0.0, most))
