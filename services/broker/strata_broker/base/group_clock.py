"""Group time as a broker knows it: what storage nodes stamp, not its own wall clock (rule 4).

Brokers' clocks are watched by nobody, those of storage nodes are. Every answer to an Append says
when it was stored, so a broker knows how far its own clock is off. Before the first answer it has
nothing better than that.
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
        """Take in a stamp that was made a moment ago."""
        if store_time_ms:
            self._ahead_ms = store_time_ms - self._clock.wall_ms()

    def now_ms(self) -> int:
        """Return group time, give or take the way of an answer."""
        return self._clock.wall_ms() + self._ahead_ms
