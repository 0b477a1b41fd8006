"""Fail-slow detection: a node that does the same work as others, only much slower.

For each latency (appends, syncs, answers to other nodes) the logarithm is a quadratic function of
the logarithm of the load: one regression over the node's peers, one over its own past, both with
old windows forgotten exponentially. A window is suspicious when its latency is above the band of
both: above its peers at the same load, and above its own past. A slowdown of all nodes at once (a
busy machine) shifts the peers' residuals too and is subtracted. A score counts suspicious windows
up and other windows down, so single outliers have no effect; suspicious windows are not learned
from.

Only sums are kept per node (moments of the regression), so the cost of a window does not depend on
the history. Pure: callers pass windows in the order of time. The nameserver runs it on heartbeats,
jobs run it on metric windows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

_SIGNALS = ("append", "sync", "answer")
_LOAD_UNIT = 1e6


@dataclass(frozen=True, slots=True)
class NodeWindow:
    """How one storage node did in one window.

    Attributes:
        load_bytes_per_s: what it stored and handed out.
        append_ms: how long its appends took, 95th percentile or mean; 0: there was none.
        sync_ms: likewise fdatasync; 0: there was none.
        answer_ms: how long its answers to other nodes took, as these measured it; 0: not known.
    """

    node_id: str
    start_ms: int
    load_bytes_per_s: float
    append_ms: float
    sync_ms: float
    answer_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class FailSlowOptions:
    """When a node is slow.

    Attributes:
        memory_windows: windows after which a window counts 1/e of a new one.
        warm_windows: windows needed before a regression is believed.
        band: width of the band, in standard deviations of the residuals.
        min_deviation: standard deviation that is assumed at least, of the logarithm.
        floor_ms: nothing faster is ever suspicious.
        slow_score: windows, less those in between that were fine, that make a node slow.
        max_slow_share: more of the nodes are never called slow: then it is the cluster.
    """

    memory_windows: float = 720.0
    warm_windows: float = 60.0
    band: float = 4.0
    min_deviation: float = 0.1
    floor_ms: float = 2.0
    slow_score: int = 4
    max_slow_share: float = 0.34


@dataclass(frozen=True, slots=True)
class SlowNode:
    """A node that is slow.

    Attributes:
        since_ms: wall time of the first window of the suspicion.
        signal: `append`, `sync` or `answer`.
        times_expected: latency / what its peers need at that load.
    """

    node_id: str
    since_ms: int
    signal: str
    times_expected: float


@dataclass(slots=True)
class _Moments:
    """Sums of a quadratic regression; they add up and fade."""

    x: list[float] = field(default_factory=lambda: [0.0] * 5)
    y: list[float] = field(default_factory=lambda: [0.0] * 3)
    yy: float = 0.0

    def add(self, x: float, y: float) -> None:
        """Take in one window."""
        for power in range(5):
            self.x[power] += x**power
        for power in range(3):
            self.y[power] += y * x**power
        self.yy += y * y

    def fade(self, factor: float) -> None:
        """Let what is known count less."""
        self.x = [value * factor for value in self.x]
        self.y = [value * factor for value in self.y]
        self.yy *= factor

    @property
    def count(self) -> float:
        """Windows that are remembered."""
        return self.x[0]


class FailSlowDetector:
    """See the module docstring."""

    def __init__(self, options: FailSlowOptions) -> None:
        self._options = options
        self._fade = math.exp(-1.0 / options.memory_windows)
        self._moments: dict[str, dict[str, _Moments]] = {signal: {} for signal in _SIGNALS}
        self._score: dict[str, int] = {}
        self._suspected: dict[str, SlowNode] = {}
        self._slow: dict[str, SlowNode] = {}

    def observe(self, windows: Sequence[NodeWindow]) -> list[SlowNode]:
        """Take in the windows of all nodes over one time; return those that are slow now."""
        suspicious: dict[str, SlowNode] = {}
        for signal in _SIGNALS:
            for slow in self._suspicious(signal, windows):
                known = suspicious.get(slow.node_id)
                if known is None or known.times_expected < slow.times_expected:
                    suspicious[slow.node_id] = slow
        self._learn(windows, suspicious)
        for window in windows:
            self._count(window.node_id, suspicious.get(window.node_id))
        if len(self._slow) > self._options.max_slow_share * max(1, len(windows)):
            return []
        return [self._slow[node_id] for node_id in sorted(self._slow)]

    def forget(self, node_id: str) -> None:
        """A node is gone or starts anew."""
        for moments in self._moments.values():
            moments.pop(node_id, None)
        self._score.pop(node_id, None)
        self._suspected.pop(node_id, None)
        self._slow.pop(node_id, None)

    def _count(self, node_id: str, found: SlowNode | None) -> None:
        most = 2 * self._options.slow_score
        score = self._score.get(node_id, 0) + (1 if found is not None else -1)
        score = self._score[node_id] = min(max(score, 0), most)
        if found is not None:
            first = self._suspected.setdefault(node_id, found)
            if score >= self._options.slow_score or node_id in self._slow:
                self._slow[node_id] = SlowNode(
                    node_id, first.since_ms, found.signal, found.times_expected
                )
        elif not score:
            self._suspected.pop(node_id, None)
            self._slow.pop(node_id, None)

    def _suspicious(self, signal: str, windows: Sequence[NodeWindow]) -> list[SlowNode]:
        known = self._moments[signal]
        residuals: dict[str, tuple[float, float, float]] = {}
        everything = _sum(known.values())
        for window in windows:
            latency = _latency(window, signal)
            own = known.get(window.node_id)
            if latency < self._options.floor_ms or own is None:
                continue
            peers = _fit(_less(everything, own), self._options)
            itself = _fit(own, self._options)
            if peers is None or itself is None:
                continue
            x, y = _load(window), math.log(latency)
            above = y - peers.expected(x)
            residuals[window.node_id] = (above, peers.deviation, itself.above_band(x, y))
        found = []
        for window in windows:
            if window.node_id not in residuals:
                continue
            above, deviation, above_itself = residuals[window.node_id]
            common = self._common(residuals, window.node_id)
            if above - common > self._options.band * deviation and above_itself > common:
                times = math.exp(above - common)
                found.append(SlowNode(window.node_id, window.start_ms, signal, times))
        return found

    def _common(self, residuals: Mapping[str, tuple[float, float, float]], node_id: str) -> float:
        """Return how much slower the peers are than usual, in this window."""
        others = [above for other, (above, _, _) in residuals.items() if other != node_id]
        return max(0.0, median(others)) if others else 0.0

    def _learn(self, windows: Sequence[NodeWindow], suspicious: Collection[str]) -> None:
        for signal in _SIGNALS:
            known = self._moments[signal]
            for window in windows:
                latency = _latency(window, signal)
                moments = known.setdefault(window.node_id, _Moments())
                moments.fade(self._fade)
                if latency > 0 and window.node_id not in suspicious:
                    moments.add(_load(window), math.log(latency))


@dataclass(frozen=True, slots=True)
class _Fit:
    """A regression: coefficients by power, and the band around it."""

    coefficients: tuple[float, float, float]
    deviation: float
    band: float

    def expected(self, x: float) -> float:
        a, b, c = self.coefficients
        return a + b * x + c * x * x

    def above_band(self, x: float, y: float) -> float:
        """Return how far a value lies above the band; negative: it does not."""
        return y - self.expected(x) - self.band * self.deviation


def _fit(moments: _Moments, options: FailSlowOptions) -> _Fit | None:
    """Return the regression of what is remembered; None: too little is."""
    if moments.count < options.warm_windows:
        return None
    x, y = moments.x, moments.y
    # A ridge keeps the curve flat where all loads were alike; it is small against the sums.
    ridge = 1e-3 * moments.count
    rows = [
        [x[0], x[1], x[2], y[0]],
        [x[1], x[2] + ridge, x[3], y[1]],
        [x[2], x[3], x[4] + ridge, y[2]],
    ]
    a, b, c = _solve(rows)
    squares = moments.yy - a * y[0] - b * y[1] - c * y[2]
    deviation = math.sqrt(max(0.0, squares) / moments.count)
    return _Fit((a, b, c), max(deviation, options.min_deviation), options.band)


def _solve(rows: list[list[float]]) -> list[float]:
    """Return the solution of linear equations; each row ends with its right side."""
    size = len(rows)
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(rows[row][at]))
        rows[at], rows[pivot] = rows[pivot], rows[at]
        for row in range(size):
            if row != at:
                factor = rows[row][at] / rows[at][at]
                pairs = zip(rows[row], rows[at], strict=True)
                rows[row] = [mine - factor * other for mine, other in pairs]
    return [rows[at][size] / rows[at][at] for at in range(size)]


def _sum(all_moments: Collection[_Moments]) -> _Moments:
    total = _Moments()
    for moments in all_moments:
        total.x = [a + b for a, b in zip(total.x, moments.x, strict=True)]
        total.y = [a + b for a, b in zip(total.y, moments.y, strict=True)]
        total.yy += moments.yy
    return total


def _less(total: _Moments, own: _Moments) -> _Moments:
    return _Moments(
        [a - b for a, b in zip(total.x, own.x, strict=True)],
        [a - b for a, b in zip(total.y, own.y, strict=True)],
        total.yy - own.yy,
    )


def _load(window: NodeWindow) -> float:
    return math.log1p(window.load_bytes_per_s / _LOAD_UNIT)


def _latency(window: NodeWindow, signal: str) -> float:
    match signal:
        case "append":
            return window.append_ms
        case "sync":
            return window.sync_ms
        case _:
            return window.answer_ms
