"""The commit index that one replica knew a while ago: a replica that has not applied it lags.

Rule 1 makes a leader silent until it has applied everything, so a replica that lags by a second's
worth would be silent for about a second. It gets no leadership while other replicas lag less.
"""

from __future__ import annotations

from collections import deque

from strata_runtime.clock import Clock

# Samples in one span: how finely "a while ago" is known.
_SAMPLES = 10


class CommitHistory:
    """Samples of a commit index that only rises.

    Args:
        clock: monotonic time.
        span_ms: how long ago "a while ago" is.
        commit_index: known already, for longer than that.
    """

    __slots__ = ("_clock", "_samples", "_span_s")

    def __init__(self, clock: Clock, span_ms: int, commit_index: int) -> None:
        self._clock = clock
        self._span_s = span_ms / 1000
        # (when, commit index then), both ascending; the first one is older than the span.
        self._samples: deque[tuple[float, int]] = deque([(float("-inf"), commit_index)])

    def saw(self, commit_index: int) -> None:
        """Take note of the commit index now, after it has moved."""
        if commit_index <= self._samples[-1][1]:
            return
        now_s = self._clock.monotonic_s()
        last_s = self._samples[-1][0]
        if now_s - last_s < self._span_s / _SAMPLES:
            # One sample for all of this short time, as of its begin.
            self._samples[-1] = (last_s, commit_index)
            return
        self._samples.append((now_s, commit_index))
        self._forget(now_s)

    def a_while_ago(self) -> int:
        """Return an index that has been committed for at least the span."""
        self._forget(self._clock.monotonic_s())
        return self._samples[0][1]

    def restart(self, commit_index: int) -> None:
        """Begin anew: log and rows were replaced, by what ends there."""
        self._samples = deque([(float("-inf"), commit_index)])

    def _forget(self, now_s: float) -> None:
        while len(self._samples) > 1 and self._samples[1][0] <= now_s - self._span_s:
            self._samples.popleft()
