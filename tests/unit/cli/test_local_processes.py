"""Processes of a local cluster: states from /proc, strangers left alone, logs read."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strata_cli.local import processes
from strata_cli.local.plan import PlanError
from strata_cli.local.processes import Process
from strata_cli.local.readiness import (
    NotReadyError,
    has_ready_line,
    log_tail,
    wait_until_ready,
)


def started(folder: Path, pid: int, start_ticks: int) -> Process:
    folder.mkdir(exist_ok=True)
    (folder / "process.json").write_text(json.dumps({"pid": pid, "start_ticks": start_ticks}))
    return Process(folder)


def own_start_ticks() -> int:
    stat = Path("/proc/self/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])


def test_states(tmp_path: Path) -> None:
    """Never started is stopped; there is running; gone is dead; forgotten is stopped again."""
    assert Process(tmp_path / "none").state() == ("stopped", None)
    process = started(tmp_path / "own", os.getpid(), own_start_ticks())
    assert process.state() == ("running", os.getpid())
    process = started(tmp_path / "own", 2**22 - 1, 1)
    assert process.state() == ("dead", None)
    process.forget()
    assert process.state() == ("stopped", None)


def test_a_reused_pid_is_never_signalled(tmp_path: Path) -> None:
    """A process with our pid but another start time is a stranger."""
    process = started(tmp_path, os.getpid(), own_start_ticks() - 1)
    assert process.state() == ("dead", None)
    assert not process.signal(signal.SIGTERM)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """The error says which file cannot be read."""
    (tmp_path / "process.json").write_text("{")
    with pytest.raises(PlanError, match=r"process.json is damaged"):
        Process(tmp_path).state()


def test_the_ready_line_of_this_start(tmp_path: Path) -> None:
    """A ready line of an earlier start does not count, nor does half a line."""
    process = Process(tmp_path)
    earlier = "ready grpc=127.0.0.1:1\nstopped\n"
    process.log.write_text(f"{earlier}not yet\nready grpc")
    assert has_ready_line(process, 0)
    assert not has_ready_line(process, len(earlier))
    process.log.write_text(f"{earlier}ready grpc=127.0.0.1:1\n")
    assert has_ready_line(process, len(earlier))


def test_a_process_that_ended_is_told_with_its_log(tmp_path: Path) -> None:
    """The error names the process and carries the last whole lines it wrote."""
    process = Process(tmp_path)
    process.log.write_text("x" * 5_000 + "\nstrata: storage cannot start: disk full\n")
    assert log_tail(process) == "strata: storage cannot start: disk full\n"
    with pytest.raises(NotReadyError, match="storage-1 ended while it started") as caught:
        wait_until_ready("storage-1", process, 0, 1.0)
    assert caught.value.log_tail.startswith("strata: storage cannot start")


_FIRST_THREAD_ENDS = """
import ctypes, sys, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("on", flush=True)
ctypes.CDLL(None).syscall(60, 0)  # exit: of this thread alone
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a system call by its number")
def test_a_process_is_there_until_its_last_thread_ended(tmp_path: Path) -> None:
    """One that is killed lets go of its ports with its last thread, which need not be the first."""
    with subprocess.Popen([sys.executable, "-c", _FIRST_THREAD_ENDS], stdout=subprocess.PIPE) as it:
        assert it.stdout is not None
        it.stdout.readline()
        stat = Path(f"/proc/{it.pid}/stat")
        while (fields := stat.read_text().rpartition(")")[2].split())[0] != "Z":
            time.sleep(0.01)
        process = started(tmp_path, it.pid, int(fields[19]))
        assert process.state() == ("running", it.pid)
        it.kill()
        it.wait()
        assert process.state() == ("dead", None)


def test_a_process_that_cannot_be_noted_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a full disk nobody would find it again: it must not keep ports and the data folder."""
    begun: list[subprocess.Popen[bytes]] = []

    def popen(*_: object, **options: Any) -> subprocess.Popen[bytes]:
        begun.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        return begun[0]

    def full(*_: object) -> None:
        raise PlanError("process.json: No space left on device")

    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(Popen=popen, DEVNULL=0))
    monkeypatch.setattr(processes, "replace_text", full)
    process = Process(tmp_path / "broker-1")
    with pytest.raises(PlanError, match="No space left"):
        process.start(["broker"])
    [child] = begun
    try:
        assert child.returncode == -signal.SIGKILL
        assert process.state() == ("stopped", None)
    finally:
        child.kill()
        child.communicate()
