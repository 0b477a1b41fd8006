"""Processes of a machine that the system refuses: they are tried again, and nothing hangs."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from strata_cli.machine import child_process, supervisor
from strata_cli.machine.child import Orders
from strata_cli.machine.child_process import ChildProcess
from strata_cli.machine.supervisor import MachineStartError, Supervisor
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.processes.data_folder import FolderRole
from strata_cli.processes.place import MachinePlace
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_testing import until

LIMIT_S = 30.0
REFUSED = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


class Starts:
    """Starts shells in place of the machine's processes; they end with their standard input.

    Attributes:
        started: shells, in the order of their starts.
        refused: starts that the system refused.
        refuses: how many further starts of a number it refuses.
        script: of each shell.
    """

    script = "echo '{}'; exec cat"

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self.refused = 0
        self.refuses: dict[int, int] = {}

    def __call__(self, orders: Orders) -> subprocess.Popen[bytes]:
        number = orders.place.number
        if self.refuses.get(number):
            self.refuses[number] -= 1
            self.refused += 1
            raise REFUSED
        process = subprocess.Popen(
            ["/bin/sh", "-c", self.script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.started.append(process)
        return process


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    made = Starts()
    monkeypatch.setattr(child_process, "_start", made)
    return made


def orders(number: int) -> Orders:
    place = MachinePlace("m", 2, number)
    return Orders(FolderRole.STORAGE, ClusterConfig(), Path("unused"), place)


class Machine:
    """A supervisor of two processes.

    Attributes:
        failures: reasons why the machine was told to end.
    """

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.supervisor = Supervisor(
            [orders(0), orders(1)],
            Runtime(SystemClock(), lambda: 0.0, Metrics.disabled(), self._on_fatal),
            max_pause_ms=250,
            is_stopping=lambda: bool(self.failures),
        )

    def _on_fatal(self, name: str, failure: BaseException) -> None:
        self.failures.append(failure)


@asynccontextmanager
async def running() -> AsyncIterator[Machine]:
    machine = Machine()
    async with asyncio.timeout(LIMIT_S):
        await machine.supervisor.start()
        try:
            yield machine
        finally:
            await machine.supervisor.stop(5.0)


async def test_a_process_that_cannot_be_started_fails_the_start(starts: Starts) -> None:
    """The start says which process and why, and ends the other process."""
    starts.refuses[1] = 1
    machine = Machine()
    with pytest.raises(MachineStartError, match=r"shard 1 did not start: .*temporarily unavail"):
        async with asyncio.timeout(LIMIT_S):
            await machine.supervisor.start()

    assert starts.refused == 1
    assert [process.returncode for process in starts.started] == [0]
    assert machine.failures == []


async def test_a_line_of_a_library_is_not_the_ready_line(starts: Starts) -> None:
    """A process of the machine is ready when it says so, whatever was written before."""
    starts.script = """printf 'warning: \\377\\n17\\n{"a":'; sleep 0.2; echo '1}'; exec cat"""
    async with running() as machine:
        assert [dict(told) for told in machine.supervisor.ready] == [{"a": 1}] * 2
        assert machine.failures == []


async def test_a_process_that_cannot_be_restarted_is_tried_again(starts: Starts) -> None:
    """A restart that the system refuses ends neither the tries nor the other process."""
    async with running() as machine:
        starts.refuses[0] = 2
        [first, second] = starts.started
        (first if machine_number(first, machine) == 0 else second).kill()
        await until(lambda: len(starts.started) == 3 and len(machine.supervisor.ready) == 2, 10.0)

        assert starts.refused == 2
        assert machine.failures == []
        assert sum(process.poll() is None for process in starts.started) == 2


def machine_number(process: subprocess.Popen[bytes], machine: Machine) -> int:
    """Return which process of a machine it is."""
    return next(
        child.number
        for child in machine.supervisor._children
        if child.process is not None and child.process.pid == process.pid
    )


async def test_a_process_that_cannot_be_watched_is_ended(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else knows it: it is killed, and no zombie stays."""

    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        async with asyncio.timeout(LIMIT_S):
            await ChildProcess(orders(0), lambda told: None).run()

    [process] = starts.started
    assert process.returncode == -9
    assert process.stdout is not None
    assert process.stdout.closed


async def test_a_stop_has_an_end(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stays though it was killed does not hold up the stop."""
    monkeypatch.setattr(supervisor, "_KILLED_S", 0.05)
    monkeypatch.setattr(ChildProcess, "end", lambda self: None)
    monkeypatch.setattr(ChildProcess, "kill", lambda self: None)
    machine = Machine()
    await machine.supervisor.start()
    async with asyncio.timeout(LIMIT_S):
        await machine.supervisor.stop(0.05)
    for process in starts.started:
        with process:
            process.kill()
