"""Health of a process: its present problems, shown alike to probes, in the log and in metrics.

A process (broker, nameserver, storage node) reports the problems that it sees at the moment; this
module remembers only enough to log each change once. The reporter of a state decides what it means:
one place for each fact.

Three questions, three answers. *Live*: the event loop runs. *Serves*: calls can be carried out.
*Ready*: it serves and has caught up, so that the next process may be stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from strata_runtime.clock import Clock, SystemClock
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics, MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_problems",
        "gauge",
        "1",
        "Problems that this process sees now, by component, state and severity.",
        ("kind", "state", "severity"),
    ),
    MetricSpec(
        "strata_process_serving", "gauge", "1", "Whether calls can be carried out (1) or not (0)."
    ),
    MetricSpec(
        "strata_process_ready", "gauge", "1", "Whether the process serves and has caught up."
    ),
)

_WORDS = {
    "raft_group": ("raft group", "SERVING"),
    "node": ("node", "UP"),
    "disk": ("disk mark", "NORMAL"),
    "metadata": ("metadata", "FRESH"),
    "nameservers": ("nameservers", "REACHED"),
    "certificate": ("certificate", "VALID"),
    "tier": ("tier", "IN_TIME"),
    "front": ("front process", "SERVING"),
    "process": ("process", "SERVING"),
}
"""By kind of problem: the words of its log lines, and the state when nothing is wrong."""

KINDS = tuple(_WORDS)


class Severity(IntEnum):
    """Severity of a problem.

    NOTE is wanted by somebody (a node is drained). DEGRADED: all works, with less than there
    should be. DOWN: something does not work.
    """

    NOTE = 0
    DEGRADED = 1
    DOWN = 2


class Problem(NamedTuple):
    """One thing that is not as it should be.

    Attributes:
        kind: one of `KINDS`.
        name: which one of these: a raft group's number, a node id.
        state: what it is instead of what it should be, in capitals: LEADERLESS.
        severity: how bad that is.
        detail: for people: why, with counts.
    """

    kind: str
    name: str
    state: str
    severity: Severity
    detail: str

    def line(self) -> str:
        """Return it as one line for people."""
        what = _WORDS[self.kind][0] if self.kind in _WORDS else self.kind
        text = f"{what} {self.name} {self.state}".replace("  ", " ")
        return f"{text}: {self.detail}" if self.detail else text


class Health(NamedTuple):
    """Present health of a process or of a part of it."""

    serves: bool = True
    is_caught_up: bool = True
    problems: tuple[Problem, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Whether the process serves and has caught up."""
        return self.serves and self.is_caught_up


HealthSource = Callable[[], Health]
"""Tells how a part of the process does; asked often, answers from memory."""


class ProcessHealth:
    """How a process does: its members' health, and whether it runs at all.

    Args:
        metrics: shows what was asked last.
    """

    def __init__(self, metrics: Metrics) -> None:
        metrics.declare(METRICS)
        self._sources: list[HealthSource] = []
        self._state = "STARTING"
        metrics.gauge("strata_process_serving", lambda: int(self().serves))
        metrics.gauge("strata_process_ready", lambda: int(self().is_ready))
        metrics.gauge("strata_problems", self._counts)

    def follow(self, source: HealthSource) -> None:
        """Ask a member from now on."""
        self._sources.append(source)

    def running(self) -> None:
        """Everything has started."""
        self._state = ""

    def stopping(self) -> None:
        """The stop begins: no new work comes here."""
        self._state = "STOPPING"

    def __call__(self) -> Health:
        """Return how the process does: it serves when it runs and every member does."""
        parts = [source() for source in self._sources]
        problems = {
            (problem.kind, problem.name): problem for part in parts for problem in part.problems
        }
        if self._state:
            own = Problem("process", "", self._state, Severity.DOWN, "")
            problems[own.kind, own.name] = own
        return Health(
            not self._state and all(part.serves for part in parts),
            not self._state and all(part.is_caught_up for part in parts),
            tuple(problems.values()),
        )

    def _counts(self) -> list[tuple[float, dict[str, str]]]:
        counts = Counter((each.kind, each.state, each.severity) for each in self().problems)
        return [
            (count, {"kind": kind, "state": state, "severity": severity.name.lower()})
            for (kind, state, severity), count in counts.items()
        ]


class HealthLog:
    """Writes a WARNING line when a problem begins, turns into another, and ends.

    Many at once (a node that led thousands of raft groups) are told by a few lines and a count.

    Args:
        component: of the log lines.
        clock: how long problems lasted.
        max_lines: lines of one look.
    """

    def __init__(self, component: str, clock: Clock | None = None, *, max_lines: int = 20) -> None:
        self._log = get_logger(component)
        self._clock = clock or SystemClock()
        self._max_lines = max_lines
        # By kind and name: state, and since when (monotonic).
        self._known: dict[tuple[str, str], tuple[str, float]] = {}

    def take(self, problems: Iterable[Problem]) -> None:
        """Take in all the problems there are now."""
        now_s = self._clock.monotonic_s()
        seen = {(problem.kind, problem.name): problem for problem in problems}
        begun = [
            problem
            for key, problem in seen.items()
            if key not in self._known or self._known[key][0] != problem.state
        ]
        ended = [key for key in self._known if key not in seen]
        for problem in begun[: self._max_lines]:
            self._log.warning(
                f"{_words(problem.kind)[0]} {problem.state}",
                name=problem.name,
                severity=problem.severity.name.lower(),
                reason=problem.detail,
            )
        for kind, name in ended[: self._max_lines]:
            what, state = _words(kind)
            before, since_s = self._known[kind, name]
            self._log.warning(
                f"{what} {state}", name=name, before=before, lasted_s=round(now_s - since_s, 1)
            )
        self._summarise("further problems began", [problem.kind for problem in begun])
        self._summarise("further problems ended", [kind for kind, _ in ended])
        for problem in begun:
            self._known[problem.kind, problem.name] = (problem.state, now_s)
        for key in ended:
            del self._known[key]

    def _summarise(self, event: str, kinds: Sequence[str]) -> None:
        if len(kinds) > self._max_lines:
            self._log.warning(event, **Counter(kinds[self._max_lines :]))


def _words(kind: str) -> tuple[str, str]:
    return _WORDS.get(kind, (kind, "OK"))
