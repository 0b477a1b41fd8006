"""A clock that a test moves."""

from __future__ import annotations

EPOCH_MS = 1_700_000_000_000
"""Wall time at second 0 of a clock, unless a test says otherwise."""

_NS = 1_000_000_000
_NS_PER_MS = 1_000_000


class ManualClock:
    """Both clocks stand still until they are told; implements `strata_runtime.clock.Clock`.

    Time is counted in whole nanoseconds, so that many small steps are what they add up to.

    Args:
        now_s: seconds that the monotonic clock begins with.
        wall_offset_ms: wall time at second 0.

    Attributes:
        wall_offset_ms: milliseconds; a test changes it to let wall time jump.
    """

    def __init__(self, now_s: float = 1_000.0, *, wall_offset_ms: int = EPOCH_MS) -> None:
        self._now_ns = round(now_s * _NS)
        self.wall_offset_ms = wall_offset_ms

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start."""
        return self._now_ns / _NS

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._now_ns // _NS_PER_MS + self.wall_offset_ms

    @property
    def now_s(self) -> float:
        """Value of `monotonic_s`; a test may set it."""
        return self.monotonic_s()

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self._now_ns = round(now_s * _NS)

    def advance(self, seconds: float) -> None:
        """Let time go by."""
        self._now_ns += round(seconds * _NS)
