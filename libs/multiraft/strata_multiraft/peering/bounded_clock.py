"""Clock of a node for its leaders, kept within bounds of the other nodes' clocks (rule 4).

Leaders stamp entries from it, so a wrong clock must not move group time. Between two comparisons it
follows monotonic time. A jump of the node's own clock is held back until the comparison, which uses
the last few heartbeats, can have noticed it.
"""

from __future__ import annotations

from strata_runtime.clock import Clock

_JUMP_MS = 50.0
_MS_PER_S = 1_000.0


class BoundedClock:
    """See the module docstring; a `strata_runtime.clock.Clock`.

    Args:
        clock: of the node.
        max_skew_ms: how far from the median of all nodes it may be.
        notice_s: after so long a jump shows in the comparison.
    """

    def __init__(self, clock: Clock, *, max_skew_ms: int, notice_s: float) -> None:
        self._clock = clock
        self._max_skew_ms = max_skew_ms
        self._notice_s = notice_s
        # Wall time minus monotonic time: as it was at the last comparison, and within bounds.
        self._offset_ms: float | None = None
        self._bounded_offset_ms = 0.0
        self._held_until_s = 0.0

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start."""
        return self._clock.monotonic_s()

    def wall_ms(self) -> int:
        """Milliseconds since 1970; before the first comparison as the node's clock says."""
        if self._offset_ms is None:
            return self._clock.wall_ms()
        return int(self._clock.monotonic_s() * _MS_PER_S + self._bounded_offset_ms)

    def compared(self, skew_ms: int) -> None:
        """Take in how far the node's clock is from the median of all nodes' clocks."""
        now_s = self._clock.monotonic_s()
        offset_ms = self._clock.wall_ms() - now_s * _MS_PER_S
        if self._offset_ms is not None and abs(offset_ms - self._offset_ms) > _JUMP_MS:
            self._held_until_s = now_s + self._notice_s
        self._offset_ms = offset_ms
        if now_s >= self._held_until_s:
            within_ms = min(max(skew_ms, -self._max_skew_ms), self._max_skew_ms)
            self._bounded_offset_ms = offset_ms - (skew_ms - within_ms)
