"""The console of a standalone node whose process cannot begin: it is tried again."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest

from strata_cli.processes import console_port
from strata_cli.processes.console_config import ConsoleSection
from strata_cli.processes.console_port import ConsolePort, ConsoleTarget
from strata_testing import until


class Starts:
    """Starts programs in place of the console.

    Attributes:
        processes: that were started.
        has_ended: whether a program has ended before it gets its orders.
    """

    PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.has_ended = False

    def Popen(self, *_: object, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["/bin/cat"], **options)
        self.processes.append(process)
        if self.has_ended:
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return process


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    made = Starts()
    monkeypatch.setattr(console_port, "subprocess", made)
    monkeypatch.setattr(console_port, "_PAUSE_S", 0.01)
    return made


@pytest.fixture
async def address(starts: Starts) -> AsyncIterator[tuple[str, int]]:
    """Where a browser connects, which makes the node start the console."""
    port = ConsolePort(ConsoleSection(), lambda: ConsoleTarget("127.0.0.1:1"))
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: failures.append(told))
    await port.start()
    host, _, number = str(port.shown()["console"]).rpartition(":")
    yield host, int(number)
    await port.stop(5.0)
    assert failures == []


async def test_a_console_that_ends_at_once_is_started_again(
    starts: Starts, address: tuple[str, int]
) -> None:
    """It did not read its orders; the connection still waits."""
    starts.has_ended = True
    with socket.create_connection(address, 5.0):
        await until(lambda: len(starts.processes) >= 3, 10.0)
        starts.has_ended = False
        await until(lambda: starts.processes[-1].poll() is None)
    assert all(process.returncode == -9 for process in starts.processes[:2])


async def test_a_console_that_cannot_be_watched_is_ended(
    starts: Starts, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without descriptors nobody would learn of its end: it is killed and tried again later."""

    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with socket.create_connection(address, 5.0):
        with monkeypatch.context() as patched:
            patched.setattr(os, "pidfd_open", refuse)
            await until(lambda: len(starts.processes) >= 2, 10.0)
        await until(lambda: starts.processes[-1].poll() is None)
    assert starts.processes[0].returncode == -9
