"""Reads from a process's log whether it serves (its `ready` line), or why it does not."""

from __future__ import annotations

import time

from strata_cli.errors import CliError
from strata_cli.local.processes import Process

TAIL_BYTES = 4_000

_READY = b"ready "
_REASON = "strata: "
_POLL_S = 0.05


class NotReadyError(CliError):
    """A process ended or did not serve in time.

    Attributes:
        log_tail: the end of its log.
        says_why: whether the reason comes from the process itself.
    """

    def __init__(self, reason: str, log_tail: str, *, says_why: bool = False) -> None:
        super().__init__(reason)
        self.says_why = says_why
        self.log_tail = log_tail


def wait_until_ready(name: str, process: Process, begin: int, timeout_s: float) -> None:
    """Wait for a process's ready line.

    Args:
        name: of the member, for the error.
        process: just started.
        begin: where its part of the log begins.
        timeout_s: how long.

    Raises:
        NotReadyError: it ended, or its time is over.
    """
    deadline_s = time.monotonic() + timeout_s
    while not has_ready_line(process, begin):
        state, _ = process.state()
        if state in ("dead", "stopped") and not has_ready_line(process, begin):
            raise _ended(name, log_tail(process, begin))
        if time.monotonic() >= deadline_s:
            reason = f"{name} was not ready within {timeout_s:g} s"
            raise NotReadyError(reason, log_tail(process, begin))
        time.sleep(_POLL_S)


def _ended(name: str, tail: str) -> NotReadyError:
    """Return why a process ended: its own error line, else the end of its log."""
    last = tail.rstrip("\n").rpartition("\n")[2]
    if last.startswith(_REASON):
        why = last.removeprefix(_REASON)
        return NotReadyError(f"{name} ended while it started: {why}", tail, says_why=True)
    return NotReadyError(f"{name} ended while it started", tail)


def has_ready_line(process: Process, begin: int) -> bool:
    """Return whether the log has a whole ready line behind a position."""
    with process.log.open("rb") as log:
        log.seek(begin)
        written = log.read()
    whole, _, _ = written.rpartition(b"\n")
    return any(line.startswith(_READY) for line in whole.split(b"\n"))


def log_tail(process: Process, begin: int = 0) -> str:
    """Return the last lines of the log behind a position, whole ones if there are any."""
    with process.log.open("rb") as log:
        end = log.seek(0, 2)
        start = max(begin, end - TAIL_BYTES)
        log.seek(start)
        text = log.read().decode(errors="replace")
    if start > begin:
        text = text.partition("\n")[2] or text
    return text
