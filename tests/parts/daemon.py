"""A real server as a child process: started, stopped, killed, paused, restarted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.parts.required import absent

ROOT = Path(__file__).parents[2]
PARTS = ROOT / "build" / "parts"


def require(part: str, target: str) -> Path:
    """Return where a part is installed; skip, or fail when everything is required, without it."""
    folder = PARTS / part
    if (folder / ".installed").exists():
        return folder
    absent(f"{part} is missing: make {target}")


class Daemon:
    """One server process; its output goes to a file.

    Args:
        command: program and arguments.
        port: it is ready when this accepts connections on 127.0.0.1.
        log: file of its output.
        environment: beside this process's own.
        folder: where it runs.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.command = list(command)
        self.port = port
        self._log = log
        self._environment = dict(environment or {})
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout_s: float = 60) -> None:
        """Start it and wait until its port accepts."""
        self.launch()
        self.wait_until_ready(timeout_s)

    def launch(self) -> None:
        """Start it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=os.environ | self._environment,
                cwd=self._folder,
            )

    def wait_until_ready(self, timeout_s: float = 60) -> None:
        """Wait until its port accepts; end it when that does not happen."""
        deadline_s = time.monotonic() + timeout_s
        while not self._accepts():
            ended = self._process.poll() if self._process else 0
            if ended is not None or time.monotonic() > deadline_s:
                self.kill()
                tail = self._log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self.command[0]} is not ready (status {ended}):\n{tail}")
            time.sleep(0.05)

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """End it as an operator would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self) -> None:
        """Kill it and start it again on the same port and data."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stop it without ending it: connections stay open and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # The signal is on its way only; a quick server would answer once more.
        state = Path(f"/proc/{self._process.pid}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
