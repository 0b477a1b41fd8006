"""Servers as child processes, each with a log file; stopped by their ids."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class PartError(Exception):
    """A part did not start, or ended."""


class Part:
    """One process in a session of its own.

    Args:
        name: of its log file.
        command: program and arguments.
        folder: of its log.
        environment: beside this process's own.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    def check(self) -> None:
        """Raise if it has ended."""
        if self.process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-2_000:]
            raise PartError(f"{self.name} ended with {self.process.returncode}:\n{tail}")

    def kill(self) -> None:
        """End it at once, with all processes of its session's group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def wait_for(done: Callable[[], bool], what: str, limit_s: float = 120.0) -> float:
    """Wait until something holds; return the seconds that it took.

    Raises:
        PartError: it did not in time.
    """
    begun_s = time.monotonic()
    while not done():
        if time.monotonic() - begun_s > limit_s:
            raise PartError(f"{what}: not within {limit_s:.0f} s")
        time.sleep(0.2)
    return time.monotonic() - begun_s


def run(*command: str, text: str | None = None, check: bool = True) -> str:
    """Return the output of a command.

    Raises:
        PartError: it failed; the message has its output.
    """
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise PartError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
