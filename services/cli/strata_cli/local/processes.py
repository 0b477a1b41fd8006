"""One operating system process of a local cluster, found again by a file in its folder.

`DIR/NAME/process.json` holds the pid and the time when the kernel started the process. A pid alone
is not enough: it is reused, and a signal to a foreign process does harm. Invariant: a process is
signalled only if its start time is the recorded one. Linux: states come from /proc.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from strata_cli.local.plan import PlanError, replace_text

State = Literal["running", "paused", "stopped", "dead"]

_FILE = "process.json"
_LOG = "log"
_POLL_S = 0.02
# Characters of /proc/PID/stat: stopped by a signal or by a tracer; ended but not yet collected.
_PAUSED = "Tt"
_ENDED = "ZXx"


@dataclass(frozen=True, slots=True)
class Started:
    """A process as it was started.

    Attributes:
        pid: its id.
        start_ticks: when the kernel started it, in clock ticks since boot.
    """

    pid: int
    start_ticks: int


class Process:
    """The process of one member, running or not.

    Args:
        folder: of the member; made when the process is started.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / _LOG

    def start(self, arguments: list[str]) -> int:
        """Start `strata` in a session of its own; return where its part of the log begins.

        Standard output and error go to the log. The process outlives the caller.

        Raises:
            PlanError: the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                begin = log.tell()
                # No wait: the process should outlive this command.
                process = subprocess.Popen(  # noqa: S603 - our own program
                    [sys.executable, "-m", "strata_cli.main", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise PlanError(f"{self.folder}: {error.strerror}") from None
        stat = _stat(process.pid)
        started = Started(process.pid, stat[1] if stat is not None else 0)
        try:
            replace_text(self.folder / _FILE, json.dumps(asdict(started)) + "\n")
        except BaseException:
            # Nobody would find it again, and it holds ports and files.
            process.kill()
            process.wait()
            raise
        # Popen complains about children it did not see end; this one is not ours any more.
        process.returncode = 0
        return begin

    def state(self) -> tuple[State, int | None]:
        """Return the state of the process and, if it exists, its pid.

        "stopped": it was never started or was stopped; "dead": it ended otherwise.
        """
        started = self._started()
        if started is None:
            return "stopped", None
        stat = _stat(started.pid)
        if stat is None or stat[1] != started.start_ticks:
            return "dead", None
        if stat[0] in _ENDED and not _has_threads(started.pid):
            return "dead", None
        return ("paused" if stat[0] in _PAUSED else "running"), started.pid

    def signal(self, number: signal.Signals, *, children: bool = False) -> bool:
        """Send a signal to the process; return whether it was there.

        Args:
            number: the signal.
            children: its children get it too (a broker has one that relays TLS).
        """
        _, pid = self.state()
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            # It leads a session of its own, so its process group has its id.
            (os.killpg if children else os.kill)(pid, number)
            return True
        return False

    def wait_for(self, states: set[State], timeout_s: float) -> bool:
        """Wait until the process is in one of the states; return whether it is."""
        deadline_s = time.monotonic() + timeout_s
        while self.state()[0] not in states:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_POLL_S)
        return True

    def forget(self) -> None:
        """Note that the process was stopped; its state is "stopped" from now on."""
        (self.folder / _FILE).unlink(missing_ok=True)

    def _started(self) -> Started | None:
        file = self.folder / _FILE
        try:
            return Started(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PlanError(f"{file}: {error.strerror}") from None
        except (ValueError, TypeError) as error:
            raise PlanError(f"{file} is damaged: {error}") from None


def _has_threads(pid: int) -> bool:
    """Whether a process whose first thread ended has others: they keep its ports and files."""
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def _stat(pid: int) -> tuple[str, int] | None:
    """Return (state, start time in ticks) of a process; None: there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may contain blanks and brackets; fields are counted from its end.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])
