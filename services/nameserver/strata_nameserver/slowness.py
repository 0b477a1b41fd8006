"""Which storage nodes are slow: their appends take many times longer than those of their peers.

Soft state of the metadata leader, from heartbeats. A disk that dies slowly answers every
heartbeat, so silence does not show it; raft hides it as long as the node only follows. A slow
node therefore keeps its replicas and loses its leaderships. Compared with peers, not with a fixed
number: what is slow for all, for instance a busy machine, is nobody's fault.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

from strata_runtime.clock import Clock

_WEIGHT = 0.2
_RECOVERED = 0.5
_TRIED_AGAIN_AFTER = 6


@dataclass(frozen=True, slots=True)
class SlownessOptions:
    """When a node is slow.

    Attributes:
        factor: mean append latency, in medians of the other nodes.
        floor_ms: no node is slow below this mean latency.
        after_s: so long it must be so; it must be better for as long to be trusted again. One
            that leads nothing any more shows nothing: it is tried again after six times as long.
    """

    factor: float
    floor_ms: float
    after_s: float


@dataclass(slots=True)
class _Measured:
    """Mean append latency of a node, and since when it says otherwise than `is_slow`."""

    mean_ms: float
    at_s: float
    is_slow: bool = False
    doubted_since_s: float | None = None


class SlowNodes:
    """Mean append latencies of storage nodes.

    Args:
        options: when a node is slow.
        clock: monotonic time.
    """

    def __init__(self, options: SlownessOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._measured: dict[str, _Measured] = {}

    def reset(self) -> None:
        """Forget everything."""
        self._measured.clear()

    def forget(self, node_id: str) -> None:
        """A node is gone or starts anew."""
        self._measured.pop(node_id, None)

    def measured(self, node_id: str, append_latency_ms: float) -> None:
        """Take in what a heartbeat says; 0 means that nothing was appended."""
        if append_latency_ms <= 0:
            return
        now_s = self._clock.monotonic_s()
        known = self._measured.setdefault(node_id, _Measured(append_latency_ms, now_s))
        known.at_s = now_s
        known.mean_ms += (append_latency_ms - known.mean_ms) * _WEIGHT

    def judge(self) -> Collection[str]:
        """Return the slow nodes."""
        now_s = self._clock.monotonic_s()
        for node_id, known in list(self._measured.items()):
            if now_s - known.at_s >= _TRIED_AGAIN_AFTER * self._options.after_s:
                del self._measured[node_id]
            elif self._looks_slow(node_id, known) == known.is_slow:
                known.doubted_since_s = None
            elif known.doubted_since_s is None:
                known.doubted_since_s = now_s
            elif now_s - known.doubted_since_s >= self._options.after_s:
                known.is_slow = not known.is_slow
                known.doubted_since_s = None
        return {node_id for node_id, known in self._measured.items() if known.is_slow}

    def _looks_slow(self, node_id: str, known: _Measured) -> bool:
        others = [each.mean_ms for other, each in self._measured.items() if other != node_id]
        if not others:
            return False
        limit_ms = max(self._options.floor_ms, self._options.factor * median(others))
        # A slow node leads nothing, so it must be much better before it is trusted again.
        return known.mean_ms > limit_ms * (_RECOVERED if known.is_slow else 1.0)
