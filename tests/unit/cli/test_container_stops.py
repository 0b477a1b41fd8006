"""Members of a container that are told to stop while something of them is under way."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from strata_angelia.cluster_id import ClusterId
from strata_cli.container import supervised
from strata_cli.container.boot_hook import BootHook, BootHookError
from strata_cli.container.config import MemberConfig
from strata_cli.container.files import MemberFile
from strata_cli.container.member_run import MemberWorld
from strata_cli.container.metrics import METRICS
from strata_cli.container.supervised import SupervisedMember, Supervision
from strata_cli.processes.shared_parts import SharedParts
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_testing import until


class SlowHook(BootHook):
    """A boot hook that ends when a test says so.

    Attributes:
        began: it runs.
        ends: lets it end.
        was_ended: somebody ended it before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.began = asyncio.Event()
        self.ends = asyncio.Event()
        self.was_ended = False

    async def run(self, file: MemberFile) -> None:
        self.began.set()
        try:
            await self.ends.wait()
        except asyncio.CancelledError:
            self.was_ended = True
            raise


class StubRun:
    """A run of a member that holds its folder until a test lets it go.

    Attributes:
        runs: all runs that began.
        releases: lets runs end.
        is_slow: a cancelled run takes its time, too.
        is_told_to_stop: somebody asked this one to stop.
        has_folder: this one holds its folder.
    """

    runs: list[StubRun]
    releases: asyncio.Event
    is_slow = False

    def __init__(self, file: MemberFile, world: MemberWorld, on_ready: Callable[..., None]) -> None:
        self.is_told_to_stop = self.has_folder = False

    async def run(self) -> None:
        StubRun.runs.append(self)
        self.has_folder = True
        while not StubRun.releases.is_set():
            try:
                await StubRun.releases.wait()
            except asyncio.CancelledError:
                if not StubRun.is_slow:
                    raise
        self.has_folder = False

    def request_stop(self) -> None:
        self.is_told_to_stop = True


class HurriedTasks(Tasks):
    """Tasks that wait for nothing that they cancelled."""

    async def stop(self, grace_s: float = 0.0) -> list[str]:
        return await super().stop(0.0)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[StubRun]:
    """Return the runs of members; no member does anything else."""
    monkeypatch.setattr(supervised, "MemberRun", StubRun)
    monkeypatch.setattr(StubRun, "runs", [], raising=False)
    monkeypatch.setattr(StubRun, "releases", asyncio.Event(), raising=False)
    return StubRun.runs


def member(hook: BootHook) -> SupervisedMember:
    metrics = Metrics.disabled()
    metrics.declare(METRICS)

    def on_fatal(name: str, failure: BaseException) -> None:
        raise AssertionError(name) from failure

    restarts_total = metrics.counter("strata_container_restarts_total")
    return SupervisedMember(
        MemberFile(Path("a.toml"), MemberConfig()),
        MemberWorld(SystemClock(), cast("SharedParts", None), ClusterId(), "m"),
        Supervision(lambda: 0.0, 1_000, restarts_total, on_fatal, hook),
    )


async def test_a_stop_ends_the_boot_hook_and_starts_nothing(runs: list[StubRun]) -> None:
    """A member that was told to stop while its hook runs is gone at once and never starts."""
    hook = SlowHook()
    stopped = member(hook)
    await stopped.start()
    await hook.began.wait()
    stop = asyncio.ensure_future(stopped.stop(1.0))
    # A hook that nobody ends goes on for longer than this.
    await until(stop.done, 5.0)

    assert hook.was_ended
    assert not runs


async def test_a_hook_that_ends_with_the_stop_starts_nothing(runs: list[StubRun]) -> None:
    """The hook allowed the start in the turn in which the member was told to stop."""
    hook = SlowHook()
    stopped = member(hook)
    await stopped.start()
    await hook.began.wait()
    asyncio.get_running_loop().call_soon(hook.ends.set)
    stop = asyncio.ensure_future(stopped.stop(1.0))
    await until(stop.done, 5.0)

    assert not hook.was_ended
    assert not runs


async def test_two_stops_during_a_boot_hook(runs: list[StubRun]) -> None:
    """An operator removes a member, and the container stops meanwhile."""
    hook = SlowHook()
    stopped = member(hook)
    await stopped.start()
    await hook.began.wait()
    await asyncio.gather(stopped.stop(1.0), stopped.stop(1.0))

    assert hook.was_ended
    assert not runs


async def test_a_stop_returns_when_the_folder_is_free(
    runs: list[StubRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was cancelled since it was late still holds its folder while it closes it."""
    monkeypatch.setattr(supervised, "_CLOSING_S", 0.0)
    monkeypatch.setattr(supervised, "Tasks", HurriedTasks)
    monkeypatch.setattr(StubRun, "is_slow", True)
    stopped = member(BootHook())
    await stopped.start()
    await until(lambda: runs)
    stop = asyncio.ensure_future(stopped.stop(0.0))
    await until(lambda: runs[0].is_told_to_stop)
    for _ in range(20):
        await asyncio.sleep(0)
    has_returned = stop.done()
    StubRun.releases.set()
    await stop

    assert not has_returned
    assert not runs[0].has_folder


def _is_there(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_hook_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    """A program of the hook that hangs, for instance a mount, holds up no start and no stop."""
    file, started = MemberFile(Path("a.toml"), MemberConfig()), tmp_path / "pid"
    script = f"(sleep 20; touch {tmp_path}/late) & echo $! >{started}; wait"
    with pytest.raises(BootHookError, match="did not end within"):
        await BootHook(["sh", "-c", script], 1.0).run(file)
    pid = int(started.read_text())
    await until(lambda: not _is_there(pid))
    assert not (tmp_path / "late").exists()


async def test_what_a_hook_leaves_running_is_no_failure(tmp_path: Path) -> None:
    """The hook has ended with 0; its error output may still be open."""
    file, started = MemberFile(Path("a.toml"), MemberConfig()), tmp_path / "pid"
    try:
        await BootHook(["sh", "-c", f"sleep 60 & echo $! >{started}"], 30.0).run(file)
        assert _is_there(int(started.read_text()))
    finally:
        os.kill(int(started.read_text()), signal.SIGKILL)


async def test_a_hook_is_told_with_the_end_of_what_it_said() -> None:
    """However much that was."""
    script = "yes no | head -c 1000000 >&2; echo no room >&2; exit 3"
    with pytest.raises(
        BootHookError, match=r"(?s)the boot hook ended with 3: .*no room$"
    ) as failed:
        await BootHook(["sh", "-c", script], 30.0).run(MemberFile(Path("a.toml"), MemberConfig()))
    assert len(str(failed.value)) < 600
