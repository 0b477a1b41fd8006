"""A process of a machine, as its supervisor sees it: one run, from start to end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from strata_cli.machine.child import Orders
from strata_runtime.blocking import run_to_end

_READ_BYTES = 64 * 1024
_MAX_LINE_BYTES = 1024 * 1024

Told = Mapping[str, Any]
"""Fields of the ready line; or `failed`: why it does not start."""


class ChildProcess:
    """See the module docstring.

    Args:
        orders: what it is told.
        on_told: called with what it tells, at most once.
    """

    def __init__(self, orders: Orders, on_told: Callable[[Told], None]) -> None:
        self._orders = orders
        self._on_told = on_told
        self._process: subprocess.Popen[bytes] | None = None
        self._written = b""
        self._has_told = False
        # Orders that it gets as soon as it is there.
        self._is_ending = False
        self._is_killed = False

    @property
    def pid(self) -> int:
        """Process id; 0: it is not started."""
        return self._process.pid if self._process is not None else 0

    async def run(self) -> str:
        """Start it; return how it ended once it has.

        Raises:
            OSError: it cannot be started, or not be watched; then it is ended.
        """
        process = self._process = await run_to_end(partial(_start, self._orders), undo=_give_up)
        if self._is_ending:
            self.end()
        if self._is_killed:
            self.kill()
        try:
            await self._watch(process)
        except asyncio.CancelledError:
            self.kill()
            raise
        except BaseException:
            # Nobody would end it later, nor learn how it ended.
            await run_to_end(partial(_give_up, process))
            raise
        return _ending(process.wait())

    def end(self) -> None:
        """Tell it to drain and end."""
        self._is_ending = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """End it at once."""
        self._is_killed = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    async def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Take what it tells until it has ended."""
        assert process.stdout is not None
        loop, output = asyncio.get_running_loop(), process.stdout.fileno()
        # No thread waits for it: a machine may have hundreds of processes.
        descriptor = os.pidfd_open(process.pid)
        try:
            os.set_blocking(output, False)
            ended = asyncio.Event()
            loop.add_reader(output, self._read, loop, output)
            loop.add_reader(descriptor, ended.set)
            await ended.wait()
            self._read(loop, output)
        finally:
            loop.remove_reader(descriptor)
            loop.remove_reader(output)
            os.close(descriptor)
            process.stdout.close()

    def _read(self, loop: asyncio.AbstractEventLoop, output: int) -> None:
        """Take what it has written; only its first line that is an object counts."""
        try:
            part = os.read(output, _READ_BYTES)
        except BlockingIOError:
            return
        if not part:
            loop.remove_reader(output)
        if self._has_told:
            return
        *lines, self._written = (self._written + part).split(b"\n")
        self._written = self._written[-_MAX_LINE_BYTES:]
        # Libraries may write lines of their own.
        told = next((each for each in map(_told_in, lines) if each is not None), None)
        if told is not None:
            self._has_told = True
            self._on_told(told)


def _told_in(line: bytes) -> Told | None:
    """Return what a line tells; None: nothing."""
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _start(orders: Orders) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "strata_cli.machine.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(orders.to_line())
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended: whoever waits for it learns how
    except BaseException:
        _give_up(process)
        raise
    return process


def _give_up(process: subprocess.Popen[bytes]) -> None:
    """End a process that nobody has."""
    with process:
        process.kill()


def _ending(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
