"""Group time: the one clock of a raft group (rule 4).

The leader stamps it into entries. It never goes back, even under a new leader, which starts at or
above the last committed stamp. Within a term it follows the monotonic clock and is slewed towards
wall time by at most 0.1 %, so a jump of the wall clock moves no deadline at once. This module reads
no clock: both readings are passed in.
"""

from __future__ import annotations

SLEW_MAX = 0.001
"""Most that group time may run faster or slower than the monotonic clock."""

_MS_PER_S = 1000.0


class GroupTime:
    """Group time of one raft group on one node."""

    __slots__ = ("_anchor_s", "_last_ms", "_time_ms")

    def __init__(self, last_stamp_ms: int = 0) -> None:
        """Start after the last stamp known from the applied row."""
        self._last_ms = last_stamp_ms
        # Where the clock of the current term is, and the monotonic time of that reading.
        self._time_ms = 0.0
        self._anchor_s: float | None = None

    @property
    def last_ms(self) -> int:
        """Latest time given or observed."""
        return self._last_ms

    def observe(self, stamp_ms: int) -> None:
        """Take in the stamp of an entry, from whichever leader."""
        self._last_ms = max(self._last_ms, stamp_ms)

    def start_term(self, monotonic_s: float, wall_ms: int) -> None:
        """Start over as the leader of a new term, from max(last stamp, wall time)."""
        self._time_ms = float(max(self._last_ms, wall_ms))
        self._anchor_s = monotonic_s

    def now(self, monotonic_s: float, wall_ms: int) -> int:
        """Return group time in ms; the first call without `start_term` starts a term."""
        if self._anchor_s is None:
            self.start_term(monotonic_s, wall_ms)
        else:
            elapsed_ms = max(0.0, (monotonic_s - self._anchor_s) * _MS_PER_S)
            target_ms = self._time_ms + elapsed_ms
            slew_ms = SLEW_MAX * elapsed_ms
            self._time_ms = target_ms + min(max(wall_ms - target_ms, -slew_ms), slew_ms)
            self._anchor_s = max(self._anchor_s, monotonic_s)
        self._last_ms = max(self._last_ms, int(self._time_ms))
        return self._last_ms
