"""A container with members: they serve, fail, start again, come and go."""

from __future__ import annotations

import json
import socket
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_cli.local.plan import free_ports
from strata_testing import NotYet, until_blocking
from tests.integration.cli.container_process import (
    LIMIT_S,
    Failed,
    Running,
    member_file,
    strata,
)


class Scene:
    """A folder with a container's file, a nameserver that runs, and ports.

    Attributes:
        folder: of the files.
        container: the process; None: it does not run.
        admin: its port for operators.
        nameservers: their endpoints.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = free_ports()
        self._nameserver_port, self.metrics_port = self.port(), self.port()
        self.container: Running | None = None
        self.admin = ""
        self.nameservers = address = f"127.0.0.1:{self._nameserver_port}"
        self.nameserver = Running(
            *("nameserver", f"--data-dir={folder / 'ns'}", f"--nameservers={address}"),
            f"--port={self._nameserver_port}",
        )
        self.nameserver.ready("nameserver")

    def port(self) -> int:
        return next(self._ports)

    def write(self, *members: str, more: str = "") -> None:
        names = ", ".join(f'"{name}"' for name in members)
        (self.folder / "container.toml").write_text(
            f"# mine\n[container]\nmembers = [{names}]\nmax_start_wait_ms = 30000\n{more}\n"
            f'[cluster]\nnameservers = "127.0.0.1:{self._nameserver_port}"\nmachine = "m1"\n'
            f"[node]\nmetrics_port = {self.metrics_port}\nmax_restart_pause_ms = 1000\n",
            encoding="utf-8",
        )

    def start(self) -> Running:
        self.container = Running("container", f"--config={self.folder / 'container.toml'}")
        self.admin = self.container.ready("container")["admin"]
        return self.container

    def members(self) -> dict[str, dict[str, object]]:
        listed = strata(self.admin, "container", "list")["members"]
        return {member["member"]: member for member in listed}

    def stop(self) -> None:
        for process in (self.container, self.nameserver):
            if process is not None:
                process.stop()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.stop()


def send(endpoint: str, body: str) -> None:
    """Send a message, with patience for a cluster that is being made."""
    until_blocking(
        lambda: strata(endpoint, "message", "send", "t", "--body", body) is not None,
        LIMIT_S,
        forgiven=Failed,
    )


def create_topic(endpoint: str) -> None:
    """Make the topic as soon as there are raft groups, which a new cluster makes by itself."""
    until_blocking(
        lambda: strata(endpoint, "topic", "create", "t") is not None, LIMIT_S, forgiven=Failed
    )


def receive(endpoint: str, group: str, *wanted: str) -> None:
    """Receive the bodies that are wanted, in any order, and nothing else."""
    bodies: set[str] = set()

    def came() -> object:
        shown = strata(
            *(endpoint, "message", "receive", "t", "--group", group),
            *("--count", "32", "--ack", "--wait", "1s"),
        )
        bodies.update(message["body"] for message in shown["messages"])
        return bodies >= set(wanted) or NotYet(bodies)

    # Raft groups of members that have just started may have no leader yet.
    until_blocking(
        lambda: strata(endpoint, "group", "create", group) is not None, LIMIT_S, forgiven=Failed
    )
    until_blocking(came, LIMIT_S, forgiven=Failed)
    assert bodies == set(wanted)


@pytest.mark.timeout(240)
def test_members_serve_fail_alone_and_start_again(scene: Scene) -> None:
    """One member's port is taken: the others serve meanwhile, and it serves when it can."""
    storage, one, two = scene.port(), scene.port(), scene.port()
    files = [
        member_file(scene.folder, "s1", "storage", storage),
        member_file(
            *(scene.folder, "b1", "broker", one),
            '[cluster]\nnameservers = "10.0.0.1:1"\n',
        ),
        member_file(scene.folder, "b2", "broker", two),
    ]
    scene.write(*files)
    with socket.create_server(("127.0.0.1", two)):
        container = scene.start()
        fields = container.ready("container")
        assert (fields["members"], fields["serving"], fields["machine"]) == ("3", "2", "m1")
        assert container.ready("member", "DefaultCluster_b1_0")["grpc"] == f"127.0.0.1:{one}"
        waiting = scene.members()["DefaultCluster_b2_0"]
        assert waiting["state"] != "serving"
        assert f"127.0.0.1:{two}" in str(waiting["failure"])
        create_topic(f"127.0.0.1:{one}")
        send(f"127.0.0.1:{one}", "first")
    container.ready("member", "DefaultCluster_b2_0")
    send(f"127.0.0.1:{two}", "second")

    listed = scene.members()
    assert [each["state"] for each in listed.values()] == ["serving"] * 3
    assert int(str(listed["DefaultCluster_b2_0"]["restarts"])) > 0
    use = listed["DefaultCluster_s1_0"]
    assert 0 < int(str(use["used_bytes"])) < int(str(use["quota_bytes"]))

    page = urllib.request.urlopen(f"http://127.0.0.1:{scene.metrics_port}/metrics").read().decode()
    assert "strata_container_members{" in page
    assert page.count("strata_process_serving{") >= 1
    assert 'node_type="storage"' in page
    assert 'node_type="broker"' in page
    logs = {name: scene.folder / "logs" / name / "strata.log" for name in listed}
    ignored = logs["DefaultCluster_b1_0"].read_text().splitlines()
    assert any(
        (line := json.loads(each)).get("settings") == "cluster.nameservers"
        and line["member"] == "DefaultCluster_b1_0"
        for each in ignored
    )
    assert "starting it again" in logs["DefaultCluster_b2_0"].read_text()
    assert not any("starting it again" in line for line in container.errors)
    assert container.stop() == 0
    # Every folder is free again, and holds what it had.
    scene.start()
    receive(f"127.0.0.1:{two}", "g", "first", "second")


@pytest.mark.timeout(240)
def test_members_come_go_and_change_while_others_serve(scene: Scene) -> None:
    """add, remove, list, get-config, update-config; and the next start has what they made."""
    storage, one, two = scene.port(), scene.port(), scene.port()
    scene.write()
    container = scene.start()
    assert container.ready("container")["members"] == "0"
    member_file(scene.folder, "s1", "storage", storage)
    member_file(scene.folder, "b1", "broker", one)
    member_file(scene.folder, "b2", "broker", two)
    for name in ("s1", "b1", "b2"):
        added = strata(scene.admin, "container", "add", f"{name}.toml")
        assert (added["member"], added["state"]) == (f"DefaultCluster_{name}_0", "serving")
    create_topic(f"127.0.0.1:{one}")
    send(f"127.0.0.1:{two}", "before")

    with pytest.raises(Failed, match="the member DefaultCluster_b1_0 is there already"):
        strata(scene.admin, "container", "add", "b1.toml")
    with pytest.raises(Failed, match=r"nothing\.toml: No such file"):
        strata(scene.admin, "container", "add", "nothing.toml")
    taken = member_file(scene.folder, "b3", "broker", one)
    with pytest.raises(Failed, match=f"DefaultCluster_b3_0 does not start: .*127.0.0.1:{one}"):
        strata(scene.admin, "container", "add", taken)

    strata(scene.admin, "container", "remove", "DefaultCluster_b2_0")
    assert sorted(scene.members()) == ["DefaultCluster_b1_0", "DefaultCluster_s1_0"]
    with pytest.raises(Failed, match="there is no member 'DefaultCluster_b2_0'; there are: "):
        strata(scene.admin, "container", "remove", "DefaultCluster_b2_0")
    send(f"127.0.0.1:{one}", "after")

    name = "DefaultCluster_s1_0"
    changed = strata(
        scene.admin, "container", "update-config", "storage.max_waiters=55", f"--member={name}"
    )
    assert (changed["member"], changed["state"]) == (name, "serving")
    shown = strata(scene.admin, "container", "get-config", name)
    assert shown["storage"]["max_waiters"] == 55
    for change, reason in (
        ("storage.max_waiters=0", "greater than or equal to 1"),
        ("storage.nothing=1", "there is no such key"),
        ('member.name="other"', "is fixed"),
        ('cluster.nameservers="a:1"', "is the container's own"),
    ):
        with pytest.raises(Failed, match=reason):
            strata(scene.admin, "container", "update-config", change, f"--member={name}")
    assert tomllib.loads((scene.folder / "s1.toml").read_text())["storage"] == {"max_waiters": 55}
    assert strata(scene.admin, "container", "get-config")["container"]["members"] == []
    strata(scene.admin, "container", "update-config", "container.max_members=3")

    text = (scene.folder / "container.toml").read_text()
    assert text.startswith("# mine\n")
    assert tomllib.loads(text)["container"]["members"] == ["s1.toml", "b1.toml"]
    assert container.stop() == 0
    scene.start()
    until_blocking(
        lambda: (
            all(each["state"] == "serving" for each in scene.members().values())
            or NotYet(scene.members())
        ),
        LIMIT_S,
    )
    receive(f"127.0.0.1:{one}", "g", "after", "before")
    assert strata(scene.admin, "container", "get-config")["container"]["max_members"] == 3


@pytest.mark.timeout(120)
def test_a_hook_allows_each_start(scene: Scene) -> None:
    """A boot hook that fails keeps its member from starting; its words are the reason."""
    told = scene.folder / "told"
    script = f'echo "$STRATA_HOOK_MEMBER $STRATA_HOOK_ROLE" >> {told}; test -e {told}.ok || ' + (
        "{ echo not yet >&2; exit 3; }"
    )
    scene.write(
        member_file(scene.folder, "s1", "storage", scene.port()),
        more=f"boot_hook = {json.dumps(['sh', '-c', script])}\n",
    )
    container = scene.start()
    assert scene.members()["DefaultCluster_s1_0"]["failure"] == (
        "the boot hook ended with 3: not yet"
    )
    (scene.folder / "told.ok").touch()
    container.ready("member", "DefaultCluster_s1_0")
    assert told.read_text().splitlines()[0] == "DefaultCluster_s1_0 storage"


@pytest.mark.timeout(60)
def test_files_that_cannot_be_used_end_the_start(scene: Scene) -> None:
    """At the start an operator is there to read why; a member that cannot start is no reason."""
    scene.write("nothing.toml")
    process = Running("container", f"--config={scene.folder / 'container.toml'}")
    assert process.process.wait(LIMIT_S) == 1
    process.stop()
    assert process.errors[-1].endswith(f"{scene.folder}/nothing.toml: No such file or directory")


@pytest.mark.timeout(240)
def test_processes_move_into_a_container_and_back(scene: Scene) -> None:
    """The runbooks of docs/container.md: the folders stay, and so do node ids and messages."""
    storage, grpc = scene.port(), scene.port()
    endpoint = f"127.0.0.1:{grpc}"
    roles = {"storage": f"--port={storage}", "broker": f"--grpc-port={grpc}"}

    def as_processes() -> dict[str, Running]:
        return {
            role: Running(
                *(role, f"--data-dir={scene.folder / role}", port),
                f"--nameservers={scene.nameservers}",
            )
            for role, port in roles.items()
        }

    processes = as_processes()
    nodes = {
        role: each.ready(key)["node"]
        for (role, each), key in zip(processes.items(), ("storage", "grpc"), strict=True)
    }
    create_topic(endpoint)
    send(endpoint, "1 process")

    scene.write()
    scene.start()
    for role in roles:
        member_file(scene.folder, role, role, storage if role == "storage" else grpc)
        assert processes[role].stop() == 0
        strata(scene.admin, "container", "add", f"{role}.toml")
    listed = scene.members()
    assert {role: listed[f"DefaultCluster_{role}_0"]["node"] for role in roles} == nodes
    send(endpoint, "2 container")

    strata(scene.admin, "container", "remove", "DefaultCluster_broker_0")
    strata(scene.admin, "container", "remove", "DefaultCluster_storage_0")
    processes = as_processes()
    try:
        assert processes["broker"].ready("grpc")["node"] == nodes["broker"]
        send(endpoint, "3 process")
        receive(endpoint, "g", "1 process", "2 container", "3 process")
    finally:
        for process in processes.values():
            process.stop()
