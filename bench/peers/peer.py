"""One system that is measured: what the driver asks of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.errors import PeerError
from bench.peers.processes import Processes, run_load, sampling
from bench.peers.works import Figure, Kind, Phase, Work

RAMP_S = 3
"""Seconds in which a load connects and begins, before it measures."""
LONGEST_DRAIN = 3
"""A drain may take so many times the measured time."""


class Peer(ABC):
    """A system; the driver installs it, starts it, warms it up, loads it and stops it.

    Attributes:
        name: for the command line and the JSON.
        title: for tables; with the version.
        durability: when it answers a send.
        phase: the systems that it is compared with.
        kinds: what it can do.
        warm_up_s: how long it needs until figures repeat.
        is_busy_when_idle: it is paused while others are measured.
    """

    name: str
    title: str
    durability: str
    phase: Phase
    kinds: frozenset[Kind]
    warm_up_s: float = 6.0
    is_busy_when_idle: bool = False

    def __init__(self) -> None:
        self._processes: Processes | None = None

    @property
    def processes(self) -> Processes:
        """The servers, once `start` was called."""
        assert self._processes is not None, "not started"
        return self._processes

    @abstractmethod
    def install(self) -> None:
        """Fetch or build what it needs, unless that is there.

        Raises:
            MissingError: a tool is missing; the text says how to get it.
            PeerError: a tool failed.
        """

    def start(self, folder: Path) -> None:
        """Start all servers on 127.0.0.1 with their data in a folder; return when they serve.

        Raises:
            PeerError: a server ended or does not serve.
        """
        self._processes = Processes(folder)
        self.launch(folder)

    @abstractmethod
    def launch(self, folder: Path) -> None:
        """Start all servers and wait until they serve; see `start`."""

    @abstractmethod
    def prepare(self, work: Work, topic: str, seconds: float) -> None:
        """Create what a load needs, and send what it receives.

        Raises:
            PeerError: it was refused.
        """

    @abstractmethod
    def command(self, work: Work, topic: str, seconds: float) -> Sequence[str]:
        """Return the command of a load generator for a work."""

    @property
    def pids(self) -> list[int]:
        """All server processes."""
        return self.processes.pids

    def check(self) -> None:
        """Check that all servers run.

        Raises:
            PeerError: one has ended.
        """
        self.processes.check()

    def load(self, work: Work, topic: str, seconds: float) -> dict[str, Any]:
        """Do a work; return the report of the load with what the servers used meanwhile.

        Raises:
            PeerError: the work failed, or a server has ended.
        """
        self.check()
        self.prepare(work, topic, seconds)
        with sampling(self.pids) as samples:
            report = run_load(self.command(work, topic, seconds), seconds * LONGEST_DRAIN)
        self.check()
        if not report.get("messages"):
            raise PeerError(f"nothing was done: {report.get('first_error', 'no answer in time')}")
        cpu_s = samples.cpu_between(report["started_at"], report["finished_at"])
        peak_mb = samples.peak_resident_bytes / 1e6
        return compact(report, cpu_s, peak_mb)

    def pause(self) -> None:
        """Take no CPU time until `resume`, if it would take some."""
        if self.is_busy_when_idle:
            self.processes.pause()

    def resume(self) -> None:
        """Run again; does nothing if it runs."""
        if self.is_busy_when_idle:
            self.processes.resume()

    def stop(self) -> None:
        """Stop all servers."""
        if self._processes is not None:
            self._processes.stop()


def window(seconds: float) -> list[str]:
    """Return options of a load generator: what it does before it measures, and how long it does."""
    return ["-warmup", str(RAMP_S), "-seconds", str(seconds)]


def compact(report: dict[str, Any], cpu_s: float, resident_mb: float) -> dict[str, Any]:
    """Return what is kept of a load.

    Args:
        report: what the load generator printed.
        cpu_s: CPU seconds of all servers in the measured time.
        resident_mb: the most memory of all servers together.
    """
    messages = report["messages"]
    kept = {
        "messages": messages,
        Figure.RATE.value: round(report["messages_per_s"], 1),
        Figure.P50.value: report["p50_ms"],
        Figure.P99.value: report["p99_ms"],
        "max_ms": report["max_ms"],
        "server_cpu_s": round(cpu_s, 3),
        Figure.PER_CPU_S.value: round(messages / max(cpu_s, 0.01), 1),
        "client_cpu_s": round(report["client_cpu_s"], 3),
        "servers_resident_mb": round(resident_mb, 1),
        "elapsed_s": round(report["elapsed_s"], 2),
    }
    if report["errors"]:
        kept |= {"errors": report["errors"], "first_error": report.get("first_error", "")[:200]}
    return kept
