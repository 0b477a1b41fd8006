"""Group time at a broker: the time that storage nodes stamp, not its own wall clock (rule 4).

The clocks of storage nodes are checked, those of brokers are not. Every answer to an Append has
the time of storage, so a broker learns the offset of its own clock. Before the first answer it
uses its own clock.
"""

from __future__ import annotations

from strata_runtime.clock import Clock


class GroupClock:
    """See the module docstring.

    Args:
        clock: of this broker.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = 0

    def learn(self, store_time_ms: int) -> None:
        """Learn from a stamp that was made a moment ago."""
        if store_time_ms:
            self._ahead_ms = store_time_ms - self._clock.wall_ms()

    def now_ms(self) -> int:
        """Return group time; it is off by at most the transit time of an answer."""
        return self._clock.wall_ms() + self._ahead_ms
