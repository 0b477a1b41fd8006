"""The tools of a row: a node, load on it, and samples of its CPU time and memory.

The load generator reports the wall-clock window that it measured. The server's CPU time in that
window comes from samples that are taken all the time, so that warm-up and start of the client are
left out.
"""

from __future__ import annotations

import bisect
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.process import cpu_seconds, resident_bytes
from tests.e2e.standalone import HOST, Standalone
from tests.parts.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
LOAD = ROOT / "build" / "bench" / "load"
BASELINE = ROOT / "bench" / "edge_baseline.py"
ENGINE = ROOT / "bench" / "engine.py"
SAMPLE_INTERVAL_S = 0.05
QUEUES = 8
# Beyond its measured time a load warms up, connects, and waits for what is under way.
LOAD_GRACE_S = 60.0


class LoadError(Exception):
    """A measuring program failed or got nothing through; the text is what it printed."""


@dataclass
class Samples:
    """CPU time and memory of a process tree over wall-clock time."""

    pid: int
    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak_resident_bytes: int = 0

    def take(self) -> None:
        """Add a sample."""
        self.times.append(time.time())
        self.cpu.append(cpu_seconds(self.pid))
        self.peak_resident_bytes = max(self.peak_resident_bytes, resident_bytes(self.pid))

    def cpu_between(self, start: float, end: float) -> float:
        """Return the CPU seconds used in a window of wall-clock time."""
        first = min(bisect.bisect_left(self.times, start), len(self.times) - 1)
        last = min(bisect.bisect_left(self.times, end), len(self.times) - 1)
        return self.cpu[last] - self.cpu[first]


@contextmanager
def sampling(pid: int) -> Iterator[Samples]:
    """Sample a process tree while the block runs."""
    samples = Samples(pid)
    done = threading.Event()

    def loop() -> None:
        while not done.wait(SAMPLE_INTERVAL_S):
            samples.take()

    samples.take()
    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()
        samples.take()


class Bench:
    """The shared node, made when a row first needs it, and loads on it.

    Args:
        folder: where nodes keep their data; on the disk that is to be measured.
        endpoint: a node that runs already, or None.
        seconds: the measured time of a load.
    """

    def __init__(self, folder: Path, endpoint: str | None, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self._endpoint = endpoint
        self._node: Standalone | None = None
        self._names = itertools.count(1)

    def fresh_node(self) -> Standalone:
        """Return a node over an empty folder, not started; the caller closes it."""
        return Standalone(self.folder / f"data-{next(self._names)}")

    def new_topic(self, *options: str) -> str:
        """Create a topic with eight queues on the shared node, with CLI options."""
        node = self._shared()
        return node.create_topic(f"bench-{next(self._names)}", "--queues", str(QUEUES), *options)

    def load(self, *options: str) -> dict[str, Any]:
        """Put a load on the shared node; return its report with the server's CPU and memory."""
        node = self._shared()
        if self._endpoint:
            return self._run_load(node.endpoint, options)
        with sampling(node.pid) as samples:
            report = self._run_load(node.endpoint, options)
        return with_server(report, samples)

    def load_baseline(self, *options: str) -> dict[str, Any]:
        """Put a load on a servicer that answers at once behind the same edge."""
        port = free_port()
        lifetime_s = int(self.seconds + LOAD_GRACE_S)
        command = [sys.executable, str(BASELINE), "--port", str(port)]
        command += ["--seconds", str(lifetime_s)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                server.stdout.readline()  # it prints the port when it serves
                with sampling(server.pid) as samples:
                    report = self._run_load(f"{HOST}:{port}", options)
            finally:
                server.terminate()
        return with_server(report, samples)

    def close(self) -> None:
        """End the shared node."""
        if self._node is not None:
            self._node.close()

    def _shared(self) -> Standalone:
        if self._node is None:
            port = int(self._endpoint.rpartition(":")[2]) if self._endpoint else None
            node = Standalone(self.folder / "data", port)
            if self._endpoint:
                node.endpoint = self._endpoint
            else:
                node.start()
            self._node = node
        return self._node

    def run_engine(self) -> dict[str, Any]:
        """Measure the storage engine alone, in a process of its own."""
        command = [sys.executable, str(ENGINE), "--folder", str(self.folder)]
        # It measures several things, each for so long.
        return run_json([*command, "--seconds", str(self.seconds)], 10 * self.seconds)

    def _run_load(self, endpoint: str, options: tuple[str, ...]) -> dict[str, Any]:
        command = [str(LOAD), "-endpoint", endpoint, "-seconds", str(self.seconds), *options]
        return run_json(command, self.seconds)


def run_json(command: list[str], seconds: float) -> dict[str, Any]:
    """Run a program that should take so long and prints one JSON object.

    Raises:
        LoadError: it failed.
    """
    timeout_s = seconds + LOAD_GRACE_S
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise LoadError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    report = json.loads(done.stdout)
    assert isinstance(report, dict)
    return report


def with_server(report: dict[str, Any], samples: Samples) -> dict[str, Any]:
    """Return a report with what the server used in the measured window."""
    cpu_s = samples.cpu_between(report["started_at"], report["finished_at"])
    messages = max(report["messages"], 1)
    return {
        **report,
        "server_cpu_s": round(cpu_s, 3),
        "server_cpu_us_per_message": round(cpu_s / messages * 1e6, 2),
        "server_peak_resident_mb": round(samples.peak_resident_bytes / 1e6, 1),
    }
