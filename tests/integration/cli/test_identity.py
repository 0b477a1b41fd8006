"""Rule 32 from outside: processes started in another cluster, or with the wrong folder."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata_cli.local.plan import free_ports
from tests.e2e.leftovers import free_disk
from tests.integration.cli.conftest import STRATA
from tests.limits import within

READY_TIMEOUT_S = 60.0
REFUSED_WITHIN_S = 10.0
OPTIONS = {
    "STRATA_NAMESERVER_REPLICATION_FACTOR": "1",
    "STRATA_NAMESERVER_INITIAL_STORAGE_NODES": "1",
    "STRATA_STORAGE_LOG_SEGMENT_BYTES": str(8 << 20),
    "STRATA_STORAGE_BALLAST_BYTES": "0",
}


class SmallCluster:
    """One process of each role, each with a folder and a port of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Not of those that outgoing connections get: a process comes back to its port.
        self.ports = dict(zip(("nameserver", "storage", "broker"), free_ports(), strict=False))
        self.nameservers = f"127.0.0.1:{self.ports['nameserver']}"
        self.endpoint = f"127.0.0.1:{self.ports['broker']}"
        self._running: dict[str, subprocess.Popen[str]] = {}

    def begin(
        self, role: str, nameservers: str = "", *, command: str = ""
    ) -> subprocess.Popen[str]:
        """Start a process; not waited for."""
        port = "--grpc-port" if role == "broker" else "--port"
        return subprocess.Popen(
            [
                *(*STRATA, command or role, "--data-dir", str(self.folder / role)),
                *(port, str(self.ports[role]), "--nameservers", nameservers or self.nameservers),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | OPTIONS,
        )

    def start(self, *roles: str) -> None:
        """Start processes, one after another; return when they serve."""
        for role in roles:
            process = self._running[role] = self.begin(role)
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith("ready"), process.communicate()[1]

    def stop(self, *roles: str) -> None:
        """Stop processes."""
        for role in roles or tuple(reversed(self._running)):
            process = self._running.pop(role)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)

    def strata(self, *arguments: str) -> str:
        """Run a command against the broker; it must succeed within some tries."""
        done = None
        ends_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < ends_s:
            done = subprocess.run(
                [*STRATA, *arguments, "--endpoint", self.endpoint],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            if done.returncode == 0:
                return done.stdout
            time.sleep(0.2)
        raise AssertionError(done)

    def contents(self, role: str) -> dict[str, str]:
        """Return a checksum of every file of a folder, by name."""
        root = self.folder / role
        return {
            str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(root.rglob("*"))
            if file.is_file()
        }


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SmallCluster, ...]]:
    """Two clusters; a message is in the first one."""
    made = tuple(SmallCluster(tmp_path_factory.mktemp(name)) for name in ("mine", "theirs"))
    mine = made[0]
    try:
        for cluster in made:
            cluster.start("nameserver", "storage", "broker")
        mine.strata("topic", "create", "precious")
        mine.strata("message", "send", "precious", "--body", "kept")
        yield made
    finally:
        for cluster in made:
            cluster.stop()
            free_disk(cluster.folder)


def refused(process: subprocess.Popen[str]) -> str:
    """Return the one line with which a start ended."""
    began_s = time.monotonic()
    out, err = process.communicate(timeout=60)
    within("refusal of a start", time.monotonic() - began_s, REFUSED_WITHIN_S)
    assert process.returncode not in (0, None) and process.returncode > 0
    assert (out, err.count("\n")) == ("", 1), err
    return err


def cluster_id(cluster: SmallCluster, role: str) -> Any:
    return json.loads((cluster.folder / role / "identity.json").read_text())["cluster_id"]


def test_folders_of_a_cluster_have_its_id(clusters: tuple[SmallCluster, ...]) -> None:
    """Nameserver, storage node and broker of one cluster agree, those of two do not."""
    ids = [
        {cluster_id(cluster, role) for role in ("nameserver", "storage", "broker")}
        for cluster in clusters
    ]
    assert [len(each) for each in ids] == [1, 1]
    assert ids[0] != ids[1]
    assert "" not in ids[0] | ids[1]


def test_processes_started_in_the_wrong_cluster(clusters: tuple[SmallCluster, ...]) -> None:
    """All at once, as a shared variable would do it: each is refused, and nothing is lost."""
    mine, theirs = clusters
    roles = ("broker", "storage", "nameserver")
    mine.stop(*roles)
    before = {role: mine.contents(role) for role in roles}
    wrong = {
        role: mine.begin(
            role,
            f"{mine.nameservers},{theirs.nameservers}"
            if role == "nameserver"
            else theirs.nameservers,
        )
        for role in roles
    }
    for role in roles:
        line = refused(wrong[role])
        assert f"belongs to cluster {cluster_id(mine, role)}, the nameserver at " in line
        assert f"{theirs.nameservers} is of cluster {cluster_id(theirs, role)}" in line
        assert line.startswith("strata: ") and str(mine.folder / role) in line
    assert {role: mine.contents(role) for role in roles} == before

    mine.start("nameserver", "storage", "broker")
    assert "kept" in mine.strata("message", "query", "precious")


@pytest.mark.parametrize(
    ("folder", "command"),
    [("storage", "nameserver"), ("nameserver", "storage"), ("storage", "broker")],
)
def test_a_folder_that_is_given_to_another_role(
    clusters: tuple[SmallCluster, ...], folder: str, command: str
) -> None:
    """It says whose it is; this needs no nameserver."""
    _, theirs = clusters
    theirs.stop(folder)
    before = theirs.contents(folder)
    process = subprocess.Popen(
        [*STRATA, command, "--data-dir", str(theirs.folder / folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | OPTIONS | {"STRATA_CLUSTER_NAMESERVERS": theirs.nameservers},
    )
    assert f"is that of a {folder} process: {command} needs its own" in refused(process)
    assert theirs.contents(folder) == before
    theirs.start(folder)


def test_a_folder_of_a_standalone_node_in_a_cluster(
    clusters: tuple[SmallCluster, ...], tmp_path: Path
) -> None:
    """Its only replicas of everything are in there."""
    mine, _ = clusters
    node = subprocess.Popen(
        [*STRATA, "standalone", "--data-dir", str(tmp_path / "data"), "--grpc-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert node.stdout is not None
    assert node.stdout.readline().startswith("ready")
    node.send_signal(signal.SIGTERM)
    node.communicate(timeout=60)
    for role in ("storage", "nameserver", "broker"):
        process = subprocess.Popen(
            [
                *(*STRATA, role, "--data-dir", str(tmp_path / "data")),
                *("--nameservers", mine.nameservers),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert f"is that of a standalone process: {role} needs its own" in refused(process)
    free_disk(tmp_path)
