"""Changes of a running container: one that is under way when the container stops, and failures."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from strata.admin.v1 import container_pb2
from strata_angelia.cluster_id import ClusterId
from strata_angelia.ports import Channel
from strata_cli.container import broker_container, control
from strata_cli.container.broker_container import BrokerContainer
from strata_cli.container.control import ContainerControl
from strata_cli.container.files import MemberFile, read_container
from strata_cli.container.port import ContainerPort
from strata_edge.ports import CallError
from strata_runtime.clock import SystemClock
from strata_runtime.errors import ConfigError
from strata_runtime.files import replace_file
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_testing import until

MEMBER = '[member]\nname = "{0}"\ndata_dir = "{0}"\n'


class StubMember:
    """A member that serves at once and may take its time to stop.

    Attributes:
        started: names of all members that were started, in order.
        stopping: names of members that were told to stop.
        gone: names of members that have stopped.
        fails: names of members that fail at their next start.
        may_go: members stop while it is set.
    """

    started: list[str]
    stopping: list[str]
    gone: list[str]
    fails: set[str]
    may_go: asyncio.Event

    def __init__(self, file: MemberFile, *_: object, take_line: object = None) -> None:
        self.file, self.name = file, file.name
        self.state, self.failure, self.restarts, self.added_ms = "serving", "", 0, 0
        self.shown: dict[str, object] = {"data": "x"}

    async def start(self) -> None:
        if self.name in self.fails:
            self.fails.remove(self.name)
            raise OSError("no room")
        self.started.append(self.name)

    async def attempted(self) -> bool:
        return True

    async def stop(self, grace_s: float) -> None:
        self.stopping.append(self.name)
        await self.may_go.wait()
        self.gone.append(self.name)

    def disk_bytes(self) -> tuple[int, int]:
        return 0, 0


@pytest.fixture(autouse=True)
def members(monkeypatch: pytest.MonkeyPatch) -> type[StubMember]:
    """Return the stub that all members are."""
    monkeypatch.setattr(broker_container, "SupervisedMember", StubMember)
    for name in ("started", "stopping", "gone"):
        monkeypatch.setattr(StubMember, name, [], raising=False)
    monkeypatch.setattr(StubMember, "fails", set(), raising=False)
    monkeypatch.setattr(StubMember, "may_go", asyncio.Event(), raising=False)
    StubMember.may_go.set()
    return StubMember


class Scene:
    """A container with the member a, and a file of a member b that it does not have.

    Attributes:
        path: of the container's file.
        member_path: of the file of a.
    """

    def __init__(self, folder: Path, *, files: str = '"a.toml"', more: str = "") -> None:
        self.path, self.member_path = folder / "c.toml", folder / "a.toml"
        self.path.write_text(
            f"[container]\nmembers = [{files}]\n{more}\n[node]\nadmin_port = 0\n[cluster]\n"
            'nameservers = "127.0.0.1:1"\n',
            encoding="utf-8",
        )
        for name in ("a", "b"):
            (folder / f"{name}.toml").write_text(MEMBER.format(name), encoding="utf-8")
        config, _ = read_container(self.path, {})
        metrics = Metrics.disabled()
        runtime = Runtime(SystemClock(), random.random, metrics, _on_fatal)
        self.container = BrokerContainer(self.path, config, ClusterId(), runtime=runtime)
        self.control = ContainerControl(self.container, self.path, metrics)
        self.port = ContainerPort(
            config,
            self.control,
            folder / "tls",
            open_channel=_no_channel,
            cluster=ClusterId(),
            runtime=runtime,
        )

    @property
    def files(self) -> tuple[str, str]:
        """The container's file and that of a."""
        return self.path.read_text(encoding="utf-8"), self.member_path.read_text(encoding="utf-8")

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.container.members]


def _on_fatal(name: str, failure: BaseException) -> None:
    raise AssertionError(name) from failure


def _no_channel(endpoint: str) -> Channel:
    raise AssertionError(endpoint)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a change that is under way no time when the container stops."""
    monkeypatch.setattr("strata_cli.container.port._CHANGE_GRACE_S", 0.05)


A, B = "DefaultCluster_a_0", "DefaultCluster_b_0"


async def two_changes(
    scene: Scene,
) -> tuple[
    asyncio.Task[container_pb2.ContainerMember | None],
    asyncio.Task[container_pb2.ContainerMember],
]:
    """Begin an update, which stops its member as long as that takes; an add waits for its turn."""
    StubMember.may_go.clear()
    update = asyncio.ensure_future(scene.control.update(A, {"storage.max_waiters": "5"}))
    await until(lambda: StubMember.stopping == [A])
    add = asyncio.ensure_future(scene.control.add("b.toml"))
    await asyncio.sleep(0)
    return update, add


async def test_no_change_goes_on_after_the_stop(tmp_path: Path, hurried: None) -> None:
    """Neither the change under way nor the one that waits starts a member or leaves a trace."""
    scene = Scene(tmp_path)
    await scene.container.start()
    before = scene.files
    update, add = await two_changes(scene)
    await scene.port.stop(5.0)
    stop = asyncio.ensure_future(scene.container.stop(5.0))
    await until(lambda: StubMember.stopping == [A, A])
    # The container waits for the member that the change was stopping.
    assert not stop.done()
    StubMember.may_go.set()
    await stop
    await asyncio.gather(update, add, return_exceptions=True)

    assert scene.files == before
    assert StubMember.started == [A]
    assert A in StubMember.gone


async def test_a_path_that_the_file_cannot_hold_adds_no_member(tmp_path: Path) -> None:
    """Members of a file of properties are separated by colons: the next start would fail."""
    path = tmp_path / "c.properties"
    before = "brokerConfigPaths=a.toml\nnamesrvAddr=127.0.0.1:1\nnode.admin_port=0\n"
    path.write_text(before, encoding="utf-8")
    for name, file in (("a", "a.toml"), ("b", "b:2.toml")):
        (tmp_path / file).write_text(MEMBER.format(name), encoding="utf-8")
    config, _ = read_container(path, {})
    metrics = Metrics.disabled()
    runtime = Runtime(SystemClock(), random.random, metrics, _on_fatal)
    container = BrokerContainer(path, config, ClusterId(), runtime=runtime)
    await container.start()
    with pytest.raises(CallError, match=r"b:2\.toml: brokerConfigPaths cannot hold"):
        await ContainerControl(container, path, metrics).add("b:2.toml")
    assert [member.name for member in container.members] == [A]
    assert path.read_text(encoding="utf-8") == before
    await container.stop(1.0)


async def test_a_change_that_waits_is_refused_once_the_container_stops(tmp_path: Path) -> None:
    """A change under way that ends in time is carried out; the next one is told why it is not."""
    scene = Scene(tmp_path)
    await scene.container.start()
    update, add = await two_changes(scene)
    stop = asyncio.ensure_future(scene.control.stop(30.0))
    await asyncio.sleep(0)
    StubMember.may_go.set()
    await stop

    changed = await update
    assert changed is not None
    assert changed.name == A
    assert "max_waiters = 5" in scene.files[1]
    with pytest.raises(CallError, match="the container stops"):
        await add
    assert StubMember.started == [A, A]
    await scene.container.stop(1.0)


async def test_a_stop_waits_for_a_member_that_is_being_removed(
    tmp_path: Path, hurried: None
) -> None:
    """The member drains to its end, and stays out of the container's file."""
    scene = Scene(tmp_path)
    await scene.container.start()
    StubMember.may_go.clear()
    remove = asyncio.ensure_future(scene.control.remove(A))
    await until(lambda: StubMember.stopping == [A])
    await scene.control.stop(0.05)
    stop = asyncio.ensure_future(scene.container.stop(5.0))
    await until(lambda: StubMember.stopping == [A, A])
    assert not stop.done()
    StubMember.may_go.set()
    await stop
    await asyncio.gather(remove, return_exceptions=True)

    assert StubMember.gone == [A]
    assert "members = []" in scene.files[0]


async def test_a_member_comes_back_though_its_file_cannot_be_written_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full costs the change, and not the member."""
    scene = Scene(tmp_path)
    await scene.container.start()
    written: list[bytes] = []

    def write(path: Path, content: bytes) -> None:
        if written:
            raise OSError(28, "No space left on device")
        written.append(content)
        replace_file(path, content)

    monkeypatch.setattr(control, "replace_file", write)
    StubMember.fails.add(A)
    with pytest.raises(CallError, match="still has the change: No space left") as refused:
        await scene.control.update(A, {"storage.max_waiters": "5"})

    assert refused.value.status == "FAILED_PRECONDITION"
    assert scene.names == [A]
    assert StubMember.started == [A, A]
    await scene.container.stop(1.0)


async def test_a_member_comes_back_whatever_its_change_failed_of(tmp_path: Path) -> None:
    """A failure that nobody foresaw gives the old file and the member back, too."""
    scene = Scene(tmp_path)
    await scene.container.start()
    before = scene.files
    StubMember.fails.add(A)
    with pytest.raises(OSError, match="no room"):
        await scene.control.update(A, {"storage.max_waiters": "5"})

    assert scene.files == before
    assert scene.names == [A]
    await scene.container.stop(1.0)


async def test_more_members_than_a_container_may_have(tmp_path: Path) -> None:
    """One line says it, and no member is started."""
    scene = Scene(tmp_path, files='"a.toml", "b.toml"', more="max_members = 1")
    with pytest.raises(ConfigError, match=r"c\.toml: container\.members has 2 files; .* 1 members"):
        await scene.container.start()

    assert StubMember.started == []
    assert scene.names == []


async def test_a_start_that_fails_leaves_no_member(tmp_path: Path) -> None:
    """The second member cannot be held: the first one is stopped."""
    scene = Scene(tmp_path, files='"a.toml", "b.toml"')
    StubMember.fails.add(B)
    with pytest.raises(OSError, match="no room"):
        await scene.container.start()

    assert StubMember.started == StubMember.gone == [A]
    assert scene.names == []
