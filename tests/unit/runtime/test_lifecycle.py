"""Start and stop of a process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from strata_runtime.errors import FatalError, StrataError, one_line
from strata_runtime.lifecycle import Lifecycle
from strata_testing import until


class Part:
    def __init__(self, name: str, journal: list[str], *, fails: bool = False) -> None:
        self.name = name
        self._journal = journal
        self._fails = fails

    async def start(self) -> None:
        if self._fails:
            raise OSError("port taken")
        self._journal.append(f"+{self.name}")

    async def stop(self, grace_s: float) -> None:
        self._journal.append(f"-{self.name}")


async def test_reverse_order() -> None:
    """Services start in order and stop in reverse."""
    journal: list[str] = []
    lifecycle = Lifecycle([Part("a", journal), Part("b", journal)])
    lifecycle.request_stop()
    await lifecycle.run(handle_signals=False)
    assert journal == ["+a", "+b", "-b", "-a"]


async def test_failed_start_undoes_the_others() -> None:
    """When a service does not start, those before it are stopped and its error is raised."""
    journal: list[str] = []
    parts = [Part("a", journal), Part("b", journal, fails=True), Part("c", journal)]
    with pytest.raises(OSError, match="port taken"):
        await Lifecycle(parts).run(handle_signals=False)
    assert journal == ["+a", "-a"]


async def test_fatal_failure_ends_the_process() -> None:
    """A failed task stops everything; the first reason is the one that is raised."""
    journal: list[str] = []
    lifecycle = Lifecycle([Part("a", journal)])
    lifecycle.on_fatal("log.sync", OSError("EIO"))
    lifecycle.on_fatal("later", ValueError("second"))
    with pytest.raises(FatalError, match=r"log\.sync failed: OSError: EIO"):
        await lifecycle.run(handle_signals=False)
    assert journal == ["+a", "-a"]


@pytest.fixture
def inherited_signals() -> Iterator[None]:
    """Signals as a terminal leaves them, however this process was started; put back at the end."""
    before = {
        number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("inherited_signals")
@pytest.mark.parametrize(
    ("number", "is_ignored"),
    [
        (signal.SIGTERM, False),
        (signal.SIGINT, False),
        (signal.SIGINT, True),
        (signal.SIGHUP, False),
    ],
)
async def test_a_signal_stops_in_order(number: signal.Signals, *, is_ignored: bool) -> None:
    """Also the end of a terminal, and an interrupt that the starter of a process ignores."""
    if is_ignored:
        signal.signal(number, signal.SIG_IGN)
    journal: list[str] = []
    running = asyncio.ensure_future(Lifecycle([Part("a", journal)]).run())
    try:
        await until(lambda: journal == ["+a"])
        os.kill(os.getpid(), number)
        async with asyncio.timeout(30):
            await running
    finally:
        for handled in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(handled)
    assert journal == ["+a", "-a"]


@pytest.mark.usefixtures("inherited_signals")
async def test_a_hangup_that_is_ignored_stays_so() -> None:
    """`nohup` starts a process that ignores SIGHUP."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    journal: list[str] = []
    lifecycle = Lifecycle([Part("a", journal)])
    running = asyncio.ensure_future(lifecycle.run())
    try:
        await until(lambda: journal == ["+a"])
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        assert not lifecycle.is_stopping
        lifecycle.request_stop()
        await running
    finally:
        for handled in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(handled)


async def test_service_that_hangs_does_not_hold_the_others() -> None:
    """A stop beyond the grace is abandoned and the next service is stopped."""
    journal: list[str] = []

    class Hangs(Part):
        async def stop(self, grace_s: float) -> None:
            await asyncio.Event().wait()

    class FastClock:
        """Each look at the clock is an hour later: the grace is used up at once."""

        def __init__(self) -> None:
            self._now_s = 0.0

        def monotonic_s(self) -> float:
            self._now_s += 3_600
            return self._now_s

        def wall_ms(self) -> int:
            return 0

    lifecycle = Lifecycle([Part("a", journal), Hangs("b", journal)], clock=FastClock())
    lifecycle.request_stop()
    await lifecycle.run(handle_signals=False)
    assert journal == ["+a", "+b", "-a"]


def test_one_line() -> None:
    """Errors become one line; ours without their class."""
    assert one_line(StrataError("disk\n is  full")) == "disk is full"
    assert one_line(ValueError("x")) == "ValueError: x"
    assert one_line(TimeoutError()) == "TimeoutError"


class Stuck(Part):
    """It fails when it is stopped, as rows do that cannot be flushed on a full disk."""

    async def stop(self, grace_s: float) -> None:
        await super().stop(grace_s)
        raise OSError("no space left")


async def test_a_service_that_fails_to_stop_leaves_none_running() -> None:
    """Those before it are stopped as well; the reason is told, and in the log whose it is."""
    journal: list[str] = []
    with capture_logs() as logged:
        lifecycle = Lifecycle(
            [Part("lock", journal), Stuck("rows", journal), Part("port", journal)]
        )
        lifecycle.request_stop()
        with pytest.raises(FatalError, match="a service did not stop: OSError: no space left"):
            await lifecycle.run(handle_signals=False)
    assert [line["service"] for line in logged] == ["rows"]
    assert journal == ["+lock", "+rows", "+port", "-port", "-rows", "-lock"]


async def test_the_reason_of_a_stop_outlives_its_failure() -> None:
    """A task failed, then the stop failed for the same reason: the task's is the one told."""
    journal: list[str] = []
    lifecycle = Lifecycle([Part("lock", journal), Stuck("rows", journal)])
    lifecycle.on_fatal("writer", OSError("disk"))
    with pytest.raises(FatalError, match="writer failed: OSError: disk"):
        await lifecycle.run(handle_signals=False)
    assert journal[-2:] == ["-rows", "-lock"]


async def test_a_failed_start_tells_its_own_error() -> None:
    """Also where one of those before it fails to stop."""
    journal: list[str] = []
    lifecycle = Lifecycle(
        [Part("lock", journal), Stuck("rows", journal), Part("x", journal, fails=True)]
    )
    with pytest.raises(OSError, match="port taken"):
        await lifecycle.start()
    assert journal[-2:] == ["-rows", "-lock"]


async def test_a_cancelled_stop_goes_to_its_end() -> None:
    """A member that takes too long is cancelled: what it holds is let go of all the same."""
    journal: list[str] = []
    stops = asyncio.Event()

    class Slow(Part):
        async def stop(self, grace_s: float) -> None:
            stops.set()
            await asyncio.Event().wait()

    lifecycle = Lifecycle([Part("lock", journal), Slow("rows", journal)])
    lifecycle.request_stop()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lifecycle.run(handle_signals=False))
        await stops.wait()
        running.cancel()
    assert running.cancelled()
    assert journal == ["+lock", "+rows", "-lock"]


async def test_a_cancelled_run_stops_its_services() -> None:
    """Nobody asked for a stop: the task that runs the services was cancelled."""
    journal: list[str] = []
    lifecycle = Lifecycle([Part("lock", journal), Part("rows", journal)])
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lifecycle.run(handle_signals=False))
        await until(lambda: len(journal) == 2)
        running.cancel()
    assert journal == ["+lock", "+rows", "-rows", "-lock"]
