"""A standalone node as a process of its own: start, stop, kill, and call its CLI.

It knows the node only from outside: the `strata` command, one port and one data folder.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.client import SHORT_TIMES
from tests.e2e.leftovers import free_disk
from tests.parts.commands import strata
from tests.parts.ports import free_port

STRATA = Path(sys.executable).with_name("strata")
HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class StandaloneError(Exception):
    """The node did not start, stop or obey; the text ends with the tail of its log."""


class Standalone:
    """One `strata standalone` process over one data folder; it can be started again and again.

    Args:
        data_dir: the folder; it outlives the process.
        port: the port clients use; a free one is chosen, once, when none is given.
        short_times: leases and long polls may be shorter than the protocol says.
        options: further options of its command.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int | None = None,
        *,
        short_times: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        self._options = tuple(options)
        # For the commands that are run against it.
        self.keys: dict[str, str] = {}
        self._short_times = short_times
        self.data_dir = data_dir
        self.port = port if port is not None else free_port()
        self.endpoint = f"{HOST}:{self.port}"
        self.log_path = data_dir.parent / f"{data_dir.name}.log"
        self._process: subprocess.Popen[str] | None = None
        self._drain: threading.Thread | None = None

    def start(self, timeout_s: float = START_TIMEOUT_S) -> float:
        """Start the process and wait for its `ready` line; return the seconds it took."""
        assert self._process is None, "already started"
        started = time.monotonic()
        ready = threading.Event()
        place = ["--data-dir", str(self.data_dir), "--host", HOST, "--grpc-port", str(self.port)]
        with self.log_path.open("a") as log:
            process = subprocess.Popen(
                [str(STRATA), "standalone", *place, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | (SHORT_TIMES if self._short_times else {}),
            )
        self._process = process
        self._drain = threading.Thread(target=self._read_output, args=(process, ready), daemon=True)
        self._drain.start()
        while not ready.wait(0.01):
            if process.poll() is not None:
                raise StandaloneError(f"ended with {process.returncode}\n{self._log_tail()}")
            if time.monotonic() - started > timeout_s:
                self.kill()
                raise StandaloneError(f"not ready in {timeout_s} s\n{self._log_tail()}")
        return time.monotonic() - started

    def stop(self) -> int:
        """Ask the process to drain and end (SIGTERM); return its exit code."""
        process = self._running()
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise StandaloneError(f"did not drain in {STOP_TIMEOUT_S} s") from None
        self._forget()
        return process.returncode

    def kill(self) -> None:
        """End the process with SIGKILL and wait until it is gone."""
        process = self._running()
        process.send_signal(signal.SIGKILL)
        process.wait(STOP_TIMEOUT_S)
        self._forget()

    def close(self) -> None:
        """Kill the process if it runs; nobody starts it again."""
        if self._process is not None:
            self.kill()
        free_disk(self.data_dir)

    @property
    def alive(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def strata(self, *arguments: str) -> Any:
        """Run a CLI command against this node and return its JSON output.

        Raises:
            StandaloneError: the command failed; the text is what it said.
        """
        command = (*arguments, "--endpoint", self.endpoint, "-o", "json")
        done = strata(*command, environment=self.keys)
        if done.code != 0:
            said = (done.err or done.out).decode()
            raise StandaloneError(f"strata {' '.join(arguments)}: {said}")
        return json.loads(done.out) if done.out.strip() else None

    def create_topic(self, name: str, *options: str) -> str:
        """Create a topic with CLI options (`"--type", "FIFO"`); return its name."""
        self.strata("topic", "create", name, *options)
        return name

    def create_group(self, name: str, *options: str) -> str:
        """Create a consumer group with CLI options; return its name."""
        self.strata("group", "create", name, *options)
        return name

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._running().pid

    def _running(self) -> "subprocess.Popen[str]":
        assert self._process is not None, "not started"
        return self._process

    def _forget(self) -> None:
        assert self._drain is not None
        self._drain.join()
        self._process = self._drain = None

    def _read_output(self, process: "subprocess.Popen[str]", ready: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout as output, self.log_path.open("a") as log:
            for line in output:
                log.write(line)
                if line.startswith("ready"):
                    ready.set()

    def _log_tail(self) -> str:
        return self.log_path.read_text()[-2_000:]
