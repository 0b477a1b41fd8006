"""Server processes of a system, their CPU time, and load generators."""

from __future__ import annotations

import bisect
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.peers.errors import PeerError
from tests.parts.ports import HOST

STOP_LIMIT_S = 20.0
STEP_S = 0.1
SAMPLE_INTERVAL_S = 0.1
LOAD_GRACE_S = 60.0
LOG_TAIL_BYTES = 1_500
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Processes:
    """Servers that run in a folder, each with a log there; they are stopped by their ids.

    Args:
        folder: an existing folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> list[int]:
        """Their ids."""
        return [each.pid for each in self._running.values()]

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a server; its output goes to NAME.log."""
        with self._log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={**os.environ, **(environment or {})},
                # An interrupt of the terminal ends the run, which then stops the servers in order.
                start_new_session=True,
            )

    def check(self) -> None:
        """Check that all servers run.

        Raises:
            PeerError: one has ended; the text has the end of its log.
        """
        for name, process in self._running.items():
            if process.poll() is not None:
                log = self._log(name).read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
                raise PeerError(f"{name} ended with {process.returncode}: {log}")

    def wait(self, what: str, holds: Callable[[], bool], limit_s: float) -> None:
        """Wait until something holds.

        Args:
            what: for the error.
            holds: whether it holds; a connection that fails means "not yet".
            limit_s: seconds.

        Raises:
            PeerError: it did not hold in time, or a server has ended.
        """
        ends_s = time.monotonic() + limit_s
        while True:
            self.check()
            last = ""
            try:
                if holds():
                    return
            except (OSError, PeerError) as error:
                last = f" ({error})"
            if time.monotonic() > ends_s:
                raise PeerError(f"{what}: not in {limit_s:.0f} s{last}")
            time.sleep(STEP_S)

    def pause(self) -> None:
        """Keep all servers from running until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let all servers run again; does nothing to those that run."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.send_signal(number)

    def stop(self) -> None:
        """Stop all servers, the last first; one that does not obey is killed."""
        self.resume()
        for process in reversed(self._running.values()):
            with suppress(ProcessLookupError):
                process.terminate()
        ends_s = time.monotonic() + STOP_LIMIT_S
        for process in self._running.values():
            try:
                process.wait(max(ends_s - time.monotonic(), STEP_S))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
        self._running.clear()

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


class Samples:
    """CPU time and memory of processes over wall-clock time.

    Args:
        pids: the processes, without their descendants: a JVM has hundreds of threads, and to look
            for descendants of each costs more than the rest of a sample.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._times_s: list[float] = []
        self._cpu_s: list[float] = []
        self.peak_resident_bytes = 0

    def take(self) -> None:
        """Add a sample."""
        self.add(time.time(), sum(map(cpu_seconds, self._pids)))
        resident = sum(map(resident_bytes, self._pids))
        self.peak_resident_bytes = max(self.peak_resident_bytes, resident)

    def add(self, at_s: float, cpu_s: float) -> None:
        """Add the CPU seconds that were used until a time."""
        self._times_s.append(at_s)
        self._cpu_s.append(cpu_s)

    def cpu_between(self, start_s: float, end_s: float) -> float:
        """Return the CPU seconds used in a window of wall-clock time."""
        return self._cpu_at(end_s) - self._cpu_at(start_s)

    def _cpu_at(self, at_s: float) -> float:
        right = bisect.bisect_left(self._times_s, at_s)
        if right == 0:
            return self._cpu_s[0]
        if right == len(self._times_s):
            return self._cpu_s[-1]
        before_s, after_s = self._times_s[right - 1], self._times_s[right]
        share = (at_s - before_s) / (after_s - before_s)
        return self._cpu_s[right - 1] + share * (self._cpu_s[right] - self._cpu_s[right - 1])


@contextmanager
def sampling(pids: Sequence[int]) -> Iterator[Samples]:
    """Sample processes while the block runs."""
    samples = Samples(pids)
    done = threading.Event()

    def loop() -> None:
        while not done.wait(SAMPLE_INTERVAL_S):
            samples.take()

    samples.take()
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()
        samples.take()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, user and system; 0 when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    # The command name may hold blanks; the fields are counted from its closing bracket.
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0


def run_tool(command: Sequence[str], limit_s: float) -> None:
    """Run a program that ends by itself.

    Raises:
        PeerError: it failed or took longer than the limit.
    """
    done = _ended(command, limit_s)
    if done.returncode != 0:
        raise _failure(done)


def run_load(command: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run a load generator that should take so long; return its report, also if nothing worked.

    Raises:
        PeerError: it took far too long or printed no report.
    """
    done = _ended(command, seconds + LOAD_GRACE_S)
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise _failure(done) from None
    assert isinstance(report, dict)
    return report


def _ended(command: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        name = Path(command[0]).name
        raise PeerError(f"{name} did not end in {limit_s:.0f} s") from None


def _failure(done: subprocess.CompletedProcess[str]) -> PeerError:
    said = (done.stderr or done.stdout).strip()[-LOG_TAIL_BYTES:]
    return PeerError(f"{Path(done.args[0]).name} ended with {done.returncode}: {said}")


def listens(port: int) -> bool:
    """Whether a server accepts connections at a port of this machine."""
    with socket.create_connection((HOST, port), timeout=1):
        return True
