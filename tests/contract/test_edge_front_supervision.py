"""A front process that the system does not let start, and one that starts during a drain."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from strata_edge import front_process
from strata_edge.front_config import FrontConfig
from strata_edge.front_process import FrontError, FrontProcess
from strata_edge.metrics import METRICS
from strata_edge.options import EdgeOptions
from strata_runtime.health import Severity
from strata_runtime.metrics import Metrics
from strata_runtime.tls import self_signed
from strata_testing import until

Start = Callable[[FrontConfig], subprocess.Popen[bytes]]


def refuse(config: FrontConfig) -> subprocess.Popen[bytes]:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics()
    made.declare(METRICS)
    return made


@pytest.fixture
async def front(tmp_path: Path, metrics: Metrics) -> AsyncIterator[FrontProcess]:
    """Return a front that has the port and is not started."""
    options = EdgeOptions(port=0, front=True, certificate=self_signed(tmp_path / "tls"))
    (tmp_path / "sockets").mkdir()
    made = FrontProcess(options, tmp_path / "sockets" / "server", metrics)
    made.listen()
    yield made
    await made.stop()


async def killed(front: FrontProcess) -> None:
    """Kill the front that runs, and wait until that is known; the next one may be there by then."""
    pid = front.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not front._ready.is_set() or front.pid not in (None, pid))


async def test_a_front_that_cannot_be_restarted_is_tried_again(
    front: FrontProcess, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused start counts as another front that died, and the next one serves."""
    await front.start()
    original: Start = front_process._start_process
    original_pair = socket.socketpair
    refused: list[FrontConfig] = []
    pairs: list[tuple[socket.socket, socket.socket]] = []

    def refuse_once(config: FrontConfig) -> subprocess.Popen[bytes]:
        if refused:
            return original(config)
        refused.append(config)
        return refuse(config)

    def noted_pair() -> tuple[socket.socket, socket.socket]:
        pairs.append(original_pair())
        return pairs[-1]

    monkeypatch.setattr(socket, "socketpair", noted_pair)
    monkeypatch.setattr(front_process, "_start_process", refuse_once)
    await killed(front)
    await until(front._ready.is_set, 20.0)

    assert len(refused) == 1
    assert metrics.counter("strata_edge_front_restarts_total").value() == 2
    assert front.pid is not None
    # Nothing of the refused start is open.
    assert [end.fileno() for end in pairs[0]] == [-1, -1]


async def test_health_tells_that_the_front_is_down(
    front: FrontProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients cannot reach the broker, which does well itself."""
    await front.start()
    assert front.health().problems == ()
    with monkeypatch.context() as refusing:
        refusing.setattr(front_process, "_start_process", refuse)
        await killed(front)
        await until(lambda: "temporarily unavailable" in front.health().problems[0].detail)
        (problem,) = front.health().problems
        assert (problem.kind, problem.state, problem.severity) == (
            "front",
            "RESTARTING",
            Severity.DOWN,
        )
    await until(front._ready.is_set, 20.0)
    assert front.health().problems == ()
    front.drain()
    assert await front.drained(20.0)
    assert front.health().problems == ()


async def test_a_front_that_never_starts_says_why(
    front: FrontProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the start has the system's words."""
    monkeypatch.setattr(front_process, "_start_process", refuse)
    monkeypatch.setattr(front, "_options", replace(front._options, front_ready_timeout_s=0.3))
    with pytest.raises(FrontError, match=r"did not start: .*temporarily unavailable"):
        await front.start()


async def test_a_front_that_starts_during_a_drain_drains(
    front: FrontProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was nobody to tell when the drain began; the new front must not keep the port."""
    await front.start()
    original: Start = front_process._start_process
    started, may_return = threading.Event(), threading.Event()

    def start_slowly(config: FrontConfig) -> subprocess.Popen[bytes]:
        process = original(config)
        started.set()
        may_return.wait()
        return process

    monkeypatch.setattr(front_process, "_start_process", start_slowly)
    await killed(front)
    await asyncio.to_thread(started.wait)
    front.drain()
    may_return.set()

    assert await front.drained(20.0)
    assert front.pid is None
