"""Finds slow storage nodes, by two rules over their heartbeats; soft state of the leader.

A slowly dying disk answers every heartbeat, so silence does not show it; raft hides it as long as
the node only follows. A slow node therefore keeps its replicas and loses its leaderships, and gets
no new ones and no new queues.

1. At once: appends take many times longer than those of its peers (`PeerComparison`). Not a fixed
   number: what is slow for all, for instance a busy machine, is nobody's fault.
2. After some minutes of learning: appends, syncs or answers take longer than those of its peers at
   this load, and than its own did (`strata_runtime.failslow`, on windows of ten seconds). It finds
   a node while it is several times faster than rule 1 asks for. One that leads nothing any more has
   no appends, so what those showed holds for a while.

The other nodes measure how long a node's answers take, whatever it leads: a slow network shows
there. The fastest measurement is believed, since a slow node finds all others slow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median

from strata.meta.v1 import meta_pb2
from strata_runtime.clock import Clock
from strata_runtime.failslow import FailSlowDetector, FailSlowOptions, NodeWindow, SlowNode

_WEIGHT = 0.2
_RECOVERED = 0.5
_TRIED_AGAIN_AFTER = 6
_WINDOW_S = 10.0
_APPEND = "append"
_APPENDS_HOLD_S = 600.0
# One alone cannot tell whether it is slow or the other one.
_MIN_WITNESSES = 2


@dataclass(frozen=True, slots=True)
class SlownessOptions:
    """When a node is slow.

    Attributes:
        factor: mean append latency, in medians of the other nodes.
        floor_ms: no node is slow below this mean latency.
        after_s: so long it must be so; it must be better for as long to be trusted again. One
            that leads nothing any more shows nothing: it is tried again after six times as long.
        learned: the second rule; None: it is off.
    """

    factor: float
    floor_ms: float
    after_s: float
    learned: FailSlowOptions | None = None


class SlowNodes:
    """See the module docstring.

    Args:
        options: when a node is slow.
        clock: monotonic time.
    """

    def __init__(self, options: SlownessOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._peers = PeerComparison(options, clock)
        self._learned = self._learner()

    def reset(self) -> None:
        """Forget everything."""
        self._peers = PeerComparison(self._options, self._clock)
        self._learned = self._learner()

    def forget(self, node_id: str) -> None:
        """A node is gone or starts anew."""
        self._peers.forget(node_id)
        if self._learned is not None:
            self._learned.forget(node_id)

    def silent(self, node_id: str) -> None:
        """A node is not heard; what it is like when it is well stays known.

        One whose network is slow is late with its heartbeats, too.
        """
        self._peers.forget(node_id)

    def measured(self, node_id: str, load: meta_pb2.StorageLoad) -> None:
        """Take in what a heartbeat says; latencies of 0 mean that there was nothing to measure."""
        self._peers.measured(node_id, load.append_latency_ms)
        if self._learned is not None:
            self._learned.measured(node_id, load)

    def judge(self) -> Mapping[str, str]:
        """Return the slow nodes, each with why it is taken for slow."""
        slow = self._learned.judge() if self._learned is not None else {}
        return slow | self._peers.judge()

    def _learner(self) -> _LearnedRule | None:
        learned = self._options.learned
        return _LearnedRule(learned, self._clock) if learned is not None else None


@dataclass(slots=True)
class _Measured:
    """Mean append latency of a node, and since when it says otherwise than `is_slow`."""

    mean_ms: float
    at_s: float
    is_slow: bool = False
    doubted_since_s: float | None = None


class PeerComparison:
    """The first rule: mean append latencies against the median of the others."""

    def __init__(self, options: SlownessOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._measured: dict[str, _Measured] = {}

    def forget(self, node_id: str) -> None:
        """A node is gone or starts anew."""
        self._measured.pop(node_id, None)

    def measured(self, node_id: str, append_latency_ms: float) -> None:
        """Take in a mean; 0 means that nothing was appended."""
        if append_latency_ms <= 0:
            return
        now_s = self._clock.monotonic_s()
        known = self._measured.setdefault(node_id, _Measured(append_latency_ms, now_s))
        known.at_s = now_s
        known.mean_ms += (append_latency_ms - known.mean_ms) * _WEIGHT

    def judge(self) -> dict[str, str]:
        """Return the slow nodes, each with why."""
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
        return {
            node_id: f"appends take {known.mean_ms:.0f} ms, those of the others "
            f"{self._median_of_others(node_id):.0f} ms"
            for node_id, known in self._measured.items()
            if known.is_slow
        }

    def _looks_slow(self, node_id: str, known: _Measured) -> bool:
        others = self._median_of_others(node_id)
        if not others:
            return False
        limit_ms = max(self._options.floor_ms, self._options.factor * others)
        # A slow node leads nothing, so it must be much better before it is trusted again.
        return known.mean_ms > limit_ms * (_RECOVERED if known.is_slow else 1.0)

    def _median_of_others(self, node_id: str) -> float:
        others = [each.mean_ms for other, each in self._measured.items() if other != node_id]
        return median(others) if others else 0.0


@dataclass(slots=True)
class _Open:
    """Values from a node's heartbeats in the window that is open."""

    # Others may tell of a node that does not report itself.
    has_reported: bool = False
    size_bytes: int = 0
    append_ms: list[float] = field(default_factory=list)
    sync_ms: list[float] = field(default_factory=list)
    # By the node that was answered.
    answer_ms: dict[str, list[float]] = field(default_factory=dict)

    def answer_latency_ms(self) -> float:
        """Return the mean that the fastest witness saw; 0: there are too few."""
        if len(self.answer_ms) < _MIN_WITNESSES:
            return 0.0
        return min(map(_mean, self.answer_ms.values()))


class _LearnedRule:
    """The second rule: heartbeats to windows, windows to the detector."""

    def __init__(self, options: FailSlowOptions, clock: Clock) -> None:
        self._clock = clock
        self._detector = FailSlowDetector(options)
        self._open: dict[str, _Open] = {}
        self._since_s = clock.monotonic_s()
        self._slow: dict[str, SlowNode] = {}
        # Latencies of nodes that have reported, in the last window in which they did.
        self._load_bytes_per_s: dict[str, float] = {}
        # Nodes that showed slow appends and lead nothing since -> until when that holds
        self._holds_until_s: dict[str, float] = {}

    def forget(self, node_id: str) -> None:
        """A node is gone or starts anew."""
        self._detector.forget(node_id)
        self._open.pop(node_id, None)
        self._slow.pop(node_id, None)
        self._load_bytes_per_s.pop(node_id, None)
        self._holds_until_s.pop(node_id, None)

    def measured(self, node_id: str, load: meta_pb2.StorageLoad) -> None:
        """Take in what a heartbeat says."""
        self._close()
        window = self._open.setdefault(node_id, _Open())
        window.has_reported = True
        window.size_bytes += load.appended_bytes + load.served_bytes
        if load.append_latency_ms > 0:
            window.append_ms.append(load.append_latency_ms)
        if load.sync_latency_ms > 0:
            window.sync_ms.append(load.sync_latency_ms)
        for peer in load.answers:
            answered = self._open.setdefault(peer.node_id, _Open()).answer_ms
            answered.setdefault(node_id, []).append(peer.latency_ms)

    def judge(self) -> dict[str, str]:
        """Return the slow nodes, each with why."""
        self._close()
        return {
            node_id: f"{slow.signal}s take {slow.times_expected:.1f} times what its peers need at "
            "this load, and more than it needed itself"
            for node_id, slow in self._slow.items()
        }

    def _close(self) -> None:
        """Judge the window if it has ended."""
        now_s = self._clock.monotonic_s()
        length_s = now_s - self._since_s
        if length_s < _WINDOW_S:
            return
        for node_id, window in self._open.items():
            if window.has_reported:
                self._load_bytes_per_s[node_id] = window.size_bytes / length_s
        windows = [
            NodeWindow(
                node_id,
                self._clock.wall_ms() - round(length_s * 1_000),
                self._load_bytes_per_s[node_id],
                _mean(window.append_ms),
                _mean(window.sync_ms),
                window.answer_latency_ms(),
            )
            for node_id, window in sorted(self._open.items())
            # If its heartbeats do not come through, the reports of other nodes are all there is.
            if node_id in self._load_bytes_per_s
        ]
        self._open, self._since_s = {}, now_s
        found = {slow.node_id: slow for slow in self._detector.observe(windows)}
        silent = {window.node_id for window in windows if not window.append_ms}
        self._slow = found | self._held(found, silent, now_s)

    def _held(
        self, found: Collection[str], silent: Collection[str], now_s: float
    ) -> dict[str, SlowNode]:
        """Return the nodes that only stopped to show it: they append nothing any more."""
        for node_id, slow in self._slow.items():
            if node_id in found or node_id not in silent or slow.signal != _APPEND:
                self._holds_until_s.pop(node_id, None)
            else:
                self._holds_until_s.setdefault(node_id, now_s + _APPENDS_HOLD_S)
        held = {node for node, until_s in self._holds_until_s.items() if now_s < until_s}
        self._holds_until_s = {node: self._holds_until_s[node] for node in held}
        return {node: slow for node, slow in self._slow.items() if node in held}


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values) if values else 0.0
