"""Fail-slow faults injected into generated windows: how many are found, how soon, and how falsely.

Healthy nodes follow a load with a daily wave; their latencies rise with the load, have noise and
single outliers, and now and then the whole cluster is slow for some minutes. A fault begins at
random, grows for `ramp_windows`, stays and ends. It is harmful once the node's appends take
`harm_factor` times as long as they would without it; the lead time is what detection gains on that
(negative: it came later).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from statistics import median

from strata_runtime.failslow import FailSlowDetector, FailSlowOptions, NodeWindow

_WINDOW_MS = 10_000
_DAY = 8_640


class FaultKind(StrEnum):
    """Kind of a fault."""

    DISK = "throttled disk"
    NETWORK = "delayed network"
    CPU = "busy core"


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """Settings of the generated latencies; windows are of ten seconds.

    Attributes:
        nodes: how many.
        windows: how long the trial is.
        faults: how many are injected, one at a time.
        fault_windows: how long each lasts.
        ramp_windows: how long each grows.
        factor: by which latencies have grown at the end of the ramp.
        harm_factor: see the module docstring.
        warm_windows: no fault before.
        clear_windows: an alarm so soon after a fault is still that fault's.
    """

    nodes: int = 6
    windows: int = 8_640
    faults: int = 12
    fault_windows: int = 120
    ramp_windows: int = 40
    factor: float = 8.0
    harm_factor: float = 5.0
    warm_windows: int = 600
    clear_windows: int = 12
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault."""

    kind: FaultKind
    node: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Score of a detection.

    Attributes:
        found, missed: faults.
        false_alarms: runs of alarms of a node that had no fault.
        lead_windows: median over faults found of windows gained on the harm.
        delay_windows: median over faults found of windows from the fault's beginning.
    """

    found: int
    missed: int
    false_alarms: int
    lead_windows: float
    delay_windows: float

    @property
    def precision(self) -> float:
        """Share of the alarms that were right; 1.0 when there was none."""
        alarms = self.found + self.false_alarms
        return self.found / alarms if alarms else 1.0

    @property
    def recall(self) -> float:
        """Share of the faults that were found; 1.0 when there was none."""
        faults = self.found + self.missed
        return self.found / faults if faults else 1.0


def run_trial(options: TrialOptions, detection: FailSlowOptions) -> TrialResult:
    """Generate, detect, count."""
    random = Random(options.seed)  # noqa: S311 (a trial to repeat, guards nothing)
    faults = _faults(random, options)
    detector = FailSlowDetector(detection)
    first_alarm: dict[Fault, int] = {}
    falsely: set[str] = set()
    false_alarms = 0
    for number, windows in enumerate(_windows(random, options, faults)):
        alarmed = {slow.node_id for slow in detector.observe(windows)}
        explained = set()
        for fault in faults:
            if fault.first <= number < fault.end + options.clear_windows:
                explained.add(_name(fault.node))
                if _name(fault.node) in alarmed:
                    first_alarm.setdefault(fault, number)
        wrong = alarmed - explained
        false_alarms += len(wrong - falsely)
        falsely = wrong
    harm_after = options.ramp_windows * math.log(options.harm_factor) / math.log(options.factor)
    delays = [alarm - fault.first for fault, alarm in first_alarm.items()]
    delay = float(median(delays)) if delays else 0.0
    return TrialResult(
        len(first_alarm),
        len(faults) - len(first_alarm),
        false_alarms,
        harm_after - delay if delays else 0.0,
        delay,
    )


def _faults(random: Random, options: TrialOptions) -> list[Fault]:
    if not options.faults:
        return []
    room = (options.windows - options.warm_windows) // options.faults
    faults = []
    for number in range(options.faults):
        first = options.warm_windows + number * room
        first += random.randrange(max(1, room - 2 * options.fault_windows))
        node = random.randrange(options.nodes)
        kind = random.choice(list(FaultKind))
        faults.append(Fault(kind, node, first, first + options.fault_windows))
    return faults


def _windows(
    random: Random, options: TrialOptions, faults: Sequence[Fault]
) -> Iterator[list[NodeWindow]]:
    # A source of its own: the other latencies of a seed stay as they are.
    answers = Random(options.seed)  # noqa: S311
    skill = [random.uniform(0.85, 1.2) for _ in range(options.nodes)]
    busy_until, busy = 0, 1.0
    for number in range(options.windows):
        if number >= busy_until:
            busy = 1.0
            if random.random() < 0.001:
                busy, busy_until = random.uniform(2.0, 6.0), number + random.randint(6, 30)
        wave = 0.55 + 0.35 * math.sin(2 * math.pi * number / _DAY)
        row = []
        for node in range(options.nodes):
            share = min(0.95, wave * skill[node] * math.exp(random.gauss(0, 0.1)))
            outlier = random.uniform(3, 10) if random.random() < 0.003 else 1.0
            slow = busy * outlier / (1 - 0.7 * share)
            sync = 3.0 * slow * math.exp(random.gauss(0, 0.12))
            append = sync + 1.5 * slow * math.exp(random.gauss(0, 0.12))
            answer = 1.2 * slow * math.exp(answers.gauss(0, 0.12))
            for fault in faults:
                if fault.node == node and fault.first <= number < fault.end:
                    growth = _growth(fault, number, options)
                    append, sync, answer = _hurt((append, sync, answer), growth, fault.kind)
            load, start_ms = share * 120e6, number * _WINDOW_MS
            row.append(NodeWindow(_name(node), start_ms, load, append, sync, answer))
        yield row


def _growth(fault: Fault, number: int, options: TrialOptions) -> float:
    grown = min(1.0, (number - fault.first + 1) / options.ramp_windows)
    return math.pow(options.factor, grown)


def _hurt(
    latencies: tuple[float, float, float], growth: float, kind: FaultKind
) -> tuple[float, float, float]:
    append, sync, answer = latencies
    match kind:
        case FaultKind.DISK:
            return append + sync * (growth - 1), sync * growth, answer
        case FaultKind.NETWORK:
            return append * growth, sync, answer * growth
        case FaultKind.CPU:
            return append * growth, sync * math.sqrt(growth), answer * growth


def _name(node: int) -> str:
    return f"node-{node}"
