"""Time as a port: production reads the system's clocks, simulation and tests bring their own.

A class that needs time takes a `Clock` through its constructor. Durations and deadlines come from
`monotonic_s`; stamps for other machines or people come from `wall_ms`. The two are never mixed
(rule 4: wall time jumps; the raft leader builds group time from both, not this module).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The clock that a component may read."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00:00Z; may jump in both directions."""


class SystemClock:
    """The clocks of this machine; `monotonic_s` is the clock of the event loop too."""

    __slots__ = ()

    def monotonic_s(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds of CLOCK_REALTIME."""
        return time.time_ns() // 1_000_000
